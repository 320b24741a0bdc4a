//! Memory that peers can reach: a sealed memfd mapped once over a large reserved range.
//!
//! The mapping is made at full reserve size and reaches beyond the end of the file; growing is one `ftruncate`, after which the new
//! pages are there in every process that mapped the file, so nobody ever maps again. `F_SEAL_SHRINK` keeps a peer from being killed
//! by SIGBUS. Only offsets below [`Region::len`] may be touched.
//!
//! A write fault on a peer's page costs about five times a populated read and writes are free after it, so [`Mapping::populate`]
//! is called on a peer's range before anything is timed.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::engine::error::{Error, Result};

/// Alignment and granule of allocations, bytes: one page.
pub const PAGE: usize = 4096;
/// Alignment of allocations of at least this size, so that huge pages can back them.
const HUGE: usize = 2 << 20;

/// A shared file mapped over a reserved address range.
pub struct Mapping {
    base: NonNull<u8>,
    reserve: usize,
}

// SAFETY: a mapping is a plain range of shared memory; who may touch which bytes when is the collectives' protocol, not a thread's.
unsafe impl Send for Mapping {}
// SAFETY: as above; the type itself only hands out addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `fd` over `reserve` bytes of address space; the file may be shorter and grow later.
    pub fn of(fd: BorrowedFd<'_>, reserve: usize) -> Result<Arc<Self>> {
        // SAFETY: a fresh mapping at an address the kernel chooses touches nobody's memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                reserve,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )
        }
        .map_err(|e| Error::system(format!("mapping {reserve} bytes of shared memory"), e))?;
        let base = NonNull::new(base.cast()).expect("invariant: mmap never returns null");
        Ok(Arc::new(Self { base, reserve }))
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of address space, not of memory.
    pub fn reserve(&self) -> usize {
        self.reserve
    }

    /// Enters the pages of `[offset, offset + bytes)` in this process's page table without changing them. The range must lie in the file.
    pub fn populate(&self, offset: usize, bytes: usize) {
        self.advise(offset, bytes, Advice::LinuxPopulateRead);
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) {
        let start = offset / PAGE * PAGE;
        let end = (offset + bytes).next_multiple_of(PAGE).min(self.reserve);
        if start < end {
            // SAFETY: populating and huge-page advice never change what the pages hold, and the range lies in this mapping.
            // A kernel that lacks the advice refuses; then the first touch faults, which is slower and still right.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().add(start).cast(), end - start, advice) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `of`, and every pointer into it is held beside an Arc of this mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserve) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:p}, reserve {})", self.base, self.reserve)
    }
}

/// This rank's own shared memory, handed out in page-aligned pieces.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    /// Whether the file lies in a file system that can be full: then touching a page that it has no room for is a SIGBUS.
    can_be_full: bool,
    len: AtomicUsize,
    /// Free ranges below `len`, sorted by offset, never adjacent: (offset, bytes).
    free: Mutex<Vec<(usize, usize)>>,
}

impl Region {
    /// An empty region that can grow to `reserve` bytes.
    pub fn create(name: &str, reserve: usize) -> Result<Self> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::system("creating shared memory (memfd_create)", e))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .map_err(|e| Error::system("sealing shared memory", e))?;
        let mapping = Mapping::of(fd.as_fd(), reserve)?;
        let (len, free) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        Ok(Self { fd, mapping, can_be_full: false, len, free })
    }

    /// A region over an empty file that has (or had) a name.
    pub fn over(fd: OwnedFd, reserve: usize) -> Result<Self> {
        let mapping = Mapping::of(fd.as_fd(), reserve)?;
        let (len, free) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        Ok(Self { fd, mapping, can_be_full: true, len, free })
    }

    /// The descriptor peers map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The mapping, as peers in the same process use it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Bytes of the file: every offset below may be touched.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether nothing was ever allocated.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First byte of an allocation.
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.len());
        // SAFETY: the offset lies in the mapping.
        unsafe { self.mapping.base().add(offset) }
    }

    /// Reserves `bytes` (rounded up to pages), touched and zero when fresh; reused memory is zeroed. Returns the offset.
    pub fn alloc(&self, bytes: usize) -> Result<usize> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let align = if bytes >= HUGE { HUGE } else { PAGE };
        let mut free = self.free.lock().expect("invariant: no panic while the free list is locked");
        if let Some((offset, fresh)) = take(&mut free, bytes, align) {
            drop(free);
            debug_assert!(!fresh);
            // SAFETY: the range was free, so nobody else uses it.
            unsafe { std::ptr::write_bytes(self.at(offset), 0, bytes) };
            return Ok(offset);
        }
        let len = self.len();
        let offset = len.next_multiple_of(align);
        let end = offset + bytes;
        if end > self.mapping.reserve() {
            return Err(Error::system(
                format!("allocating {bytes} bytes"),
                format!("the rank's address range of {} bytes is used up", self.mapping.reserve()),
            ));
        }
        self.grow(len, end).map_err(|e| Error::system(format!("growing shared memory to {end} bytes"), e))?;
        if offset > len {
            give(&mut free, len, offset - len);
        }
        self.len.store(end, Ordering::Release);
        drop(free);
        if bytes >= HUGE {
            self.mapping.advise(offset, bytes, Advice::LinuxHugepage);
        }
        self.mapping.advise(offset, bytes, Advice::LinuxPopulateWrite);
        Ok(offset)
    }

    fn grow(&self, from: usize, to: usize) -> rustix::io::Result<()> {
        if self.can_be_full {
            let mode = rustix::fs::FallocateFlags::empty();
            return rustix::fs::fallocate(&self.fd, mode, from as u64, (to - from) as u64);
        }
        rustix::fs::ftruncate(&self.fd, to as u64)
    }

    /// Returns an allocation of `bytes` at `offset`.
    pub fn free(&self, offset: usize, bytes: usize) {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        give(
            &mut self.free.lock().expect("invariant: no panic while the free list is locked"),
            offset,
            bytes,
        );
    }
}

/// Takes an aligned range out of the free list, first fit. The flag says whether the memory was never used (it never is).
fn take(free: &mut Vec<(usize, usize)>, bytes: usize, align: usize) -> Option<(usize, bool)> {
    for i in 0..free.len() {
        let (start, size) = free[i];
        let offset = start.next_multiple_of(align);
        if offset + bytes <= start + size {
            free.remove(i);
            if offset > start {
                give(free, start, offset - start);
            }
            if offset + bytes < start + size {
                give(free, offset + bytes, start + size - offset - bytes);
            }
            return Some((offset, false));
        }
    }
    None
}

/// Puts a range into the free list and joins neighbours.
fn give(free: &mut Vec<(usize, usize)>, offset: usize, bytes: usize) {
    let at = free.partition_point(|&(o, _)| o < offset);
    free.insert(at, (offset, bytes));
    if at + 1 < free.len() && free[at].0 + free[at].1 == free[at + 1].0 {
        free[at].1 += free[at + 1].1;
        free.remove(at + 1);
    }
    if at > 0 && free[at - 1].0 + free[at - 1].1 == free[at].0 {
        free[at - 1].1 += free[at].1;
        free.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mapping_sees_growth_without_mapping_again() {
        let region = Region::create("test", 1 << 30).unwrap();
        let peer = Mapping::of(region.fd(), 1 << 30).unwrap();
        let offset = region.alloc(5000).unwrap();
        // SAFETY: both pointers lie inside the allocation.
        unsafe {
            region.at(offset + 4999).write(7);
            assert_eq!(peer.base().add(offset + 4999).read(), 7);
        }
    }

    #[test]
    fn freed_memory_is_joined_reused_and_zero() {
        let region = Region::create("test", 1 << 30).unwrap();
        let a = region.alloc(PAGE).unwrap();
        let b = region.alloc(PAGE).unwrap();
        // SAFETY: inside the allocation.
        unsafe { region.at(b).write(9) };
        region.free(a, PAGE);
        region.free(b, PAGE);
        let c = region.alloc(2 * PAGE).unwrap();
        assert_eq!(c, a);
        // SAFETY: inside the allocation.
        assert_eq!(unsafe { region.at(b).read() }, 0);
        assert_eq!(region.len(), 2 * PAGE);
    }

    #[test]
    fn a_file_cannot_be_shrunk() {
        let region = Region::create("test", 1 << 30).unwrap();
        region.alloc(2 * PAGE).unwrap();
        assert!(rustix::fs::ftruncate(region.fd(), 0).is_err());
    }

    #[test]
    fn a_named_file_grows_with_room_for_every_page() {
        let file = tempfile::tempfile().unwrap();
        let region = Region::over(file.try_clone().unwrap().into(), 1 << 30).unwrap();
        let offset = region.alloc(3 * PAGE).unwrap();
        let next = region.alloc(PAGE).unwrap();
        assert_eq!((offset, next), (0, 3 * PAGE));
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata().unwrap();
        assert!(metadata.blocks() * 512 >= 4 * PAGE as u64, "{} blocks", metadata.blocks());
    }

    #[test]
    fn running_out_of_range_is_an_error() {
        let region = Region::create("test", 8 * PAGE).unwrap();
        assert!(region.alloc(9 * PAGE).is_err());
        assert!(region.alloc(8 * PAGE).is_ok());
    }
}
