//! One-shot: every rank makes its whole input known and combines everybody's for itself. Two kinds.
//!
//! **In rooms** (LL): the input is copied beside its flag. Steps: 1 (post, wait for all posts, combine). Bytes a rank writes: its input
//! once for the others and its result; bytes it reads: n inputs. Needs a payload room of one input per rank (`control`) and no registered
//! buffer, so it works over SHM alone. There is no closing barrier: a room is written again only when it has no reader left, see `control`.
//!
//! **Direct** (Simple): the post says where the input lies, and everybody reads it there: no copy, and every line crosses between two
//! caches once. Steps: 2 (post, combine), for the input is the caller's again only when everybody has read it, which [`Reads`] says. Who
//! works in place cannot lend its input, since it would overwrite what others still read: it puts a copy into its room and says so, and
//! each rank decides that for itself.
//!
//! Because a post needs nobody, a rank posts the next few queued operations before the current one is complete, and combines them while
//! peers still read: the answers of all of them are then under way at once.
//!
//! [`Reads`]: crate::engine::device::host::control::Reads

use super::{Phase, Shots, Symmetric, Team, are_apart};
use crate::engine::device::host::Progress;
use crate::engine::device::host::control::INLINE_BYTES;
use crate::engine::device::host::reduce::{Job, Source};
use crate::engine::types::Collective;

/// What a direct post holds.
mod arg {
    /// 1 when the input lies in the arena, 0 when a copy of it lies in the room.
    pub(super) const IS_LENT: usize = 0;
    pub(super) const SEND: usize = 1;
    pub(super) const SCALE: usize = 2;
    pub(super) const IS_SCALED: usize = 3;
    /// End of the bytes the call touches in the poster's arena, so that pages are there before they are read.
    pub(super) const ARENA_LEN: usize = 4;
    pub(super) const COUNT: usize = 5;
}

impl Symmetric {
    #[inline]
    pub(super) fn poll_one(&mut self, team: &mut Team) -> Progress {
        let mut moved = false;
        if self.phase == Phase::Start {
            self.post_ahead(team);
            moved = true;
        }
        if matches!(self.phase, Phase::Arrive(_)) {
            moved |= self.combine_when_posted(team);
        }
        let waits_for = match self.phase {
            Phase::Arrive(peer) => peer,
            Phase::Lent(from) => match team.first_reader(self.seq, from) {
                Some(peer) => {
                    self.phase = Phase::Lent(peer);
                    peer
                }
                None => return Progress::Done,
            },
            Phase::Start | Phase::Work(_) | Phase::Drain(_) => {
                unreachable!("invariant: one-shot has no shared work")
            }
        };
        if moved { Progress::Advanced } else { Progress::Blocked { peer: Some(waits_for) } }
    }

    /// Posts this operation's payload, before its turn when the operations before it are posted too and none of them writes its input.
    pub(super) fn post_ahead(&mut self, team: &mut Team) {
        team.seq += 1;
        self.seq = team.seq;
        if self.shape.shots == Shots::OneDirect && self.can_lend(team) {
            self.post_place(team);
        } else {
            self.post_payload(team);
        }
        self.phase = Phase::Arrive(0);
    }

    /// Makes the result, if everybody has posted.
    #[inline]
    pub(super) fn combine_when_posted(&mut self, team: &mut Team) -> bool {
        let Phase::Arrive(from) = self.phase else { return false };
        if let Some(peer) = team.first_missing(self.seq, from) {
            self.phase = Phase::Arrive(peer);
            return false;
        }
        team.ring();
        // Who lent nothing waits for no reader.
        let mut first_reader = team.n_ranks();
        if self.shape.shots == Shots::OneDirect {
            self.combine_direct(team);
            team.peers[team.me].control.reads().finish(self.seq);
            team.ring();
            if self.can_lend(team) {
                first_reader = 0;
            }
        } else {
            self.combine(team);
        }
        self.phase = Phase::Lent(first_reader);
        true
    }

    /// Whether this rank's own result leaves its input as it is. An AllGather in place does: its own block is its input.
    fn can_lend(&self, team: &Team) -> bool {
        self.is_own_block(team) || are_apart(self.read_range(), self.written_range(team.n_ranks()))
    }

    /// Whether the input already is this rank's block of the result.
    fn is_own_block(&self, team: &Team) -> bool {
        let own = self.operands.recv.wrapping_add(team.me * self.shape.input_bytes());
        self.shape.collective == Collective::AllGather && std::ptr::eq(self.operands.send, own)
    }

    fn post_place(&self, team: &Team) {
        let mut args = [0u64; arg::COUNT];
        args[arg::IS_LENT] = 1;
        args[arg::SEND] = self.operands.send_offset as u64;
        args[arg::SCALE] = self.operands.scale.unwrap_or(0);
        args[arg::IS_SCALED] = u64::from(self.operands.scale.is_some());
        args[arg::ARENA_LEN] = self.operands.arena_len as u64;
        team.peers[team.me].control.post(self.seq).post(self.seq, &args);
    }

    fn post_payload(&self, team: &Team) {
        let bytes = self.shape.input_bytes();
        let control = &team.peers[team.me].control;
        let line = control.post(self.seq);
        let fits = bytes <= INLINE_BYTES && self.shape.shots == Shots::One;
        let mut words = [0u64; INLINE_BYTES / 8];
        if fits && self.operands.scale.is_none() {
            // SAFETY: the input holds `bytes` readable bytes, the words at least as many; they are different memory.
            unsafe { std::ptr::copy_nonoverlapping(self.operands.send, words.as_mut_ptr().cast(), bytes) };
            line.post(self.seq, &words[..bytes.div_ceil(8)]);
            return;
        }
        // A scaled input is scaled once, here, so that readers see one kind of payload.
        let source = Source { ptr: self.operands.send, scale: self.operands.scale };
        let room = if fits { words.as_mut_ptr().cast() } else { control.room(self.seq) };
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
        // A direct post without arguments says: not lent.
        let inline = if fits { bytes.div_ceil(8) } else { usize::from(self.shape.shots == Shots::OneDirect) };
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
        self.reduce(&team.sources);
    }

    fn combine_direct(&self, team: &mut Team) {
        team.sources.clear();
        for rank in 0..team.n_ranks() {
            let source = self.place_of(team, rank);
            team.sources.push(source);
        }
        if self.shape.collective != Collective::AllGather {
            self.reduce(&team.sources);
            return;
        }
        let bytes = self.shape.input_bytes();
        for (rank, source) in team.sources.iter().enumerate() {
            if rank != team.me || !self.is_own_block(team) {
                // SAFETY: every input is posted and holds `bytes` bytes; the result has room for one block of each rank, and no block but
                // the own one, which is left out, is an input.
                unsafe {
                    std::ptr::copy_nonoverlapping(source.ptr, self.operands.recv.add(rank * bytes), bytes)
                };
            }
        }
    }

    /// Where the input of `rank`, which has posted, can be read now.
    fn place_of(&self, team: &mut Team, rank: usize) -> Source {
        let post = team.peers[rank].control.post(self.seq);
        if post.arg(arg::IS_LENT) == 0 {
            return Source { ptr: team.peers[rank].control.room(self.seq), scale: None };
        }
        let scale = (post.arg(arg::IS_SCALED) != 0).then(|| post.arg(arg::SCALE));
        let (offset, len) = (post.arg(arg::SEND) as usize, post.arg(arg::ARENA_LEN) as usize);
        team.populate(rank, len);
        let arena = team.peers[rank].arena.as_ref();
        let base = arena.expect("invariant: inputs are lent only where all arenas are mapped").base();
        // SAFETY: a rank posts an offset inside its arena.
        Source { ptr: unsafe { base.add(offset) }, scale }
    }

    fn reduce(&self, sources: &[Source]) {
        // SAFETY: every input is posted and holds `n_elem` elements; the result is this rank's own and as long. It is no other rank's
        // input, and this rank's own only as a whole.
        unsafe {
            self.shape.reducer.run(&Job {
                sources,
                destinations: &[self.operands.recv],
                n_elem: self.shape.n_elem,
                post: true,
                non_temporal: false,
            });
        }
    }
}
