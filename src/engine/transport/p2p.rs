//! P2P: a peer's arena in this process's address space, so that its buffers are loaded from and stored to without a copy between.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::engine::device::host::region::Mapping;
use crate::engine::error::Result;
use crate::engine::transport::PeerInfo;

/// Maps the arena of `peer` whose descriptor was handed over.
pub fn map(peer: &PeerInfo, fd: BorrowedFd<'_>) -> Result<Arc<Mapping>> {
    Mapping::of(fd, peer.reserve.1)
}
