//! A machine as JSON: vertices by kind with their links, and the path matrices.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::engine::topo::kind::{CpuArch, NodeType};
use crate::engine::topo::system::{Link, Node, NodeData, NodeRef, Path, System};

/// Kinds between which paths are shown, and in which order.
const STARTS: [NodeType; 5] = [NodeType::Gpu, NodeType::Nvs, NodeType::Cpu, NodeType::Net, NodeType::Dev];
const ENDS: [NodeType; 4] = [NodeType::Gpu, NodeType::Nvs, NodeType::Cpu, NodeType::Net];

impl Serialize for System {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("maxBw", &self.max_bw)?;
        map.serialize_entry("totalBw", &self.total_bw)?;
        map.serialize_entry("nodes", &Nodes(self))?;
        map.serialize_entry("paths", &Matrices(self))?;
        map.end()
    }
}

struct Nodes<'a>(&'a System);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(NodeType::ALL.iter().map(|&kind| (kind.name(), self.0.nodes(kind))))
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &hex(self.id.cast_unsigned()))?;
        match &self.data {
            NodeData::Gpu(gpu) => {
                map.serialize_entry("dev", &gpu.dev)?;
                map.serialize_entry("rank", &gpu.rank)?;
                map.serialize_entry("sm", &gpu.sm)?;
                map.serialize_entry("gdr", &u8::from(gpu.gdr))?;
            }
            NodeData::Dev(dev) => {
                map.serialize_entry("dev", &dev.dev)?;
                map.serialize_entry("sm", &dev.sm)?;
            }
            NodeData::Net(net) => {
                map.serialize_entry("dev", &net.dev)?;
                map.serialize_entry("asic", &hex(net.asic))?;
                map.serialize_entry("port", &net.port)?;
                map.serialize_entry("bw", &net.bw)?;
                map.serialize_entry("latency", &net.latency)?;
                map.serialize_entry("gdr", &u8::from(net.gdr))?;
                map.serialize_entry("coll", &u8::from(net.coll))?;
                map.serialize_entry("maxChannels", &net.max_channels)?;
            }
            NodeData::Cpu(cpu) => {
                // Only x86 makers are read; unknown words count as 0, what is not read as -1.
                let unknown_vendor = if cpu.arch == Some(CpuArch::X86) { 0 } else { -1 };
                map.serialize_entry("arch", &cpu.arch.map_or(0, |arch| arch as i32))?;
                map.serialize_entry("vendor", &cpu.vendor.map_or(unknown_vendor, |vendor| vendor as i32))?;
                map.serialize_entry("model", &cpu.model)?;
            }
            NodeData::Pci(device) => map.serialize_entry("device", &hex(*device))?,
            NodeData::Plain => {}
        }
        map.serialize_entry("links", &self.links)?;
        map.end()
    }
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.kind, self.bw, self.to.kind, self.to.index).serialize(serializer)
    }
}

struct Matrices<'a>(&'a System);

impl Serialize for Matrices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let system = self.0;
        let pairs = STARTS.iter().flat_map(|&from| ENDS.iter().map(move |&to| (from, to)));
        let present = pairs.filter(|&(from, to)| system.count(from) > 0 && system.count(to) > 0);
        serializer
            .collect_map(present.map(|(from, to)| (format!("{from}-{to}"), Matrix { system, from, to })))
    }
}

struct Matrix<'a> {
    system: &'a System,
    from: NodeType,
    to: NodeType,
}

impl Serialize for Matrix<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.system.count(self.from)))?;
        for node in self.system.nodes(self.from) {
            let paths = &node.paths[self.to as usize];
            let cell = |i| paths.get(i).map(|path| Cell { system: self.system, path });
            rows.serialize_element(&(0..self.system.count(self.to)).map(cell).collect::<Vec<_>>())?;
        }
        rows.end()
    }
}

struct Cell<'a> {
    system: &'a System,
    path: &'a Path,
}

impl Serialize for Cell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |at: NodeRef| format!("{}{}", at.kind, at.index);
        let passed: Vec<String> = self.path.hops.iter().map(|&hop| name(self.system.link(hop).to)).collect();
        (self.path.kind, self.path.bw, self.path.hops.len(), passed.join(" ")).serialize(serializer)
    }
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}
