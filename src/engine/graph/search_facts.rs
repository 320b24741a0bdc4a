//! What a walk asks of the machine at every step, laid out flat: ranks, ports, and who comes next after each GPU.

use crate::engine::graph::Pattern;
use crate::engine::graph::search_draft::Draft;
use crate::engine::graph::search_fabric::Fabric;
use crate::engine::topo::{Net, NodeRef, NodeType, PathType, System, local_gpus};

/// How the next GPUs are sorted with respect to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetSort {
    /// The NIC plays no part any more.
    Ignore,
    /// The next GPU is the one that talks to it.
    Nearest,
    /// A later GPU talks to it.
    Farthest,
}

/// A GPU that may follow another.
#[derive(Clone, Copy, Debug)]
struct Follower {
    gpu: usize,
    /// Followers with the same number are equally near.
    class: usize,
}

/// A network port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) id: i64,
    pub(crate) net: Net,
    /// Ports that share its bandwidth: those of the same chip with the same number, itself included.
    pub(crate) sharers: Vec<usize>,
    /// GPUs nearest to it.
    pub(crate) near_gpus: Vec<usize>,
    /// How near they are.
    pub(crate) near_kind: PathType,
    /// For every GPU, bandwidth and length of the path from this port, as they sort: smaller is better.
    keys: Vec<(i32, usize)>,
}

/// The flat facts.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Ranks by GPU.
    pub(crate) ranks: Vec<i32>,
    pub(crate) ports: Vec<Port>,
    has_nvswitch: bool,
    /// For every GPU the others in reach, the most promising first.
    followers: Vec<Vec<Follower>>,
}

impl Facts {
    /// The facts of a machine whose paths are computed.
    pub(crate) fn new(system: &System) -> Self {
        let n_gpus = system.n_gpus();
        let port = |n: usize| {
            let net = system.net(n).clone();
            let same_port =
                |&other: &usize| system.net(other).asic == net.asic && system.net(other).port == net.port;
            let (near_gpus, near_kind) = local_gpus(system, n);
            let key = |g| {
                let path = system.path_or_none(NodeRef::net(n), NodeRef::gpu(g));
                (-whole(path.bw), path.hops.len())
            };
            Port {
                id: system.nodes(NodeType::Net)[n].id,
                sharers: (0..system.n_nets()).filter(same_port).collect(),
                near_gpus,
                near_kind,
                keys: (0..n_gpus).map(key).collect(),
                net,
            }
        };
        Self {
            ranks: system.ranks(),
            ports: (0..system.n_nets()).map(port).collect(),
            has_nvswitch: system.has_nvswitch(),
            followers: (0..n_gpus).map(|g| followers(system, g)).collect(),
        }
    }

    /// Position of the GPU of a rank.
    pub(crate) fn gpu_of(&self, rank: i32) -> Option<usize> {
        self.ranks.iter().position(|&known| known == rank)
    }

    /// Position of the port with an id.
    pub(crate) fn port_of(&self, id: i64) -> Option<usize> {
        self.ports.iter().position(|port| port.id == id)
    }

    /// Fills `next` with the GPUs not yet in the channel that may follow `g`, the most promising first.
    pub(crate) fn fill_next(&self, g: usize, state: &Choice<'_>, next: &mut Vec<usize>) {
        let flag = 1u64 << state.graph.n_channels;
        let free = self.followers[g].iter().filter(|follower| state.used[follower.gpu] & flag == 0);
        next.clear();
        let port = match state.sort {
            NetSort::Ignore => None,
            _ => self.port_of(state.graph.inter[state.graph.n_channels][0]),
        };
        let Some(port) = port else {
            next.extend(free.map(|follower| follower.gpu));
            return self.prefer_neighbours(g, state.graph.pattern, next);
        };
        let keys = &self.ports[port].keys;
        let key = |(place, follower): (usize, &Follower)| {
            let (bw, n_hops) = keys[follower.gpu];
            (bw, -state.fabric.gpu_pci_bw(follower.gpu), n_hops, place, *follower)
        };
        let mut scores: Vec<_> = free.enumerate().map(key).collect();
        let all_alike = scores.windows(2).all(|pair| pair[0].4.class == pair[1].4.class);
        scores.sort_unstable_by_key(|&(bw, pci_bw, n_hops, place, _)| (bw, pci_bw, n_hops, place));
        next.extend(scores.iter().map(|score| score.4.gpu));
        if state.sort == NetSort::Farthest && all_alike {
            next.reverse();
        }
        self.prefer_neighbours(g, state.graph.pattern, next);
    }

    /// Through a switch all GPUs are alike, so only those next in number are tried.
    fn prefer_neighbours(&self, g: usize, pattern: Pattern, next: &mut Vec<usize>) {
        if !self.has_nvswitch {
            return;
        }
        let n = self.ranks.len();
        let (before, after) = ((g + n - 1) % n, (g + 1) % n);
        let wanted = match pattern {
            Pattern::Ring => [Some(before).filter(|&gpu| gpu != after), Some(after)],
            Pattern::SplitTree | Pattern::BalancedTree => {
                [Some(after).filter(|&gpu| gpu != before), Some(before)]
            }
            _ => [Some(after), None],
        };
        let found = wanted.map(|gpu| gpu.filter(|gpu| next.contains(gpu)));
        next.clear();
        next.extend(found.into_iter().flatten());
    }
}

/// The state of a walk that decides who comes next.
#[derive(Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) graph: &'a Draft,
    pub(crate) fabric: &'a Fabric,
    /// For every GPU one bit per channel that has it.
    pub(crate) used: &'a [u64],
    pub(crate) sort: NetSort,
}

/// Other GPUs in reach: highest bandwidth, then fewest links, then next in number.
fn followers(system: &System, g: usize) -> Vec<Follower> {
    let n = system.n_gpus();
    let mut found = Vec::new();
    for distance in 1..n {
        let gpu = (g + distance) % n;
        let path = system.gpu_path(g, gpu);
        if !path.hops.is_empty() {
            found.push(((-whole(path.bw), path.hops.len()), distance, gpu));
        }
    }
    found.sort_unstable();
    let mut class = 0;
    let mut followers = Vec::new();
    for (i, &(key, _, gpu)) in found.iter().enumerate() {
        class += usize::from(i > 0 && found[i - 1].0 != key);
        followers.push(Follower { gpu, class });
    }
    followers
}

/// Scores are whole numbers.
#[expect(clippy::cast_possible_truncation, reason = "cutting the fraction is meant")]
pub(crate) fn whole(bw: f32) -> i32 {
    bw as i32
}
