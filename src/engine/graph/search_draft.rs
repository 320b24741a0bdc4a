//! A graph while it is being searched.

use crate::engine::graph::{Channel, GraphId, Pattern, SearchGraph};
use crate::engine::topo::PathType;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchRequest {
    /// What the graph is for.
    pub id: GraphId,
    /// Its shape.
    pub pattern: Pattern,
    /// Whether NICs must offer in-network reduction.
    pub coll_net: bool,
    /// Least number of channels accepted.
    pub min_channels: usize,
    /// Most channels wanted.
    pub max_channels: usize,
}

/// The graph under construction and the limits of the attempt; also the best found so far.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) id: GraphId,
    pub(crate) pattern: Pattern,
    pub(crate) cross_nic: i32,
    pub(crate) coll_net: bool,
    pub(crate) min_channels: usize,
    pub(crate) max_channels: usize,
    pub(crate) n_channels: usize,
    pub(crate) bw_intra: f32,
    pub(crate) bw_inter: f32,
    pub(crate) latency_inter: f32,
    /// Path types as numbers: attempts count them up.
    pub(crate) type_intra: i32,
    pub(crate) type_inter: i32,
    pub(crate) same_channels: bool,
    pub(crate) n_hops: i32,
    n_gpus: usize,
    /// Ranks, channel after channel.
    intra: Vec<i32>,
    /// First and last NIC of every channel.
    pub(crate) inter: Vec<[i64; 2]>,
}

impl Draft {
    /// No channels yet.
    pub(crate) fn new(request: SearchRequest, n_gpus: usize) -> Self {
        Self {
            id: request.id,
            pattern: request.pattern,
            cross_nic: 0,
            coll_net: request.coll_net,
            min_channels: request.min_channels,
            max_channels: request.max_channels,
            n_channels: 0,
            bw_intra: 0.0,
            bw_inter: 0.0,
            latency_inter: 0.0,
            type_intra: 0,
            type_inter: 0,
            same_channels: false,
            n_hops: 0,
            n_gpus,
            intra: Vec::new(),
            inter: Vec::new(),
        }
    }

    /// Makes room for the channel about to be searched.
    pub(crate) fn open_channel(&mut self) {
        self.intra.resize((self.n_channels + 1).max(self.intra.len() / self.n_gpus.max(1)) * self.n_gpus, -1);
        self.inter.resize((self.n_channels + 1).max(self.inter.len()), [-1; 2]);
    }

    /// The rank at a place of a channel.
    pub(crate) fn rank(&self, channel: usize, place: usize) -> i32 {
        self.intra[channel * self.n_gpus + place]
    }

    /// Puts a rank at a place of a channel.
    pub(crate) fn put(&mut self, channel: usize, place: usize, rank: i32) {
        self.intra[channel * self.n_gpus + place] = rank;
    }

    /// GB/s of all channels together inside the host.
    pub(crate) fn total_intra(&self) -> f32 {
        self.n_channels as f32 * self.bw_intra
    }

    /// GB/s of all channels together between hosts.
    pub(crate) fn total_inter(&self) -> f32 {
        self.n_channels as f32 * self.bw_inter
    }

    /// Splits fast channels in two: more of them keep more processors busy.
    pub(crate) fn duplicate(&mut self, sm: i32) {
        let n = self.n_channels;
        if n == 0 || self.pattern == Pattern::Nvls || self.bw_intra < 25.0 {
            return;
        }
        if sm > 80 && self.bw_intra < 50.0 && n > 4 {
            return;
        }
        let more = (n * 2).min(self.max_channels);
        self.intra.truncate(n * self.n_gpus);
        self.inter.truncate(n);
        self.intra.extend_from_within(..more.saturating_sub(n) * self.n_gpus);
        self.inter.extend_from_within(..more.saturating_sub(n));
        let parts = more.div_ceil(n) as f32;
        self.bw_intra /= parts;
        self.bw_inter /= parts;
        self.n_channels = more;
    }

    /// The finished graph. `inter` says whether channels have NICs.
    pub(crate) fn finish(&self, inter: bool) -> SearchGraph {
        let width = if self.id == GraphId::Nvls { self.n_gpus.min(1) } else { self.n_gpus };
        let kind = |number| PathType::from_number(number).unwrap_or(PathType::Dis);
        let channel = |c: usize| Channel {
            intra: self.intra[c * self.n_gpus..c * self.n_gpus + width].to_vec(),
            inter: inter.then(|| self.inter[c]),
        };
        SearchGraph {
            id: self.id,
            pattern: self.pattern,
            cross_nic: self.cross_nic,
            coll_net: self.coll_net,
            min_channels: self.min_channels,
            max_channels: self.max_channels,
            bw_intra: self.bw_intra,
            bw_inter: self.bw_inter,
            latency_inter: self.latency_inter,
            type_intra: kind(self.type_intra),
            type_inter: kind(self.type_inter),
            same_channels: self.same_channels,
            n_hops: self.n_hops,
            channels: (0..self.n_channels).map(channel).collect(),
        }
    }
}
