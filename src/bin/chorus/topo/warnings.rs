//! What will slow a machine down: NICs far from every GPU, links of unequal speed, NUMA nodes without ranks.

use std::collections::BTreeMap;

use chorus::engine::topo::{LinkType, NodeRef, NodeType, PathType, System};

use crate::topo::hierarchy::label;
use crate::topo::matrix::nearest_cpu;

/// All warnings about a machine.
pub(super) fn of(system: &System) -> Vec<String> {
    let mut warnings = far_nics(system);
    warnings.extend(unequal(system, LinkType::Nvl, "NVLink"));
    warnings.extend(unequal(system, LinkType::Pci, "PCI"));
    warnings.extend(partial_nvlink(system));
    warnings.extend(idle_numa_nodes(system));
    warnings
}

fn far_nics(system: &System) -> Vec<String> {
    let has_gpus = system.compute_caps().is_some_and(|(_, most)| most > 0);
    let mut warnings = Vec::new();
    for net in 0..system.n_nets() {
        let paths = (0..system.n_gpus()).filter_map(|gpu| system.path(NodeRef::gpu(gpu), NodeRef::net(net)));
        let Some(nearest) = paths.map(|path| path.kind).min() else { continue };
        let name = label(system, NodeRef::net(net));
        match nearest {
            PathType::Dis | PathType::Net => warnings.push(format!("{name} is out of reach of every rank")),
            PathType::Sys => warnings
                .push(format!("{name} is far from every rank: data cross the link between CPUs (SYS)")),
            PathType::Phb if has_gpus => {
                warnings.push(format!("{name} shares no PCI switch with a rank: data cross the CPU (PHB), GPUDirect is off by default"));
            }
            _ => {}
        }
    }
    warnings
}

/// GPUs whose links of one kind together are slower than those of others.
fn unequal(system: &System, kind: LinkType, name: &str) -> Option<String> {
    let mut by_bw: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
    for (index, device) in system.nodes(NodeType::Dev).iter().enumerate() {
        let total: f32 = device.links.iter().filter(|link| link.kind == kind).map(|link| link.bw).sum();
        if total > 0.0 {
            by_bw.entry((total * 10.0).round() as u32).or_default().push(system.dev(index).dev);
        }
    }
    if by_bw.len() < 2 {
        return None;
    }
    let groups =
        by_bw.iter().map(|(bw, gpus)| format!("{:.1} GB/s at GPU {}", f64::from(*bw) / 10.0, list(gpus)));
    Some(format!(
        "unequal {name} links: {}; the slowest sets the pace",
        groups.collect::<Vec<_>>().join(", ")
    ))
}

fn list(gpus: &[i32]) -> String {
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Some pairs of ranks talk over NVLink and others do not.
fn partial_nvlink(system: &System) -> Option<String> {
    let n = system.n_gpus();
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
    let kinds: Vec<PathType> = pairs.map(|(a, b)| system.gpu_path(a, b).kind).collect();
    let linked = kinds.iter().filter(|&&kind| kind <= PathType::Nvb).count();
    let is_partial = linked > 0 && linked < kinds.len();
    is_partial
        .then(|| format!("{} of {} pairs of ranks have no NVLink path", kinds.len() - linked, kinds.len()))
}

fn idle_numa_nodes(system: &System) -> Vec<String> {
    let mut busy = vec![false; system.count(NodeType::Cpu)];
    for gpu in 0..system.n_gpus() {
        if let Some(cpu) = nearest_cpu(system, NodeRef::gpu(gpu)) {
            busy[cpu] = true;
        }
    }
    let idle = busy.iter().enumerate().filter(|(_, busy)| !**busy);
    idle.map(|(cpu, _)| format!("{} has no rank", label(system, NodeRef::cpu(cpu)))).collect()
}
