//! Tree AllReduce: partial sums go up to the root, the result comes down, both at the same time on every channel.
//!
//! | rank | up lane | down lane |
//! | --- | --- | --- |
//! | leaf | send the own input to the parent | receive and keep |
//! | inner | receive from the children, add the own input, send to the parent | receive, keep, send to the children |
//! | root | one lane: receive from the children, add the own input: final; keep, send to the children | |
//!
//! The lanes walk the part chunk by chunk. Steps: one per chunk and lane. Bytes on the wire per connection: the message once up, once
//! down; an inner rank with `k` children sends it `k+1` times in all, which is why a second tree with inner and leaf ranks exchanged
//! carries the other channels. Buffer need: a FIFO per channel, neighbour and direction.

use super::{Cursor, Lane, Part, Peers, Step};

/// A tree as one rank sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The rank above; none for the root.
    pub up: Option<usize>,
    /// The ranks below, at most [`super::MAX_PEERS`].
    pub down: Vec<usize>,
}

/// A tree channel's share of a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    up: Option<usize>,
    down: Peers,
    part: Part,
    chunk_elem: usize,
}

/// Which way a lane's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
    /// Up and down again, at the root.
    Turn,
}

impl Work {
    pub(super) fn new(tree: &Tree, part: Part, chunk_elem: usize) -> Self {
        Self { up: tree.up, down: Peers::of(&tree.down), part, chunk_elem }
    }

    pub(super) fn lanes(&self) -> [Option<Lane>; 2] {
        let lane = |way, recv: Peers, send: Peers| {
            let (receives, sends) = (!recv.as_slice().is_empty(), !send.as_slice().is_empty());
            Lane { recv, send, steps: Cursor::Tree(Steps { work: *self, way, receives, sends, done: 0 }) }
        };
        match self.up {
            None => [Some(lane(Way::Turn, self.down, self.down)), None],
            Some(up) => {
                let up = Peers::of(&[up]);
                [Some(lane(Way::Up, self.down, up)), Some(lane(Way::Down, up, self.down))]
            }
        }
    }
}

/// Steps of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    work: Work,
    way: Way,
    receives: bool,
    sends: bool,
    done: usize,
}

impl Steps {
    #[inline]
    pub(super) fn next(&mut self) -> Option<Step> {
        let Work { part, chunk_elem, .. } = self.work;
        if self.done >= part.count {
            return None;
        }
        let at = Some(part.offset + self.done);
        let n_elem = chunk_elem.min(part.count - self.done);
        self.done += chunk_elem;
        Some(Step {
            receives: self.receives,
            sends: self.sends,
            src: if self.way == Way::Down { None } else { at },
            dst: if self.way == Way::Up { None } else { at },
            n_elem,
            is_final: self.way == Way::Turn,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(up: Option<usize>, down: &[usize]) -> [Option<Lane>; 2] {
        Work::new(&Tree { up, down: down.to_vec() }, Part { offset: 10, count: 25 }, 10).lanes()
    }

    #[test]
    fn the_root_has_one_lane_that_turns_round() {
        let [turn, other] = lanes(None, &[4, 5]);
        assert!(other.is_none());
        let turn = turn.unwrap();
        assert_eq!((turn.recv, turn.send), (Peers::of(&[4, 5]), Peers::of(&[4, 5])));
        let steps: Vec<_> = turn.collect();
        assert_eq!(
            steps.iter().map(|s| (s.src.unwrap(), s.n_elem)).collect::<Vec<_>>(),
            [(10, 10), (20, 10), (30, 5)]
        );
        assert!(steps.iter().all(|s| s.is_final && s.receives && s.sends && s.src == s.dst));
    }

    #[test]
    fn an_inner_rank_has_a_lane_each_way() {
        let [up, down] = lanes(Some(2), &[7]).map(Option::unwrap);
        assert_eq!((up.recv, up.send), (Peers::of(&[7]), Peers::of(&[2])));
        assert_eq!((down.recv, down.send), (Peers::of(&[2]), Peers::of(&[7])));
        assert!(
            up.clone().all(|s| s.dst.is_none() && s.src.is_some()) && down.clone().all(|s| s.src.is_none())
        );
        assert_eq!(up.count(), down.count());
    }

    #[test]
    fn a_leaf_only_sends_up_and_receives_down() {
        let [up, down] = lanes(Some(2), &[]).map(Option::unwrap);
        assert!(up.into_iter().all(|s| s.sends && !s.receives));
        assert!(down.into_iter().all(|s| s.receives && !s.sends));
    }
}
