//! Channels for point-to-point calls: as many to each peer as its slowest link deserves, and enough in all that peers need not queue.
//!
//! ```text
//! to one peer:  NVLink 2 x (path / one link), other paths in the host 2, network: one per NIC, or one per 14 GB/s
//! everywhere:   the least of all pairs and ranks, rounded up to a power of two
//! several hosts: halved while a round of 8 peers per channel would not fit
//! ```

use crate::engine::graph::channels::MAX_CHANNELS;
use crate::engine::topo::{Error, NodeRef, NodeType, Params, PathType, System, local_nets, nvlink_bw};

/// Peers that one launch serves per channel.
const PEERS_PER_BATCH: usize = 8;
/// GB/s of network that one channel carries.
const CHANNEL_NET_BW: usize = 14;

/// Channels of point-to-point calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pChannels {
    /// In all; a power of two.
    pub n_channels: usize,
    /// For one peer; a power of two.
    pub per_peer: usize,
}

impl P2pChannels {
    /// The counts for `n_ranks` ranks on hosts that all look like one of `systems`, of which each has `n_channels` channels for
    /// collectives.
    pub fn of(
        systems: &[&System],
        n_ranks: usize,
        n_hosts: usize,
        n_channels: usize,
        params: &Params,
    ) -> Result<Self, Error> {
        let mut least = MAX_CHANNELS;
        for system in systems {
            for gpu in 0..system.n_gpus() {
                let peers = (0..system.n_gpus()).filter(|&peer| peer != gpu);
                least = peers.map(|peer| local_channels(system, gpu, peer)).fold(least, usize::min);
                if system.n_gpus() < n_ranks {
                    least = least.min(network_channels(system, gpu, params)?);
                }
            }
        }
        let n_channels = n_channels.clamp(1, MAX_CHANNELS).next_power_of_two();
        let mut per_peer = least.next_power_of_two();
        if n_hosts == 1 {
            return Ok(Self { n_channels, per_peer: per_peer.min(n_channels) });
        }
        while per_peer > 1 && per_peer * n_ranks.div_ceil(PEERS_PER_BATCH) > n_channels {
            per_peer /= 2;
        }
        Ok(Self { n_channels, per_peer })
    }
}

fn local_channels(system: &System, gpu: usize, peer: usize) -> usize {
    let path = system.gpu_path(peer, gpu);
    if matches!(path.kind, PathType::Nvl | PathType::Nvb) {
        2 * ((path.bw / nvlink_bw(system.gpu(gpu).sm)) as usize).max(1)
    } else {
        2
    }
}

/// NICs are counted until together they match the GPU's way to its CPU.
fn network_channels(system: &System, gpu: usize, params: &Params) -> Result<usize, Error> {
    if system.n_nets() == 0 {
        return Ok(2);
    }
    let at = NodeRef::gpu(gpu);
    let to_cpus = (0..system.count(NodeType::Cpu)).filter_map(|cpu| system.path(at, NodeRef::cpu(cpu)));
    let gpu_bw = to_cpus.min_by_key(|path| (path.kind, path.hops.len())).map_or(0.0, |path| path.bw);
    let mut n_nets = 0;
    let mut net_bw = 0.0;
    for net in local_nets(system, gpu, params)? {
        net_bw += system.path(at, NodeRef::net(net)).map_or(0.0, |path| path.bw);
        n_nets += 1;
        if net_bw >= gpu_bw {
            break;
        }
    }
    Ok(n_nets.max((net_bw as usize).div_ceil(CHANNEL_NET_BW)))
}
