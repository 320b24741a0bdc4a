//! Heads: the ranks of a host through which in-switch (NVLS) and in-network (CollNet) reduction enter and leave.
//!
//! Numbers at or above the number of ranks are not ranks: `n` is the network, `n + 1 + h` the switch's part of head `h`.
//!
//! ```text
//! direct: every rank ──► every head of its host ──► network (n)
//! NVLS:   every rank ──► switch parts n+1 … n+heads; head h owns part n+1+h
//! NVLS tree: head h of each host forms the double binary tree with head h of the other hosts, first tree on even channels
//! ```

use crate::engine::graph::SearchGraph;
use crate::engine::graph::trees;

/// A rank's links for in-network reduction with heads; the same on every channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// Its index among the heads, when it is one.
    pub head: Option<usize>,
    /// Heads of its host, beginning with itself when it is one.
    pub heads: Vec<usize>,
    /// The network, for heads.
    pub out: Option<usize>,
    /// Where it begins in the list of heads, so that ranks do not all send to the same one.
    pub shift: usize,
    /// The other heads.
    pub up: Vec<usize>,
    /// The ranks it serves as a head.
    pub down: Vec<usize>,
    /// Steps to the network.
    pub depth: usize,
}

/// A rank's links for in-switch reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvls {
    /// Its index among the heads, when it is one.
    pub head: Option<usize>,
    /// Heads of a host.
    pub n_heads: usize,
    /// The switch part it owns; `n_ranks` when it owns none.
    pub down: usize,
    /// The network, for heads when in-network reduction is on.
    pub out: Option<usize>,
    /// Parent head in the first and the second tree.
    pub tree_up: [Option<usize>; 2],
    /// Own switch part, then child heads, in the first and the second tree; empty on a single host.
    pub tree_down: [Vec<usize>; 2],
}

/// Distinct first ranks of a graph's channels, in order.
pub(super) fn heads_of(graph: &SearchGraph, first_rank: usize) -> Vec<usize> {
    let mut heads = Vec::new();
    for head in graph.channels.iter().filter_map(|channel| channel.intra.first()) {
        let head = *head as usize + first_rank;
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    heads
}

/// The links of one host's ranks for in-network reduction, as (rank, links).
pub(super) fn direct(
    graph: &SearchGraph,
    first_rank: usize,
    local: &[usize],
    n_ranks: usize,
) -> Vec<(usize, Direct)> {
    let heads = heads_of(graph, first_rank);
    let links = |rank: usize| {
        let head = heads.iter().position(|&h| h == rank);
        let down: Vec<usize> = head.map_or_else(Vec::new, |index| {
            let intra = graph.channels[index].intra.iter().map(|&r| r as usize + first_rank);
            intra.filter(|&r| r != rank).collect()
        });
        let up: Vec<usize> = heads.iter().copied().filter(|&h| h != rank).collect();
        let mut rotated = heads.clone();
        rotated.rotate_left(head.unwrap_or(0));
        Direct {
            head,
            out: head.map(|_| n_ranks),
            shift: (rank % local.len()) % heads.len().max(1),
            depth: if up.is_empty() && down.is_empty() { 1 } else { 2 },
            heads: rotated,
            up,
            down,
        }
    };
    local.iter().map(|&rank| (rank, links(rank))).collect()
}

/// The links of every rank for in-switch reduction. `heads[host]` lists that host's heads; `hosts[host]` its ranks.
pub(super) fn nvls(heads: &[Vec<usize>], hosts: &[Vec<usize>], n_ranks: usize, collnet: bool) -> Vec<Nvls> {
    let n_heads = heads.iter().map(Vec::len).min().unwrap_or(0);
    let mut links = vec![None; n_ranks];
    for (host, ranks) in hosts.iter().enumerate() {
        let places = trees::double(hosts.len(), host);
        for &rank in ranks {
            let head = heads[host][..n_heads].iter().position(|&h| h == rank);
            let down = head.map_or(n_ranks, |h| n_ranks + 1 + h);
            let peer = |other: Option<usize>| head.and_then(|h| other.map(|o| heads[o][h]));
            links[rank] = Some(Nvls {
                head,
                n_heads,
                down,
                out: head.filter(|_| collnet).map(|_| n_ranks),
                tree_up: places.map(|place| peer(place.parent)),
                tree_down: places.map(|place| {
                    let children = place.children.into_iter().filter_map(peer);
                    if hosts.len() == 1 {
                        Vec::new()
                    } else {
                        std::iter::once(down).chain(children).collect()
                    }
                }),
            });
        }
    }
    links.into_iter().map(|link| link.expect("invariant: every rank belongs to a host")).collect()
}
