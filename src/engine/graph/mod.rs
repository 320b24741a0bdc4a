//! Which way data travels: rings and trees found over a [`crate::engine::topo::System`], then joined across hosts. Pure.
//!
//! ```text
//! system, pattern, channel limits -> search (attempts, relaxing types and bandwidths) -> SearchGraph
//! ```
//!
//! A channel of a graph orders the ranks of one host: a ring visits them in that order, a tree is the chain in that order. With
//! several hosts a channel also names the NIC where data come in (to the first rank) and the one where they leave.

pub mod chains;
pub mod channels;
pub mod connect;
pub mod dump;
pub mod heads;
mod json;
pub mod lines;
pub mod model;
pub mod p2p;
pub mod rings;
pub mod rules;
mod search;
mod search_draft;
mod search_fabric;
mod search_facts;
mod search_nets;
mod search_walk;
pub mod trees;

pub use self::model::{Domain, ModelRequest, Variant, model, model_system, search_domain};
pub use self::search::Attempt;
pub use self::search_draft::SearchRequest;

use serde::{Deserialize, Serialize};

use crate::engine::topo::PathType;

/// The shape a search looks for. Numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// A chain whose first two ranks share the NIC's traffic: parent and one child on the first, the other child on the second.
    BalancedTree = 1,
    /// A chain whose first rank talks to the parent and whose second rank talks to both children.
    SplitTree = 2,
    /// A chain whose first rank does all the talking.
    Tree = 3,
    /// A ring.
    Ring = 4,
    /// Heads for in-switch reduction.
    Nvls = 5,
    /// Heads for in-network reduction, every rank connected to every head.
    CollNetDirect = 6,
}

impl Pattern {
    /// Every member, in numeric order.
    pub const ALL: &'static [Self] =
        &[Self::BalancedTree, Self::SplitTree, Self::Tree, Self::Ring, Self::Nvls, Self::CollNetDirect];

    /// The member with that number.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|pattern| *pattern as i32 == number)
    }

    /// Whether its channels are chains whose links are used both ways.
    pub fn is_tree(self) -> bool {
        matches!(self, Self::BalancedTree | Self::SplitTree | Self::Tree)
    }
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(*self as i32)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i32::deserialize(deserializer)?;
        Self::from_number(number)
            .ok_or_else(|| serde::de::Error::custom(format!("pattern {number} does not exist, want 1 to 6")))
    }
}

/// What a graph is for. Numbers are NCCL's graph ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GraphId {
    /// Rings.
    Ring = 0,
    /// Trees.
    Tree = 1,
    /// Chains before the in-network reduction.
    CollNetChain = 2,
    /// In-switch reduction.
    Nvls = 3,
    /// In-network reduction with every rank a head.
    CollNetDirect = 4,
}

impl GraphId {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::CollNetChain => "collnetChain",
            Self::Nvls => "nvls",
            Self::CollNetDirect => "collnetDirect",
        }
    }
}

/// One parallel lane: the ranks of a host in order, and the NICs at both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// Ranks in the order data pass them. Only the head for [`Pattern::Nvls`].
    pub intra: Vec<i32>,
    /// Ids of the NICs data enter and leave by; nothing when the graph stays inside the host.
    pub inter: Option<[i64; 2]>,
}

/// The outcome of one search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchGraph {
    /// What it is for.
    pub id: GraphId,
    /// The shape found; it may be simpler than the one asked for.
    pub pattern: Pattern,
    /// Whether channels may enter and leave a host by different NICs: 0 no, 1 yes, 2 in pairs.
    pub cross_nic: i32,
    /// Whether NICs must offer in-network reduction.
    pub coll_net: bool,
    /// Least number of channels accepted.
    pub min_channels: usize,
    /// Most channels wanted.
    pub max_channels: usize,
    /// GB/s per channel inside the host.
    pub bw_intra: f32,
    /// GB/s per channel between hosts.
    pub bw_inter: f32,
    /// Latency of the NIC used last, µs.
    pub latency_inter: f32,
    /// Farthest path between ranks that was allowed.
    pub type_intra: PathType,
    /// Farthest path between rank and NIC that was allowed.
    pub type_inter: PathType,
    /// Whether all channels had to have the same order.
    pub same_channels: bool,
    /// Links walked by all channels together; breaks ties.
    pub n_hops: i32,
    /// The lanes.
    pub channels: Vec<Channel>,
}

impl SearchGraph {
    /// Lanes found; 0 when there is no solution.
    pub fn n_channels(&self) -> usize {
        self.channels.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_numbers_round_trip() {
        for &pattern in Pattern::ALL {
            assert_eq!(Pattern::from_number(pattern as i32), Some(pattern));
        }
        assert_eq!(Pattern::from_number(0), None);
        assert!(Pattern::Tree.is_tree() && !Pattern::Ring.is_tree());
    }
}
