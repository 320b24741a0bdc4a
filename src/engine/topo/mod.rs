//! A machine as a graph: vertices, links and the best path between any two of them. Pure, except for `probe.rs`.
//!
//! ```text
//! XML text -> tree of elements -> vertices and links -> paths -> trimmed to the GPUs that stay together
//! ```
//!
//! Every rank is a [`NodeType::Gpu`] vertex hanging off the [`NodeType::Dev`] vertex of its device, which owns the NVLink, PCI and
//! chip-to-chip links. A path is the list of links walked, its bandwidth the smallest among them, its type the farthest.

mod kind;
mod system;

pub use self::kind::{CpuArch, CpuVendor, LinkType, NodeType, PathType};
pub use self::system::{Cpu, Dev, Gpu, Hop, Link, Net, Node, NodeData, NodeRef, Path, System};
