//! Ring: every rank receives from the one before it and sends to the one after it.
//!
//! **AllReduce** of `n` ranks, bandwidth-optimal (reduce-scatter, then all-gather, chunk by chunk). A loop moves `n` chunks; `ix` is
//! the rank's distance from rank 0 along the ring, chunks count modulo `n`.
//!
//! | step | chunk | primitive |
//! | --- | --- | --- |
//! | 0 | `ix+n-1` | send the own input |
//! | `j = 2 … n-1` | `ix+n-j` | receive, add the own input, send |
//! | n-1 | `ix` | receive, add the own input: final; keep and send |
//! | `j = 1 … n-2` | `ix+n-j` | receive, keep and send |
//! | last | `ix+1` | receive and keep |
//!
//! Steps per loop: `2n-1` primitives, `2(n-1)` of them receive and `2(n-1)` send. Bytes on the wire per rank: `2 (n-1)/n` of the message
//! each way. Buffer need: one FIFO per channel to the next rank; nothing else, results are kept where they belong.
//!
//! **AllGather**: the own block is sent (and kept, when not in place), the others are received, kept and sent on, the last is only
//! received. Steps per chunk: `n` primitives, `n-1` receive, `n-1` send. Bytes on the wire per rank: `n-1` blocks each way.

use std::sync::Arc;

use super::{Cursor, Lane, Part, Peers, Step};

/// A ring as one rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// All ranks in ring order, this rank first.
    order: Arc<[usize]>,
    /// Distance of this rank from rank 0 along the ring.
    index: usize,
}

impl Ring {
    /// The ring that visits the ranks in this order (from anywhere), seen by `rank`.
    ///
    /// # Panics
    /// When `rank` or rank 0 is not in it.
    pub fn new(order: &[usize], rank: usize) -> Self {
        let find = |wanted| {
            order
                .iter()
                .position(|&r| r == wanted)
                .expect("invariant: a ring visits every rank of the communicator")
        };
        let (me, zero, n) = (find(rank), find(0), order.len());
        Self { order: (0..n).map(|i| order[(me + i) % n]).collect(), index: (me + n - zero) % n }
    }

    /// The rank data go to.
    pub fn next(&self) -> usize {
        self.order[1 % self.order.len()]
    }

    /// The rank data come from.
    pub fn prev(&self) -> usize {
        self.order[self.order.len() - 1]
    }
}

/// The elements a ring channel passes round, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) part: Part,
    pub(super) chunk_elem: usize,
    pub(super) elem_bytes: usize,
    /// Elements of one rank's input over all channels.
    pub(super) count: usize,
}

/// A ring channel's share of a collective.
#[derive(Clone, Debug)]
pub(super) struct Work {
    ring: Ring,
    pass: Pass,
    gather: bool,
}

impl Work {
    pub(super) fn new(ring: &Ring, pass: Pass, gather: bool) -> Self {
        Self { ring: ring.clone(), pass, gather }
    }

    pub(super) fn lane(&self) -> Lane {
        let ring = self.ring.clone();
        let (recv, send) = match ring.order.len() {
            1 => (Peers::NONE, Peers::NONE),
            _ => (Peers::of(&[ring.prev()]), Peers::of(&[ring.next()])),
        };
        let steps = if self.gather {
            Cursor::RingAllGather(AllGather { ring, pass: self.pass, done: 0, step: 0 })
        } else {
            Cursor::RingAllReduce(AllReduce::new(ring, self.pass))
        };
        Lane { recv, send, steps }
    }
}

/// Steps of AllReduce.
#[derive(Clone, Debug)]
pub(super) struct AllReduce {
    n: usize,
    index: usize,
    pass: Pass,
    /// Elements of the part that earlier loops moved.
    done: usize,
    /// Chunk of this loop.
    chunk_elem: usize,
    step: usize,
}

impl AllReduce {
    fn new(ring: Ring, pass: Pass) -> Self {
        let mut steps = Self {
            n: ring.order.len(),
            index: ring.index,
            pass,
            done: 0,
            chunk_elem: pass.chunk_elem,
            step: 0,
        };
        steps.fit_chunk();
        steps
    }

    /// The last loop spreads what is left evenly over the ranks, on a 16-byte grid.
    fn fit_chunk(&mut self) {
        let left = self.pass.part.count - self.done;
        if left < self.n * self.pass.chunk_elem {
            self.chunk_elem = left.div_ceil(self.n).next_multiple_of(16 / self.pass.elem_bytes);
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        let n = self.n;
        if self.step == 2 * n - 1 {
            self.done += n * self.pass.chunk_elem;
            self.step = 0;
            if self.done < self.pass.part.count {
                self.fit_chunk();
            }
        }
        if self.done >= self.pass.part.count {
            return None;
        }
        // Step j < n takes chunk ix+n-1-j; step n-1+j takes chunk ix+n-j, which is the same walk once more round the ring.
        let j = self.step;
        self.step += 1;
        let chunk = (self.index + 2 * n - 1 - j) % n;
        // Chunks beyond the end are empty, at the end.
        let offset = (self.done + chunk * self.chunk_elem).min(self.pass.part.count);
        let n_elem = self.chunk_elem.min(self.pass.part.count - offset);
        let at = Some(self.pass.part.offset + offset);
        Some(Step {
            receives: j > 0,
            sends: j < 2 * n - 2,
            src: if j < n { at } else { None },
            dst: if j + 1 >= n { at } else { None },
            n_elem,
            is_final: j + 1 == n,
        })
    }
}

/// Steps of AllGather.
#[derive(Clone, Debug)]
pub(super) struct AllGather {
    ring: Ring,
    pass: Pass,
    done: usize,
    step: usize,
}

impl AllGather {
    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        let n = self.ring.order.len();
        if self.step == n {
            self.step = 0;
            self.done += self.pass.chunk_elem;
        }
        if self.done >= self.pass.part.count {
            return None;
        }
        let j = self.step;
        self.step += 1;
        let offset = self.pass.part.offset + self.done;
        let owner = self.ring.order[(n - j) % n];
        Some(Step {
            receives: j > 0,
            sends: j + 1 < n,
            src: if j == 0 { Some(offset) } else { None },
            dst: Some(owner * self.pass.count + offset),
            n_elem: self.pass.chunk_elem.min(self.pass.part.count - self.done),
            is_final: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce(n: usize, index: usize, count: usize) -> Vec<Step> {
        let order: Vec<_> = (0..n).collect();
        let pass = Pass { part: Part { offset: 0, count }, chunk_elem: 8, elem_bytes: 4, count };
        AllReduce::new(Ring::new(&order, index), pass).collect_all()
    }

    impl AllReduce {
        fn collect_all(mut self) -> Vec<Step> {
            std::iter::from_fn(|| self.next()).collect()
        }
    }

    #[test]
    fn all_reduce_visits_chunks_in_the_order_of_the_table() {
        let (n, ix) = (4, 1);
        let chunks: Vec<_> = all_reduce(n, ix, 32)
            .iter()
            .map(|s| s.src.or(s.dst).map(|at| at / 8))
            .map(Option::unwrap)
            .collect();
        let table = [ix + n - 1, ix + n - 2, ix + n - 3, ix, ix + n - 1, ix + n - 2, ix + 1].map(|c| c % n);
        assert_eq!(chunks, table);
    }

    #[test]
    fn all_reduce_of_n_ranks_receives_and_sends_twice_n_minus_one_chunks_a_loop() {
        for n in 2..10 {
            let steps = all_reduce(n, n - 1, 3 * n * 8);
            assert_eq!(steps.len(), 3 * (2 * n - 1));
            assert_eq!(steps.iter().filter(|s| s.receives).count(), 3 * 2 * (n - 1));
            assert_eq!(steps.iter().filter(|s| s.sends).count(), 3 * 2 * (n - 1));
            assert_eq!(steps.iter().filter(|s| s.is_final).count(), 3);
        }
    }

    #[test]
    fn the_last_loop_is_spread_evenly_and_keeps_its_empty_steps() {
        let steps = all_reduce(3, 0, 5);
        // Five elements over three ranks on a 4-element grid: 4, 1 and nothing.
        assert_eq!(steps.len(), 5);
        assert_eq!(steps.iter().map(|s| s.n_elem).collect::<Vec<_>>(), [0, 1, 4, 0, 1]);
    }

    #[test]
    fn a_ring_seen_from_anywhere_has_the_same_neighbours() {
        let ring = Ring::new(&[2, 0, 3, 1], 3);
        assert_eq!((ring.prev(), ring.next(), ring.index), (0, 1, 1));
        assert_eq!(Ring::new(&[3, 1, 2, 0], 3), ring);
    }
}
