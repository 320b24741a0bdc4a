//! From elements to vertices and links.
//!
//! ```text
//! cpu ──PCI── pci (switch) ──PCI── dev ──LOC── gpu      one dev per device, one gpu per rank on it
//!  │                       └─PCI── nic ──NET── net      ports of one card hang off one nic
//!  ├──C2C── dev                                         dev ──NVL── dev, or dev ──NVL── nvs, the fabric as one vertex
//!  └──SYS── cpu                                         all NUMA domains of a host
//! ```
//!
//! The order of vertices is the file's, the order of links by falling bandwidth, with the link up to the parent last: both decide
//! which of several equally good graphs the search meets first.

use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{CpuArch, CpuVendor, LinkType, NodeType};
use crate::engine::topo::params::Params;
use crate::engine::topo::system::{Cpu, Dev, Gpu, Net, Node, NodeData, NodeRef, System};
use crate::engine::topo::xml::{Element, c_integer};
use crate::engine::topo::{flatten, links};

/// Bandwidth inside a device, GB/s (NCCL 2.30.7, `topo.h`; so are the other rates here).
pub(crate) const LOCAL_BW: f32 = 5000.0;
/// Between two partitions of a device.
const PARTITION_BW: f32 = 2618.0;
/// Most channels any graph may have; also the default number of connections of a NIC.
pub(crate) const MAX_CHANNELS: usize = 64;
/// Most partitions of one device.
const MAX_PARTITIONS: i32 = 2;
/// Bits of a device's id that tell its partitions apart.
pub(crate) const PARTITION_MASK: i64 = 3;
const LOCAL_ID_MASK: i64 = 0x00ff_ffff_ffff_ffff;

/// Builds vertices and links from a `system` element. Ranks must be set on every GPU that takes part.
pub(crate) fn build(root: &Element, params: &Params) -> Result<System, Error> {
    let mut build = Build { system: System::default(), split: params.split_partitions };
    for cpu in root.children.iter().filter(|child| child.name == "cpu") {
        build.add_cpu(cpu)?;
    }
    if build.system.count(NodeType::Cpu) == 0 {
        return Err(root.error("element system holds no cpu"));
    }
    let mut system = build.system;
    links::add_nvlinks(&mut system, root, params)?;
    links::add_c2c(&mut system, root, params)?;
    links::add_pci_links(&mut system, root)?;
    flatten::flatten_switches(&mut system)?;
    links::connect_cpus(&mut system);
    for index in 0..system.count(NodeType::Cpu) {
        links::sort_links(&mut system, NodeRef { kind: NodeType::Cpu, index }, None);
    }
    Ok(system)
}

/// The PCI port a device sits in.
#[derive(Clone, Copy)]
struct Slot {
    parent: NodeRef,
    host: usize,
    bw: f32,
}

struct Build {
    system: System,
    /// Whether partitions of a device are devices of their own.
    split: bool,
}

pub(crate) fn node_id(host: usize, local: i64) -> i64 {
    ((host as i64) << 56) + (local & LOCAL_ID_MASK)
}

/// The number a bus id such as `0000:1b:00.0` spells when its separators are dropped.
pub(crate) fn bus_number(text: &str) -> i64 {
    let digits = text.chars().filter(|&c| c != ':' && c != '.').take_while(char::is_ascii_hexdigit).take(16);
    digits
        .fold(0u64, |number, digit| (number << 4) | u64::from(digit.to_digit(16).unwrap_or(0)))
        .cast_signed()
}

/// The value of the first word the text starts with.
pub(crate) fn by_prefix<T: Copy>(text: &str, words: &[(&str, T)], otherwise: T) -> T {
    words.iter().find(|(word, _)| text.starts_with(word)).map_or(otherwise, |&(_, value)| value)
}

/// What a PCI class stands for.
pub(crate) fn class_kind(class: &str) -> NodeType {
    const CLASSES: [(&str, NodeType); 6] = [
        ("0x060400", NodeType::Pci),
        ("0x080100", NodeType::Pci), // a NIC's function for direct data placement
        ("0x068000", NodeType::Nvs),
        ("0x068001", NodeType::Cpu),
        ("0x03", NodeType::Gpu),
        ("0x02", NodeType::Nic),
    ];
    by_prefix(class, &CLASSES, NodeType::Pci)
}

/// GB/s of a PCI link.
fn pci_bw(element: &Element) -> Result<f32, Error> {
    /// 100 Mb/s per lane; kernels spell the same generation in two ways.
    const LANES: [(&str, i32); 11] = [
        ("2.5 GT/s", 15),
        ("5 GT/s", 30),
        ("8 GT/s", 60),
        ("16 GT/s", 120),
        ("32 GT/s", 240),
        ("5.0 GT/s PCIe", 30),
        ("8.0 GT/s PCIe", 60),
        ("16.0 GT/s PCIe", 120),
        ("32.0 GT/s PCIe", 240),
        ("64.0 GT/s PCIe", 480),
        ("2.5 GT/s PCIe", 15),
    ];
    let width = match element.count("link_width")? {
        0 => 16,
        width => width,
    };
    let lane = by_prefix(element.required("link_speed")?, &LANES, 60);
    Ok(rounded(f64::from(width) * f64::from(lane) / 80.0))
}

#[expect(clippy::cast_possible_truncation, reason = "bandwidths are single precision everywhere")]
pub(crate) fn rounded(value: f64) -> f32 {
    value as f32
}

impl Build {
    fn host_of(&mut self, cpu: &Element) -> Result<usize, Error> {
        let hash = host_hash(cpu)?;
        let hosts = &mut self.system.hosts;
        Ok(hosts.iter().position(|&known| known == hash).unwrap_or_else(|| {
            hosts.push(hash);
            hosts.len() - 1
        }))
    }

    fn add(&mut self, kind: NodeType, id: i64, data: NodeData) -> NodeRef {
        let nodes = self.system.nodes_mut(kind);
        nodes.push(Node::new(id, data));
        NodeRef { kind, index: nodes.len() - 1 }
    }

    fn find(&self, kind: NodeType, id: i64) -> Option<NodeRef> {
        self.system.index_of(kind, id).map(|index| NodeRef { kind, index })
    }

    fn join(&mut self, a: NodeRef, b: NodeRef, kind: LinkType, bw: f32) {
        links::join(&mut self.system, a, b, kind, bw);
    }

    fn add_cpu(&mut self, element: &Element) -> Result<(), Error> {
        let numa = i64::from(element.integer("numaid")?);
        let host = self.host_of(element)?;
        let data = NodeData::Cpu(cpu_data(element)?);
        let cpu = self.add(NodeType::Cpu, node_id(host, numa), data);
        for child in &element.children {
            match child.name.as_str() {
                "pci" => self.add_pci(child, cpu, host)?,
                "nic" => {
                    // A card without PCI device of its own; NCCL's id for it drops the NUMA number, so a host has one at most.
                    let nic = self.find(NodeType::Nic, node_id(host, 0)).unwrap_or_else(|| {
                        let nic = self.add(NodeType::Nic, node_id(host, 0), NodeData::Plain);
                        self.join(cpu, nic, LinkType::Pci, LOCAL_BW);
                        nic
                    });
                    self.add_nets(child, nic, host, None)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_pci(&mut self, element: &Element, parent: NodeRef, host: usize) -> Result<(), Error> {
        if element.name != "pci" {
            return Err(element.error(format!("element {} below a PCI switch, want pci", element.name)));
        }
        let kind = class_kind(element.required("class")?);
        let bus_text = element.required("busid")?;
        let bus = bus_number(bus_text);
        let bw = pci_bw(element)?;
        for gpu in element.children.iter().filter(|child| child.name == "gpu") {
            if gpu.text("rank").is_none() {
                return Ok(());
            }
            self.add_gpu(element, gpu, Slot { parent, host, bw })?;
        }
        let id = node_id(host, bus);
        if let Some(element) = element.child("nic") {
            let known = self.find(NodeType::Nic, id);
            let nic = known.unwrap_or_else(|| self.add(NodeType::Nic, id, NodeData::Plain));
            self.add_nets(element, nic, host, Some(bus_text))?;
            if known.is_none() {
                self.join(nic, parent, LinkType::Pci, bw);
            }
        } else if kind == NodeType::Pci {
            let switch = self.add(NodeType::Pci, id, NodeData::Pci(pci_device(element)?));
            for child in element.children.iter().filter(|child| child.name != "pcilink") {
                self.add_pci(child, switch, host)?;
            }
            self.join(switch, parent, LinkType::Pci, bw);
        }
        Ok(())
    }

    fn add_gpu(&mut self, pci: &Element, gpu: &Element, slot: Slot) -> Result<(), Error> {
        let Slot { parent, host, bw } = slot;
        let bus = device_bus(gpu, bus_number(pci.required("busid")?), self.split)?;
        let sm = gpu.integer("sm")?;
        let id = node_id(host, bus);
        let dev = match self.find(NodeType::Dev, id) {
            Some(dev) => dev,
            None => {
                let data = NodeData::Dev(Dev { dev: gpu.integer("dev")?, sm, n_gpus: 0 });
                let dev = self.add(NodeType::Dev, id, data);
                self.join(dev, parent, LinkType::Pci, bw);
                for sibling in links::devices_at(&self.system, id) {
                    if sibling != dev {
                        self.join(dev, sibling, LinkType::Loc, PARTITION_BW);
                    }
                }
                dev
            }
        };
        let nth = self.system.dev(dev.index).n_gpus as i64;
        let data = Gpu {
            rank: gpu.integer("rank")?,
            sm,
            dev: gpu.integer("dev")?,
            gdr: gpu.integer("gdr")? != 0,
            partition: partition(gpu)?,
            parent: dev.index,
        };
        let node =
            self.add(NodeType::Gpu, node_id(host, (nth << 40) | (bus & 0xff_ffff_ffff)), NodeData::Gpu(data));
        self.join(dev, node, LinkType::Loc, LOCAL_BW);
        self.system.dev_mut(dev.index).n_gpus += 1;
        Ok(())
    }

    fn add_nets(
        &mut self,
        nic_element: &Element,
        nic: NodeRef,
        host: usize,
        bus: Option<&str>,
    ) -> Result<(), Error> {
        for net in
            nic_element.children.iter().filter(|child| child.name == "net" && child.text("dev").is_some())
        {
            let data = net_data(net, host, bus)?;
            for (key, default, kind) in
                [("net", 1, NodeType::Net), ("gin", 0, NodeType::Gin), ("rma", 0, NodeType::Rma)]
            {
                if net.integer_or(key, default)? != 0 {
                    let node =
                        self.add(kind, node_id(host, i64::from(data.dev)), NodeData::Net(data.clone()));
                    self.join(nic, node, LinkType::Net, data.bw);
                }
            }
        }
        Ok(())
    }
}

/// The number that tells the hosts of one description apart.
pub(crate) fn host_hash(cpu: &Element) -> Result<u64, Error> {
    Ok(cpu.hexadecimal("host_hash")?.unwrap_or(0))
}

/// The bus number under which a GPU's device is known: its partition takes the two lowest bits.
pub(crate) fn device_bus(gpu: &Element, bus: i64, split: bool) -> Result<i64, Error> {
    if bus & PARTITION_MASK != 0 {
        return Err(
            gpu.error(format!("bus id {bus:x} of a gpu ends in an odd function, want function 0, 4 or 8"))
        );
    }
    match partition(gpu)? {
        Some(part) if split && part >= MAX_PARTITIONS => {
            Err(gpu.error(format!("attribute mlopart of gpu is {part}, want less than {MAX_PARTITIONS}")))
        }
        Some(part) if split => Ok(bus | (((i64::from(part) << 1) | 1) & PARTITION_MASK)),
        _ => Ok(bus),
    }
}

pub(crate) fn partition(gpu: &Element) -> Result<Option<i32>, Error> {
    Ok(Some(gpu.integer_or("mlopart", -1)?).filter(|&part| part != -1))
}

fn cpu_data(element: &Element) -> Result<Cpu, Error> {
    const ARCHES: [(&str, Option<CpuArch>); 3] =
        [("x86_64", Some(CpuArch::X86)), ("arm64", Some(CpuArch::Arm)), ("ppc64", Some(CpuArch::Power))];
    const VENDORS: [(&str, Option<CpuVendor>); 4] = [
        ("GenuineIntel", Some(CpuVendor::Intel)),
        ("AuthenticAMD", Some(CpuVendor::Amd)),
        ("CentaurHauls", Some(CpuVendor::Zhaoxin)),
        ("  Shanghai  ", Some(CpuVendor::Zhaoxin)),
    ];
    let mut affinity = Vec::new();
    for word in element.text("affinity").unwrap_or_default().rsplit(',').filter(|word| !word.is_empty()) {
        let bits = c_integer(word, 16).and_then(|bits| u32::try_from(bits).ok());
        affinity.push(bits.ok_or_else(|| {
            element.error(format!(
                "attribute affinity of cpu has {word:?}, want 32-bit hexadecimal words with commas"
            ))
        })?);
    }
    let arch = by_prefix(element.required("arch")?, &ARCHES, None);
    let caches = element.text("caches").map(str::to_owned);
    let mut cpu = Cpu { arch, vendor: None, model: -1, affinity, caches };
    if arch == Some(CpuArch::X86) {
        cpu.vendor = by_prefix(element.required("vendor")?, &VENDORS, None);
        let ids = || Ok::<_, Error>((element.integer("familyid")?, element.integer("modelid")?));
        cpu.model = match cpu.vendor {
            Some(CpuVendor::Intel) => match ids()? {
                (6, 0xCF..) => 4,
                (6, 0x8F..) => 3,
                (6, 0x55..) => 2,
                _ => 1,
            },
            Some(CpuVendor::Zhaoxin) if ids()? == (7, 0x5B) => 1,
            _ => -1,
        };
    }
    Ok(cpu)
}

fn pci_device(element: &Element) -> Result<u64, Error> {
    let mut device = 0u64;
    for (key, shift) in [("vendor", 48), ("device", 32), ("subsystem_vendor", 16), ("subsystem_device", 0)] {
        let value = i64::from(element.integer_or(key, 0)?);
        device = device.wrapping_add(value.cast_unsigned() << shift);
    }
    Ok(device)
}

fn net_data(element: &Element, host: usize, bus: Option<&str>) -> Result<Net, Error> {
    let dev = element.integer("dev")?;
    let asic = element.hexadecimal("guid")?.unwrap_or(node_id(host, i64::from(dev)).cast_unsigned());
    let mbps = match element.integer_or("speed", 0)? {
        ..=0 => 10_000, // some cards say -1
        mbps => mbps,
    };
    let identity =
        |key: &str| Ok::<_, Error>(Some(element.integer_or(key, -1)?).filter(|&number| number != -1));
    Ok(Net {
        dev,
        pci_id: bus.map_or(asic, |bus| bus_number(bus).cast_unsigned()),
        asic,
        port: element.integer_or("port", 0)?,
        bw: rounded(f64::from(mbps) / 8000.0),
        latency: if element.text("latency").is_some() { element.float("latency")? } else { 0.0 },
        gdr: element.integer_or("gdr", 0)? != 0,
        coll: element.integer_or("coll", 0)? != 0,
        max_channels: element.integer_or("maxconn", MAX_CHANNELS as i32)?,
        local_gpu: None,
        rail: identity("rail")?,
        plane: identity("plane")?,
    })
}
