//! The walk over lines that carry their own flags: LL and LL128.
//!
//! A step occupies one slot. Received lines are taken as far as they have arrived, in batches that stay in the first-level cache:
//! unpacked, reduced with the own input, kept, packed again for the next rank. So a chunk streams through a rank line by line and the last
//! rank is busy before the first has finished. No counter tells that data are there; only the sender needs one, to know that the slot is free.

use std::fmt;

use super::{Connectors, Operation, Outcome, Pointers, Progressing, no_source, run};
use crate::engine::device::host::reduce::{Job, Source};
use crate::engine::plan::{Lane, MAX_PEERS};
use crate::engine::types::Protocol;

/// Payload a batch holds at most, bytes: four LL128 blocks, or 960 LL lines.
pub(in super::super) const BATCH_BYTES: usize = 4 * 1920;

/// A format of lines. A **unit** is the least that is checked and moved together.
pub(super) trait Format {
    const PROTOCOL: Protocol;
    /// Payload of a unit, a multiple of every element's size.
    const PAYLOAD: usize;
    /// Bytes of a unit on the wire.
    const WIRE: usize;

    /// Copies the payload of up to `units` units to `to`, stopping before the first that has not arrived. Returns how many were copied.
    ///
    /// # Safety
    /// `wire` has that many units, aligned to 16 bytes; `to` can take their payload.
    unsafe fn unpack(wire: *const u8, units: usize, flag: u64, to: *mut u8) -> usize;

    /// Sends `bytes` bytes (and what fills up the last unit).
    ///
    /// # Safety
    /// `from` has the bytes; `wire` has room for the units and belongs to this sender until they carry `flag`.
    unsafe fn pack(from: *const u8, bytes: usize, wire: *mut u8, flag: u64);

    /// What the sender does with the rest of a slot when its payload ends.
    ///
    /// # Safety
    /// `wire` is a slot of `slot_bytes` bytes of which the first `used` are packed.
    unsafe fn finish(wire: *mut u8, used: usize, slot_bytes: usize, step: u64);
}

/// Memory for batches of one lane.
#[derive(Debug)]
pub(in super::super) struct Scratch {
    received: [Box<Batch>; MAX_PEERS],
    value: Box<Batch>,
}

#[repr(C, align(64))]
struct Batch([u8; BATCH_BYTES]);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({:p})", self.0.as_ptr())
    }
}

impl Scratch {
    pub(in super::super) fn new() -> Self {
        let batch = || Box::new(Batch([0; BATCH_BYTES]));
        Self { received: [batch(), batch(), batch()], value: batch() }
    }
}

/// Moves what has arrived, up to the end of the step.
pub(super) fn poll<F: Format>(
    op: &Operation,
    lane: &Lane,
    at: &mut Progressing,
    connectors: &mut Connectors,
    scratch: &mut Scratch,
) -> Outcome {
    let step = at.step;
    // `slice` tells whether credits were checked: a slot that is free stays free.
    if at.slice == 0 {
        if let Some(peer) = without_room::<F>(lane, at, connectors) {
            return Outcome::Waits(peer);
        }
        at.slice = 1;
    }
    let mut moved = false;
    while at.moved < step.n_elem {
        match move_batch::<F>(op, lane, at, connectors, scratch) {
            Ok(n_elem) => at.moved += n_elem,
            Err(_) if moved => return Outcome::Moved,
            Err(peer) => return Outcome::Waits(peer),
        }
        moved = true;
    }
    for &peer in lane.send.as_slice().iter().filter(|_| step.sends) {
        let end = &mut connectors.send(peer).end;
        let used = (step.n_elem * op.elem_bytes).div_ceil(F::PAYLOAD) * F::WIRE;
        // SAFETY: the slot is this sender's, and the walk above packed that much of it.
        unsafe { F::finish(end.slot(F::PROTOCOL, op.slot_bytes), used, op.slot_bytes, end.step()) };
        end.pass();
    }
    for &peer in lane.recv.as_slice().iter().filter(|_| step.receives) {
        connectors.recv(peer).release(1);
    }
    Outcome::Complete
}

fn without_room<F: Format>(lane: &Lane, at: &Progressing, connectors: &mut Connectors) -> Option<usize> {
    if !at.step.sends {
        return None;
    }
    let mut is_free = |peer| connectors.has_slots(peer, F::PROTOCOL) && connectors.send(peer).end.has_room(1);
    lane.send.as_slice().iter().copied().find(|&peer| !is_free(peer))
}

/// Moves the lines of one batch that have arrived from everybody: elements moved, or whom to wait for.
fn move_batch<F: Format>(
    op: &Operation,
    lane: &Lane,
    at: &Progressing,
    connectors: &mut Connectors,
    scratch: &mut Scratch,
) -> Result<usize, usize> {
    let step = at.step;
    let done_bytes = at.moved * op.elem_bytes;
    let mut bytes = (step.n_elem * op.elem_bytes - done_bytes).min(BATCH_BYTES / F::PAYLOAD * F::PAYLOAD);
    // All that was moved before are whole units.
    let wire_offset = done_bytes / F::PAYLOAD * F::WIRE;
    let result = step.dst.map(|dst| op.result(dst + at.moved));

    // A value that is only copied is unpacked where it belongs, but for a last unit that would write beyond it.
    let straight = match result {
        Some(result) if step.src.is_none() && bytes.is_multiple_of(F::PAYLOAD) => Some(result),
        _ => None,
    };
    let mut sources = Pointers::new(no_source());
    if let Some(src) = step.src {
        sources.push(Source { ptr: op.input(src + at.moved), scale: op.scale });
    }
    for (i, &peer) in lane.recv.as_slice().iter().enumerate().filter(|_| step.receives) {
        let end = connectors.recv(peer);
        let wire = end.slot(F::PROTOCOL, op.slot_bytes).wrapping_add(wire_offset);
        let to = straight.unwrap_or(scratch.received[i].0.as_mut_ptr());
        let flag = end.step() + 1;
        // SAFETY: the units of a step lie in its slot; `to` has room for whole units of a batch (scratch), or takes exactly `bytes`.
        let arrived = unsafe { F::unpack(wire, bytes.div_ceil(F::PAYLOAD), flag, to) };
        bytes = bytes.min(arrived * F::PAYLOAD);
        if bytes == 0 {
            return Err(peer);
        }
        sources.push(Source { ptr: to, scale: None });
    }

    let n_elem = bytes / op.elem_bytes;
    let is_plain = matches!(sources.as_slice(), [one] if one.scale.is_none()) && !step.is_final;
    let value = match (result, straight) {
        (_, Some(placed)) if step.receives => placed.cast_const(),
        (None, _) if is_plain => sources.as_slice()[0].ptr,
        _ => {
            let to = result.unwrap_or(scratch.value.0.as_mut_ptr());
            let (sources, destinations) = (sources.as_slice(), &[to][..]);
            let job = Job { sources, destinations, n_elem, post: step.is_final, non_temporal: false };
            // SAFETY: input and result hold the elements the plan names (promise of `ChannelTask::start`), scratch holds a batch;
            // sources and destination are equal or apart.
            unsafe { run(op, &job) };
            to.cast_const()
        }
    };
    for &peer in lane.send.as_slice().iter().filter(|_| step.sends) {
        let end = &connectors.send(peer).end;
        let wire = end.slot(F::PROTOCOL, op.slot_bytes).wrapping_add(wire_offset);
        // SAFETY: `value` holds the bytes; the slot is free (checked at the step's start) and has room for a chunk's units.
        unsafe { F::pack(value, bytes, wire, end.step() + 1) };
    }
    Ok(n_elem)
}
