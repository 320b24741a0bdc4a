//! A machine as a graph: vertices, links and the best path between any two of them. Pure, except for `probe.rs`.
//!
//! ```text
//! XML text -> tree of elements -> vertices and links -> paths -> trimmed to the GPUs that stay together
//! ```
//!
//! Every rank is a [`NodeType::Gpu`] vertex hanging off the [`NodeType::Dev`] vertex of its device, which owns the NVLink, PCI and
//! chip-to-chip links. A path is the list of links walked, its bandwidth the smallest among them, its type the farthest.

mod build;
mod error;
mod flatten;
mod fuse;
mod json;
mod kind;
mod links;
mod local;
mod merge;
mod params;
mod paths;
pub mod probe;
mod ranks;
mod reach;
mod system;
mod trim;
pub mod xml;

pub use self::error::Error;
pub use self::fuse::{fuse, own_view};
pub use self::kind::{CpuArch, CpuVendor, LinkType, NodeType, PathType};
pub use self::links::nvlink_bw;
pub use self::local::min_net_bw;
pub(crate) use self::local::{local_gpus, local_net, local_nets};
pub use self::merge::NetMerge;
pub use self::params::{NetDevsPolicy, Params};
pub use self::ranks::{n_ranks, number_ranks, select_ranks};
pub use self::reach::{GdrMode, P2p, check_gdr, check_p2p, forwarding_rank};
pub use self::system::{Cpu, Dev, Gpu, Hop, Link, Net, Node, NodeData, NodeRef, Path, System};
