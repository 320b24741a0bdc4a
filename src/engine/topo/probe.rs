//! This machine as the elements of a topology file, read from the kernel's `/sys` and `/proc/cpuinfo`. The only file of this module
//! that touches the system.
//!
//! ```text
//! /sys/devices/system/node/node0/cpumap            cpu numaid affinity
//! /proc/cpuinfo                                    arch vendor familyid modelid
//! /sys/devices/system/cpu/cpu0/cache/index0/…      caches, ours: other readers of topology files pass over it
//! /sys/class/net/eth0/{device,speed,operstate}     net, below the pci element of its card
//! /sys/devices/pci0000:00/0000:00:01.0/…           pci busid class vendor device link_speed link_width
//! ```
//!
//! A PCI switch shows itself as a bridge towards the root and one bridge per port; only the first becomes an element, so the way up
//! from a device skips its port. A rank without a GPU becomes a GPU-shaped leaf on its NUMA domain: it moves data through memory,
//! which a wide PCI link stands for.

use std::fs;
use std::path::{Path, PathBuf};

use crate::engine::topo::error::Error;
use crate::engine::topo::fuse::own_view;
use crate::engine::topo::xml::{Element, Limits};

/// The link of a rank that lives in host memory: 24 GB/s each way, about what one processor copies.
const HOST_RANK_LINK: (&str, u32) = ("16.0 GT/s PCIe", 16);

/// More processors than any machine has.
const MAX_CPUS: usize = 1 << 14;
/// PCI class of a GPU without display output.
const GPU_CLASS: &str = "0x030200";
/// PCI class of an NVLink switch.
const SWITCH_CLASS: &str = "0x068000";

/// What the driver says of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// PCI address, `0000:1b:00.0`.
    pub bus_id: String,
    /// Device number as the management library counts.
    pub dev: usize,
    /// Compute capability, major × 10 + minor.
    pub sm: i32,
    /// Whether NICs may reach its memory.
    pub gdr: bool,
    /// NVLinks by far end.
    pub nvlinks: Vec<NvLinks>,
    /// Chip-to-chip links to its CPU.
    pub c2c: Option<C2c>,
}

/// Links between a GPU and the CPU in its package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct C2c {
    /// MB/s of each.
    pub mb_per_s: i32,
    /// How many there are.
    pub count: usize,
}

/// NVLinks to one far end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvLinks {
    /// PCI address of the far end.
    pub target: String,
    /// How many run there.
    pub count: usize,
    /// PCI class of the far end, `0x068000` for a switch; without it other GPUs and `/sys` are looked at,
    /// and what is not there either is a switch.
    pub class: Option<String>,
}

/// Where each rank of this host lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// So many in host memory, spread over NUMA domains in blocks.
    Host(usize),
    /// In host memory, each on the NUMA domain given.
    OnNuma(Vec<usize>),
    /// One per GPU, in this order.
    Gpus(Vec<GpuFacts>),
}

/// A rank in host memory as its own process knows it.
#[derive(Clone, Copy, Debug)]
pub struct OwnRank<'a> {
    /// Its place among the host's ranks.
    pub rank: usize,
    /// How many ranks the host has.
    pub n_ranks: usize,
    /// The processors it may use.
    pub cpus: &'a [usize],
}

/// What the process of one rank sees of the machine whose `/sys` and `/proc` lie below `root`: its own rank and all NICs. Ranks that
/// may use processors of several NUMA domains spread over those in blocks.
pub fn view(root: &Path, own: OwnRank<'_>) -> Element {
    let probe = Probe::new(root);
    let mut cpus = probe.cpus();
    let all: Vec<usize> = (0..cpus.len()).collect();
    let mut allowed = all.clone();
    allowed.retain(|&at| own.cpus.iter().any(|&cpu| has_cpu(&cpus[at], cpu)));
    let domains = if allowed.is_empty() { &all } else { &allowed };
    let at = domains[own.rank * domains.len() / own.n_ranks.max(1)];
    cpus[at].children.push(host_rank(own.rank));
    own_view(&probe.finish(cpus), own.rank)
}

/// Whether a processor belongs to a NUMA domain, by the domain's mask: hexadecimal words of 32 bits, highest first.
fn has_cpu(domain: &Element, cpu: usize) -> bool {
    let words = domain.text("affinity").unwrap_or_default().rsplit(',');
    let word = words.into_iter().nth(cpu / 32).and_then(|word| u32::from_str_radix(word, 16).ok());
    word.is_some_and(|word| word >> (cpu % 32) & 1 == 1)
}

/// This machine with so many ranks in host memory.
pub fn host_xml(n_ranks: usize) -> Result<Element, Error> {
    read(Path::new("/"), &Ranks::Host(n_ranks))
}

/// The machine whose `/sys` and `/proc` lie below `root`.
pub fn read(root: &Path, ranks: &Ranks) -> Result<Element, Error> {
    let probe = Probe::new(root);
    let mut cpus = probe.cpus();
    match ranks {
        Ranks::Host(n) => {
            for rank in 0..*n {
                let cpu = rank * cpus.len() / n;
                cpus[cpu].children.push(host_rank(rank));
            }
        }
        Ranks::OnNuma(numas) => {
            for (rank, numa) in numas.iter().enumerate() {
                let cpu = cpus.iter_mut().find(|cpu| is_numa(cpu, *numa));
                let missing = || {
                    Error::machine(format!(
                        "rank {rank} lives on NUMA domain {numa}, which has no processors"
                    ))
                };
                cpu.ok_or_else(missing)?.children.push(host_rank(rank));
            }
        }
        Ranks::Gpus(gpus) => {
            for (rank, gpu) in gpus.iter().enumerate() {
                probe.pci_of(gpu, &mut cpus).children.push(probe.gpu(rank, gpus));
            }
        }
    }
    Ok(probe.finish(cpus))
}

fn is_numa(cpu: &Element, numa: usize) -> bool {
    cpu.text("numaid") == Some(numa.to_string().as_str())
}

/// A rank in host memory. Its address lies in a PCI domain no machine has.
fn host_rank(rank: usize) -> Element {
    let (speed, width) = HOST_RANK_LINK;
    let mut pci = Element::new("pci")
        .with("busid", format!("ffff:{:02x}:{:02x}.0", rank / 32, rank % 32))
        .with("class", "0x030000")
        .with("link_speed", speed)
        .with("link_width", width);
    pci.children.push(Element::new("gpu").with("dev", rank).with("sm", 0).with("rank", rank).with("gdr", 1));
    pci
}

/// A file's first line, or nothing when it cannot be read, is empty, or is longer than a topology file may hold.
fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?).filter(|text| !text.trim().is_empty())
}

fn line(path: &Path) -> Option<String> {
    let text = text(path)?;
    let line = text.lines().next()?.trim().to_owned();
    (line.len() <= Limits::TOPOLOGY.text).then_some(line)
}

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether a name is a PCI address, `0000:1b:00.0`.
fn is_pci_address(name: &str) -> bool {
    let shape = "hhhh:hh:hh.h";
    let fits = |(c, s): (char, char)| if s == 'h' { c.is_ascii_hexdigit() } else { c == s };
    name.len() == shape.len() && name.chars().zip(shape.chars()).all(fits)
}

/// The elements that lead to a device, root first.
struct Chain {
    numa: usize,
    folders: Vec<PathBuf>,
}

struct Probe {
    sys: PathBuf,
    cpuinfo: String,
}

impl Probe {
    fn new(root: &Path) -> Self {
        Self { sys: root.join("sys"), cpuinfo: text(&root.join("proc/cpuinfo")).unwrap_or_default() }
    }

    /// The machine: its NUMA domains with all that hangs there, and its NICs.
    fn finish(&self, mut cpus: Vec<Element>) -> Element {
        self.add_nets(&mut cpus);
        let mut system = Element::new("system").with("version", 1);
        system.children = cpus;
        system
    }

    /// NUMA domains with processors; one when the kernel knows none.
    fn cpus(&self) -> Vec<Element> {
        let folder = self.sys.join("devices/system/node");
        let number = |name: &String| name.strip_prefix("node")?.parse::<usize>().ok();
        let mut numbers: Vec<usize> = names(&folder).iter().filter_map(number).collect();
        numbers.sort_unstable();
        let mut cpus = Vec::new();
        for numa in numbers {
            let mask = line(&folder.join(format!("node{numa}/cpumap"))).unwrap_or_default();
            if mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0') {
                let domain = self.cpu(numa).with("affinity", mask);
                let first = (0..MAX_CPUS).find(|&cpu| has_cpu(&domain, cpu));
                cpus.push(self.with_caches(domain, first.unwrap_or(0)));
            }
        }
        if cpus.is_empty() {
            cpus.push(self.with_caches(self.cpu(0), 0));
        }
        cpus
    }

    /// A NUMA domain with the caches of one of its processors, as `L1d 32K, L1i 32K, L2 1024K, L3 32768K`.
    fn with_caches(&self, domain: Element, cpu: usize) -> Element {
        let folder = self.sys.join(format!("devices/system/cpu/cpu{cpu}/cache"));
        let cache = |index: &String| {
            let fact = |name: &str| line(&folder.join(index).join(name));
            let kind = match fact("type")?.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            Some(format!("L{}{kind} {}", fact("level")?, fact("size")?))
        };
        let caches: Vec<String> = names(&folder).iter().filter_map(cache).collect();
        if caches.is_empty() { domain } else { domain.with("caches", caches.join(", ")) }
    }

    /// What `/proc/cpuinfo` says of the first processor.
    fn cpu_fact(&self, key: &str) -> Option<&str> {
        let mut pairs = self.cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    }

    fn cpu(&self, numa: usize) -> Element {
        let element = Element::new("cpu").with("numaid", numa);
        let vendor = self.cpu_fact("vendor_id").filter(|vendor| !vendor.is_empty());
        let arch = match (vendor, self.cpu_fact("CPU implementer"), self.cpu_fact("cpu")) {
            (Some(_), ..) => "x86_64",
            (_, Some(_), _) => "arm64",
            (.., Some(cpu)) if cpu.starts_with("POWER") => "ppc64",
            _ => match std::env::consts::ARCH {
                "aarch64" => "arm64",
                "powerpc64" => "ppc64",
                other => other,
            },
        };
        let element = element.with("arch", arch);
        if arch != "x86_64" {
            return element;
        }
        element
            .with("vendor", vendor.unwrap_or("unknown"))
            .with("familyid", self.cpu_fact("cpu family").unwrap_or("0"))
            .with("modelid", self.cpu_fact("model").unwrap_or("0"))
    }

    /// The PCI elements that lead to whatever `link` points at; nothing when that is no PCI device.
    fn pci_chain(&self, link: &Path) -> Option<Chain> {
        let target = fs::canonicalize(link).ok()?;
        let is_pci =
            |path: &&Path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_pci_address);
        let above: Vec<&Path> = target.ancestors().filter(is_pci).collect();
        let device = above.first()?;
        let numa = line(&device.join("numa_node")).and_then(|numa| numa.parse().ok()).unwrap_or(0);
        // Nearest first: the device, its port, the switch, the port above that switch, …
        let mut folders: Vec<PathBuf> = above.iter().step_by(2).map(|path| path.to_path_buf()).collect();
        folders.reverse();
        Some(Chain { numa, folders })
    }

    fn pci(&self, folder: &Path) -> Element {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut element = Element::new("pci").with("busid", name);
        for key in ["class", "vendor", "device", "subsystem_vendor", "subsystem_device"] {
            if let Some(value) = line(&folder.join(key)) {
                element.set(key, value);
            }
        }
        if element.text("class").is_none() {
            element.set("class", "0x000000");
        }
        let port = folder.parent().unwrap_or(folder);
        let rate =
            |text: &String| text.split_whitespace().next().and_then(|number| number.parse::<f32>().ok());
        let speeds = [folder, port].map(|folder| line(&folder.join("max_link_speed")));
        let speed = match &speeds {
            [Some(own), Some(port)] if rate(port) < rate(own) && rate(port).is_some() => port.clone(),
            [Some(own), _] => own.clone(),
            _ => String::new(),
        };
        let widths = [folder, port]
            .map(|folder| line(&folder.join("max_link_width")).and_then(|text| text.parse::<u32>().ok()));
        let width = widths.into_iter().flatten().filter(|&width| width < 255).min().unwrap_or(0);
        element.with("link_speed", speed).with("link_width", width)
    }

    /// The PCI element of a GPU. Containers may hide its place in `/sys`: it then hangs on the first CPU, by a link of unknown speed.
    fn pci_of<'a>(&self, gpu: &GpuFacts, cpus: &'a mut [Element]) -> &'a mut Element {
        match self.pci_chain(&self.device(&gpu.bus_id)) {
            Some(chain) => {
                let element = self.place(cpus, &chain);
                // What the driver calls a GPU is one, also where `/sys` calls it a processing accelerator.
                if !element.text("class").is_some_and(|class| class.starts_with("0x03")) {
                    element.set("class", GPU_CLASS);
                }
                element
            }
            None => {
                let pci = Element::new("pci").with("busid", &gpu.bus_id).with("class", GPU_CLASS);
                let siblings = &mut cpus[0].children;
                siblings.push(pci.with("link_speed", "").with("link_width", 0));
                siblings.last_mut().expect("invariant: it was pushed")
            }
        }
    }

    fn device(&self, bus_id: &str) -> PathBuf {
        self.sys.join("bus/pci/devices").join(bus_id)
    }

    fn gpu(&self, rank: usize, gpus: &[GpuFacts]) -> Element {
        let gpu = &gpus[rank];
        let mut element = Element::new("gpu")
            .with("dev", gpu.dev)
            .with("sm", gpu.sm)
            .with("rank", rank)
            .with("gdr", u8::from(gpu.gdr));
        for links in &gpu.nvlinks {
            let is_gpu = gpus.iter().any(|other| other.bus_id == links.target);
            let known = links.class.clone().or_else(|| is_gpu.then(|| GPU_CLASS.to_owned()));
            let seen = || line(&self.device(&links.target).join("class"));
            let class = known.or_else(seen).unwrap_or_else(|| SWITCH_CLASS.to_owned());
            let link = Element::new("nvlink").with("target", &links.target).with("count", links.count);
            element.children.push(link.with("tclass", class));
        }
        if let Some(c2c) = gpu.c2c {
            element.children.push(Element::new("c2c").with("bw", c2c.mb_per_s).with("count", c2c.count));
        }
        element
    }

    /// The element of a device, made with all above it where they are not there yet.
    fn place<'a>(&self, cpus: &'a mut [Element], chain: &Chain) -> &'a mut Element {
        let at = cpus.iter().position(|cpu| is_numa(cpu, chain.numa)).unwrap_or(0);
        let mut element = &mut cpus[at];
        for folder in &chain.folders {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let known = element.children.iter().position(|child| child.text("busid") == Some(name));
            let at = known.unwrap_or_else(|| {
                element.children.push(self.pci(folder));
                element.children.len() - 1
            });
            element = &mut element.children[at];
        }
        element
    }

    /// Network interfaces that are up: those of PCI cards, or where there are none the virtual ones, on the first CPU.
    fn add_nets(&self, cpus: &mut [Element]) {
        let class = self.sys.join("class/net");
        let is_up = |name: &String| {
            let state = line(&class.join(name).join("operstate")).unwrap_or_default();
            name != "lo" && (state == "up" || state == "unknown")
        };
        let up: Vec<String> = names(&class).into_iter().filter(is_up).collect();
        let cards: Vec<(&String, Chain)> = up
            .iter()
            .filter_map(|name| Some((name, self.pci_chain(&class.join(name).join("device"))?)))
            .collect();
        for (dev, (name, chain)) in cards.iter().enumerate() {
            let net = self.net(dev, name, chain.folders.last().map(PathBuf::as_path));
            nic_of(self.place(cpus, chain)).children.push(net);
        }
        if cards.is_empty() {
            const BRIDGES: [&str; 5] = ["docker", "virbr", "br-", "veth", "ifb"];
            let own = up.iter().filter(|name| !BRIDGES.iter().any(|prefix| name.starts_with(prefix)));
            for (dev, name) in own.enumerate() {
                let net = self.net(dev, name, None);
                nic_of(&mut cpus[0]).children.push(net);
            }
        }
    }

    fn net(&self, dev: usize, name: &str, card: Option<&Path>) -> Element {
        let folder = self.sys.join("class/net").join(name);
        let mbps =
            line(&folder.join("speed")).and_then(|speed| speed.parse::<i64>().ok()).filter(|&mbps| mbps > 0);
        let mbps = mbps.or_else(|| card.and_then(infiniband_mbps)).unwrap_or(-1);
        let mut net = Element::new("net")
            .with("name", name)
            .with("dev", dev)
            .with("speed", mbps)
            .with("port", 0)
            .with("latency", "0.000000");
        let address = line(&folder.join("address")).unwrap_or_default().replace(':', "");
        if address.len() <= 16
            && address.chars().any(|c| c != '0')
            && u64::from_str_radix(&address, 16).is_ok()
        {
            net.set("guid", format!("0x{address}"));
        }
        net.with("maxconn", 65536).with("gdr", 0)
    }
}

/// The `nic` element of a card or CPU, made when it is not there yet.
fn nic_of(parent: &mut Element) -> &mut Element {
    let known = parent.children.iter().position(|child| child.name == "nic");
    let at = known.unwrap_or_else(|| {
        parent.children.push(Element::new("nic"));
        parent.children.len() - 1
    });
    &mut parent.children[at]
}

/// The rate of a card's fastest InfiniBand port, for interfaces that do not tell theirs: `100 Gb/sec (4X EDR)`.
fn infiniband_mbps(card: &Path) -> Option<i64> {
    let folder = card.join("infiniband");
    let mut best = None;
    for device in names(&folder) {
        let ports = folder.join(device).join("ports");
        for port in names(&ports) {
            let rate = line(&ports.join(port).join("rate"));
            let gbps = rate.and_then(|rate| rate.split_whitespace().next()?.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, reason = "whole Mb/s are meant")]
            let mbps = gbps.map(|gbps| (gbps * 1000.0) as i64);
            best = best.max(mbps);
        }
    }
    best.filter(|&mbps| mbps > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        assert!(is_pci_address("0000:1b:00.0"));
        assert!(!is_pci_address("pci0000:00"));
        assert!(!is_pci_address("virtio2"));
    }

    #[test]
    fn an_empty_machine_still_has_a_cpu_and_its_ranks() {
        let root = tempfile::tempdir().expect("a folder");
        let system = read(root.path(), &Ranks::Host(3)).expect("a machine");
        assert_eq!(system.children.len(), 1);
        assert_eq!(system.children[0].children.len(), 3);
        let message = read(root.path(), &Ranks::OnNuma(vec![0, 5])).expect_err("no such domain").to_string();
        assert_eq!(message, "rank 1 lives on NUMA domain 5, which has no processors");
    }
}
