//! What is nearest: CPUs and NICs of a GPU, GPUs of a NIC, and which of several equally near NICs a channel uses.

use crate::engine::topo::build::MAX_CHANNELS;
use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{NodeType, PathType};
use crate::engine::topo::params::{NetDevsPolicy, Params};
use crate::engine::topo::system::{NodeRef, System};

/// The nearest vertices of a kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Local {
    pub(crate) indices: Vec<usize>,
    /// Path type they share; DIS when nothing is in reach.
    pub(crate) kind: PathType,
}

/// Vertices of a kind reached with the highest bandwidth, and among those by the nearest path.
pub(crate) fn local(system: &System, from: NodeRef, kind: NodeType) -> Local {
    let mut best = Local { indices: Vec::new(), kind: PathType::Dis };
    let mut bw = 0.0;
    for (i, path) in system.node(from).paths[kind as usize].iter().enumerate() {
        if path.bw > bw || (path.bw == bw && path.kind < best.kind) {
            bw = path.bw;
            best = Local { indices: Vec::new(), kind: path.kind };
        }
        if path.bw == bw && path.kind == best.kind {
            best.indices.push(i);
        }
    }
    best
}

/// The GPUs nearest to a NIC, and how near they are.
pub(crate) fn local_gpus(system: &System, net: usize) -> (Vec<usize>, PathType) {
    let near = local(system, NodeRef::net(net), NodeType::Gpu);
    (near.indices, near.kind)
}

/// The CPU of a GPU: among the nearest the one with fewest links on the way.
pub(crate) fn local_cpu(system: &System, gpu: usize) -> Result<usize, Error> {
    let at = NodeRef::gpu(gpu);
    let near = local(system, at, NodeType::Cpu).indices;
    near.into_iter()
        .min_by_key(|&cpu| system.path_or_none(at, NodeRef::cpu(cpu)).hops.len())
        .ok_or_else(|| Error::machine(format!("no CPU in reach of the GPU of rank {}", system.gpu(gpu).rank)))
}

/// The NIC a GPU uses for a channel. GPUs that share NICs start at different ones: the position of the GPU's number among them,
/// its bits mirrored when the number of NICs is a power of two, so that neighbours spread out.
pub(crate) fn local_net(
    system: &System,
    gpu: usize,
    channel: usize,
    params: &Params,
) -> Result<usize, Error> {
    let nets = local(system, NodeRef::gpu(gpu), NodeType::Net).indices;
    let Some(&first) = nets.first() else {
        return Err(Error::machine(format!("no NIC in reach of the GPU of rank {}", system.gpu(gpu).rank)));
    };
    let sharers = local(system, NodeRef::net(first), NodeType::Gpu).indices.len().max(1);
    let per_gpu = match params.net_devs_policy {
        NetDevsPolicy::Auto => nets.len().div_ceil(sharers),
        NetDevsPolicy::All => nets.len(),
        NetDevsPolicy::Max(most) => most.min(nets.len()),
    };
    let dev = usize::try_from(system.gpu(gpu).dev).unwrap_or(0) % sharers;
    let start = if nets.len().is_power_of_two() { mirrored(dev, nets.len()) } else { dev };
    Ok(nets[(start + channel % per_gpu) % nets.len()])
}

/// The low bits of a number in reverse order; `size` is a power of two.
fn mirrored(value: usize, size: usize) -> usize {
    let bits = size.trailing_zeros();
    if bits == 0 { 0 } else { (value & (size - 1)).reverse_bits() >> (usize::BITS - bits) }
}

/// The GPU that uses a NIC on the lowest channel; nothing when none does.
pub(crate) fn local_gpu(system: &System, net: usize, params: &Params) -> Result<Option<usize>, Error> {
    let id = system.nodes(NodeType::Net)[net].id;
    let gpus = local(system, NodeRef::net(net), NodeType::Gpu).indices;
    for channel in 0..MAX_CHANNELS {
        for &gpu in &gpus {
            if system.nodes(NodeType::Net)[local_net(system, gpu, channel, params)?].id == id {
                return Ok(Some(gpu));
            }
        }
    }
    Ok(None)
}

/// The NICs a GPU uses, channel by channel, until the first comes again.
pub(crate) fn local_nets(system: &System, gpu: usize, params: &Params) -> Result<Vec<usize>, Error> {
    let mut nets = Vec::new();
    for channel in 0..MAX_CHANNELS {
        let net = local_net(system, gpu, channel, params)?;
        if nets.first() == Some(&net) {
            break;
        }
        nets.push(net);
    }
    Ok(nets)
}

/// GB/s of the slowest of the NICs a rank uses; 0 without NICs.
pub fn min_net_bw(system: &System, rank: i32, params: &Params) -> Result<f32, Error> {
    let gpu =
        system.index_of_rank(rank).ok_or_else(|| Error::machine(format!("no GPU of rank {rank} here")))?;
    if system.n_nets() == 0 {
        return Ok(0.0);
    }
    let slowest = local_nets(system, gpu, params)?
        .into_iter()
        .map(|net| system.net_path(gpu, net).bw)
        .fold(f32::MAX, f32::min);
    Ok(if slowest < f32::MAX { slowest } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::mirrored;

    #[test]
    fn mirroring_reverses_the_low_bits() {
        assert_eq!((0..8).map(|v| mirrored(v, 8)).collect::<Vec<_>>(), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!((0..2).map(|v| mirrored(v, 2)).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(mirrored(5, 1), 0);
    }
}
