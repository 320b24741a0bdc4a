//! How many bytes one step moves.
//!
//! A chunk fills the slots it may occupy: all of a slot with LL128 and LL (less what flags take), four slots for a ring with Simple,
//! one for a tree with Simple. Then a tree with LL128 halves it until its depth is filled several times over, and every chunk is rounded
//! down to the protocol's grain.

use crate::engine::tuning::constants::host;
use crate::engine::types::{Algorithm, Protocol};

/// Slots of a FIFO.
pub const SLOTS: usize = 8;

/// Settings that must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    buffer_bytes: [usize; 3],
}

impl Default for Params {
    /// Buffers of the host device.
    fn default() -> Self {
        Self { buffer_bytes: host::FIFO_BUFFER_BYTES }
    }
}

impl Params {
    /// NCCL's buffers: 8 lines for each of 512 threads (LL), 120 words for each of 640 threads (LL128), 4 MiB (Simple).
    pub fn nccl() -> Self {
        Self { buffer_bytes: [512 * 8 * 16 * SLOTS, 640 * 120 * 8 * SLOTS, 4 << 20] }
    }

    /// The same with other buffer sizes where one is given (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE), each rounded down to
    /// whole lines in every slot.
    #[must_use]
    pub fn with_buffers(self, bytes: [Option<usize>; 3]) -> Self {
        let mut buffer_bytes = self.buffer_bytes;
        for (slot, bytes) in buffer_bytes.iter_mut().zip(bytes) {
            // 4 KiB holds a grain of every protocol.
            *slot = bytes.map_or(*slot, |bytes| (bytes / SLOTS / 4096).max(1) * 4096 * SLOTS);
        }
        Self { buffer_bytes }
    }

    /// Bytes of a protocol's buffer, as on the wire.
    pub fn buffer_bytes(&self, protocol: Protocol) -> usize {
        self.buffer_bytes[protocol as usize]
    }

    /// Bytes of one slot, as on the wire.
    pub fn slot_bytes(&self, protocol: Protocol) -> usize {
        self.buffer_bytes(protocol) / SLOTS
    }
}

/// What the chunk size depends on, besides the amount.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Ring or tree.
    pub algorithm: Algorithm,
    /// Format of the slots.
    pub protocol: Protocol,
    /// Ranks of the communicator.
    pub n_ranks: usize,
    /// Hosts of the communicator.
    pub n_hosts: usize,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Payload, a multiple of the protocol's grain.
    pub bytes: usize,
    /// Bytes of a slot on the wire.
    pub slot_bytes: usize,
    /// Slots a chunk occupies.
    pub chunk_steps: usize,
    /// Slots a slice occupies.
    pub slice_steps: usize,
}

/// What every chunk is a multiple of, bytes of payload.
pub const fn grain(protocol: Protocol) -> usize {
    match protocol {
        Protocol::LL => 16,
        Protocol::LL128 => 1920,
        Protocol::Simple => 512,
    }
}

impl Geometry {
    /// The chunk for a channel's part of `part_bytes` bytes.
    pub fn chunk(&self, params: &Params, part_bytes: usize) -> Chunk {
        let (chunk_steps, slice_steps) = match (self.algorithm, self.protocol) {
            (Algorithm::Ring, Protocol::Simple) => (SLOTS / 2, SLOTS / 4),
            _ => (1, 1),
        };
        let slot_bytes = params.slot_bytes(self.protocol);
        let mut bytes = match self.protocol {
            Protocol::LL => slot_bytes / 2,
            Protocol::LL128 => slot_bytes / 16 * 15,
            Protocol::Simple => slot_bytes * chunk_steps,
        };
        if self.algorithm == Algorithm::Tree && self.protocol == Protocol::LL128 {
            bytes = self.fill_depth(bytes, part_bytes);
        }
        let grain = grain(self.protocol);
        Chunk { bytes: bytes / grain * grain, slot_bytes, chunk_steps, slice_steps }
    }

    /// Halves a chunk until the pipeline through the tree is filled often enough.
    fn fill_depth(&self, mut bytes: usize, part_bytes: usize) -> usize {
        let ranks_per_host = self.n_ranks as f32 / self.n_hosts as f32;
        let depth = 1.0 + self.n_hosts.ilog2() as f32 + 0.1 * ranks_per_host;
        for (times, floor) in [(64.0, 131072), (16.0, 32768)] {
            while ((part_bytes / bytes) as f32) < depth * times / ranks_per_host && bytes > floor {
                bytes /= 2;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(algorithm: Algorithm, protocol: Protocol) -> Geometry {
        Geometry { algorithm, protocol, n_ranks: 8, n_hosts: 1 }
    }

    #[test]
    fn ring_chunks_at_default_buffers_are_upstreams() {
        let grains = |protocol| {
            geometry(Algorithm::Ring, protocol).chunk(&Params::nccl(), 1 << 30).bytes / grain(protocol)
        };
        assert_eq!(grains(Protocol::Simple), 4096);
        assert_eq!(grains(Protocol::LL), 2048);
        assert_eq!(grains(Protocol::LL128), 300);
    }

    #[test]
    fn slots_at_default_buffers_are_upstreams() {
        assert_eq!(
            Protocol::ALL.iter().map(|&p| Params::nccl().slot_bytes(p)).collect::<Vec<_>>(),
            [65536, 614400, 524288]
        );
    }

    #[test]
    fn trees_shorten_ll128_chunks_for_small_parts() {
        let chunk = |bytes| geometry(Algorithm::Tree, Protocol::LL128).chunk(&Params::nccl(), bytes).bytes;
        assert_eq!(chunk(1 << 30), 576000);
        // 576000 is halved to 18000 and rounded down to 9 grains.
        assert_eq!(chunk(1000), 9 * 1920);
        assert!(chunk(1 << 20) < chunk(1 << 24));
    }

    #[test]
    fn any_buffer_size_leaves_whole_grains() {
        for bytes in [1, 5000, 100_000, 1_000_000, 3_333_333] {
            let params = Params::nccl().with_buffers([Some(bytes); 3]);
            for &protocol in Protocol::ALL {
                for algorithm in [Algorithm::Ring, Algorithm::Tree] {
                    let chunk = geometry(algorithm, protocol).chunk(&params, 1 << 20);
                    assert!(
                        chunk.bytes > 0 && chunk.bytes.is_multiple_of(grain(protocol)),
                        "{bytes} {protocol}"
                    );
                    assert!(chunk.slot_bytes.is_multiple_of(2048));
                }
            }
        }
    }
}
