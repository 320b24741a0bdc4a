//! A channel of one rank as a task: what a CTA is on a device.
//!
//! A task owns all connectors of its channel, whatever algorithm and protocol use them, and runs one [`ChannelWork`] after the other. It
//! never blocks: [`ChannelTask::poll`] moves about a slice per lane and returns. The two lanes of a tree are polled in turn, so
//! neither can keep the other from giving back slots.
//!
//! Connectors cost nothing until they are used. The receiver makes the slots of a protocol when an operation first needs them, in its
//! own segment, and announces them in its connection table; the sender looks there until they are announced.

use std::ptr::NonNull;
use std::sync::Arc;

use super::fifo::{self, FifoMemory, RecvEnd, SendEnd};
use super::prims::{self, Connectors, Operation, Outcome, Progressing, Sender};
use super::reduce::Reducer;
use crate::engine::error::{Error, Result};
use crate::engine::plan::{ChannelWork, Lane};
use crate::engine::types::Protocol;

/// Which channel of which rank.
#[derive(Clone, Debug)]
pub struct Place {
    /// The rank.
    pub rank: usize,
    /// Ranks of the communicator.
    pub n_ranks: usize,
    /// The channel.
    pub channel: usize,
    /// Channels for which connection tables have room.
    pub n_channels: usize,
    /// Buffer sizes by protocol, equal on all ranks and those the plans were made with.
    pub buffer_bytes: [usize; 3],
}

/// Buffers and arithmetic of one call.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// First byte of the input.
    pub send: *const u8,
    /// First byte of the result.
    pub recv: *mut u8,
    /// Offset of the result in this rank's arena, when peers may write there directly.
    pub recv_in_arena: Option<usize>,
    /// The arithmetic on the plan's elements (bytes for AllGather).
    pub reducer: Reducer,
    /// Whether results go past the caches, because the call's buffers are larger than these.
    pub non_temporal: bool,
}

// SAFETY: the pointers lead into memory that outlives the operation; a task that was given them is the only one to use them.
unsafe impl Send for Operands {}

/// What a poll achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The work is complete on this rank.
    Done,
    /// Something moved; poll again.
    Advanced,
    /// Nothing can move before `peer` acts.
    Blocked {
        /// Who has to act.
        peer: usize,
        /// Slices and steps done so far in this operation.
        step: u64,
    },
}

/// Where a task is, for the watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Polls that moved something, over all operations.
    pub steps: u64,
    /// Whom it waited for at the last poll.
    pub peer: Option<usize>,
}

/// A channel of one rank.
#[derive(Debug)]
pub struct ChannelTask {
    place: Place,
    connectors: Connectors,
    lanes: [LaneTask; 2],
    operation: Option<Running>,
    position: Position,
    started_at: u64,
}

/// The operation a task runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    protocol: Protocol,
    operation: Operation,
}

// SAFETY: the raw pointers lead into shared memory that `memory` keeps mapped and into buffers that outlive the operation (promise of
// `start`); one thread at a time uses a task.
unsafe impl Send for ChannelTask {}

#[derive(Debug)]
struct LaneTask {
    lane: Option<Lane>,
    step: Option<Progressing>,
    scratch: prims::flagged::Scratch,
}

impl ChannelTask {
    /// The task of a channel, nothing running. Peers that cannot be reached have no connector.
    pub fn new(memory: Arc<dyn FifoMemory>, place: Place) -> Self {
        let table = |rank: usize| {
            let base = memory.segment(rank)?;
            NonNull::new(base.wrapping_add(memory.table_offset()))
        };
        let (me, n) = (place.rank, place.n_ranks);
        let (mut recvs, mut sends) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for peer in 0..n {
            let ends = table(me).zip(table(peer)).filter(|_| peer != me).map(|(own, theirs)| {
                debug_assert!(place.channel < place.n_channels);
                // SAFETY: both tables have `table_bytes(n_channels, n_ranks)` bytes, and `memory` keeps them mapped as long as this
                // task. A channel of a rank has one task, so each end is made once.
                unsafe {
                    let (own_recv, own_send) = fifo::lines(own, n, place.channel, peer);
                    let (their_recv, their_send) = fifo::lines(theirs, n, place.channel, me);
                    (RecvEnd::new(own_recv, their_send), SendEnd::new(own_send, their_recv))
                }
            });
            let (recv, send) = ends.unzip();
            recvs.push(recv);
            sends.push(send.map(|end| Sender { end, arena: memory.arena(peer) }));
        }
        let lanes = [LaneTask::new(), LaneTask::new()];
        let connectors = Connectors { memory, buffer_bytes: place.buffer_bytes, recv: recvs, send: sends };
        Self { place, connectors, lanes, operation: None, position: Position::default(), started_at: 0 }
    }

    /// Starts a work of this channel; the one before must be done. Allocates slots at a connection's first use of a protocol, else nothing.
    ///
    /// The buffers must hold the elements of the plan that the work comes from, and must stay untouched by others until the work is done.
    pub fn start(&mut self, work: &ChannelWork, operands: Operands) -> Result<()> {
        debug_assert!(self.operation.is_none() && work.channel == self.place.channel);
        debug_assert!(
            work.slot_bytes == self.place.buffer_bytes[work.protocol as usize] / fifo::SLOTS as usize
        );
        let chunk_steps = work.slicing.chunk_steps() as u64;
        for (task, lane) in self.lanes.iter_mut().zip(work.lanes()) {
            task.lane = lane;
            task.begin_step();
        }
        for lane in work.lanes().iter().flatten() {
            for &peer in lane.recv.as_slice() {
                self.accept(peer, work.protocol)?.begin(chunk_steps);
                if work.protocol == Protocol::Simple {
                    self.accept(peer, work.protocol)?.offer(operands.recv_in_arena);
                }
            }
            for &peer in lane.send.as_slice() {
                self.connectors.send[peer].as_mut().ok_or_else(|| unreachable(peer))?.end.begin(chunk_steps);
            }
        }
        let operation = Operation {
            send: operands.send,
            recv: operands.recv,
            reducer: operands.reducer,
            scale: operands.reducer.own_scale(),
            elem_bytes: work.elem_bytes,
            slot_bytes: work.slot_bytes,
            slicing: work.slicing,
            non_temporal: operands.non_temporal,
        };
        self.operation = Some(Running { protocol: work.protocol, operation });
        self.started_at = self.position.steps;
        Ok(())
    }

    /// The receiving end for `peer`, with slots for `protocol`.
    fn accept(&mut self, peer: usize, protocol: Protocol) -> Result<&mut RecvEnd> {
        let Connectors { memory, recv, .. } = &mut self.connectors;
        let end = recv[peer].as_mut().ok_or_else(|| unreachable(peer))?;
        if !end.is_attached(protocol) {
            let offset = memory.alloc(self.place.buffer_bytes[protocol as usize])?;
            let own = memory.segment(self.place.rank).expect("invariant: the own segment is mapped");
            end.announce(protocol, offset, own.wrapping_add(offset));
        }
        Ok(end)
    }

    /// Moves what can be moved without waiting, about a slice per lane.
    pub fn poll(&mut self) -> Progress {
        let Some(running) = &self.operation else { return Progress::Done };
        let (mut advanced, mut waits_for) = (false, None);
        for lane in &mut self.lanes {
            match lane.poll(running, &mut self.connectors) {
                None => {}
                Some(Outcome::Waits(peer)) => waits_for = waits_for.or(Some(peer)),
                Some(_) => advanced = true,
            }
        }
        self.position.peer = waits_for;
        self.position.steps += u64::from(advanced);
        if self.lanes.iter().all(|lane| lane.step.is_none()) {
            self.operation = None;
            return Progress::Done;
        }
        match waits_for {
            Some(peer) if !advanced => {
                Progress::Blocked { peer, step: self.position.steps - self.started_at }
            }
            _ => Progress::Advanced,
        }
    }

    /// How far the task is and whom it waits for.
    pub fn position(&self) -> Position {
        self.position
    }
}

fn unreachable(peer: usize) -> Error {
    Error::Unavailable(format!("rank {peer} cannot be reached through shared memory"))
}

impl LaneTask {
    fn new() -> Self {
        Self { lane: None, step: None, scratch: prims::flagged::Scratch::new() }
    }

    /// Goes on with the current step; none when the lane has ended.
    #[inline]
    fn poll(&mut self, running: &Running, connectors: &mut Connectors) -> Option<Outcome> {
        let (Some(lane), Some(at)) = (&self.lane, &mut self.step) else { return None };
        let op = &running.operation;
        let outcome = match running.protocol {
            Protocol::Simple => prims::simple::poll(op, lane, at, connectors),
            Protocol::LL => prims::ll::poll(op, lane, at, connectors, &mut self.scratch),
            Protocol::LL128 => prims::ll128::poll(op, lane, at, connectors, &mut self.scratch),
        };
        if outcome == Outcome::Complete {
            self.begin_step();
        }
        Some(outcome)
    }

    /// Takes the lane's next step; the lane ends when there is none.
    fn begin_step(&mut self) {
        self.step = self.lane.as_mut().and_then(Iterator::next).map(Progressing::new);
    }
}

#[cfg(test)]
mod tests;
