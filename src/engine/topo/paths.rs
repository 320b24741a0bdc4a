//! The best path between any two vertices that matter, by relaxation from each of them, then the rules that divert paths.
//!
//! ```text
//! to every CPU, DEV, GPU, NET, NVS:  breadth-first, keeping (type, bandwidth, length) best     `spread`
//! GPU→GPU farther than P2P allows:   GPU → its CPU → GPU                                       `divert_peers`
//! GPU↔NIC over chip-to-chip + PCI:   type becomes P2C                                          `mark_p2c`
//! GPU→NIC better through a neighbour:  GPU → NVLink → GPU → NIC, type PXN                      `divert_nics`
//! GPU↔NIC without direct access:     through the GPU's CPU                                     `divert_nics`
//! ```
//!
//! A path is stored at its start, as the links walked; it was found from its end.

use crate::engine::topo::build::LOCAL_BW;
use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{LinkType, NodeType, PathType};
use crate::engine::topo::local::{local, local_cpu, local_gpu};
use crate::engine::topo::params::Params;
use crate::engine::topo::reach::{can_connect, check_gdr, check_p2p};
use crate::engine::topo::system::{Hop, NodeRef, Path, System};

/// Computes all paths anew.
pub(crate) fn compute_paths(system: &mut System, params: &Params) -> Result<(), Error> {
    const ENDS: [NodeType; 7] = [
        NodeType::Cpu,
        NodeType::Dev,
        NodeType::Gpu,
        NodeType::Net,
        NodeType::Gin,
        NodeType::Rma,
        NodeType::Nvs,
    ];
    for &kind in NodeType::ALL {
        for node in system.nodes_mut(kind) {
            node.paths = Default::default();
        }
    }
    for kind in ENDS {
        for index in 0..system.count(kind) {
            spread(system, NodeRef { kind, index }, params)?;
        }
    }
    divert_peers(system, params)?;
    mark_p2c(system)?;
    divert_nics(system, params)?;
    for n in 0..system.n_nets() {
        system.net_mut(n).local_gpu = local_gpu(system, n, params)?;
    }
    Ok(())
}

/// Sets the path to one vertex at all others.
fn spread(system: &mut System, end: NodeRef, params: &Params) -> Result<(), Error> {
    // Where two vertices have the same id, paths are kept for the first.
    let column = system.index_of(end.kind, system.node(end).id).unwrap_or(end.index);
    let end_dev = match end.kind {
        NodeType::Gpu => NodeRef { kind: NodeType::Dev, index: system.gpu(end.index).parent },
        _ => end,
    };
    let own_links = if end.kind == NodeType::Gpu { 2 } else { 1 };
    let column = NodeRef { kind: end.kind, index: column };
    *system.path_mut(end, column) = Path { hops: Vec::new(), bw: LOCAL_BW, kind: PathType::Loc };
    let mut front = vec![end];
    while !front.is_empty() {
        let mut next = Vec::new();
        for &at in &front {
            let path = system.path_or_none(at, column).clone();
            for l in 0..system.node(at).links.len() {
                let link = system.node(at).links[l];
                let to = link.to;
                system.path_mut(to, column);
                // Through a foreign device one may only reach its own GPU, or one more device over NVLink while the path is short.
                if at != end_dev
                    && at.kind == NodeType::Dev
                    && (link.kind != LinkType::Loc || to.kind != NodeType::Gpu)
                {
                    let over_nvlink = link.kind == LinkType::Nvl && to.kind == NodeType::Dev;
                    if params.nvb_disable || !over_nvlink || path.hops.len() > own_links {
                        continue;
                    }
                }
                let bw = path.bw.min(link.bw);
                let kind_there = step_kind(at, &path, own_links, link.kind, to).max(path.kind);
                let known: &Path = system.path_mut(to, column);
                let better = kind_there < known.kind
                    || (kind_there == known.kind
                        && (known.bw < bw || (known.bw == bw && known.hops.len() > path.hops.len() + 1)));
                if !better {
                    continue;
                }
                let back =
                    system.node(to).links.iter().position(|back| back.to == at && back.kind == link.kind);
                let back = back.ok_or_else(|| one_way(system, at, to, link.kind))?;
                let mut hops = Vec::with_capacity(path.hops.len() + 1);
                hops.push(Hop { from: to, link: back });
                hops.extend_from_slice(&path.hops);
                *system.path_mut(to, column) = Path { hops, bw, kind: kind_there };
                if !next.contains(&to) {
                    next.push(to);
                }
            }
        }
        front = next;
    }
    Ok(())
}

/// The type of one more link at the far end of a path.
fn step_kind(at: NodeRef, path: &Path, own_links: usize, link: LinkType, to: NodeRef) -> PathType {
    match link {
        LinkType::Pci if at.kind == NodeType::Cpu || to.kind == NodeType::Cpu => PathType::Phb,
        _ if at.kind == NodeType::Pci && to.kind == NodeType::Pci => PathType::Pxb,
        LinkType::Nvl
            if at.kind == NodeType::Dev && path.kind == PathType::Nvl && path.hops.len() == own_links =>
        {
            PathType::Nvb
        }
        LinkType::Loc | LinkType::Net => PathType::Loc,
        LinkType::Nvl => PathType::Nvl,
        LinkType::C2c => PathType::C2c,
        LinkType::Pci => PathType::Pix,
        LinkType::Sys => PathType::Sys,
    }
}

fn one_way(system: &System, from: NodeRef, to: NodeRef, kind: LinkType) -> Error {
    let name = |at: NodeRef| format!("{} {:x}", at.kind, system.node(at).id);
    Error::machine(format!("the {kind} link from {} to {} has no way back", name(from), name(to)))
}

/// The type of two paths in a row.
fn merged(a: PathType, b: PathType) -> PathType {
    match (a.max(b), a.min(b)) {
        (PathType::Phb, PathType::C2c) => PathType::P2c,
        (farther, _) => farther,
    }
}

/// Replaces a path by the one through another vertex.
fn go_through(system: &mut System, middle: NodeRef, from: NodeRef, to: NodeRef) {
    let first = system.path_or_none(from, middle);
    let second = system.path_or_none(middle, to);
    let hops = first.hops.iter().chain(&second.hops).copied().collect();
    let kind = if middle.kind == NodeType::Gpu { PathType::Pxn } else { merged(first.kind, second.kind) };
    let path = Path { hops, bw: first.bw.min(second.bw), kind };
    *system.path_mut(from, to) = path;
}

/// Sends GPU pairs that may not talk directly through a CPU, and marks those that should use the network.
fn divert_peers(system: &mut System, params: &Params) -> Result<(), Error> {
    for g in 0..system.n_gpus() {
        for p in 0..system.n_gpus() {
            if !check_p2p(system, p, g, params)?.allowed {
                let cpu = local_cpu(system, g)?;
                go_through(system, NodeRef::cpu(cpu), NodeRef::gpu(p), NodeRef::gpu(g));
            }
        }
        for p in (0..system.n_gpus()).filter(|&p| p != g) {
            if !can_connect(system, p, g, params)? {
                system.path_mut(NodeRef::gpu(p), NodeRef::gpu(g)).kind = PathType::Net;
            }
        }
    }
    Ok(())
}

/// Paths to the nearest NICs that go over the chip-to-chip link and the CPU's own PCI port are nearer than their links say.
fn mark_p2c(system: &mut System) -> Result<(), Error> {
    for g in 0..system.n_gpus() {
        let cpu = local_cpu(system, g)?;
        for n in local(system, NodeRef::gpu(g), NodeType::Net).indices {
            let to_cpu = |at| system.path(at, NodeRef::cpu(cpu)).map(|path| path.kind);
            if let (Some(gpu), Some(net)) = (to_cpu(NodeRef::gpu(g)), to_cpu(NodeRef::net(n)))
                && merged(gpu, net) == PathType::P2c
            {
                for (from, to) in [(NodeRef::gpu(g), NodeRef::net(n)), (NodeRef::net(n), NodeRef::gpu(g))] {
                    let path = system.path_mut(from, to);
                    path.kind = path.kind.min(PathType::P2c);
                }
            }
        }
    }
    Ok(())
}

/// Sends GPUs to NICs through a neighbour where that is better, and through the CPU where direct access is impossible.
fn divert_nics(system: &mut System, params: &Params) -> Result<(), Error> {
    for n in 0..system.n_nets() {
        for g in 0..system.n_gpus() {
            if !params.pxn_disable
                && let Some(neighbour) = local_gpu(system, n, params)?
                && neighbour != g
                && is_relay(system, neighbour, g, n, params)?
            {
                go_through(system, NodeRef::gpu(neighbour), NodeRef::gpu(g), NodeRef::net(n));
            }
            let near = system.net_path(g, n).kind < PathType::Phb;
            if near && check_gdr(system, g, n, false, params)?.is_none() {
                let cpu = NodeRef::cpu(local_cpu(system, g)?);
                go_through(system, cpu, NodeRef::net(n), NodeRef::gpu(g));
                go_through(system, cpu, NodeRef::gpu(g), NodeRef::net(n));
            }
        }
    }
    Ok(())
}

/// Whether `relay` carries data from `g` to NIC `n` better than `g` itself: near the NIC with direct access, joined to `g` by NVLink
/// in the same host, and faster, or sparing a way through the CPU.
fn is_relay(system: &System, relay: usize, g: usize, n: usize, params: &Params) -> Result<bool, Error> {
    let farthest = if params.pxn_c2c { PathType::P2c } else { PathType::Pxb };
    let host = |gpu: usize| system.node(NodeRef::gpu(gpu)).id >> 56;
    let (theirs, ours) = (system.net_path(relay, n), system.net_path(g, n));
    Ok(theirs.kind <= farthest
        && check_gdr(system, relay, n, true, params)?.is_some()
        && system.gpu_path(relay, g).kind <= PathType::Nvl
        && host(relay) == host(g)
        && (theirs.bw > ours.bw || ours.kind > PathType::Pxn))
}

#[cfg(test)]
mod tests {
    use crate::engine::topo::xml::{Limits, read_topology};
    use crate::engine::topo::{LinkType, NodeType, Params, PathType, System};

    /// Two sockets. On the first a switch with a second one below it (GPUs 0 and 1), GPU 2 and a NIC; GPU 3 straight on the CPU.
    /// GPU 4 alone on the second. NVLink: 2–3, 3–4.
    fn machine() -> String {
        let pci = |bus: &str, class: &str, inside: &str| {
            let link = "link_speed='16.0 GT/s PCIe' link_width='16'";
            format!("<pci busid='{bus}' class='{class}' vendor='0x10b5' {link}>{inside}</pci>")
        };
        let gpu = |dev: i32, peers: &[i32]| {
            let link =
                |peer: &i32| format!("<nvlink target='000{peer}:00:00.0' count='2' tclass='0x030200'/>");
            let links: String = peers.iter().map(link).collect();
            let element = format!("<gpu dev='{dev}' sm='80' rank='{dev}' gdr='1'>{links}</gpu>");
            pci(&format!("000{dev}:00:00.0"), "0x030200", &element)
        };
        let lower = pci("0020:00:00.0", "0x060400", &(gpu(0, &[]) + &gpu(1, &[])));
        let nic = pci("0030:00:00.0", "0x020000", "<nic><net dev='0' speed='100000' gdr='1'/></nic>");
        let upper = pci("0010:00:00.0", "0x060400", &(lower + &gpu(2, &[3]) + &nic));
        let cpu = "arch='x86_64' vendor='GenuineIntel' familyid='6' modelid='85'";
        format!(
            "<system version='1'><cpu numaid='0' {cpu}>{upper}{}</cpu><cpu numaid='1' {cpu}>{}</cpu></system>",
            gpu(3, &[2, 4]),
            gpu(4, &[3])
        )
    }

    fn system(params: &Params) -> System {
        let root = read_topology(&machine(), Limits::TOPOLOGY).expect("a good file");
        let mut system = System::from_xml(&root, params).expect("a machine");
        assert_eq!(system.domains(params), Ok(vec![0; 5]));
        system
    }

    #[test]
    fn path_types_follow_what_lies_between() {
        let system = system(&Params::default());
        let kind = |from, to| system.gpu_path(from, to).kind;
        assert_eq!(kind(0, 0), PathType::Loc);
        assert_eq!(kind(0, 1), PathType::Pix, "one switch");
        assert_eq!(kind(0, 2), PathType::Pxb, "two switches");
        assert_eq!(kind(0, 3), PathType::Phb, "the CPU");
        assert_eq!(kind(0, 4), PathType::Sys, "both CPUs");
        assert_eq!(kind(2, 3), PathType::Nvl);
        assert_eq!(kind(2, 4), PathType::Nvb, "NVLink through GPU 3");
        assert_eq!(system.net_path(2, 0).kind, PathType::Pix);
        assert_eq!(system.net_path(3, 0).kind, PathType::Pxn, "through GPU 2, which is nearer");
        assert_eq!(system.nearest_path(NodeType::Gpu), PathType::Nvl);
        assert_eq!(system.farthest_path(NodeType::Gpu), PathType::Sys);
    }

    #[test]
    fn bandwidth_is_that_of_the_narrowest_link() {
        let system = system(&Params::default());
        assert_eq!(system.gpu_path(0, 1).bw, 24.0, "PCI generation 4, 16 lanes");
        assert_eq!(system.gpu_path(2, 3).bw, 40.0, "two NVLinks");
        assert_eq!(system.gpu_path(0, 4).bw, 10.0, "between the sockets");
        assert_eq!(system.net_path(2, 0).bw, 12.5, "100 Gb/s");
    }

    #[test]
    fn settings_close_ways() {
        let without_nvb = system(&Params { nvb_disable: true, ..Params::default() });
        assert_eq!(without_nvb.gpu_path(2, 4).kind, PathType::Sys);
        let without_pxn = system(&Params { pxn_disable: true, ..Params::default() });
        assert_eq!(without_pxn.net_path(3, 0).kind, PathType::Phb);
        let near = Params { p2p_level: Some(PathType::Nvl), ..Params::default() };
        assert_eq!(system(&near).gpu_path(0, 1).kind, PathType::Phb, "through the CPU instead of the switch");
    }

    #[test]
    fn links_are_sorted_with_the_way_up_last() {
        let system = system(&Params::default());
        let switch = &system.nodes(NodeType::Pci)[0];
        assert_eq!(switch.links.last().map(|link| link.to.kind), Some(NodeType::Cpu));
        let dev = &system.nodes(NodeType::Dev)[3];
        let kinds: Vec<LinkType> = dev.links.iter().map(|link| link.kind).collect();
        assert_eq!(kinds, [LinkType::Loc, LinkType::Nvl, LinkType::Nvl, LinkType::Pci]);
    }
}
