//! The system graph: vertices by kind, links in NCCL's own order, path matrices.

use crate::engine::topo::kind::{CpuArch, CpuVendor, LinkType, NodeType, PathType};

/// Names one vertex: its kind and its position among the vertices of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// Kind.
    pub kind: NodeType,
    /// Position in [`System::nodes`] of that kind.
    pub index: usize,
}

impl NodeRef {
    /// A rank's vertex.
    pub fn gpu(index: usize) -> Self {
        Self { kind: NodeType::Gpu, index }
    }

    /// A network port.
    pub fn net(index: usize) -> Self {
        Self { kind: NodeType::Net, index }
    }

    /// A NUMA domain.
    pub fn cpu(index: usize) -> Self {
        Self { kind: NodeType::Cpu, index }
    }
}

/// One direction of a link; it belongs to the vertex it leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// What it is made of.
    pub kind: LinkType,
    /// GB/s in this direction; the search takes from it and gives back.
    pub bw: f32,
    /// The vertex at the other end.
    pub to: NodeRef,
}

/// One step of a path: a link named by its owner and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The vertex the link leaves.
    pub from: NodeRef,
    /// Position in that vertex's links.
    pub link: usize,
}

/// The best way from one vertex to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Links in walking order; empty to oneself, and when there is no way.
    pub hops: Vec<Hop>,
    /// Smallest bandwidth on the way, GB/s.
    pub bw: f32,
    /// How far it is.
    pub kind: PathType,
}

impl Path {
    /// No way.
    pub(crate) const fn none() -> Self {
        Self { hops: Vec::new(), bw: 0.0, kind: PathType::Dis }
    }
}

/// A rank's view of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Device number as the management library counts.
    pub dev: i32,
    /// Rank.
    pub rank: i32,
    /// Compute capability, major × 10 + minor.
    pub sm: i32,
    /// Whether the driver can let a NIC reach its memory.
    pub gdr: bool,
    /// Partition of the device, when it is split.
    pub partition: Option<i32>,
    /// Position of its [`NodeType::Dev`] vertex.
    pub parent: usize,
}

/// A physical device.
#[derive(Clone, Debug, PartialEq)]
pub struct Dev {
    /// Device number as the management library counts.
    pub dev: i32,
    /// Compute capability.
    pub sm: i32,
    /// Ranks on it.
    pub n_gpus: usize,
}

/// A network port.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    /// The transport's number for it.
    pub dev: i32,
    /// Id of the PCI card it sits on.
    pub pci_id: u64,
    /// Identity of the chip (guid): ports with equal identity share bandwidth.
    pub asic: u64,
    /// Port number on the chip.
    pub port: i32,
    /// GB/s; the search takes from it and gives back.
    pub bw: f32,
    /// µs.
    pub latency: f32,
    /// Whether it can reach GPU memory.
    pub gdr: bool,
    /// Whether it offers in-network reduction.
    pub coll: bool,
    /// Most connections.
    pub max_channels: i32,
    /// GPU it serves best, by position.
    pub local_gpu: Option<usize>,
    /// Rail, when known.
    pub rail: Option<i32>,
    /// Plane, when known.
    pub plane: Option<i32>,
}

/// A NUMA domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// Instruction set, when known.
    pub arch: Option<CpuArch>,
    /// Maker, when known.
    pub vendor: Option<CpuVendor>,
    /// Generation of that maker: Intel 1 Broadwell, 2 Skylake, 3 Sapphire Rapids, 4 Emerald Rapids; Zhaoxin 1 Yongfeng; else -1.
    pub model: i32,
    /// Processors, as 32-bit words, lowest first.
    pub affinity: Vec<u32>,
    /// Caches of one processor, as the probe of this machine spells them.
    pub caches: Option<String>,
}

/// What only vertices of one kind have.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeData {
    /// Of a [`NodeType::Gpu`].
    Gpu(Gpu),
    /// Of a [`NodeType::Dev`].
    Dev(Dev),
    /// Of a [`NodeType::Net`], [`NodeType::Gin`] or [`NodeType::Rma`].
    Net(Net),
    /// Of a [`NodeType::Cpu`].
    Cpu(Cpu),
    /// Of a [`NodeType::Pci`]: vendor, device and subsystem numbers, 16 bits each.
    Pci(u64),
    /// The rest have nothing of their own.
    Plain,
}

/// A vertex.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// System number in the top byte, local number below.
    pub id: i64,
    /// What its kind adds.
    pub data: NodeData,
    /// Links that leave it, in search order.
    pub links: Vec<Link>,
    /// Paths to all vertices of a kind; empty where the search for them never came near.
    pub paths: [Vec<Path>; NodeType::ALL.len()],
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct System {
    nodes: [Vec<Node>; NodeType::ALL.len()],
    /// Which of the hosts below this process runs on.
    pub system_id: usize,
    /// Distinct hosts described, by the hash in their `host_hash`.
    pub hosts: Vec<u64>,
    /// Fastest a single channel may be, GB/s.
    pub max_bw: f32,
    /// Fastest all channels together may be, GB/s.
    pub total_bw: f32,
    /// Whether some ranks are reached through the network only.
    pub inter: bool,
}

impl Node {
    /// A vertex without links.
    pub fn new(id: i64, data: NodeData) -> Self {
        Self { id, data, links: Vec::new(), paths: Default::default() }
    }
}

macro_rules! typed_access {
    ($(#[$meta:meta])* $one:ident, $mutable:ident, $kind:ident, $data:ident, $ty:ty) => {
        $(#[$meta])*
        pub fn $one(&self, index: usize) -> &$ty {
            match &self.nodes[NodeType::$kind as usize][index].data {
                NodeData::$data(data) => data,
                other => unreachable!("invariant: a vertex of kind {} holds {other:?}", NodeType::$kind),
            }
        }

        /// The same, to change.
        pub fn $mutable(&mut self, index: usize) -> &mut $ty {
            match &mut self.nodes[NodeType::$kind as usize][index].data {
                NodeData::$data(data) => data,
                other => unreachable!("invariant: a vertex of kind {} holds {other:?}", NodeType::$kind),
            }
        }
    };
}

impl System {
    typed_access! {
        /// What a rank's device is; `index` counts [`NodeType::Gpu`] vertices.
        gpu, gpu_mut, Gpu, Gpu, Gpu
    }
    typed_access! {
        /// A physical device.
        dev, dev_mut, Dev, Dev, Dev
    }
    typed_access! {
        /// A network port.
        net, net_mut, Net, Net, Net
    }
    typed_access! {
        /// A NUMA domain.
        cpu, cpu_mut, Cpu, Cpu, Cpu
    }

    /// The vertices of a kind, in order.
    pub fn nodes(&self, kind: NodeType) -> &[Node] {
        &self.nodes[kind as usize]
    }

    /// The same, to change.
    pub fn nodes_mut(&mut self, kind: NodeType) -> &mut Vec<Node> {
        &mut self.nodes[kind as usize]
    }

    /// How many vertices of a kind there are.
    pub fn count(&self, kind: NodeType) -> usize {
        self.nodes[kind as usize].len()
    }

    /// Ranks here.
    pub fn n_gpus(&self) -> usize {
        self.count(NodeType::Gpu)
    }

    /// Network ports here.
    pub fn n_nets(&self) -> usize {
        self.count(NodeType::Net)
    }

    /// A vertex.
    pub fn node(&self, at: NodeRef) -> &Node {
        &self.nodes[at.kind as usize][at.index]
    }

    /// A vertex, to change.
    pub fn node_mut(&mut self, at: NodeRef) -> &mut Node {
        &mut self.nodes[at.kind as usize][at.index]
    }

    /// Takes a vertex and all links to it away; those of its kind behind it move up. Paths are stale afterwards.
    pub(crate) fn remove(&mut self, gone: NodeRef) {
        for node in self.nodes.iter_mut().flatten() {
            node.links.retain(|link| link.to != gone);
            for link in &mut node.links {
                if link.to.kind == gone.kind && link.to.index > gone.index {
                    link.to.index -= 1;
                }
            }
            if let NodeData::Gpu(gpu) = &mut node.data
                && gone.kind == NodeType::Dev
                && gpu.parent > gone.index
            {
                gpu.parent -= 1;
            }
        }
        self.nodes[gone.kind as usize].remove(gone.index);
    }

    /// The link a hop walks.
    pub fn link(&self, hop: Hop) -> &Link {
        &self.node(hop.from).links[hop.link]
    }

    /// The same, to change.
    pub fn link_mut(&mut self, hop: Hop) -> &mut Link {
        &mut self.node_mut(hop.from).links[hop.link]
    }

    /// The path between two vertices, or nothing where paths of that pair of kinds are not computed.
    pub fn path(&self, from: NodeRef, to: NodeRef) -> Option<&Path> {
        self.node(from).paths[to.kind as usize].get(to.index)
    }

    /// The path between two vertices; where none is known, one that says so.
    pub fn path_or_none(&self, from: NodeRef, to: NodeRef) -> &Path {
        static NO_WAY: Path = Path::none();
        self.path(from, to).unwrap_or(&NO_WAY)
    }

    /// The path between two vertices, to change.
    pub(crate) fn path_mut(&mut self, from: NodeRef, to: NodeRef) -> &mut Path {
        let n = self.count(to.kind);
        let paths = &mut self.node_mut(from).paths[to.kind as usize];
        if paths.is_empty() {
            paths.resize(n, Path::none());
        }
        &mut paths[to.index]
    }

    /// The path between two ranks' vertices.
    pub fn gpu_path(&self, from: usize, to: usize) -> &Path {
        self.path_or_none(NodeRef::gpu(from), NodeRef::gpu(to))
    }

    /// The path from a rank's vertex to a network port.
    pub fn net_path(&self, gpu: usize, net: usize) -> &Path {
        self.path_or_none(NodeRef::gpu(gpu), NodeRef::net(net))
    }

    /// Position of the vertex with that id.
    pub fn index_of(&self, kind: NodeType, id: i64) -> Option<usize> {
        self.nodes(kind).iter().position(|node| node.id == id)
    }

    /// Position of a rank's vertex.
    pub fn index_of_rank(&self, rank: i32) -> Option<usize> {
        (0..self.n_gpus()).find(|&g| self.gpu(g).rank == rank)
    }

    /// Ranks in vertex order.
    pub fn ranks(&self) -> Vec<i32> {
        (0..self.n_gpus()).map(|g| self.gpu(g).rank).collect()
    }

    /// Smallest and largest compute capability, or nothing without GPUs.
    pub fn compute_caps(&self) -> Option<(i32, i32)> {
        let caps = (0..self.n_gpus()).map(|g| self.gpu(g).sm);
        Some((caps.clone().min()?, caps.max()?))
    }

    /// Whether the host has an NVLink switch fabric.
    pub fn has_nvswitch(&self) -> bool {
        self.count(NodeType::Nvs) > 0
    }

    /// Path types from every rank to the vertices of a kind, a vertex to itself left out.
    fn path_kinds(&self, to: NodeType) -> impl Iterator<Item = PathType> + '_ {
        self.nodes(NodeType::Gpu).iter().enumerate().flat_map(move |(g, node)| {
            let others = node.paths[to as usize].iter().enumerate();
            others.filter(move |(i, _)| to != NodeType::Gpu || *i != g).map(|(_, path)| path.kind)
        })
    }

    /// Nearest path from a rank to a vertex of a kind; [`PathType::Sys`] when all are farther or there is none.
    pub fn nearest_path(&self, to: NodeType) -> PathType {
        self.path_kinds(to).fold(PathType::Sys, PathType::min)
    }

    /// Farthest path from a rank to a vertex of a kind; [`PathType::Loc`] when there is none.
    pub fn farthest_path(&self, to: NodeType) -> PathType {
        self.path_kinds(to).fold(PathType::Loc, PathType::max)
    }

    /// Whether all ranks reach each other over NVLink or chip-to-chip links.
    pub fn is_all_nvlink(&self) -> bool {
        self.farthest_path(NodeType::Gpu) < PathType::Pix
    }

    /// Whether all ranks reach each other over NVLink without passing another GPU.
    pub fn is_all_direct_nvlink(&self) -> bool {
        self.farthest_path(NodeType::Gpu) <= PathType::Nvl
    }
}
