//! Primitives: what one step does with the slots of its connections, one file per protocol.
//!
//! [`simple`] waits for whole slices by their counters and lets the reduction read and write slots in place. LL ([`ll`]) and LL128
//! ([`ll128`]) carry flags among the data; they differ in the [`flagged::Format`] of a line and share the walk over lines ([`flagged`]).
//!
//! A primitive never blocks: it does what it can, about a slice at a time, and says whom it waits for.

pub(super) mod flagged;
pub(super) mod ll;
pub(super) mod ll128;
pub(super) mod simple;

use std::sync::Arc;

use super::fifo::{FifoMemory, RecvEnd, SendEnd, Target};
use super::reduce::{Job, Reducer, Source};
use crate::engine::plan::{MAX_PEERS, Slicing, Step};
use crate::engine::types::Protocol;

/// How far a primitive came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The step is complete.
    Complete,
    /// Something was moved, the step goes on.
    Moved,
    /// Nothing was moved: this peer has to act first.
    Waits(usize),
}

/// What the steps of an operation have in common on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) send: *const u8,
    pub(super) recv: *mut u8,
    pub(super) reducer: Reducer,
    /// Pre-multiplier of the own input.
    pub(super) scale: Option<u64>,
    pub(super) elem_bytes: usize,
    pub(super) slot_bytes: usize,
    pub(super) slicing: Slicing,
    /// Whether results are larger than caches hold.
    pub(super) non_temporal: bool,
}

impl Operation {
    /// The own input at an element.
    fn input(&self, at: usize) -> *const u8 {
        self.send.wrapping_add(at * self.elem_bytes)
    }

    /// The own result at an element.
    fn result(&self, at: usize) -> *mut u8 {
        self.recv.wrapping_add(at * self.elem_bytes)
    }
}

/// A step and how much of it is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progressing {
    pub(super) step: Step,
    /// Slices done.
    pub(super) slice: usize,
    /// Elements done.
    pub(super) moved: usize,
}

impl Progressing {
    pub(super) fn new(step: Step) -> Self {
        Self { step, slice: 0, moved: 0 }
    }
}

/// The connectors of a channel, by peer.
#[derive(Debug)]
pub(super) struct Connectors {
    pub(super) memory: Arc<dyn FifoMemory>,
    /// By protocol.
    pub(super) buffer_bytes: [usize; 3],
    pub(super) recv: Vec<Option<RecvEnd>>,
    pub(super) send: Vec<Option<Sender>>,
}

/// The sending connector of a peer.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) end: SendEnd,
    /// The peer's arena in this process.
    pub(super) arena: Option<*mut u8>,
}

impl Connectors {
    #[inline]
    fn recv(&mut self, peer: usize) -> &mut RecvEnd {
        self.recv[peer].as_mut().expect("invariant: an operation starts only with all its peers reachable")
    }

    #[inline]
    fn send(&mut self, peer: usize) -> &mut Sender {
        self.send[peer].as_mut().expect("invariant: an operation starts only with all its peers reachable")
    }

    /// Whether the slots of `peer` are known; looks for them when they are not.
    #[inline]
    fn has_slots(&mut self, peer: usize, protocol: Protocol) -> bool {
        self.send(peer).end.is_attached(protocol) || self.find_slots(peer, protocol)
    }

    #[cold]
    fn find_slots(&mut self, peer: usize, protocol: Protocol) -> bool {
        let announced = self.send(peer).end.announced(protocol);
        let (Some(offset), Some(base)) = (announced, self.memory.segment(peer)) else { return false };
        self.memory.populate(peer, offset, self.buffer_bytes[protocol as usize]);
        self.send(peer).end.attach(protocol, base.wrapping_add(offset));
        true
    }
}

impl Sender {
    /// Where the receiver stores a final value that belongs `bytes` behind its result's start: `Ok(None)` when it goes into the slot,
    /// `Err` while the receiver has not said so.
    #[inline]
    fn final_place(&mut self, bytes: usize) -> Result<Option<*mut u8>, ()> {
        match (self.end.target(), self.arena) {
            (Target::Unknown, Some(_)) => Err(()),
            (Target::Arena(offset), Some(arena)) => Ok(Some(arena.wrapping_add(offset + bytes))),
            _ => Ok(None),
        }
    }
}

/// Room for one job's pointers.
struct Pointers<T> {
    len: usize,
    items: [T; MAX_PEERS + 1],
}

impl<T: Copy> Pointers<T> {
    fn new(filler: T) -> Self {
        Self { len: 0, items: [filler; MAX_PEERS + 1] }
    }

    fn push(&mut self, item: T) {
        self.items[self.len] = item;
        self.len += 1;
    }

    fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }
}

fn no_source() -> Source {
    Source { ptr: std::ptr::null(), scale: None }
}

/// Runs a job unless it would copy a buffer onto itself.
///
/// # Safety
/// As for [`Reducer::run`].
unsafe fn run(op: &Operation, job: &Job<'_>) {
    let idle = job.n_elem == 0
        || job.destinations.is_empty()
        || matches!((job.sources, job.destinations), ([one], [to]) if one.scale.is_none() && one.ptr == *to && !job.post);
    if !idle {
        // SAFETY: by the caller's promise.
        unsafe { op.reducer.run(job) };
    }
}
