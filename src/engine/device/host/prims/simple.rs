//! Simple: bulk data in slots, announced by counters.
//!
//! A chunk is cut into slices. For each: wait until every sender has filled and every receiver has freed the slots of a slice; reduce or
//! copy from slots and the own input to slots and the own result in one pass; post. Slices that find nothing left are waited for and
//! posted like the others: both ends count slots, not bytes.
//!
//! **Who writes, who reads.** The sender writes the slot, then its `tail`; the receiver reads `tail`, the slot, then writes `head`
//! (orders in `fifo`). Past-the-cache stores are fenced inside the reduction before it returns, so `tail` follows them.
//!
//! **Direct.** A value that is final where it is sent and stays at the same offset at the receiver is written straight into the receiver's
//! result buffer, when that lies in an arena this process has mapped. The slot stays empty but is counted. The receiver then has nothing to
//! copy and sends on from its own result. Intermediate sums never go there: in place, the result buffer still holds input.

use super::{Connectors, Operation, Outcome, Pointers, Progressing, no_source, run};
use crate::engine::device::host::reduce::{Job, Source};
use crate::engine::plan::Lane;
use crate::engine::types::Protocol;

/// Does the next slice of the step.
pub(in super::super) fn poll(
    op: &Operation,
    lane: &Lane,
    at: &mut Progressing,
    connectors: &mut Connectors,
) -> Outcome {
    let slots = op.slicing.slice_steps as u64;
    if let Some(peer) = missing(lane, at, connectors, slots) {
        return Outcome::Waits(peer);
    }
    move_slice(op, lane, at, connectors);
    let step = at.step;
    for &peer in lane.send.as_slice().iter().filter(|_| step.sends) {
        connectors.send(peer).end.post(slots);
    }
    for &peer in lane.recv.as_slice().iter().filter(|_| step.receives) {
        connectors.recv(peer).release(slots);
    }
    at.slice += 1;
    if at.slice == op.slicing.n_slices { Outcome::Complete } else { Outcome::Moved }
}

/// The peer that a slice has to wait for.
fn missing(lane: &Lane, at: &Progressing, connectors: &mut Connectors, slots: u64) -> Option<usize> {
    let step = at.step;
    for &peer in lane.recv.as_slice().iter().filter(|_| step.receives) {
        if !connectors.recv(peer).has_data(slots) {
            return Some(peer);
        }
    }
    for &peer in lane.send.as_slice().iter().filter(|_| step.sends) {
        let has_slots = connectors.has_slots(peer, Protocol::Simple);
        let sender = connectors.send(peer);
        if !(has_slots && sender.end.has_room(slots) && (step.dst.is_none() || sender.final_place(0).is_ok()))
        {
            return Some(peer);
        }
    }
    None
}

fn move_slice(op: &Operation, lane: &Lane, at: &mut Progressing, connectors: &mut Connectors) {
    let step = at.step;
    let n_elem = op.slicing.slice_elem(step.n_elem).min(step.n_elem - at.moved);
    let result = step.dst.map(|dst| op.result(dst + at.moved));
    let mut sources = Pointers::new(no_source());
    let mut destinations = Pointers::new(std::ptr::null_mut());
    let mut is_in_place = false;
    if let Some(src) = step.src {
        let input = op.input(src + at.moved);
        is_in_place =
            !step.receives && !step.is_final && op.scale.is_none() && result == Some(input.cast_mut());
        sources.push(Source { ptr: input, scale: op.scale });
    }
    for &peer in lane.recv.as_slice().iter().filter(|_| step.receives) {
        let end = connectors.recv(peer);
        match result {
            // The sender has put it where it belongs.
            Some(result) if step.src.is_none() && end.is_direct() => {
                is_in_place = true;
                sources.push(Source { ptr: result, scale: None });
            }
            _ => sources.push(Source { ptr: end.slot(Protocol::Simple, op.slot_bytes), scale: None }),
        }
    }
    if let (Some(result), false) = (result, is_in_place) {
        destinations.push(result);
    }
    let mut reaches_slots = false;
    for &peer in lane.send.as_slice().iter().filter(|_| step.sends) {
        let sender = connectors.send(peer);
        let place = step.dst.and_then(|dst| {
            let place = sender.final_place((dst + at.moved) * op.elem_bytes);
            place.expect("invariant: a slice moves only after every receiver has said where final values go")
        });
        if step.dst.is_some() {
            sender.end.settle(place.is_some());
        }
        reaches_slots |= place.is_none();
        destinations.push(place.unwrap_or_else(|| sender.end.slot(Protocol::Simple, op.slot_bytes)));
    }
    let job = Job {
        sources: sources.as_slice(),
        destinations: destinations.as_slice(),
        n_elem,
        post: step.is_final,
        // Slots are read again at once by somebody near.
        non_temporal: op.non_temporal && !reaches_slots,
    };
    // SAFETY: input and result hold the elements the plan names (promise of `ChannelTask::start`). A slice fits the slots it occupies:
    // received ones are filled and not reused before `release`, sent ones are free until `post`. A direct target is the receiver's
    // result, offered for this operation, at the element it will hold. Sources and destinations are equal or apart.
    unsafe { run(op, &job) };
    at.moved += n_elem;
}
