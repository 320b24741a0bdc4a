//! A machine as a tree: NUMA nodes, PCI switches, devices with their ranks, NICs with their ports.

use std::collections::HashSet;
use std::io::Write;

use chorus::engine::topo::{CpuArch, CpuVendor, Link, LinkType, Node, NodeData, NodeRef, NodeType, System};

use crate::Failure;

/// A vertex with what hangs below it.
pub(super) struct Item {
    pub(super) node: NodeRef,
    /// Its name; a device with one rank, or a card with one port, carries that one's name too.
    pub(super) name: String,
    /// The link it hangs by: kind and GB/s. None for the roots.
    pub(super) link: Option<(LinkType, f32)>,
    pub(super) children: Vec<Item>,
}

/// One tree per NUMA node, then what hangs nowhere.
pub(super) fn of(system: &System) -> Vec<Item> {
    let mut seen: HashSet<(usize, usize)> = HashSet::new();
    let mut roots = Vec::new();
    for kind in [NodeType::Cpu, NodeType::Pci, NodeType::Dev, NodeType::Nic, NodeType::Net] {
        for index in 0..system.count(kind) {
            let node = NodeRef { kind, index };
            if seen.insert((kind as usize, index)) {
                roots.push(below(system, node, None, &mut seen));
            }
        }
        if kind == NodeType::Cpu {
            // Devices that hang by chip-to-chip links alone; those with PCI as well are in their place already.
            for root in &mut roots {
                attach_c2c(system, root, &mut seen);
            }
        }
    }
    roots
}

fn attach_c2c(system: &System, root: &mut Item, seen: &mut HashSet<(usize, usize)>) {
    for link in system.node(root.node).links.iter().filter(|link| link.kind == LinkType::C2c) {
        if link.to.kind == NodeType::Dev && seen.insert((link.to.kind as usize, link.to.index)) {
            root.children.push(below(system, link.to, Some((link.kind, link.bw)), seen));
        }
    }
}

fn below(
    system: &System,
    node: NodeRef,
    link: Option<(LinkType, f32)>,
    seen: &mut HashSet<(usize, usize)>,
) -> Item {
    let mut children = Vec::new();
    for link in &system.node(node).links {
        let hangs = matches!(link.kind, LinkType::Pci | LinkType::Loc | LinkType::Net);
        let upwards = node.kind == NodeType::Dev && link.to.kind != NodeType::Gpu;
        let is_part = !upwards
            && matches!(
                link.to.kind,
                NodeType::Pci | NodeType::Dev | NodeType::Gpu | NodeType::Nic | NodeType::Net
            );
        if hangs && is_part && seen.insert((link.to.kind as usize, link.to.index)) {
            children.push(below(system, link.to, Some((link.kind, link.bw)), seen));
        }
    }
    let mut name = label(system, node);
    if let [only] = children.as_slice()
        && matches!(only.node.kind, NodeType::Gpu | NodeType::Net)
    {
        name = format!("{name} {}", only.name);
        children.clear();
    }
    Item { node, name, link, children }
}

/// What a vertex is called in drawings.
pub(super) fn label(system: &System, node: NodeRef) -> String {
    let vertex = system.node(node);
    match &vertex.data {
        NodeData::Cpu(cpu) => {
            let arch = match cpu.arch {
                Some(CpuArch::X86) => "x86_64",
                Some(CpuArch::Power) => "POWER",
                Some(CpuArch::Arm) => "Arm",
                None => "unknown",
            };
            let vendor = match cpu.vendor {
                Some(CpuVendor::Intel) => " Intel",
                Some(CpuVendor::Amd) => " AMD",
                Some(CpuVendor::Zhaoxin) => " Zhaoxin",
                None => "",
            };
            format!("NUMA {} ({arch}{vendor})", local_id(vertex))
        }
        NodeData::Gpu(gpu) => format!("rank {}", gpu.rank),
        // Host ranks are GPU-shaped leaves without a compute capability.
        NodeData::Dev(dev) if dev.sm == 0 => "host memory".to_string(),
        NodeData::Dev(dev) => {
            // Links to the CPU besides PCI: chip-to-chip, or NVLink on POWER.
            let to_cpu = |link: &&Link| {
                link.kind == LinkType::C2c || (link.kind == LinkType::Nvl && link.to.kind == NodeType::Cpu)
            };
            let other = vertex.links.iter().find(to_cpu);
            let other = other.map(|link| match link.kind {
                LinkType::Nvl => format!(", NVLink to the CPU {:.0}", link.bw),
                kind => format!(", {kind} {:.0}", link.bw),
            });
            format!("GPU{} {} (sm {}{})", dev.dev, bus_id(vertex), dev.sm, other.unwrap_or_default())
        }
        NodeData::Net(net) => format!("NET{} ({:.1} GB/s)", net.dev, net.bw),
        NodeData::Pci(_) => format!("PCI {}", bus_id(vertex)),
        NodeData::Plain => match node.kind {
            NodeType::Nic => format!("NIC {}", bus_id(vertex)),
            kind => format!("{kind} {}", node.index),
        },
    }
}

fn local_id(vertex: &Node) -> i64 {
    vertex.id & 0x00ff_ffff_ffff_ffff
}

/// A local id as PCI writes it: domain, bus, device, function.
fn bus_id(vertex: &Node) -> String {
    let id = local_id(vertex) & 0xff_ffff_ffff;
    format!("{:04x}:{:02x}:{:02x}.{:x}", id >> 20, (id >> 12) & 0xff, (id >> 4) & 0xff, id & 0xf)
}

/// Writes the tree with the bandwidth of every link, then the links between NUMA nodes.
pub(super) fn write(name: &str, system: &System, out: &mut dyn Write) -> Result<(), Failure> {
    let count = |n: usize, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    writeln!(
        out,
        "{name}: {}, {}, {}; GB/s per direction in brackets",
        count(system.n_gpus(), "rank", "ranks"),
        count(system.n_nets(), "NIC port", "NIC ports"),
        count(system.count(NodeType::Cpu), "NUMA node", "NUMA nodes"),
    )?;
    for root in of(system) {
        let caches = match &system.node(root.node).data {
            NodeData::Cpu(cpu) => cpu.caches.as_ref().map(|caches| format!(", caches {caches}")),
            _ => None,
        };
        writeln!(out, "{}{}", root.name, caches.unwrap_or_default())?;
        write_below(&root.children, "", out)?;
    }
    for (index, cpu) in system.nodes(NodeType::Cpu).iter().enumerate() {
        for link in cpu.links.iter().filter(|link| link.to.kind == NodeType::Cpu && link.to.index > index) {
            let (from, to) = (label(system, NodeRef::cpu(index)), label(system, link.to));
            writeln!(out, "{from} ─[{}]─ {to}", link.bw)?;
        }
    }
    if system.has_nvswitch() {
        let links = system.nodes(NodeType::Dev).iter().flat_map(|dev| &dev.links);
        let bw = links.filter(|link| link.to.kind == NodeType::Nvs).map(|link| link.bw).fold(0.0, f32::max);
        writeln!(out, "NVSwitch: up to {bw} GB/s from each GPU")?;
    }
    Ok(())
}

fn write_below(items: &[Item], indent: &str, out: &mut dyn Write) -> Result<(), Failure> {
    for (index, item) in items.iter().enumerate() {
        let last = index + 1 == items.len();
        let (branch, rest) = if last { ("└─", "  ") } else { ("├─", "│ ") };
        let link = match item.link {
            Some((LinkType::Loc | LinkType::Net, _)) | None => String::new(),
            Some((LinkType::Pci, bw)) => format!("[{bw}] "),
            Some((kind, bw)) => format!("[{kind} {bw}] "),
        };
        writeln!(out, "{indent}{branch}{link}{}", item.name)?;
        write_below(&item.children, &format!("{indent}{rest}"), out)?;
    }
    Ok(())
}
