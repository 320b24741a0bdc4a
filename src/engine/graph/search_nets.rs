//! Which NICs a search tries, and in which order.

use crate::engine::graph::Pattern;
use crate::engine::graph::search_draft::Draft;
use crate::engine::graph::search_facts::Port;
use crate::engine::topo::{Net, NetDevsPolicy, Params, PathType, System};
use crate::engine::topo::{local_net, local_nets};

/// NICs beyond these are never looked at.
const MAX_NETS: usize = 64;

/// NICs to try for a GPU, or for all of them, nearest first: those it prefers, channel by channel, then, unless the policy forbids
/// more, all within `farthest`. Without one only the preferred are listed.
pub(crate) fn select_nets(
    system: &System,
    farthest: Option<i32>,
    gpu: Option<usize>,
    params: &Params,
) -> Vec<usize> {
    let gpus: Vec<usize> = gpu.map_or_else(|| (0..system.n_gpus()).collect(), |gpu| vec![gpu]);
    let mut nets = Vec::new();
    if system.hosts.len() > 1 && params.scatter_nets {
        prefer_across_gpus(system, &gpus, params, &mut nets);
    } else {
        for &g in &gpus {
            for net in local_nets(system, g, params).unwrap_or_default() {
                push_new(&mut nets, net);
            }
        }
    }
    let most = match params.net_devs_policy {
        NetDevsPolicy::Max(most) => most * gpus.len(),
        NetDevsPolicy::Auto | NetDevsPolicy::All => usize::MAX,
    };
    if nets.len() >= most {
        return nets;
    }
    for kind in PathType::ALL.iter().filter(|kind| farthest.is_some_and(|farthest| **kind as i32 <= farthest))
    {
        for &g in &gpus {
            for n in (0..system.n_nets().min(MAX_NETS)).filter(|&n| system.net_path(g, n).kind == *kind) {
                push_new(&mut nets, n);
                if nets.len() >= most {
                    return nets;
                }
            }
        }
    }
    nets
}

/// The first choice of every GPU, then the second, and so on: spreads over hosts joined by NVLink.
fn prefer_across_gpus(system: &System, gpus: &[usize], params: &Params, nets: &mut Vec<usize>) {
    let mut firsts = vec![None; gpus.len()];
    let mut done = vec![false; gpus.len()];
    for channel in 0..MAX_NETS {
        for (i, &g) in gpus.iter().enumerate() {
            if done[i] {
                continue;
            }
            let net = local_net(system, g, channel, params).ok();
            if channel == 0 {
                firsts[i] = net;
            } else if firsts[i] == net {
                done[i] = true;
                continue;
            }
            if let Some(net) = net {
                push_new(nets, net);
            }
        }
        if done.iter().all(|&done| done) {
            break;
        }
    }
}

fn push_new(nets: &mut Vec<usize>, net: usize) {
    if !nets.contains(&net) {
        nets.push(net);
    }
}

/// A way out of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// NIC the channel came in by.
    pub(crate) start: usize,
    /// NIC it would leave by.
    pub(crate) end: usize,
    /// Place of the GPU it would leave from.
    pub(crate) step: usize,
}

/// Whether a channel may leave that way.
pub(crate) fn may_leave(ports: &[Port], graph: &Draft, exit: Exit, params: &Params) -> bool {
    let Exit { start, end, step } = exit;
    let id = |net: usize| ports[net].id;
    let (net, first) = (&ports[end].net, &ports[start].net);
    if net.plane.is_some() && first.plane.is_some() && net.plane != first.plane {
        return false;
    }
    if graph.pattern == Pattern::Tree && id(end) != id(start) {
        return false;
    }
    if graph.pattern == Pattern::Ring && graph.cross_nic == 2 {
        if graph.n_channels % 2 == 1 && id(end) != graph.inter[graph.n_channels - 1][0] {
            return false;
        }
    } else if graph.cross_nic == 0
        && !same_rail(net, first, params.rail_per_host && id(end) >> 56 != id(start) >> 56)
    {
        return false;
    }
    graph.pattern != Pattern::BalancedTree || step == 0 || id(end) == graph.inter[graph.n_channels][1]
}

/// Whether two ports lead to the same switches: by rail number where both have one, else by being the same port.
fn same_rail(a: &Net, b: &Net, by_place: bool) -> bool {
    match (a.rail, b.rail) {
        (Some(a), Some(b)) => a == b,
        _ if by_place => a.pci_id == b.pci_id && a.port == b.port,
        _ => a.asic == b.asic && a.port == b.port,
    }
}
