//! From the graphs of single hosts to channels across all of them.
//!
//! ```text
//! graphs of every host ─► agree (fewest channels, least bandwidth, farthest path)
//!   ─► join rings (hosts in order) and trees (double binary tree): k channels with the first tree, k with the second
//!   ─► apply the channel rules ─► heads for in-switch and in-network reduction
//! ```
//!
//! A "host" is a set of ranks that a search covered: normally a machine; a machine whose GPUs reach one another only through the
//! network counts as several. Hosts are numbered in the order of their lowest rank. When rings enter and leave by different NICs in
//! pairs (`cross_nic` 2), odd hosts swap the channels of each pair, so that data stay on their rail.

use std::sync::Arc;

use crate::engine::graph::chains::{Chain, RankTree};
use crate::engine::graph::channels::{Facts, MAX_DIRECT_RANKS, NvlsShape, Params, Situation, spread};
use crate::engine::graph::heads::{self, Direct, Nvls};
use crate::engine::graph::rings::Ring;
use crate::engine::graph::{Channel as Lane, GraphId, Pattern, SearchGraph};
use crate::engine::topo::PathType;

/// One host's graphs.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What its search found: ring and tree, and the others where they exist.
    pub graphs: &'a [SearchGraph],
    /// Added to every rank of its graphs.
    pub first_rank: usize,
}

/// Why hosts cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A host lacks a graph.
    #[error("host {host} has no {graph} graph with a channel")]
    NoGraph {
        /// Host, in the order given.
        host: usize,
        /// What is missing.
        graph: &'static str,
    },
    /// Ranks are not 0..n, each on one host and in every channel.
    #[error("{0}")]
    Ranks(String),
    /// Channels that break the rules of rings and trees.
    #[error("channel {channel}: {reason}")]
    Channel {
        /// Channel of the search.
        channel: usize,
        /// The breach.
        reason: String,
    },
}

/// A graph's figures once all hosts agree: what the cost model reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphInfo {
    /// Shape; none when the graph does not exist.
    pub pattern: Option<Pattern>,
    /// Fewest channels of any host.
    pub n_channels: usize,
    /// Whether all channels of all hosts have the same order.
    pub same_channels: bool,
    /// Least GB/s per channel inside a host.
    pub bw_intra: f32,
    /// Least GB/s per channel between hosts.
    pub bw_inter: f32,
    /// Latency of the NIC, µs; the first host's.
    pub latency_inter: f32,
    /// Farthest path between ranks.
    pub type_intra: PathType,
    /// Farthest path between rank and NIC.
    pub type_inter: PathType,
    /// Largest cross-NIC mode.
    pub cross_nic: i32,
}

impl Default for GraphInfo {
    fn default() -> Self {
        Self {
            pattern: None,
            n_channels: 0,
            same_channels: false,
            bw_intra: 0.0,
            bw_inter: 0.0,
            latency_inter: 0.0,
            type_intra: PathType::Loc,
            type_inter: PathType::Loc,
            cross_nic: 0,
        }
    }
}

impl GraphInfo {
    fn of(graph: &SearchGraph) -> Self {
        Self {
            pattern: Some(graph.pattern),
            n_channels: graph.n_channels(),
            same_channels: graph.same_channels,
            bw_intra: graph.bw_intra,
            bw_inter: graph.bw_inter,
            latency_inter: graph.latency_inter,
            type_intra: graph.type_intra,
            type_inter: graph.type_inter,
            cross_nic: graph.cross_nic,
        }
    }

    fn agree(&mut self, other: &Self) {
        self.n_channels = self.n_channels.min(other.n_channels);
        self.same_channels &= other.same_channels;
        self.bw_intra = self.bw_intra.min(other.bw_intra);
        self.bw_inter = self.bw_inter.min(other.bw_inter);
        self.type_intra = self.type_intra.max(other.type_intra);
        self.type_inter = self.type_inter.max(other.type_inter);
        self.cross_nic = self.cross_nic.max(other.cross_nic);
    }
}

/// One channel's links over all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The ring.
    pub ring: Ring,
    /// The tree.
    pub tree: RankTree,
    /// Chain before in-network reduction, as (up, down) by rank; `n_ranks` is the network. Empty without it.
    pub chain: Vec<(Option<usize>, Option<usize>)>,
}

/// In-network reduction across hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollNet {
    /// Links by rank; empty when a host has more than eight ranks.
    pub direct: Vec<Direct>,
    /// Heads of a host.
    pub n_heads: usize,
    /// Steps of the chain.
    pub chain_depth: usize,
}

/// In-switch reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSwitch {
    /// Links by rank.
    pub links: Vec<Nvls>,
    /// Channels and chunks.
    pub shape: NvlsShape,
}

/// All hosts joined.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Ranks in all.
    pub n_ranks: usize,
    /// Ranks of every host, ascending.
    pub hosts: Vec<Vec<usize>>,
    /// A rank's host.
    pub rank_to_host: Vec<usize>,
    /// The channels. Copies share their content.
    pub channels: Vec<Arc<Channel>>,
    /// Depth of the trees as the cost of their pipeline counts it: a host's chain and the levels between hosts.
    pub tree_depth: usize,
    /// Figures by [`GraphId`].
    pub graphs: [GraphInfo; 5],
    /// The simplest tree shape of any host.
    pub max_tree_pattern: Pattern,
    /// In-network reduction, when it is on.
    pub collnet: Option<CollNet>,
    /// In-switch reduction, when every host has it.
    pub nvls: Option<InSwitch>,
}

impl Connection {
    /// Hosts, as the network sees them.
    pub fn n_hosts(&self) -> usize {
        self.hosts.len()
    }

    /// A graph's agreed figures.
    pub fn graph(&self, id: GraphId) -> &GraphInfo {
        &self.graphs[id as usize]
    }

    /// Most ranks of a host.
    pub fn max_local_ranks(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Checks the rules of rings and trees on every distinct channel.
    pub fn check(&self) -> Result<(), ConnectError> {
        for (channel, links) in self.channels.iter().enumerate() {
            if self.channels[..channel].iter().any(|earlier| Arc::ptr_eq(earlier, links)) {
                continue;
            }
            links
                .ring
                .check()
                .and_then(|()| links.tree.check())
                .map_err(|reason| ConnectError::Channel { channel, reason })?;
        }
        Ok(())
    }
}

/// A member whose ranks are known.
struct Host<'a> {
    member: Member<'a>,
    ranks: Vec<usize>,
}

impl Host<'_> {
    fn graph(&self, id: GraphId) -> Option<&SearchGraph> {
        self.member.graphs.iter().find(|graph| graph.id == id)
    }

    /// A channel's ranks. Empty when the graph or the channel is missing.
    fn chain(&self, id: GraphId, channel: usize) -> Vec<usize> {
        let intra = self.graph(id).and_then(|graph| graph.channels.get(channel)).map(|c| c.intra.as_slice());
        intra.unwrap_or_default().iter().map(|&rank| rank as usize + self.member.first_rank).collect()
    }
}

/// Joins the members, given in any order.
pub fn connect(members: &[Member<'_>], facts: &Facts, params: &Params) -> Result<Connection, ConnectError> {
    let hosts = sorted_hosts(members)?;
    let (n_ranks, rank_to_host) = number_ranks(&hosts)?;
    let mut graphs = agree(&hosts);
    let n_preset = graphs[GraphId::Ring as usize].n_channels.min(graphs[GraphId::Tree as usize].n_channels);
    graphs[GraphId::Ring as usize].n_channels = n_preset;
    graphs[GraphId::Tree as usize].n_channels = n_preset;
    let chain_info = graphs[GraphId::CollNetChain as usize];
    let collnet = params.collnet && chain_info.n_channels > 0 && hosts.len() >= params.collnet_hosts;

    let n_local = n_ranks / hosts.len();
    let preset = join_channels(&hosts, n_ranks, n_preset, collnet)?;
    let chosen = spread(
        n_preset,
        &Situation {
            facts,
            params,
            n_ranks,
            n_hosts: hosts.len(),
            ring: &graphs[GraphId::Ring as usize],
            chain: collnet.then_some(&chain_info),
        },
    );
    let tree_pattern = |host: &Host<'_>| host.graph(GraphId::Tree).map(|graph| graph.pattern);
    let connection = Connection {
        n_ranks,
        rank_to_host,
        channels: chosen.into_iter().map(|index| Arc::clone(&preset[index])).collect(),
        tree_depth: n_local - 1 + hosts.len().ilog2() as usize,
        max_tree_pattern: hosts.iter().filter_map(tree_pattern).max().unwrap_or(Pattern::Tree),
        collnet: collnet.then(|| join_collnet(&hosts, n_ranks)),
        nvls: join_nvls(&hosts, n_ranks, collnet, &|min_local, type_inter| {
            NvlsShape::of(facts, hosts.len(), min_local, type_inter, params)
        }),
        graphs,
        hosts: hosts.into_iter().map(|host| host.ranks).collect(),
    };
    connection.check()?;
    Ok(connection)
}

/// Members with their ranks, by lowest rank.
fn sorted_hosts<'a>(members: &[Member<'a>]) -> Result<Vec<Host<'a>>, ConnectError> {
    let mut hosts = Vec::with_capacity(members.len());
    for (host, &member) in members.iter().enumerate() {
        for id in [GraphId::Ring, GraphId::Tree] {
            let graph = member.graphs.iter().find(|graph| graph.id == id);
            let complete = graph.is_some_and(|g| {
                let is_filled =
                    |channel: &Lane| !channel.intra.is_empty() && channel.intra.iter().all(|&r| r >= 0);
                !g.channels.is_empty() && g.channels.iter().all(is_filled)
            });
            if !complete {
                return Err(ConnectError::NoGraph { host, graph: id.name() });
            }
        }
        let mut found = Host { member, ranks: Vec::new() };
        found.ranks = found.chain(GraphId::Ring, 0);
        found.ranks.sort_unstable();
        hosts.push(found);
    }
    if hosts.is_empty() {
        return Err(ConnectError::Ranks("there is no host to connect".into()));
    }
    hosts.sort_by_key(|host| host.ranks[0]);
    Ok(hosts)
}

/// Numbers the ranks and checks that every channel of every host holds that host's ranks.
fn number_ranks(hosts: &[Host<'_>]) -> Result<(usize, Vec<usize>), ConnectError> {
    let n_ranks = hosts.iter().map(|host| host.ranks.len()).sum();
    let mut rank_to_host = vec![usize::MAX; n_ranks];
    for (host_idx, host) in hosts.iter().enumerate() {
        for &rank in &host.ranks {
            match rank_to_host.get_mut(rank) {
                Some(slot) if *slot == usize::MAX => *slot = host_idx,
                Some(_) => return Err(ConnectError::Ranks(format!("rank {rank} appears twice"))),
                None => return Err(ConnectError::Ranks(format!("rank {rank} among {n_ranks} ranks"))),
            }
        }
        for id in [GraphId::Ring, GraphId::Tree] {
            for channel in 0..host.graph(id).map_or(0, SearchGraph::n_channels) {
                let mut ranks = host.chain(id, channel);
                ranks.sort_unstable();
                if ranks != host.ranks {
                    let reason = format!(
                        "the {} graph of host {host_idx} has ranks {ranks:?}, not {:?}",
                        id.name(),
                        host.ranks
                    );
                    return Err(ConnectError::Channel { channel, reason });
                }
            }
        }
    }
    Ok((n_ranks, rank_to_host))
}

/// Each graph's figures over all hosts.
fn agree(hosts: &[Host<'_>]) -> [GraphInfo; 5] {
    let mut agreed = [GraphInfo::default(); 5];
    for id in [GraphId::Ring, GraphId::Tree, GraphId::CollNetChain, GraphId::Nvls, GraphId::CollNetDirect] {
        let mut infos = hosts.iter().map(|host| host.graph(id).map(GraphInfo::of).unwrap_or_default());
        let mut info = infos.next().unwrap_or_default();
        infos.for_each(|other| info.agree(&other));
        agreed[id as usize] = info;
    }
    agreed
}

/// The channels of the search with the first tree, then the same with the second.
fn join_channels(
    hosts: &[Host<'_>],
    n_ranks: usize,
    n_preset: usize,
    collnet: bool,
) -> Result<Vec<Arc<Channel>>, ConnectError> {
    let mut joined = Vec::with_capacity(2 * n_preset);
    for which in 0..2 {
        for channel in 0..n_preset {
            let rings: Vec<Vec<usize>> = hosts
                .iter()
                .enumerate()
                .map(|(index, host)| {
                    let in_pairs = host.graph(GraphId::Ring).is_some_and(|graph| graph.cross_nic == 2);
                    let swapped = in_pairs && n_preset.is_multiple_of(2) && index % 2 == 1;
                    host.chain(GraphId::Ring, if swapped { channel ^ 1 } else { channel })
                })
                .collect();
            let chains: Vec<Chain> = hosts
                .iter()
                .map(|host| Chain {
                    ranks: host.chain(GraphId::Tree, channel),
                    pattern: host.graph(GraphId::Tree).map_or(Pattern::Tree, |graph| graph.pattern),
                })
                .collect();
            let tree = RankTree::join(n_ranks, &chains, which)
                .map_err(|reason| ConnectError::Channel { channel, reason })?;
            let chain = if collnet { join_chain(hosts, n_ranks, channel) } else { Vec::new() };
            joined.push(Arc::new(Channel { ring: Ring::join(n_ranks, &rings), tree, chain }));
        }
    }
    Ok(joined)
}

/// The chains before in-network reduction.
fn join_chain(hosts: &[Host<'_>], n_ranks: usize, channel: usize) -> Vec<(Option<usize>, Option<usize>)> {
    let mut links = vec![(None, None); n_ranks];
    for host in hosts {
        let ranks = host.chain(GraphId::CollNetChain, channel);
        if let Some(&first) = ranks.first() {
            links[first].0 = Some(n_ranks);
        }
        for pair in ranks.windows(2) {
            links[pair[0]].1 = Some(pair[1]);
            links[pair[1]].0 = Some(pair[0]);
        }
    }
    links
}

fn join_collnet(hosts: &[Host<'_>], n_ranks: usize) -> CollNet {
    let widest = hosts.iter().map(|host| host.ranks.len()).max().unwrap_or(0);
    let mut direct: Vec<(usize, Direct)> = Vec::new();
    if widest <= MAX_DIRECT_RANKS {
        for host in hosts {
            if let Some(graph) = host.graph(GraphId::CollNetDirect) {
                direct.extend(heads::direct(graph, host.member.first_rank, &host.ranks, n_ranks));
            }
        }
    }
    direct.sort_by_key(|(rank, _)| *rank);
    let direct: Vec<Direct> = direct.into_iter().map(|(_, links)| links).collect();
    let n_heads = direct.first().map_or(0, |links| links.heads.len());
    CollNet { direct, n_heads, chain_depth: n_ranks / hosts.len() }
}

/// In-switch links, when every host has the graph. `shape` gets the fewest ranks of a host and the farthest path of a head to its NIC.
fn join_nvls(
    hosts: &[Host<'_>],
    n_ranks: usize,
    collnet: bool,
    shape: &dyn Fn(usize, PathType) -> NvlsShape,
) -> Option<InSwitch> {
    let graphs: Vec<&SearchGraph> =
        hosts.iter().map(|host| host.graph(GraphId::Nvls)).collect::<Option<_>>()?;
    let heads: Vec<Vec<usize>> = graphs
        .iter()
        .zip(hosts)
        .map(|(graph, host)| heads::heads_of(graph, host.member.first_rank))
        .collect();
    if heads.iter().any(Vec::is_empty) {
        return None;
    }
    let ranks: Vec<Vec<usize>> = hosts.iter().map(|host| host.ranks.clone()).collect();
    let min_local = ranks.iter().map(Vec::len).min().unwrap_or(0);
    let type_inter = graphs.iter().map(|graph| graph.type_inter).max().unwrap_or(PathType::Loc);
    Some(InSwitch {
        links: heads::nvls(&heads, &ranks, n_ranks, collnet),
        shape: shape(min_local, type_inter),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(id: GraphId, pattern: Pattern, orders: &[&[i32]]) -> SearchGraph {
        SearchGraph {
            id,
            pattern,
            cross_nic: 0,
            coll_net: false,
            min_channels: 1,
            max_channels: 32,
            bw_intra: 20.0,
            bw_inter: 10.0,
            latency_inter: 0.0,
            type_intra: PathType::Nvl,
            type_inter: PathType::Pix,
            same_channels: false,
            n_hops: 0,
            channels: orders.iter().map(|order| Lane { intra: order.to_vec(), inter: None }).collect(),
        }
    }

    fn machine() -> Vec<SearchGraph> {
        let orders: [&[i32]; 2] = [&[0, 1, 2], &[2, 0, 1]];
        vec![
            graph(GraphId::Ring, Pattern::Ring, &orders),
            graph(GraphId::Tree, Pattern::BalancedTree, &orders),
        ]
    }

    const FACTS: Facts = Facts { min_compute_cap: 80, min_net_bw: 10.0 };

    fn joined(graphs: &[SearchGraph], n_hosts: usize) -> Result<Connection, ConnectError> {
        let members: Vec<Member<'_>> = (0..n_hosts).map(|h| Member { graphs, first_rank: 3 * h }).collect();
        connect(&members, &FACTS, &Params::default())
    }

    #[test]
    fn the_second_half_repeats_the_rings_with_the_other_tree() {
        let connection = joined(&machine(), 2).expect("connects");
        assert_eq!(connection.channels.len(), 4);
        assert_eq!(connection.channels[0].ring, connection.channels[2].ring);
        assert_eq!(connection.channels[0].tree.root(), Some(0));
        assert_eq!(connection.channels[2].tree.root(), Some(3));
        assert_eq!(connection.channels[1].ring.order(0), [0, 1, 5, 3, 4, 2]);
    }

    #[test]
    fn odd_hosts_swap_paired_channels() {
        let mut graphs = machine();
        graphs[0].cross_nic = 2;
        let connection = joined(&graphs, 3).expect("connects");
        assert_eq!(connection.channels[0].ring.order(0), [0, 1, 2, 5, 3, 4, 6, 7, 8]);
    }

    #[test]
    fn hosts_are_numbered_by_their_lowest_rank() {
        let graphs = machine();
        let members = [Member { graphs: &graphs, first_rank: 3 }, Member { graphs: &graphs, first_rank: 0 }];
        let connection = connect(&members, &FACTS, &Params::default()).expect("connects");
        assert_eq!(connection.rank_to_host, [0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn ranks_that_do_not_fit_together_are_refused() {
        let graphs = machine();
        let twice = [Member { graphs: &graphs, first_rank: 0 }, Member { graphs: &graphs, first_rank: 2 }];
        let error = connect(&twice, &FACTS, &Params::default()).expect_err("overlap");
        assert!(error.to_string().contains("appears twice"), "{error}");
        let mut short = machine();
        short[1].channels[1].intra.pop();
        assert!(joined(&short, 1).expect_err("short").to_string().contains("tree graph"));
        assert_eq!(joined(&[], 1), Err(ConnectError::NoGraph { host: 0, graph: "ring" }));
    }

    #[test]
    fn the_host_with_fewest_channels_decides() {
        let wide = machine();
        let mut narrow = machine();
        narrow[1].channels.pop();
        let members = [Member { graphs: &wide, first_rank: 0 }, Member { graphs: &narrow, first_rank: 3 }];
        let connection = connect(&members, &FACTS, &Params::default()).expect("connects");
        assert_eq!(connection.channels.len(), 2);
        assert_eq!(connection.graph(GraphId::Ring).n_channels, 1);
    }
}
