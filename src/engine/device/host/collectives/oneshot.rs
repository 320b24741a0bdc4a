//! One-shot: every rank puts its whole input beside its flag and combines everybody's for itself.
//!
//! Steps: 1 (post, wait for all posts, combine). Bytes a rank writes: its input once for the others and its result; bytes it reads:
//! n inputs. Needs a payload room of one input per rank, twice (`control`), and no registered buffer, so it works over SHM alone.
//! There is no closing barrier: a room is written again only when it has no reader left, see `control`. And because a post needs nobody,
//! a rank posts the next few queued operations before the current one is complete: the answers of all of them are then under way at once.

use super::{Phase, Symmetric, Team};
use crate::engine::device::host::Progress;
use crate::engine::device::host::control::INLINE_BYTES;
use crate::engine::device::host::reduce::{Job, Source};
use crate::engine::types::Collective;

impl Symmetric {
    #[inline]
    pub(super) fn poll_one(&mut self, team: &mut Team) -> Progress {
        let started = self.phase == Phase::Start;
        let from = match self.phase {
            Phase::Start => {
                self.post_ahead(team);
                0
            }
            Phase::Arrive(from) => from,
            Phase::Work | Phase::Drain => unreachable!("invariant: one-shot has no shared work"),
        };
        if let Some(peer) = team.first_missing(self.seq, from) {
            self.phase = Phase::Arrive(peer);
            return if started { Progress::Advanced } else { Progress::Blocked { peer: Some(peer) } };
        }
        team.ring();
        self.combine(team);
        Progress::Done
    }

    /// Posts this operation's payload, before its turn when the operations before it are posted too and none of them writes its input.
    pub(super) fn post_ahead(&mut self, team: &mut Team) {
        team.seq += 1;
        self.seq = team.seq;
        self.post_payload(team);
        self.phase = Phase::Arrive(0);
    }

    fn post_payload(&self, team: &Team) {
        let bytes = self.shape.input_bytes();
        let control = &team.peers[team.me].control;
        let line = control.post(self.seq);
        if bytes <= INLINE_BYTES && self.operands.scale.is_none() {
            let mut words = [0u64; INLINE_BYTES / 8];
            // SAFETY: the input holds `bytes` readable bytes, the words at least as many; they are different memory.
            unsafe { std::ptr::copy_nonoverlapping(self.operands.send, words.as_mut_ptr().cast(), bytes) };
            line.post(self.seq, &words[..bytes.div_ceil(8)]);
            return;
        }
        // A scaled input is scaled once, here, so that readers see one kind of payload.
        let source = Source { ptr: self.operands.send, scale: self.operands.scale };
        let mut words = [0u64; INLINE_BYTES / 8];
        let room = if bytes <= INLINE_BYTES { words.as_mut_ptr().cast() } else { control.room(self.seq) };
        // SAFETY: the room holds the largest one-shot message and nobody reads it until this operation is posted: its last readers
        // finished before this rank could complete the operation after theirs (see `control`).
        unsafe {
            self.shape.reducer.run(&Job {
                sources: &[source],
                destinations: &[room],
                n_elem: self.shape.n_elem,
                post: false,
                non_temporal: false,
            });
        }
        let inline = if bytes <= INLINE_BYTES { bytes.div_ceil(8) } else { 0 };
        line.post(self.seq, &words[..inline]);
    }

    fn combine(&self, team: &mut Team) {
        let bytes = self.shape.input_bytes();
        let payloads = team.peers.iter().map(|peer| peer.control.payload(self.seq, bytes));
        if self.shape.collective == Collective::AllGather {
            for (rank, payload) in payloads.enumerate() {
                // SAFETY: every payload is posted and holds `bytes` bytes; the result has room for one block of each rank.
                unsafe {
                    std::ptr::copy_nonoverlapping(payload, self.operands.recv.add(rank * bytes), bytes)
                };
            }
            return;
        }
        team.sources.clear();
        team.sources.extend(payloads.map(|ptr| Source { ptr, scale: None }));
        // SAFETY: every payload is posted and holds the input; the result is this rank's own and `n_elem` long.
        unsafe {
            self.shape.reducer.run(&Job {
                sources: &team.sources,
                destinations: &[self.operands.recv],
                n_elem: self.shape.n_elem,
                post: true,
                non_temporal: false,
            });
        }
    }
}
