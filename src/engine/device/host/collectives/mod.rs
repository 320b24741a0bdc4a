//! The symmetric-memory collectives of one machine: [`oneshot`] and [`twoshot`]. Every rank sees every other rank's control pages,
//! and for two-shot also its buffers. The classic algorithms (ring, tree) run from plans through FIFOs instead, see `cta`.
//!
//! An operation is polled: [`Symmetric::poll`] never blocks and does at most one chunk of work.

mod oneshot;
mod team;
mod twoshot;

pub use team::{Peer, Team};

use super::Progress;
use super::reduce::Reducer;
use crate::engine::types::Collective;

/// Which of them runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shots {
    /// Payload in flag lines or rooms beside them, every rank reduces for itself.
    One,
    /// Offsets in flag lines, every rank reads all inputs where they lie and reduces for itself.
    OneDirect,
    /// Offsets in flag lines, whoever runs takes chunks of the load-reduce-store pass.
    Two,
}

/// What all ranks agreed on about one call. Built once per plan and copied per call.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// AllReduce or AllGather.
    pub collective: Collective,
    /// One-shot or two-shot.
    pub shots: Shots,
    /// The arithmetic (bytes for AllGather).
    pub reducer: Reducer,
    /// Bytes of an element.
    pub elem_bytes: usize,
    /// Elements of one rank's input.
    pub n_elem: usize,
    /// Elements of one chunk of two-shot work.
    pub chunk_elem: usize,
    /// Whether results go past the caches.
    pub non_temporal: bool,
}

impl Shape {
    /// Bytes of one rank's input.
    pub fn input_bytes(&self) -> usize {
        self.n_elem * self.elem_bytes
    }

    /// Chunks of a two-shot pass over `n_ranks` ranks: AllGather's are per source block.
    pub fn n_chunks(&self, n_ranks: usize) -> u64 {
        let per_input = self.n_elem.div_ceil(self.chunk_elem) as u64;
        if self.collective == Collective::AllGather { per_input * n_ranks as u64 } else { per_input }
    }
}

/// This rank's part of a call: where its buffers lie.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// First byte of the input.
    pub send: *const u8,
    /// First byte of the result.
    pub recv: *mut u8,
    /// The input's offset in this rank's arena.
    pub send_offset: usize,
    /// The result's offset in this rank's arena.
    pub recv_offset: usize,
    /// Bytes of this rank's arena that exist when the call is made.
    pub arena_len: usize,
    /// Pre-multiplier of this rank's input, raw bits of the element type.
    pub scale: Option<u64>,
}

// SAFETY: the pointers lead into shared memory that outlives the operation (its buffers are held by the queue entry).
unsafe impl Send for Operands {}

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    /// Peers below the index have posted.
    Arrive(usize),
    /// One-shot: combined here; peers below the index have read this rank's input.
    Lent(usize),
    Work,
    Drain,
}

/// One running symmetric operation of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Symmetric {
    shape: Shape,
    operands: Operands,
    phase: Phase,
    seq: u64,
    first_chunk: u64,
}

impl Symmetric {
    /// A call that has not started.
    pub fn new(shape: Shape, operands: Operands) -> Self {
        Self { shape, operands, phase: Phase::Start, seq: 0, first_chunk: 0 }
    }

    /// Goes on as far as possible without waiting, but for at most one chunk.
    #[inline]
    pub fn poll(&mut self, team: &mut Team) -> Progress {
        match self.shape.shots {
            Shots::One | Shots::OneDirect => self.poll_one(team),
            Shots::Two => self.poll_two(team),
        }
    }

    /// Whom it waits for, when it is one rank, and a number that grows: posts seen, then chunks taken.
    pub fn waits_for(&self, team: &Team) -> (Option<usize>, u64) {
        match self.phase {
            Phase::Start => (None, 0),
            Phase::Arrive(peers) => ((peers < team.peers.len()).then_some(peers), peers as u64),
            Phase::Lent(peers) => {
                let n_ranks = team.peers.len();
                ((peers < n_ranks).then_some(peers), (n_ranks + peers) as u64)
            }
            Phase::Work | Phase::Drain => (None, team.peers[0].control.claims().taken()),
        }
    }

    /// Whether this operation can be posted although `earlier` is not complete: it is one-shot, has not started, and its input is
    /// not part of what `earlier` writes.
    pub fn can_follow(&self, earlier: &Self, n_ranks: usize) -> bool {
        self.phase == Phase::Start
            && self.shape.shots != Shots::Two
            && are_apart(self.read_range(), earlier.written_range(n_ranks))
    }

    /// Whether this is a one-shot operation that is posted.
    pub fn is_posted(&self) -> bool {
        self.shape.shots != Shots::Two && self.phase != Phase::Start
    }

    /// Whether this operation may be combined although peers still read the input of `earlier`, which is combined: it is posted and
    /// writes nothing of that input.
    pub fn can_overtake(&self, earlier: &Self, n_ranks: usize) -> bool {
        matches!(self.phase, Phase::Arrive(_))
            && self.shape.shots != Shots::Two
            && matches!(earlier.phase, Phase::Lent(_))
            && are_apart(self.written_range(n_ranks), earlier.read_range())
    }

    /// Whether this is a one-shot operation whose result is there.
    pub fn is_combined(&self) -> bool {
        matches!(self.phase, Phase::Lent(_))
    }

    /// Addresses of this rank's input: first byte, bytes.
    fn read_range(&self) -> (usize, usize) {
        (self.operands.send.addr(), self.shape.input_bytes())
    }

    /// Addresses of this rank's result: first byte, bytes.
    fn written_range(&self, n_ranks: usize) -> (usize, usize) {
        let blocks = if self.shape.collective == Collective::AllGather { n_ranks } else { 1 };
        (self.operands.recv.addr(), blocks * self.shape.input_bytes())
    }

    /// Posts a one-shot operation before its turn; see [`Self::can_follow`].
    pub fn post(&mut self, team: &mut Team) {
        self.post_ahead(team);
    }

    /// Combines a posted one-shot operation before its turn, when all peers have posted it; see [`Self::can_overtake`].
    pub fn combine_early(&mut self, team: &mut Team) -> bool {
        self.combine_when_posted(team)
    }

    /// Chunks of two-shot work that are known to be taken, for the watch.
    pub fn step(&self) -> u64 {
        match self.phase {
            Phase::Start => 0,
            Phase::Arrive(peers) => peers as u64,
            Phase::Lent(_) | Phase::Work | Phase::Drain => 1 << 32,
        }
    }
}

/// Whether two ranges (first byte, bytes) share no byte.
fn are_apart((a, a_bytes): (usize, usize), (b, b_bytes): (usize, usize)) -> bool {
    a >= b + b_bytes || b >= a + a_bytes
}
