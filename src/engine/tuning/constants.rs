//! Every calibrated number. A line ends with machine, date and the record it came from.

/// The host device: ranks on the CPUs of one machine.
pub mod host {
    /// Largest input that one-shot may carry, bytes: the payload room of the control pages.
    pub const ONESHOT_MAX: u64 = 64 << 10;

    /// Time of one-shot and two-shot beside the bytes they move, µs: (ranks ≤ CPUs, each further rank per CPU).
    pub const ONESHOT_LATENCY: (f64, f64) = (0.25, 2.5); // 2-core EPYC VM, 2026-11-30
    /// As above; two-shot completes one step later.
    pub const TWOSHOT_LATENCY: (f64, f64) = (0.6, 2.6); // 2-core EPYC VM, 2026-11-30

    /// Bytes per µs (10^9 bytes/s) that one CPU loads or stores in cache.
    pub const CACHE_GB_PER_S: f64 = 12.0; // 2-core EPYC VM, 2026-11-30
    /// The same from memory, all CPUs together.
    pub const MEMORY_GB_PER_S: f64 = 9.0; // 2-core EPYC VM, 2026-11-30

    /// Bytes of one chunk of two-shot work: least, most, and chunks a CPU should get.
    pub const TWOSHOT_CHUNK: (u64, u64, u64) = (16 << 10, 256 << 10, 4); // 2-core EPYC VM, 2026-11-30

    /// Sum of inputs and results from which two-shot stores past the caches, as a multiple of the last-level cache.
    pub const NON_TEMPORAL_FACTOR: f64 = 0.75; // 2-core EPYC VM, 2026-11-30

    /// µs per FIFO step of a protocol (LL, LL128, Simple): (ranks ≤ CPUs, each further rank per CPU).
    pub const FIFO_LATENCY: [(f64, f64); 3] = [(0.4, 4.0), (0.5, 4.0), (0.8, 4.0)]; // 2-core EPYC VM, 2026-11-30
    /// GB/s through one FIFO of a protocol.
    pub const FIFO_GB_PER_S: [f64; 3] = [1.5, 3.0, 4.0]; // 2-core EPYC VM, 2026-11-30
}
