//! Who may talk to whom, and how: GPU to GPU directly, over shared memory or the network, NIC to GPU memory.

use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{CpuArch, CpuVendor, NodeType, PathType};
use crate::engine::topo::local::local_cpu;
use crate::engine::topo::params::Params;
use crate::engine::topo::system::{Node, NodeRef, System};

/// What is known of a pair of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2p {
    /// They may use each other's memory directly.
    pub allowed: bool,
    /// The rank in between, when the way leads over NVLink through another GPU.
    pub through: Option<i32>,
}

/// How a NIC reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GdrMode {
    /// By the shortest way.
    Default,
    /// The GPU has a chip-to-chip link, but this NIC must use PCI.
    Pci,
}

fn gpu(system: &System, index: usize) -> &Node {
    &system.nodes(NodeType::Gpu)[index]
}

/// The GPU rank that stands for a device: the first with its number in its host.
fn rank_of_dev(system: &System, host: i64, dev: i32) -> Result<i32, Error> {
    let mut gpus =
        (0..system.n_gpus()).filter(|&g| gpu(system, g).id >> 56 == host && system.gpu(g).dev == dev);
    let first = gpus.next().ok_or_else(|| {
        Error::machine(format!("an NVLink path leads through GPU {dev}, which has no rank in this domain"))
    })?;
    Ok(system.gpu(first).rank)
}

/// Whether two GPUs, named by position, may use each other's memory. The first looks at the second.
pub fn check_p2p(system: &System, from: usize, to: usize, params: &Params) -> Result<P2p, Error> {
    let path = system.gpu_path(from, to);
    let mut through = None;
    if path.hops.len() == 4 {
        let middle = system.link(path.hops[1]).to;
        if middle.kind == NodeType::Dev {
            through = Some(rank_of_dev(system, system.node(middle).id >> 56, system.dev(middle.index).dev)?);
        }
    }
    let level = params.p2p_level.unwrap_or_else(|| {
        let cpu = system.cpu(0);
        let is_amd = cpu.arch == Some(CpuArch::X86) && cpu.vendor == Some(CpuVendor::Amd);
        if is_amd && system.count(NodeType::Dev) <= 2 { PathType::Sys } else { PathType::Pxb }
    });
    Ok(P2p { allowed: path.kind <= level, through })
}

/// Whether two GPUs of a host can be joined without the network.
pub(crate) fn can_connect(system: &System, from: usize, to: usize, params: &Params) -> Result<bool, Error> {
    let p2p = check_p2p(system, from, to, params)?;
    if p2p.allowed && p2p.through.is_some() {
        return Ok(true);
    }
    let shared_memory = !params.shm_disable;
    Ok((p2p.allowed || shared_memory) && !prefers_network(system, from, to, params))
}

/// Whether both GPUs reach the network, within PXB, faster than each other.
pub(crate) fn prefers_network(system: &System, from: usize, to: usize, params: &Params) -> bool {
    if params.net_disable_intra {
        return false;
    }
    let between = system.gpu_path(from, to).bw;
    let to_network = |g: usize| {
        let paths = (0..system.n_nets()).map(|net| system.net_path(g, net));
        paths.filter(|path| path.kind <= PathType::Pxb).map(|path| path.bw).fold(0.0, f32::max)
    };
    to_network(from) > between && to_network(to) > between
}

/// The rank whose GPU forwards a GPU's data to a NIC; the GPU's own rank when it needs no help.
pub fn forwarding_rank(system: &System, from: usize, net: usize) -> Result<i32, Error> {
    let path = system.net_path(from, net);
    let own = system.gpu(from).rank;
    if path.kind != PathType::Pxn {
        return Ok(own);
    }
    let lost = || Error::machine(format!("no GPU between rank {own} and NIC {}", system.net(net).dev));
    let behind_fabric =
        path.hops.iter().skip(1).map(|&hop| system.link(hop).to).find(|at| at.kind != NodeType::Nvs);
    let mut at = behind_fabric.ok_or_else(lost)?;
    if at.kind == NodeType::Dev {
        let gpus = system.node(at).links.iter().map(|link| link.to);
        at = gpus.into_iter().find(|to| to.kind == NodeType::Gpu).ok_or_else(lost)?;
    }
    if at.kind != NodeType::Gpu {
        return Err(lost());
    }
    rank_of_dev(system, system.node(at).id >> 56, system.gpu(at.index).dev)
}

/// Whether and how a NIC reaches a GPU's memory, for its reads (sends) or writes (receives).
pub fn check_gdr(
    system: &System,
    from: usize,
    net: usize,
    read: bool,
    params: &Params,
) -> Result<Option<GdrMode>, Error> {
    let data = system.gpu(from);
    if !system.net(net).gdr || !data.gdr || (data.partition.is_some() && !params.net_gdr_partition) {
        return Ok(None);
    }
    if read && !allows_reads(system, from, params) {
        return Ok(None);
    }
    let default = if params.net_gdr_c2c { PathType::P2c } else { PathType::Pxb };
    let level = params.net_gdr_level.unwrap_or(default);
    let distance = |g: usize| system.net_path(g, net).kind;
    let mut nearest = from;
    if distance(from) == PathType::Pxn {
        let rank = forwarding_rank(system, from, net)?;
        nearest = system
            .index_of_rank(rank)
            .ok_or_else(|| Error::machine(format!("no GPU of rank {rank} here")))?;
    }
    if distance(nearest) > level {
        return Ok(None);
    }
    let cpu = NodeRef::cpu(local_cpu(system, nearest)?);
    let to_cpu = system.path_or_none(NodeRef::gpu(nearest), cpu).kind;
    let by_pci = to_cpu == PathType::C2c && distance(nearest) != PathType::P2c;
    Ok(Some(if by_pci { GdrMode::Pci } else { GdrMode::Default }))
}

/// Older GPUs let NICs read only when GPU traffic has NVLink to go, so that PCI is free.
fn allows_reads(system: &System, from: usize, params: &Params) -> bool {
    if params.net_gdr_read >= 0 {
        return params.net_gdr_read != 0;
    }
    let n = system.n_gpus();
    let has_nvlink = || (0..n).any(|peer| peer != from && system.gpu_path(from, peer).kind == PathType::Nvl);
    system.gpu(from).sm >= 80 || n == 1 || has_nvlink()
}
