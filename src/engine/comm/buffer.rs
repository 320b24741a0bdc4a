//! Buffers: memory of one rank that every other rank can reach.

use std::fmt;
use std::sync::Arc;

use crate::engine::device::host::rank::RankCore;
use crate::engine::device::host::region::Region;
use crate::engine::error::{Error, Result};

/// A piece of a rank's arena. Cloning gives another handle; the memory goes back when the last one is dropped.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    arena: Arc<Region>,
    core: Arc<RankCore>,
    offset: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn new(arena: Arc<Region>, core: Arc<RankCore>, len: usize) -> Result<Self> {
        let offset = arena.alloc(len)?;
        Ok(Self { inner: Arc::new(Inner { arena, core, offset, len }) })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Rank that owns it.
    pub fn rank(&self) -> usize {
        self.inner.core.rank
    }

    /// The part from `offset` bytes on.
    pub fn span(&self, offset: usize) -> Span<'_> {
        Span { buffer: self, offset }
    }

    /// Lets `look` read the bytes. The rank's operations must be complete: synchronise first.
    ///
    /// # Panics
    /// When an operation of this rank is still running, because peers may be writing here.
    pub fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        self.assert_idle();
        // SAFETY: the range belongs to this buffer; no operation of this rank runs, so no peer writes to it (peers touch a rank's
        // memory only inside an operation that rank takes part in and has not completed).
        look(unsafe { std::slice::from_raw_parts(self.base(), self.inner.len) })
    }

    /// Lets `change` write the bytes, under the same condition as [`Self::read`].
    ///
    /// # Panics
    /// As [`Self::read`].
    pub fn write<R>(&self, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.assert_idle();
        // SAFETY: as in `read`; two threads that write one buffer through two handles at once break the caller's side of the contract
        // just as two host threads on one device buffer would.
        change(unsafe { std::slice::from_raw_parts_mut(self.base(), self.inner.len) })
    }

    fn assert_idle(&self) {
        assert!(
            self.inner.core.is_idle(),
            "invariant: host access to a buffer while its rank runs an operation"
        );
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.inner.arena.at(self.inner.offset)
    }

    /// Offset in the rank's arena.
    pub(super) fn arena_offset(&self) -> usize {
        self.inner.offset
    }

    pub(super) fn is_of(&self, core: &Arc<RankCore>) -> bool {
        Arc::ptr_eq(&self.inner.core, core)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Still in use by a running operation: kept until the communicator's arena goes.
        if self.core.is_idle() {
            self.arena.free(self.offset, self.len);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer(rank {}, offset {}, {} bytes)", self.rank(), self.inner.offset, self.inner.len)
    }
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) offset: usize,
}

impl Span<'_> {
    /// Checks that `bytes` from here on lie in the buffer and that it belongs to `core`.
    pub(super) fn check(&self, what: &str, bytes: usize, core: &Arc<RankCore>) -> Result<()> {
        if !self.buffer.is_of(core) {
            return Err(Error::InvalidArgument(format!(
                "the {what} buffer belongs to rank {}, not to rank {}",
                self.buffer.rank(),
                core.rank
            )));
        }
        match self.offset.checked_add(bytes) {
            Some(end) if end <= self.buffer.len() => Ok(()),
            _ => Err(Error::InvalidArgument(format!(
                "{bytes} bytes from offset {} leave the {what} buffer of {} bytes",
                self.offset,
                self.buffer.len()
            ))),
        }
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.buffer.base().wrapping_add(self.offset)
    }

    pub(super) fn arena_offset(&self) -> usize {
        self.buffer.arena_offset() + self.offset
    }
}
