//! SHM: a peer's segment in this process's address space: its control pages and the FIFO slots it receives through.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::engine::device::host::region::Mapping;
use crate::engine::error::Result;
use crate::engine::transport::PeerInfo;

/// Maps the segment of `peer` whose descriptor was handed over.
pub fn map(peer: &PeerInfo, fd: BorrowedFd<'_>) -> Result<Arc<Mapping>> {
    Mapping::of(fd, peer.reserve.0)
}
