//! How many channels a communicator gets: the settings that bound them and the rules in their order.
//!
//! ```text
//! channels found by the search           k          (the fewer of ring and tree, the least of all hosts)
//! first and second tree                  2k         at most 64; rings are the same in both halves
//! in-network chains that starve          x 1.5      only when the chain is faster inside a host than between
//! fast GPUs behind a slow network        x 2        compute capability 9.0 and up, several hosts, over 45 GB/s inside, under 16
//! NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS      cut
//! NCCL_MIN_NCHANNELS, NCCL_MIN_CTAS      raised by copying channels from the first on
//! ```

use crate::engine::graph::connect::GraphInfo;
use crate::engine::topo::PathType;
use crate::env::parse_integer;

/// Most channels of a communicator.
pub const MAX_CHANNELS: usize = 64;
/// Ranks of a host beyond which in-network reduction through heads is not set up.
pub const MAX_DIRECT_RANKS: usize = 8;

/// Settings that bound channels and switch the network algorithms on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Least number of channels (`NCCL_MIN_NCHANNELS`, older `NCCL_MIN_NRINGS`; 0).
    pub min_channels: usize,
    /// Most channels (`NCCL_MAX_NCHANNELS`, older `NCCL_MAX_NRINGS`; 64).
    pub max_channels: usize,
    /// Least number of thread blocks (`NCCL_MIN_CTAS`; 1).
    pub min_ctas: usize,
    /// Most thread blocks (`NCCL_MAX_CTAS`; 64).
    pub max_ctas: usize,
    /// Channels of the in-switch algorithms (`NCCL_NVLS_NCHANNELS`; by GPU generation).
    pub nvls_channels: Option<usize>,
    /// Chunk of the in-switch algorithms in bytes (`NCCL_NVLS_CHUNKSIZE`; 131072, or by tuning).
    pub nvls_chunk_bytes: Option<usize>,
    /// Largest chunk of the in-switch tree in bytes (`NCCL_NVLSTREE_MAX_CHUNKSIZE`; by tuning).
    pub nvls_tree_chunk_bytes: Option<usize>,
    /// Whether in-network reduction is wanted (`NCCL_COLLNET_ENABLE`; 0).
    pub collnet: bool,
    /// Fewest hosts for in-network reduction (`NCCL_COLLNET_NODE_THRESHOLD`; 2).
    pub collnet_hosts: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            min_channels: 0,
            max_channels: MAX_CHANNELS,
            min_ctas: 1,
            max_ctas: MAX_CHANNELS,
            nvls_channels: None,
            nvls_chunk_bytes: None,
            nvls_tree_chunk_bytes: None,
            collnet: false,
            collnet_hosts: 2,
        }
    }
}

impl Params {
    /// Reads the settings through `lookup`. As in NCCL, a number that does not parse leaves the default, and limits are clamped.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| lookup(name).and_then(|text| parse_integer(&text)).filter(|&n| n != -2);
        let first = |new: &str, old: &str| number(new).or_else(|| number(old));
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        let positive = |name: &str| number(name).filter(|&n| n > 0).map(count);
        let defaults = Self::default();
        let max_ctas = positive("NCCL_MAX_CTAS").unwrap_or(MAX_CHANNELS).min(MAX_CHANNELS);
        Self {
            min_channels: first("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS").map_or(0, count).min(MAX_CHANNELS),
            max_channels: first("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
                .map_or(MAX_CHANNELS, count)
                .clamp(1, MAX_CHANNELS),
            min_ctas: positive("NCCL_MIN_CTAS").unwrap_or(1).min(max_ctas),
            max_ctas,
            nvls_channels: positive("NCCL_NVLS_NCHANNELS"),
            nvls_chunk_bytes: positive("NCCL_NVLS_CHUNKSIZE"),
            nvls_tree_chunk_bytes: positive("NCCL_NVLSTREE_MAX_CHUNKSIZE"),
            collnet: number("NCCL_COLLNET_ENABLE").is_some_and(|n| n != 0),
            collnet_hosts: number("NCCL_COLLNET_NODE_THRESHOLD").map_or(defaults.collnet_hosts, count),
        }
    }
}

/// Facts about all members that the rules need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// Least compute capability of all GPUs, ten times the version: 90 is 9.0.
    pub min_compute_cap: i32,
    /// The slowest NIC that any rank uses, GB/s.
    pub min_net_bw: f32,
}

/// What the rules look at, gathered while connecting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    pub(super) facts: &'a Facts,
    pub(super) params: &'a Params,
    pub(super) n_ranks: usize,
    pub(super) n_hosts: usize,
    pub(super) ring: &'a GraphInfo,
    /// The chain graph, when in-network reduction is on.
    pub(super) chain: Option<&'a GraphInfo>,
}

/// The channels a communicator uses, as indices into the `2 * n_preset` channels of first and second tree.
pub(super) fn spread(n_preset: usize, at: &Situation<'_>) -> Vec<usize> {
    let mut chosen: Vec<usize> = (0..(2 * n_preset).min(MAX_CHANNELS)).collect();
    if at.chain.is_some_and(|chain| chain.bw_intra > chain.bw_inter && at.n_ranks > at.n_hosts) {
        let wanted = (chosen.len() + chosen.len() / 2).min(MAX_CHANNELS);
        repeat_up_to(&mut chosen, wanted);
    }
    if at.facts.min_compute_cap >= 90 && at.n_hosts > 1 && at.ring.bw_intra > 45.0 && chosen.len() < 16 {
        let wanted = 2 * chosen.len();
        repeat_up_to(&mut chosen, wanted);
    }
    chosen.truncate(at.params.max_channels.min(at.params.max_ctas));
    repeat_up_to(&mut chosen, at.params.min_channels.max(at.params.min_ctas));
    chosen
}

/// Copies entries from the front until there are `wanted`.
fn repeat_up_to(chosen: &mut Vec<usize>, wanted: usize) {
    let n_before = chosen.len();
    for index in n_before..wanted {
        chosen.push(chosen[index - n_before]);
    }
}

/// Channels and chunks of the in-switch algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvlsShape {
    /// Channels they run on, not tied to the channels of rings and trees.
    pub n_channels: usize,
    /// Bytes a chunk.
    pub chunk_bytes: usize,
    /// Largest chunk of the tree between hosts.
    pub tree_chunk_bytes: usize,
}

const DEFAULT_CHUNK_BYTES: usize = 128 << 10;

impl NvlsShape {
    /// The shape for that many hosts of at least `min_local_ranks` ranks, whose heads reach their NICs by `type_inter`.
    pub fn of(
        facts: &Facts,
        n_hosts: usize,
        min_local_ranks: usize,
        type_inter: PathType,
        params: &Params,
    ) -> Self {
        let n_channels = match facts.min_compute_cap {
            ..100 => 16,
            _ if n_hosts > 1 => 32,
            _ => 24,
        };
        let mut shape = Self { n_channels, chunk_bytes: 0, tree_chunk_bytes: 0 };
        if facts.min_compute_cap >= 100 && n_hosts > 1 {
            shape.tune_blackwell(n_hosts, min_local_ranks, facts.min_net_bw, type_inter <= PathType::Pxb);
        }
        if let Some(n) = params.nvls_channels {
            shape.n_channels = n;
        }
        if let Some(bytes) = params.nvls_chunk_bytes {
            shape.chunk_bytes = bytes;
        } else if shape.chunk_bytes == 0 {
            shape.chunk_bytes = DEFAULT_CHUNK_BYTES;
        }
        if let Some(bytes) = params.nvls_tree_chunk_bytes {
            shape.tree_chunk_bytes = bytes;
        } else if shape.tree_chunk_bytes == 0 {
            shape.tree_chunk_bytes = if n_hosts >= 4 { 64 << 10 } else { shape.chunk_bytes };
        }
        shape.n_channels = shape.n_channels.min(params.max_ctas).max(params.min_ctas);
        shape
    }

    /// Several hosts of compute capability 10.0 and up: by hosts, ranks a host, and NIC speed in GB/s.
    fn tune_blackwell(&mut self, n_hosts: usize, local_ranks: usize, net_bw: f32, near_nic: bool) {
        self.chunk_bytes = DEFAULT_CHUNK_BYTES;
        let (n_channels, chunk_kib, tree_kib) = if n_hosts == 2 && net_bw >= 48.0 {
            match local_ranks {
                ..=4 => (32, 256, 256),
                16.. => (32, 128, 64),
                ..=8 if near_nic && net_bw < 96.0 => (32, 128, 64),
                _ => (32, 128, 128),
            }
        } else if net_bw >= 96.0 {
            match local_ranks {
                ..=8 => (24, 256, 256),
                9..=31 => (32, 128, 128),
                _ => (32, 128, 64),
            }
        } else if net_bw >= 48.0 {
            (24, 128, if near_nic { 64 } else { 128 })
        } else {
            return;
        };
        *self = Self { n_channels, chunk_bytes: chunk_kib << 10, tree_chunk_bytes: tree_kib << 10 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Params {
        Params::from_lookup(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
    }

    fn channels(n_preset: usize, n_hosts: usize, bw: f32, cap: i32, params: &Params) -> Vec<usize> {
        let facts = Facts { min_compute_cap: cap, min_net_bw: 0.0 };
        let ring = GraphInfo { bw_intra: bw, ..GraphInfo::default() };
        spread(n_preset, &Situation { facts: &facts, params, n_ranks: 8, n_hosts, ring: &ring, chain: None })
    }

    #[test]
    fn channels_double_up_to_sixty_four() {
        assert_eq!(channels(3, 1, 20.0, 80, &params(&[])), [0, 1, 2, 3, 4, 5]);
        assert_eq!(channels(40, 1, 20.0, 80, &params(&[])).len(), 64);
    }

    #[test]
    fn fast_gpus_behind_a_network_double_once_more() {
        assert_eq!(channels(2, 2, 48.0, 90, &params(&[])), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(channels(2, 1, 48.0, 90, &params(&[])).len(), 4);
        assert_eq!(channels(2, 2, 45.0, 90, &params(&[])).len(), 4);
        assert_eq!(channels(8, 2, 48.0, 90, &params(&[])).len(), 16);
    }

    #[test]
    fn the_maximum_cuts_and_the_minimum_copies_from_the_front() {
        let both = params(&[("NCCL_MIN_NCHANNELS", "5"), ("NCCL_MAX_NCHANNELS", "2")]);
        assert_eq!(channels(2, 1, 20.0, 80, &both), [0, 1, 0, 1, 0]);
        assert_eq!(channels(2, 1, 20.0, 80, &params(&[("NCCL_MAX_CTAS", "3")])), [0, 1, 2]);
        assert_eq!(channels(1, 1, 20.0, 80, &params(&[("NCCL_MIN_CTAS", "3")])), [0, 1, 0]);
    }

    #[test]
    fn settings_out_of_range_are_clamped_and_nonsense_is_ignored() {
        let p =
            params(&[("NCCL_MIN_NCHANNELS", "900"), ("NCCL_MAX_NCHANNELS", "0"), ("NCCL_MIN_CTAS", "-3")]);
        assert_eq!((p.min_channels, p.max_channels, p.min_ctas), (64, 1, 1));
        assert_eq!(params(&[("NCCL_MIN_NCHANNELS", "many")]), Params::default());
        assert_eq!(params(&[("NCCL_MIN_NRINGS", "3"), ("NCCL_MIN_NCHANNELS", "4")]).min_channels, 4);
    }

    #[test]
    fn in_switch_channels_follow_the_generation() {
        let shape = |cap, n_hosts| {
            let facts = Facts { min_compute_cap: cap, min_net_bw: 50.0 };
            NvlsShape::of(&facts, n_hosts, 8, PathType::Pxb, &Params::default())
        };
        assert_eq!(shape(90, 1).n_channels, 16);
        assert_eq!(shape(90, 4).tree_chunk_bytes, 65536);
        assert_eq!(shape(100, 1).n_channels, 24);
        assert_eq!(
            shape(100, 2),
            NvlsShape { n_channels: 32, chunk_bytes: 131_072, tree_chunk_bytes: 65536 }
        );
        assert_eq!(shape(100, 8).n_channels, 24);
    }
}
