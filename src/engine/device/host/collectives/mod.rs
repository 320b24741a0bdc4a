//! The symmetric-memory collectives of one machine: [`oneshot`] and [`twoshot`]. Every rank sees every other rank's control pages,
//! and for two-shot and direct one-shot also its buffers. The classic algorithms (ring, tree) run from plans through FIFOs instead, see `cta`.
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
    /// Shares that two-shot work is laid out in: as many as ranks can work at a time.
    pub n_shares: usize,
    /// Whether results go past the caches.
    pub non_temporal: bool,
}

impl Shape {
    /// Bytes of one rank's input.
    pub fn input_bytes(&self) -> usize {
        self.n_elem * self.elem_bytes
    }

    /// Elements of a share of AllReduce, the last one's may be fewer: whole cache lines.
    fn share_elem(&self) -> usize {
        self.n_elem.div_ceil(self.n_shares).next_multiple_of((64 / self.elem_bytes).max(1))
    }

    /// Chunks of each share of a two-shot pass over `n_ranks` ranks. Shares count alike; the last chunks of some may be empty.
    pub fn share_chunks(&self, n_ranks: usize) -> usize {
        if self.collective == Collective::AllGather {
            self.n_elem.div_ceil(self.chunk_elem) * n_ranks.div_ceil(self.n_shares)
        } else {
            self.share_elem().div_ceil(self.chunk_elem)
        }
    }

    /// What a chunk of a share is.
    pub fn piece(&self, share: usize, chunk: usize) -> Piece {
        let (block, first, end) = if self.collective == Collective::AllGather {
            let per_input = self.n_elem.div_ceil(self.chunk_elem);
            (share + self.n_shares * (chunk / per_input), chunk % per_input * self.chunk_elem, self.n_elem)
        } else {
            let first = share * self.share_elem();
            (0, first + chunk * self.chunk_elem, (first + self.share_elem()).min(self.n_elem))
        };
        Piece { block, first, n_elem: self.chunk_elem.min(end.saturating_sub(first)) }
    }
}

/// One chunk of two-shot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The rank whose input it is, of AllGather; there may be no such rank.
    pub block: usize,
    /// First element.
    pub first: usize,
    /// Elements; none when the share has less.
    pub n_elem: usize,
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
    /// Two-shot: shares so far from this rank's own are taken.
    Work(usize),
    /// Two-shot: shares below the index are finished.
    Drain(usize),
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
            Phase::Work(_) | Phase::Drain(_) => {
                (None, (0..self.shape.n_shares).map(|share| team.claims(share).taken()).sum())
            }
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
}

/// Whether two ranges (first byte, bytes) share no byte.
fn are_apart((a, a_bytes): (usize, usize), (b, b_bytes): (usize, usize)) -> bool {
    a >= b + b_bytes || b >= a + a_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::{DataType, RedOp};

    #[test]
    fn pieces_cover_every_element_of_every_block_once() {
        for collective in [Collective::AllReduce, Collective::AllGather] {
            for (n_ranks, n_shares) in [(2, 1), (2, 2), (3, 2), (8, 2), (5, 4), (7, 7)] {
                for n_elem in [1, 15, 16, 17, 100, 1000, 4097] {
                    let reducer = Reducer::new(DataType::Float, RedOp::Sum, n_ranks);
                    let (shots, elem_bytes, chunk_elem) = (Shots::Two, 4, 96);
                    let shape = Shape {
                        collective,
                        shots,
                        reducer,
                        elem_bytes,
                        n_elem,
                        chunk_elem,
                        n_shares,
                        non_temporal: false,
                    };
                    let blocks = if collective == Collective::AllGather { n_ranks } else { 1 };
                    let mut times = vec![0; blocks * n_elem];
                    for share in 0..n_shares {
                        for chunk in 0..shape.share_chunks(n_ranks) {
                            let piece = shape.piece(share, chunk);
                            let elements = piece.first..piece.first + piece.n_elem;
                            elements
                                .filter(|_| piece.block < blocks)
                                .for_each(|i| times[piece.block * n_elem + i] += 1);
                        }
                    }
                    assert!(times.iter().all(|&t| t == 1), "{collective} {n_ranks} {n_shares} {n_elem}");
                }
            }
        }
    }
}
