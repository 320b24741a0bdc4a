//! A connection: eight slots from one rank to another on one channel.
//!
//! # Who writes what
//! | word | lies with | written by | means |
//! | --- | --- | --- | --- |
//! | `tail` | receiver | sender | slots below it hold data (Simple only: LL and LL128 say so in every line) |
//! | `direct` | receiver, beside `tail` | sender | this operation's final values are written straight into the result buffer |
//! | `buffers` | receiver | receiver, once per protocol | where the slots are, counted from the segment's start; 0 = not yet |
//! | `head` | sender | receiver | slots below it are free again |
//! | `exchange` | sender | receiver, once per operation with Simple | where its result buffer is, and for which operation |
//!
//! # What pairs with what
//! - The sender fills a slot, then stores `tail` with release order; the receiver loads it with acquire order, then reads the slot.
//! - The receiver reads a slot, then stores `head` with release order; the sender loads it with acquire order, then overwrites the slot.
//! - The receiver zeroes and fills in a buffer's memory, then stores its offset in `buffers` with release order; the sender loads it
//!   with acquire order, so flags it has not written yet read as zero at the receiver.
//! - The receiver stores the result buffer's offset, then the operation's stamp with release order; the sender loads the stamp with
//!   acquire order. `direct` is covered by the `tail` stored after it.
//!
//! # Counting
//! Both ends keep `step`, the number of slots used so far. It only grows, is shared by all protocols and outlives operations; slot
//! `step % 8` is next. Both ends run the same steps, so they agree without a message. Head and tail are steps as well: a stale value is
//! a smaller one and means "wait a little longer", never something wrong. Simple occupies several slots at once and wants them adjacent, so an
//! operation with Simple starts at the next multiple of a chunk's slots, at both ends.
//!
//! One end is used by one thread at a time. Every word has one writer and stands in cache lines that its writer's other words share.

use std::fmt;
use std::ptr::NonNull;

use crate::engine::error::Result;
use crate::engine::plan::chunk;
use crate::engine::sync::{AtomicU64, Ordering};
use crate::engine::types::Protocol;

/// Slots of a FIFO.
pub const SLOTS: u64 = chunk::SLOTS as u64;

/// What FIFOs need from the memory of a rank and its peers.
pub trait FifoMemory: Send + Sync + fmt::Debug {
    /// Where the segment of `rank` starts in this process; none when it cannot be reached.
    fn segment(&self, rank: usize) -> Option<*mut u8>;
    /// Where the arena of `rank` starts in this process; none when buffers of that rank cannot be reached.
    fn arena(&self, rank: usize) -> Option<*mut u8>;
    /// Where the connection table lies in every segment ([`table_bytes`] zeroed bytes, aligned to 128).
    fn table_offset(&self) -> usize;
    /// Zeroed, page-aligned memory in the own segment: its offset.
    fn alloc(&self, bytes: usize) -> Result<usize>;
    /// Prepares a range of the segment of `rank` for use.
    fn populate(&self, rank: usize, offset: usize, bytes: usize);
}

/// Words of one writer, apart from those of others. Two 64-byte lines, because neighbours are fetched in pairs.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Lined<T>(T);

#[derive(Debug, Default)]
#[repr(C)]
struct Sent {
    tail: AtomicU64,
    direct: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Exchange {
    stamp: AtomicU64,
    /// Offset in the receiver's arena plus one; 0 = not reachable there.
    target: AtomicU64,
}

/// The words of a connection that lie with its receiver.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RecvLines {
    sent: Lined<Sent>,
    buffers: Lined<[AtomicU64; 3]>,
}

/// The words of a connection that lie with its sender.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SendLines {
    head: Lined<AtomicU64>,
    exchange: Lined<Exchange>,
}

/// A rank's words for one channel and peer, one connection each way.
#[repr(C)]
#[derive(Debug)]
struct Entry {
    recv: RecvLines,
    send: SendLines,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 512 && align_of::<Entry>() == 128);

/// Bytes of the connection table of one rank.
pub const fn table_bytes(n_channels: usize, n_ranks: usize) -> usize {
    n_channels * n_ranks * size_of::<Entry>()
}

/// The words that the rank whose table starts at `table` keeps for `channel` and `peer`.
///
/// # Safety
/// `table` points to the [`table_bytes`] bytes of a table for `n_ranks` ranks that has the channel.
pub unsafe fn lines(
    table: NonNull<u8>,
    n_ranks: usize,
    channel: usize,
    peer: usize,
) -> (NonNull<RecvLines>, NonNull<SendLines>) {
    // SAFETY: the entry lies in the table, by the caller's promise.
    unsafe {
        let entry = table.cast::<Entry>().add(channel * n_ranks + peer).as_ptr();
        (NonNull::new_unchecked(&raw mut (*entry).recv), NonNull::new_unchecked(&raw mut (*entry).send))
    }
}

/// A flag behind the data it announces, in a line of the slot itself. Flags only grow, so an old one never looks like a new one.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Flag(AtomicU64);

impl Flag {
    /// Announces what was stored before.
    #[inline]
    pub fn raise(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Whether `value` was announced; then what was stored before it can be read.
    #[inline]
    pub fn is_raised(&self, value: u64) -> bool {
        self.0.load(Ordering::Acquire) == value
    }
}

/// Where final values of the running operation may go instead of into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The receiver has not started the operation yet.
    Unknown,
    /// Into slots.
    Slots,
    /// Into the result buffer at this offset of the receiver's arena.
    Arena(usize),
}

/// The sending end.
#[derive(Debug)]
pub struct SendEnd {
    own: NonNull<SendLines>,
    theirs: NonNull<RecvLines>,
    step: u64,
    /// Last head seen: as long as it suffices, the line stays with the receiver.
    head: u64,
    /// Step at which the operation started, plus one.
    stamp: u64,
    target: Target,
    /// First slot by protocol; null until known.
    slots: [*mut u8; 3],
}

/// The receiving end.
#[derive(Debug)]
pub struct RecvEnd {
    own: NonNull<RecvLines>,
    theirs: NonNull<SendLines>,
    step: u64,
    /// Last tail seen.
    tail: u64,
    stamp: u64,
    slots: [*mut u8; 3],
}

// SAFETY: the pointers lead into shared memory that lives as long as the channel that owns the end, and an end is used by one thread
// at a time; what the other end does meanwhile is covered by the protocol above.
unsafe impl Send for SendEnd {}
// SAFETY: as above.
unsafe impl Send for RecvEnd {}

impl SendEnd {
    /// The end at step 0.
    ///
    /// # Safety
    /// Both words stay valid as long as the end, and no second end is made from them while this one lives.
    pub unsafe fn new(own: NonNull<SendLines>, theirs: NonNull<RecvLines>) -> Self {
        Self {
            own,
            theirs,
            step: 0,
            head: 0,
            stamp: 0,
            target: Target::Slots,
            slots: [std::ptr::null_mut(); 3],
        }
    }

    #[inline]
    fn own(&self) -> &SendLines {
        // SAFETY: valid as long as the end, by the promise to `new`.
        unsafe { self.own.as_ref() }
    }

    #[inline]
    fn theirs(&self) -> &RecvLines {
        // SAFETY: valid as long as the end, by the promise to `new`.
        unsafe { self.theirs.as_ref() }
    }

    /// Slots used so far.
    #[inline]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Starts an operation whose chunks occupy `chunk_steps` slots.
    pub fn begin(&mut self, chunk_steps: u64) {
        self.step = self.step.next_multiple_of(chunk_steps);
        self.stamp = self.step + 1;
        self.target = Target::Unknown;
    }

    /// Whether `slots` more slots are free.
    #[inline]
    pub fn has_room(&mut self, slots: u64) -> bool {
        if self.head + SLOTS >= self.step + slots {
            return true;
        }
        self.head = self.own().head.0.load(Ordering::Acquire);
        self.head + SLOTS >= self.step + slots
    }

    /// Passes on `slots` filled slots.
    #[inline]
    pub fn post(&mut self, slots: u64) {
        self.step += slots;
        self.theirs().sent.0.tail.store(self.step, Ordering::Release);
    }

    /// Counts a slot whose lines announced themselves.
    #[inline]
    pub fn pass(&mut self) {
        self.step += 1;
    }

    /// Where final values go.
    #[inline]
    pub fn target(&mut self) -> Target {
        if self.target == Target::Unknown {
            let exchange = &self.own().exchange.0;
            if exchange.stamp.load(Ordering::Acquire) == self.stamp {
                self.target = match exchange.target.load(Ordering::Relaxed) {
                    0 => Target::Slots,
                    offset => Target::Arena(offset as usize - 1),
                };
            }
        }
        self.target
    }

    /// Settles where final values of this operation go, before the first of them is posted: `direct` when the target can be written.
    pub fn settle(&mut self, direct: bool) {
        if direct {
            self.theirs().sent.0.direct.store(self.stamp, Ordering::Relaxed);
        } else {
            self.target = Target::Slots;
        }
    }

    /// Offset of the slots in the receiver's segment, once it has announced them.
    pub fn announced(&self, protocol: Protocol) -> Option<usize> {
        match self.theirs().buffers.0[protocol as usize].load(Ordering::Acquire) {
            0 => None,
            offset => Some(offset as usize),
        }
    }

    /// Remembers where the slots are in this process.
    pub fn attach(&mut self, protocol: Protocol, slots: *mut u8) {
        self.slots[protocol as usize] = slots;
    }

    /// Whether the slots are known.
    #[inline]
    pub fn is_attached(&self, protocol: Protocol) -> bool {
        !self.slots[protocol as usize].is_null()
    }

    /// The next slot.
    #[inline]
    pub fn slot(&self, protocol: Protocol, slot_bytes: usize) -> *mut u8 {
        debug_assert!(self.is_attached(protocol));
        self.slots[protocol as usize].wrapping_add((self.step % SLOTS) as usize * slot_bytes)
    }
}

impl RecvEnd {
    /// The end at step 0.
    ///
    /// # Safety
    /// Both words stay valid as long as the end, and no second end is made from them while this one lives.
    pub unsafe fn new(own: NonNull<RecvLines>, theirs: NonNull<SendLines>) -> Self {
        Self { own, theirs, step: 0, tail: 0, stamp: 0, slots: [std::ptr::null_mut(); 3] }
    }

    #[inline]
    fn own(&self) -> &RecvLines {
        // SAFETY: valid as long as the end, by the promise to `new`.
        unsafe { self.own.as_ref() }
    }

    #[inline]
    fn theirs(&self) -> &SendLines {
        // SAFETY: valid as long as the end, by the promise to `new`.
        unsafe { self.theirs.as_ref() }
    }

    /// Slots used so far.
    #[inline]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Starts an operation whose chunks occupy `chunk_steps` slots; slots skipped by rounding up are free.
    pub fn begin(&mut self, chunk_steps: u64) {
        self.step = self.step.next_multiple_of(chunk_steps);
        self.stamp = self.step + 1;
        self.theirs().head.0.store(self.step, Ordering::Release);
    }

    /// Tells the sender where the result buffer of the operation is in this rank's arena, or that it is not there.
    pub fn offer(&self, target: Option<usize>) {
        let exchange = &self.theirs().exchange.0;
        exchange.target.store(target.map_or(0, |offset| offset as u64 + 1), Ordering::Relaxed);
        exchange.stamp.store(self.stamp, Ordering::Release);
    }

    /// Whether `slots` more slots are filled.
    #[inline]
    pub fn has_data(&mut self, slots: u64) -> bool {
        if self.tail >= self.step + slots {
            return true;
        }
        self.tail = self.own().sent.0.tail.load(Ordering::Acquire);
        self.tail >= self.step + slots
    }

    /// Whether final values of this operation lie in the result buffer; to be asked when there are data.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.own().sent.0.direct.load(Ordering::Relaxed) == self.stamp
    }

    /// Gives back `slots` slots that were read.
    #[inline]
    pub fn release(&mut self, slots: u64) {
        self.step += slots;
        self.theirs().head.0.store(self.step, Ordering::Release);
    }

    /// Announces slots at `offset` of the own segment, which start at `slots` in this process and are zero.
    pub fn announce(&mut self, protocol: Protocol, offset: usize, slots: *mut u8) {
        self.slots[protocol as usize] = slots;
        self.own().buffers.0[protocol as usize].store(offset as u64, Ordering::Release);
    }

    /// Whether the slots exist.
    #[inline]
    pub fn is_attached(&self, protocol: Protocol) -> bool {
        !self.slots[protocol as usize].is_null()
    }

    /// The next slot.
    #[inline]
    pub fn slot(&self, protocol: Protocol, slot_bytes: usize) -> *mut u8 {
        debug_assert!(self.is_attached(protocol));
        self.slots[protocol as usize].wrapping_add((self.step % SLOTS) as usize * slot_bytes)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
impl SendEnd {
    /// Goes to a far step, as after very many operations.
    pub(crate) fn resume_at(&mut self, step: u64) {
        (self.step, self.head) = (step, step);
        self.own().head.0.store(step, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
impl RecvEnd {
    /// Goes to a far step, as after very many operations.
    pub(crate) fn resume_at(&mut self, step: u64) {
        self.step = step;
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn ends(lines: &(RecvLines, SendLines)) -> (SendEnd, RecvEnd) {
        let (recv, send) = (NonNull::from(&lines.0), NonNull::from(&lines.1));
        // SAFETY: the caller keeps the lines as long as the ends and calls this once.
        unsafe { (SendEnd::new(send, recv), RecvEnd::new(recv, send)) }
    }

    #[test]
    fn eight_slots_can_be_filled_ahead() {
        let lines = Default::default();
        let (mut send, mut recv) = ends(&lines);
        for step in 0..SLOTS {
            assert!(send.has_room(1), "{step}");
            send.post(1);
        }
        assert!(!send.has_room(1));
        assert!(recv.has_data(8) && !recv.has_data(9));
        recv.release(3);
        assert!(send.has_room(3) && !send.has_room(4));
    }

    #[test]
    fn an_operation_with_simple_starts_at_a_whole_chunk_at_both_ends() {
        let lines = Default::default();
        let (mut send, mut recv) = ends(&lines);
        for _ in 0..5 {
            send.pass();
            recv.release(1);
        }
        send.begin(4);
        recv.begin(4);
        assert_eq!((send.step(), recv.step()), (8, 8));
        // All eight slots are free, although three were never used.
        assert!(send.has_room(8));
        send.post(2);
        assert!(recv.has_data(2) && !recv.has_data(3));
    }

    #[test]
    fn an_offer_is_good_for_one_operation() {
        let lines = Default::default();
        let (mut send, mut recv) = ends(&lines);
        send.begin(1);
        assert_eq!(send.target(), Target::Unknown);
        recv.begin(1);
        recv.offer(Some(640));
        assert_eq!(send.target(), Target::Arena(640));
        assert!(!recv.is_direct());
        send.settle(true);
        assert!(recv.is_direct());
        send.post(1);
        recv.release(1);
        send.begin(1);
        recv.begin(1);
        assert_eq!(send.target(), Target::Unknown);
        assert!(!recv.is_direct());
        recv.offer(None);
        assert_eq!(send.target(), Target::Slots);
    }

    #[test]
    fn words_of_different_connections_share_no_cache_line() {
        let mut table = vec![[0u64; 64]; 3 * 5];
        let base = NonNull::new(table.as_mut_ptr()).unwrap().cast::<u8>();
        assert_eq!(size_of_val(table.as_slice()), table_bytes(3, 5));
        let mut seen = Vec::new();
        for (channel, peer) in (0..3).flat_map(|c| (0..5).map(move |p| (c, p))) {
            // SAFETY: the vector is as long as the table, and the words are not accessed.
            let (recv, send) = unsafe { lines(base, 5, channel, peer) };
            seen.extend([recv.as_ptr() as usize, send.as_ptr() as usize]);
        }
        assert!(seen.windows(2).all(|w| w[1] - w[0] == 256), "{seen:?}");
    }
}
