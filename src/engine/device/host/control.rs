//! The first pages of every rank's segment: the words ranks of one machine say things to each other with.
//!
//! | part | written by | read by |
//! | --- | --- | --- |
//! | [`PostLine`] ×[`DEPTH`] and their payload rooms | the owner | all ranks |
//! | [`Reads`] | the owner | all ranks |
//! | [`Claims`] (of the share of the owner's number) | all ranks | all ranks |
//! | [`Bell`] (rank 0's segment only) | all ranks | all ranks |
//! | [`ProgressLine`] | the owner | watchers |
//! | connection directory, tail and head lines | see `fifo` | see `fifo` |
//!
//! **A post** of operation `k` writes the arguments, then `seq = k` with release order; a reader that sees `seq >= k` with acquire
//! order sees the arguments. A rank posts at most [`RUN_AHEAD`] operations beyond the last it completed. So whoever posts `k + DEPTH` has
//! completed `k + DEPTH - RUN_AHEAD`, hence saw everybody's post of it, hence everybody has completed `k + DEPTH - 2 RUN_AHEAD = k`:
//! line and payload `k mod DEPTH` have no reader left.
//!
//! **Reads**: where a post says "my input lies there" its owner may not change that input, nor call the operation complete, before every
//! rank has said that it is done reading. A rank combines in order, so one number that only grows says it for all operations so far.
//!
//! **Claims**: `next` and `done` only grow, over all operations together. Every rank derives the same number of chunks per operation and
//! share, so the range of an operation is known to all; a chunk is taken with a compare-exchange that never passes the end of the range.

use crate::engine::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes that travel inside the flag's own cache line.
pub const INLINE_BYTES: usize = 56;
/// Operations a rank may post beyond the last one it completed.
pub const RUN_AHEAD: usize = 4;
/// Post lines and payload rooms of a rank.
pub const DEPTH: usize = 2 * RUN_AHEAD;
/// Bytes of one payload room; the largest one-shot message.
pub const ROOM_BYTES: usize = 64 << 10;
/// Bytes reserved at the start of a segment for the control part (directory and lines of `fifo` come after it).
pub const CONTROL_BYTES: usize = 4096 + DEPTH * ROOM_BYTES;

/// A flag and what it announces, in one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PostLine {
    seq: AtomicU64,
    args: [AtomicU64; INLINE_BYTES / 8],
}

impl PostLine {
    /// An empty line: nothing was posted.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { seq: AtomicU64::new(0), args: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Announces operation `seq` with its arguments. Only the owner calls this.
    #[inline]
    pub fn post(&self, seq: u64, args: &[u64]) {
        for (slot, &word) in self.args.iter().zip(args) {
            slot.store(word, Ordering::Relaxed);
        }
        self.seq.store(seq, Ordering::Release);
    }

    /// Whether operation `seq` was announced; then its arguments can be read.
    #[inline]
    pub fn is_posted(&self, seq: u64) -> bool {
        self.seq.load(Ordering::Acquire) >= seq
    }

    /// Argument `i` of the post last seen.
    #[inline]
    pub fn arg(&self, i: usize) -> u64 {
        self.args[i].load(Ordering::Relaxed)
    }

    /// The inline payload's address.
    #[cfg(not(loom))]
    pub(crate) fn inline_payload(&self) -> *const u8 {
        self.args.as_ptr().cast()
    }
}

/// How far the owner is with reading other ranks' inputs.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Reads {
    upto: AtomicU64,
}

impl Reads {
    /// Nothing was read yet.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { upto: AtomicU64::new(0) }
    }

    /// Says that the inputs of all operations up to `seq` have been read. Only the owner calls this.
    #[inline]
    pub fn finish(&self, seq: u64) {
        self.upto.store(seq, Ordering::Release);
    }

    /// Whether the owner has read the inputs of operation `seq`; then they may be changed.
    #[inline]
    pub fn has_read(&self, seq: u64) -> bool {
        self.upto.load(Ordering::Acquire) >= seq
    }
}

/// Work of an operation that whoever runs takes piece by piece.
#[repr(C)]
#[derive(Debug)]
pub struct Claims {
    next: Lined,
    done: Lined,
}

/// A counter alone in its cache line.
#[repr(C, align(128))]
#[derive(Debug)]
struct Lined(AtomicU64);

impl Claims {
    /// No chunk was ever taken.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { next: Lined(AtomicU64::new(0)), done: Lined(AtomicU64::new(0)) }
    }

    /// Takes the next chunk below `end`, counted over all operations; `None` when all are taken.
    #[inline]
    pub fn claim(&self, end: u64) -> Option<u64> {
        let mut next = self.next.0.load(Ordering::Relaxed);
        while next < end {
            match self.next.0.compare_exchange_weak(next, next + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next),
                Err(now) => next = now,
            }
        }
        None
    }

    /// Says that `chunks` taken chunks are finished: their results are visible to whoever sees the count. Returns the new count.
    #[inline]
    pub fn finish(&self, chunks: u64) -> u64 {
        self.done.0.fetch_add(chunks, Ordering::AcqRel) + chunks
    }

    /// Whether all chunks below `end` are taken.
    #[inline]
    pub fn is_taken(&self, end: u64) -> bool {
        self.next.0.load(Ordering::Relaxed) >= end
    }

    /// Chunks taken so far, over all operations.
    pub fn taken(&self) -> u64 {
        self.next.0.load(Ordering::Relaxed)
    }

    /// Whether all chunks below `end` are finished; then their results can be read.
    #[inline]
    pub fn is_done(&self, end: u64) -> bool {
        self.done.0.load(Ordering::Acquire) >= end
    }
}

/// Where sleepers of one machine are woken.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Bell {
    /// Ranks that sleep or are about to.
    pub sleepers: AtomicU32,
    /// Changes at every ring; the futex word.
    pub rings: AtomicU32,
}

/// What the owner is doing, for the watch of every process.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgressLine {
    /// Operations completed.
    pub completed: AtomicU64,
    /// Operations launched.
    pub launched: AtomicU64,
    /// Step within the current operation (chunks or FIFO steps).
    pub step: AtomicU64,
    /// 1 + rank it waits for, 0 when it does not wait.
    pub waiting_for: AtomicU64,
    /// The current operation's collective (index) and bytes: `bytes << 8 | index`.
    pub operation: AtomicU64,
}

#[cfg(not(loom))]
mod view {
    use super::{
        Bell, CONTROL_BYTES, Claims, DEPTH, INLINE_BYTES, PostLine, ProgressLine, ROOM_BYTES, Reads,
    };
    use crate::engine::device::host::region::Mapping;
    use std::sync::Arc;

    const POSTS: usize = 0;
    /// The lines of consecutive operations stand apart: a prefetcher that loads neighbours would share the next one too early.
    const POST_APART: usize = 128;
    const PROGRESS: usize = 1024;
    const READS: usize = 1280;
    const CLAIMS: usize = 1536;
    const BELL: usize = 2048;
    const ROOMS: usize = 4096;

    /// The control part of one rank's segment.
    #[derive(Clone, Debug)]
    pub struct Control {
        mapping: Arc<Mapping>,
    }

    impl Control {
        /// The control part of the segment behind `mapping`, whose file has at least [`CONTROL_BYTES`] bytes.
        pub fn of(mapping: Arc<Mapping>) -> Self {
            assert!(mapping.reserve() >= CONTROL_BYTES);
            Self { mapping }
        }

        fn part<T>(&self, offset: usize) -> &T {
            debug_assert!(offset + size_of::<T>() <= ROOMS && offset.is_multiple_of(align_of::<T>()));
            // SAFETY: the offset lies in the mapped file and is aligned; the type is made of atomics only, for which any bytes are
            // valid and shared access from several processes is what they are for. The mapping lives as long as `self`.
            unsafe { &*self.mapping.base().add(offset).cast::<T>() }
        }

        /// The line of operations `seq`, `seq + DEPTH`, …
        #[inline]
        pub fn post(&self, seq: u64) -> &PostLine {
            self.part(POSTS + (seq as usize % DEPTH) * POST_APART)
        }

        /// Payload of operation `seq`: inside the line when it fits, else in the room.
        #[inline]
        pub fn payload(&self, seq: u64, bytes: usize) -> *const u8 {
            if bytes <= INLINE_BYTES { self.post(seq).inline_payload() } else { self.room(seq) }
        }

        /// The room for payloads of operations `seq`, `seq + DEPTH`, … ([`ROOM_BYTES`] long).
        #[inline]
        pub fn room(&self, seq: u64) -> *mut u8 {
            // SAFETY: all rooms lie inside the control part.
            unsafe { self.mapping.base().add(ROOMS + (seq as usize % DEPTH) * ROOM_BYTES) }
        }

        /// How far the owner is with reading.
        #[inline]
        pub fn reads(&self) -> &Reads {
            self.part(READS)
        }

        /// The claim counters of the share of the owner's number.
        #[inline]
        pub fn claims(&self) -> &Claims {
            self.part(CLAIMS)
        }

        /// The bell (meaningful in rank 0's segment).
        #[inline]
        pub fn bell(&self) -> &Bell {
            self.part(BELL)
        }

        /// The owner's progress.
        #[inline]
        pub fn progress(&self) -> &ProgressLine {
            self.part(PROGRESS)
        }
    }
}

#[cfg(not(loom))]
pub use view::Control;
