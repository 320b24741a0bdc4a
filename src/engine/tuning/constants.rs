//! Every calibrated number. A line ends with machine, date and the record it came from; the numbers of [`nccl`] share one origin.

/// The host device: ranks on the CPUs of one machine.
pub mod host {
    /// Largest input that one-shot may carry, bytes: the payload room of the control pages.
    pub const ONESHOT_MAX: u64 = 64 << 10;

    /// Time of one-shot in rooms beside the bytes it moves, µs: (ranks ≤ CPUs, each further rank per CPU and CPU).
    pub const ONESHOT_LATENCY: (f64, f64) = (0.22, 0.67); // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile
    /// As above, for one-shot that reads inputs where they lie.
    pub const DIRECT_LATENCY: (f64, f64) = (0.25, 0.85); // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile
    /// As above, for two-shot.
    pub const TWOSHOT_LATENCY: (f64, f64) = (0.46, 2.04); // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile

    /// Bytes per ns (10^9 bytes/s) that one CPU loads or stores in cache: one-shot in rooms, direct one-shot, two-shot.
    pub const CACHE_GB_PER_S: [f64; 3] = [19.5, 19.6, 13.4]; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile
    /// The same past the caches, all CPUs together.
    pub const MEMORY_GB_PER_S: f64 = 44.8; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile

    /// Bytes of one chunk of two-shot work: least, most, and chunks a CPU should get. Chosen by hand; the record found no setting that differs
    /// by more than noise.
    pub const TWOSHOT_CHUNK: (u64, u64, u64) = (16 << 10, 256 << 10, 4); // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile

    /// Sum of inputs and results from which two-shot stores past the caches, as a multiple of the last-level cache. Two
    /// launches a setting, of a call whose results nobody reads: weak.
    pub const NON_TEMPORAL_FACTOR: f64 = 0.25; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile

    /// µs per FIFO step of a protocol (LL, LL128, Simple): (ranks ≤ CPUs, each further rank per CPU). Fitted before FIFO cost was added to the
    /// cost of the moves, from rows with fewer iterations than those of one-shot and two-shot: weak, see the record.
    pub const FIFO_LATENCY: [(f64, f64); 3] = [(0.29, 1.75), (0.56, 1.7), (0.3, 2.1)]; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile
    /// Bytes of a connection's buffer by protocol (LL, LL128, Simple). NCCL's 4.7 and 4 MiB for the latter two fall out of the second-level
    /// cache: see the record.
    pub const FIFO_BUFFER_BYTES: [usize; 3] = [512 << 10, 1 << 20, 1 << 20]; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-fifo

    /// GB/s through one FIFO of a protocol; as weak as the step times, Simple's checked against two later sizes.
    pub const FIFO_GB_PER_S: [f64; 3] = [3.6, 5.2, 8.0]; // 2-core EPYC VM, 2026-11-30, results/2026-11-30-zen4-2core-host-profile
}

pub mod nccl {
    //! CUDA devices: numbers as NCCL release 2.30.7 ships them (its `src/graph/tuning.cc`, measured by NVIDIA on
    //! DGX-class machines). Latency is in µs, bandwidth in 10^9 bytes/s. Tables are indexed by algorithm and protocol in the order of
    //! [`crate::engine::types`], by GPU generation, and by the number of hosts (1, 2, more).
    //!
    //! They are `f64` where the arithmetic of the model starts in double precision: results must agree bit by bit.

    /// Algorithms of the model: all but the symmetric-memory kernels.
    pub const N_ALGORITHMS: usize = 7;
    /// Protocols.
    pub const N_PROTOCOLS: usize = 3;
    /// Collectives.
    pub const N_COLLECTIVES: usize = 5;

    /// A number per algorithm and protocol.
    pub type PerKernel<T> = [[T; N_PROTOCOLS]; N_ALGORITHMS];

    /// Which wires a step crosses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Wire {
        /// NVLink.
        Nvlink,
        /// PCI, or through a CPU.
        Pci,
        /// The network.
        Net,
    }

    /// GPU generation by least compute capability.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Generation {
        /// Below 8.0.
        Volta,
        /// 8.x.
        Ampere,
        /// 9.x.
        Hopper,
        /// 10.0 and up.
        Blackwell,
    }

    impl Generation {
        /// The generation of a compute capability (ten times the version).
        pub fn of(compute_cap: i32) -> Self {
            match compute_cap {
                ..80 => Self::Volta,
                80..90 => Self::Ampere,
                90..100 => Self::Hopper,
                _ => Self::Blackwell,
            }
        }
    }

    /// Latency of starting, µs.
    pub const BASE_LATENCY_US: PerKernel<f64> = [
        [6.8, 14.0, 8.4],
        [6.6, 14.0, 8.4],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [8.0, 8.0, 8.0],
    ];

    /// Latency of one step over each wire, µs.
    pub const STEP_LATENCY_US: [PerKernel<f64>; 3] = [
        [
            [0.6, 1.25, 4.0],
            [0.6, 1.9, 3.4],
            [0.0, 0.0, 3.7],
            [0.0, 0.0, 2.8],
            [0.0, 0.0, 25.0],
            [0.0, 0.0, 25.0],
            [0.0, 0.0, 4.0],
        ],
        [
            [1.0, 1.9, 4.0],
            [1.0, 2.5, 5.7],
            [0.0, 0.0, 3.7],
            [0.0, 0.0, 2.8],
            [0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0],
            [0.0, 0.0, 4.0],
        ],
        [
            [5.0, 8.5, 14.0],
            [2.7, 4.0, 14.0],
            [0.0, 0.0, 31.0],
            [0.0, 0.0, 30.0],
            [0.0, 0.0, 18.0],
            [0.0, 0.0, 20.9],
            [0.0, 0.0, 14.0],
        ],
    ];

    /// A number per generation and per hosts (1, 2, more).
    pub type PerScale = [[f64; 3]; 4];

    /// Most LL can move. With several hosts the first row is for Intel and other CPUs, the second for AMD and mixed ones.
    pub const LL_MAX_BW: PerScale =
        [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];
    /// Most a channel of the LL128 ring can move.
    pub const RING_LL128_CHANNEL_BW: PerScale =
        [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 36.7], [40.0, 40.0, 40.0]];
    /// Most a channel of the LL128 tree can move.
    pub const TREE_LL128_CHANNEL_BW: PerScale =
        [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];
    /// Most a channel of the tree can move.
    pub const TREE_CHANNEL_BW: PerScale =
        [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];
    /// Most a channel of the in-switch tree can move.
    pub const NVLS_TREE_CHANNEL_BW: PerScale =
        [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];
    /// Share of the links that in-switch reduction reaches, by generation.
    pub const NVLS_EFFICIENCY: [f32; 4] = [0.0, 0.0, 0.85, 0.74];

    /// Share of the modelled bandwidth that the tree reaches, by protocol and by the power of two of 64-byte units.
    pub const TREE_CORRECTION: [[f32; 24]; N_PROTOCOLS] = [
        [
            1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
            1.0, 1.0, 1.0, 1.0, 1.0,
        ],
        [
            1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9,
            0.9, 0.9, 1.0, 1.0, 1.0,
        ],
        [
            0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7,
            0.7, 0.8, 0.9, 0.9, 0.9,
        ],
    ];

    /// A PCI link of the third generation with 16 lanes, GB/s: rings no faster than this get half the threads.
    pub const PCI_BW: f32 = 12.0;
    /// Threads of a warp.
    pub const WARP: i32 = 32;
    /// Most threads of a thread block.
    pub const MAX_THREADS: i32 = 640;
    /// Most threads of a block for Simple.
    pub const SIMPLE_MAX_THREADS: i32 = 512;
    /// Most threads of a block for LL.
    pub const LL_MAX_THREADS: i32 = 512;
    /// Most threads of a block for LL128.
    pub const LL128_MAX_THREADS: i32 = 640;
    /// Bytes a thread should have, by protocol, before channels and threads are given up.
    pub const THREAD_THRESHOLD_BYTES: [i64; N_PROTOCOLS] = [8, 8, 64];
    /// The same for in-network reduction.
    pub const COLLNET_THREAD_THRESHOLD_BYTES: i64 = 512;
    /// Collectives launched together that pay the tree's latency once.
    pub const COLLECTIVES_PER_BATCH: i32 = 8;
    /// Most ranks of a host that in-switch data movement serves.
    pub const NVLS_MAX_LOCAL_RANKS: usize = 32;
}
