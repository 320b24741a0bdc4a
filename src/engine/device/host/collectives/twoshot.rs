//! Two-shot: load from everybody, reduce, store to everybody, in one pass over memory.
//!
//! Every rank posts where its buffers lie. Once all have posted, the work of the whole operation lies open in chunks, in as many shares
//! as ranks can work at a time. A rank takes chunks of the share of its number first (of AllGather: of its own input, which its own cache
//! knows best), then of the others, so **whoever runs takes what is left**: a chunk is read from all inputs, reduced in the cache, written
//! to all results. So a rank that waits for a CPU delays nobody but by its arrival, and the last to arrive can do everything when the
//! others are not running. An operation is complete when all chunks are finished, which every rank sees in a counter per share.
//!
//! Steps: 2 (arrive, complete). Bytes moved by all ranks together: each input read once, each result written once, which is the floor.
//! Needs all arenas mapped. In place is safe: a chunk is read completely before it is written, and nobody else touches it.

use super::{Phase, Piece, Symmetric, Team};
use crate::engine::device::host::Progress;
use crate::engine::device::host::reduce::{Job, Source};
use crate::engine::types::Collective;

/// What a two-shot post holds.
mod arg {
    pub(super) const SEND: usize = 0;
    pub(super) const RECV: usize = 1;
    pub(super) const SCALE: usize = 2;
    pub(super) const IS_SCALED: usize = 3;
    /// End of the bytes the call touches in the poster's arena, so that pages are there before data move.
    pub(super) const ARENA_LEN: usize = 4;
    pub(super) const COUNT: usize = 5;
}

impl Symmetric {
    #[inline]
    pub(super) fn poll_two(&mut self, team: &mut Team) -> Progress {
        match self.phase {
            Phase::Start => {
                self.arrive(team);
                self.phase = Phase::Arrive(0);
                match self.poll_two(team) {
                    Progress::Blocked { .. } => Progress::Advanced,
                    other => other,
                }
            }
            Phase::Arrive(from) => {
                if let Some(peer) = team.first_missing(self.seq, from) {
                    self.phase = Phase::Arrive(peer);
                    return Progress::Blocked { peer: Some(peer) };
                }
                team.ring();
                for peer in 0..team.n_ranks() {
                    let len = team.peers[peer].control.post(self.seq).arg(arg::ARENA_LEN) as usize;
                    team.populate(peer, len);
                }
                self.phase = Phase::Work(0);
                self.poll_two(team)
            }
            Phase::Work(from) => self.take_chunk(team, from),
            Phase::Drain(from) => {
                let end = self.end(team);
                match (from..self.shape.n_shares).find(|&share| !team.claims(share).is_done(end)) {
                    Some(share) => {
                        self.phase = Phase::Drain(share);
                        Progress::Blocked { peer: None }
                    }
                    None => Progress::Done,
                }
            }
            Phase::Lent(_) => unreachable!("invariant: two-shot lends for the whole operation"),
        }
    }

    /// The count of chunks at which a share of this operation is finished.
    fn end(&self, team: &Team) -> u64 {
        self.first_chunk + self.shape.share_chunks(team.n_ranks()) as u64
    }

    /// Does one chunk of the next share that has any left, and looks whether that was the last work of all.
    fn take_chunk(&mut self, team: &mut Team, from: usize) -> Progress {
        let end = self.end(team);
        let mut worked = false;
        for distance in from..self.shape.n_shares {
            let share = (team.me + distance) % self.shape.n_shares;
            self.phase = Phase::Work(distance);
            if worked && !team.claims(share).is_taken(end) {
                return Progress::Advanced;
            }
            let Some(chunk) = team.claims(share).claim(end) else { continue };
            self.work(team, self.shape.piece(share, (chunk - self.first_chunk) as usize));
            if team.claims(share).finish(1) == end {
                team.ring();
            }
            worked = true;
            if !team.claims(share).is_taken(end) {
                return Progress::Advanced;
            }
        }
        self.phase = Phase::Drain(0);
        match self.poll_two(team) {
            Progress::Blocked { .. } if worked => Progress::Advanced,
            other => other,
        }
    }

    fn arrive(&mut self, team: &mut Team) {
        team.seq += 1;
        self.seq = team.seq;
        self.first_chunk = team.chunks;
        team.chunks += self.shape.share_chunks(team.n_ranks()) as u64;
        let mut args = [0u64; arg::COUNT];
        args[arg::SEND] = self.operands.send_offset as u64;
        args[arg::RECV] = self.operands.recv_offset as u64;
        args[arg::SCALE] = self.operands.scale.unwrap_or(0);
        args[arg::IS_SCALED] = u64::from(self.operands.scale.is_some());
        args[arg::ARENA_LEN] = self.operands.arena_len as u64;
        team.peers[team.me].control.post(self.seq).post(self.seq, &args);
    }

    /// Loads, reduces and stores a piece of this operation.
    fn work(&self, team: &mut Team, piece: Piece) {
        let Piece { block, first, n_elem } = piece;
        if n_elem == 0 || block >= team.n_ranks() {
            return;
        }
        let at = first * self.shape.elem_bytes;
        let Team { peers, sources, destinations, .. } = team;
        sources.clear();
        destinations.clear();
        let gather = self.shape.collective == Collective::AllGather;
        let out = if gather { block * self.shape.input_bytes() + at } else { at };
        for (rank, peer) in peers.iter().enumerate() {
            let post = peer.control.post(self.seq);
            let base = peer
                .arena
                .as_ref()
                .expect("invariant: two-shot runs only where all arenas are mapped")
                .base();
            // SAFETY: a rank posts offsets inside its arena, for buffers that hold the whole call.
            unsafe {
                if !gather || rank == block {
                    let scale = (post.arg(arg::IS_SCALED) != 0).then(|| post.arg(arg::SCALE));
                    sources.push(Source { ptr: base.add(post.arg(arg::SEND) as usize + at), scale });
                }
                destinations.push(base.add(post.arg(arg::RECV) as usize + out));
            }
        }
        if gather {
            // In place, the source already is its owner's result.
            let source = sources[0].ptr;
            destinations.retain(|&d| !std::ptr::eq(d, source));
        }
        if destinations.is_empty() {
            return;
        }
        // SAFETY: sources and destinations are `n_elem` elements inside live arenas; this rank alone took this chunk, and chunks do not
        // overlap but for a destination that equals its source, which the reducer reads before it writes.
        unsafe {
            self.shape.reducer.run(&Job {
                sources,
                destinations,
                n_elem,
                post: true,
                non_temporal: self.shape.non_temporal,
            });
        }
    }
}
