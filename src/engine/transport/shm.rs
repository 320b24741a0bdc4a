//! SHM: a peer's segment in this process's address space: its control pages and the FIFO slots it receives through.
//!
//! A segment is a nameless memfd. Where its descriptor cannot be handed to a peer (another network and process namespace), it lives in a
//! [`SegmentFile`] instead, whose name exists only until all ranks have opened it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::engine::device::host::region::Mapping;
use crate::engine::error::{Error, Result};
use crate::engine::transport::PeerInfo;

/// Where shared memory has names.
const FOLDER: &str = "/dev/shm";

/// Maps the segment of `peer` whose descriptor was handed over.
pub fn map(peer: &PeerInfo, fd: BorrowedFd<'_>) -> Result<Arc<Mapping>> {
    Mapping::of(fd, peer.reserve.0)
}

/// The name of a fresh file for a segment; dropping it removes the name, not the memory.
#[derive(Debug)]
pub struct SegmentFile {
    path: String,
}

impl SegmentFile {
    /// A file nobody else could have made, for this user only.
    pub fn create() -> Result<(Self, OwnedFd)> {
        Self::create_in(FOLDER)
    }

    fn create_in(folder: &str) -> Result<(Self, OwnedFd)> {
        let random = getrandom::u64().map_err(|error| Error::system("asking for random bytes", error))?;
        let path = format!("{folder}/chorus-segment-{random:016x}");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| Error::system(format!("creating {path}"), error))?;
        Ok((Self { path }, fd))
    }

    /// The name.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        // A peer that met a failure may have removed it already.
        let _ = rustix::fs::unlink(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_segment_file_is_for_its_user_only_and_leaves_no_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, fd) =
            SegmentFile::create_in(folder.path().to_str().expect("a plain path")).expect("a file");
        let mode = std::fs::metadata(file.path()).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        drop(file);
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
        rustix::io::write(&fd, b"still there").expect("the memory outlives the name");
    }
}
