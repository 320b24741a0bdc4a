//! Links: how they add up and sort, NVLink, chip-to-chip and extra PCI links, and links between NUMA domains.

use crate::engine::topo::build::{
    LOCAL_BW, PARTITION_MASK, bus_number, class_kind, device_bus, host_hash, node_id, partition, rounded,
};
use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{CpuArch, CpuVendor, LinkType, NodeType};
use crate::engine::topo::params::Params;
use crate::engine::topo::system::{Cpu, Link, Node, NodeData, NodeRef, System};
use crate::engine::topo::xml::Element;

/// GB/s of one NVLink, by compute capability.
pub fn nvlink_bw(sm: i32) -> f32 {
    match sm {
        100.. => 40.1,
        90.. => 20.6,
        86 => 12.0,
        70.. => 20.0,
        60.. => 18.0,
        _ => 20.0,
    }
}

/// An element that describes a link, and what stands above it.
struct Site<'a> {
    element: &'a Element,
    /// Elements above, outermost first.
    above: Vec<&'a Element>,
    host: usize,
}

/// All elements of a name, in file order.
fn sites<'a>(system: &System, root: &'a Element, name: &str) -> Result<Vec<Site<'a>>, Error> {
    fn walk<'a>(
        element: &'a Element,
        above: &mut Vec<&'a Element>,
        name: &str,
        found: &mut Vec<(Vec<&'a Element>, &'a Element)>,
    ) {
        if element.name == name {
            found.push((above.clone(), element));
            return;
        }
        above.push(element);
        for child in &element.children {
            walk(child, above, name, found);
        }
        above.pop();
    }
    let mut found = Vec::new();
    walk(root, &mut Vec::new(), name, &mut found);
    let mut sites = Vec::new();
    for (above, element) in found {
        let mut host = 0;
        if let Some(cpu) = above.iter().find(|element| element.name == "cpu") {
            let hash = host_hash(cpu)?;
            host = system.hosts.iter().position(|&known| known == hash).unwrap_or(0);
        }
        sites.push(Site { element, above, host });
    }
    Ok(sites)
}

impl Site<'_> {
    /// Bus id of the nearest PCI element above.
    fn bus(&self) -> Result<&str, Error> {
        let bus = self.above.iter().rev().find_map(|element| element.text("busid"));
        bus.ok_or_else(|| self.element.error(format!("element {} without a bus id above", self.element.name)))
    }

    /// The device whose link this is; nothing when an earlier rank on the same device has described it.
    fn device(&self, system: &System, split: bool) -> Result<Option<NodeRef>, Error> {
        let [.., pci, gpu] = self.above[..] else {
            return Err(self.element.error(format!("element {} outside a gpu", self.element.name)));
        };
        for sibling in pci.children.iter().filter(|child| child.name == "gpu") {
            if std::ptr::eq(sibling, gpu) {
                break;
            }
            if !split || partition(sibling)? == partition(gpu)? {
                return Ok(None);
            }
        }
        let bus = self.bus()?;
        let id = node_id(self.host, device_bus(gpu, bus_number(bus), split)?);
        match system.index_of(NodeType::Dev, id) {
            Some(index) => Ok(Some(NodeRef { kind: NodeType::Dev, index })),
            None => Err(self
                .element
                .error(format!("element {} of the gpu at {bus}, which has no rank", self.element.name))),
        }
    }
}

/// Adds NVLinks. A link to another device is added in its own direction only: the other end describes the way back.
pub(crate) fn add_nvlinks(system: &mut System, root: &Element, params: &Params) -> Result<(), Error> {
    for site in sites(system, root, "nvlink")? {
        let Some(dev) = site.device(system, params.split_partitions)? else { continue };
        let element = site.element;
        let n_local = devices_at(system, system.node(dev).id).len() as f32;
        let bw = element.count("count")? as f32 * nvlink_bw(system.dev(dev.index).sm);
        let remote = match class_kind(element.required("tclass")?) {
            NodeType::Gpu => {
                let remotes = devices_at(system, node_id(site.host, bus_number(element.required("target")?)));
                for &remote in &remotes {
                    connect(system, dev, remote, LinkType::Nvl, bw / remotes.len() as f32 / n_local);
                }
                continue;
            }
            NodeType::Cpu => local_cpu(system, dev, None),
            _ => {
                if !system.has_nvswitch() {
                    system.nodes_mut(NodeType::Nvs).push(Node::new(0, NodeData::Plain));
                }
                Some(NodeRef { kind: NodeType::Nvs, index: 0 })
            }
        };
        if let Some(remote) = remote {
            join(system, dev, remote, LinkType::Nvl, bw / n_local);
        }
    }
    Ok(())
}

/// Adds chip-to-chip links between devices and their CPU. Partitions of a device share theirs, so it gets a vertex of its own.
pub(crate) fn add_c2c(system: &mut System, root: &Element, params: &Params) -> Result<(), Error> {
    for site in sites(system, root, "c2c")? {
        let Some(dev) = site.device(system, params.split_partitions)? else { continue };
        let element = site.element;
        let count = element.count("count")?;
        let bw = rounded(f64::from(element.count("bw")?) * f64::from(count) / 1000.0);
        let Some(cpu) = local_cpu(system, dev, None) else { continue };
        let id = system.node(dev).id;
        if devices_at(system, id).len() == 1 {
            join(system, dev, cpu, LinkType::C2c, bw);
            continue;
        }
        let bridge_id = id & !PARTITION_MASK;
        let known = system.index_of(NodeType::Cxb, bridge_id);
        let index = known.unwrap_or(system.count(NodeType::Cxb));
        let bridge = NodeRef { kind: NodeType::Cxb, index };
        if known.is_none() {
            system.nodes_mut(NodeType::Cxb).push(Node::new(bridge_id, NodeData::Plain));
            join(system, bridge, cpu, LinkType::C2c, bw);
        }
        join(system, dev, bridge, LinkType::C2c, bw);
    }
    Ok(())
}

/// Adds direct links between PCI switches.
pub(crate) fn add_pci_links(system: &mut System, root: &Element) -> Result<(), Error> {
    for site in sites(system, root, "pcilink")? {
        let bus = site.bus()?;
        let find = |bus: &str| {
            let index = system.index_of(NodeType::Pci, node_id(site.host, bus_number(bus)))?;
            Some(NodeRef { kind: NodeType::Pci, index })
        };
        let pci = find(bus)
            .ok_or_else(|| site.element.error(format!("element pcilink of {bus}, which is no PCI switch")))?;
        if let Some(remote) = find(site.element.required("target")?) {
            connect(system, pci, remote, LinkType::Loc, LOCAL_BW);
        }
    }
    Ok(())
}

/// All partitions of the device with that id.
pub(crate) fn devices_at(system: &System, id: i64) -> Vec<NodeRef> {
    let devs = system.nodes(NodeType::Dev).iter().enumerate();
    devs.filter(|(_, dev)| dev.id & !PARTITION_MASK == id & !PARTITION_MASK)
        .map(|(index, _)| NodeRef { kind: NodeType::Dev, index })
        .collect()
}

/// Links two vertices in both directions.
pub(crate) fn join(system: &mut System, a: NodeRef, b: NodeRef, kind: LinkType, bw: f32) {
    connect(system, a, b, kind, bw);
    connect(system, b, a, kind, bw);
}

/// Adds bandwidth to the link between two vertices, making it when there is none, and keeps links sorted by falling bandwidth.
fn connect(system: &mut System, from: NodeRef, to: NodeRef, kind: LinkType, bw: f32) {
    let links = &mut system.node_mut(from).links;
    let mut at = links.iter().position(|link| link.to == to && link.kind == kind).unwrap_or_else(|| {
        links.push(Link { kind, bw: 0.0, to });
        links.len() - 1
    });
    links[at].bw += bw;
    while at > 0 && links[at - 1].bw < links[at].bw {
        links.swap(at - 1, at);
        at -= 1;
    }
}

/// The NUMA domain above a vertex, following PCI switches only.
fn local_cpu(system: &System, at: NodeRef, from: Option<NodeRef>) -> Option<NodeRef> {
    if at.kind == NodeType::Cpu {
        return Some(at);
    }
    let links = system.node(at).links.iter();
    let mut next = links.filter(|link| {
        link.kind == LinkType::Pci
            && Some(link.to) != from
            && matches!(link.to.kind, NodeType::Pci | NodeType::Cpu)
    });
    next.find_map(|link| local_cpu(system, link.to, Some(at)))
}

/// Links all NUMA domains of a host with each other.
pub(crate) fn connect_cpus(system: &mut System) {
    let n = system.count(NodeType::Cpu);
    for (a, b) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let cpus = system.nodes(NodeType::Cpu);
        if cpus[a].id >> 56 == cpus[b].id >> 56 {
            let bw = inter_cpu_bw(system.cpu(a));
            let at = |index| NodeRef { kind: NodeType::Cpu, index };
            connect(system, at(a), at(b), LinkType::Sys, bw);
        }
    }
}

/// GB/s between two NUMA domains of a host.
fn inter_cpu_bw(cpu: &Cpu) -> f32 {
    match (cpu.arch, cpu.vendor, cpu.model) {
        (Some(CpuArch::Power), ..) => 32.0,
        (Some(CpuArch::Arm), ..) => 6.0,
        (Some(CpuArch::X86), Some(CpuVendor::Intel), 4) => 40.0,
        (Some(CpuArch::X86), Some(CpuVendor::Intel), 3) => 22.0,
        (Some(CpuArch::X86), Some(CpuVendor::Intel), 2) => 10.0,
        (Some(CpuArch::X86), Some(CpuVendor::Intel), _) => 6.0,
        (Some(CpuArch::X86), Some(CpuVendor::Amd), _) => 16.0,
        (Some(CpuArch::X86), Some(CpuVendor::Zhaoxin), 1) => 9.0,
        (Some(CpuArch::X86), Some(CpuVendor::Zhaoxin), _) => 6.0,
        _ => LOCAL_BW,
    }
}

/// Puts the link to the parent last at every vertex of the PCI tree.
pub(crate) fn sort_links(system: &mut System, at: NodeRef, up: Option<NodeRef>) {
    let links = &mut system.node_mut(at).links;
    if let Some(position) = up.and_then(|up| links.iter().position(|link| link.to == up)) {
        links[position..].rotate_left(1);
    }
    for link in links.clone() {
        if link.kind == LinkType::Pci && Some(link.to) != up {
            sort_links(system, link.to, Some(at));
        }
    }
}
