//! How one rank reaches another's memory. Variants are tried in NCCL's order and the first that links is used:
//!
//! | transport | FIFO slots and flags | user buffers |
//! | --- | --- | --- |
//! | [`p2p`] | in the peer's segment | loaded from and stored to directly |
//! | [`shm`] | in the peer's segment | never: everything goes through FIFO slots or flag lines |
//!
//! A segment is shared by SHM means, an arena by P2P means, so P2P needs both.

pub mod p2p;
pub mod shm;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::device::host::region::Mapping;

/// What every rank tells every other about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Rank in the communicator.
    pub rank: usize,
    /// The host it believes to be on: `NCCL_HOSTID`, or host name and boot id.
    pub host: String,
    /// The kernel it really runs on.
    pub boot_id: String,
    /// Host name, for messages.
    pub host_name: String,
    /// Process id, for messages.
    pub pid: u32,
    /// A random number per process: equal means same address space.
    pub process: u64,
    /// The user it runs as.
    pub user: u32,
    /// CPUs it may run on.
    pub cpus: Vec<usize>,
    /// CPUs' worth of time its cgroup grants.
    pub quota: Option<f64>,
    /// Last-level cache, bytes.
    pub cache_bytes: u64,
    /// Address space of its segment and its arena, bytes.
    pub reserve: (usize, usize),
    /// Whether it lets peers at its buffers (`NCCL_P2P_DISABLE` is not set).
    pub p2p: bool,
    /// Whether it shares memory at all (`NCCL_SHM_DISABLE` is not set).
    pub shm: bool,
}

/// The kinds of transport, in the order they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransportKind {
    /// The same process: pointers.
    P2pDirect,
    /// Another process of this machine: its registered memory, mapped.
    P2pMapped,
    /// Another process of this machine: FIFO slots only.
    Shm,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::P2pDirect => "P2P/direct pointer",
            Self::P2pMapped => "P2P/CUMEM",
            Self::Shm => "SHM/direct",
        })
    }
}

/// What is reached of one peer.
#[derive(Clone, Debug)]
pub struct Reach {
    /// How.
    pub kind: TransportKind,
    /// Its segment.
    pub segment: Arc<Mapping>,
    /// Its arena, with P2P.
    pub arena: Option<Arc<Mapping>>,
}

/// Whether two ranks may share memory as far as both say.
pub fn share_kernel(a: &PeerInfo, b: &PeerInfo) -> bool {
    a.boot_id == b.boot_id && a.shm && b.shm
}

/// Whether two ranks run as the same user.
pub fn is_same_user(a: &PeerInfo, b: &PeerInfo) -> bool {
    a.user == b.user
}

/// Whether two ranks may reach each other's buffers as far as both say. Users keep theirs from each other: between them only what is
/// sent goes through shared memory.
pub fn allow_p2p(a: &PeerInfo, b: &PeerInfo) -> bool {
    share_kernel(a, b) && a.p2p && b.p2p && is_same_user(a, b)
}
