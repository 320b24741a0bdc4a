//! Rings and trees out of a library's debug log (NCCL_DEBUG=INFO with INIT or GRAPH): rebuilt, checked, described, drawn.
//!
//! `lines` tells who speaks, [`parse`] collects what every rank says about its neighbours, [`check`] follows the edges, [`shape`] names what it finds.

pub mod check;
pub mod draw;
mod lines;
pub mod parse;
pub mod shape;

use std::collections::BTreeMap;

pub use self::parse::Reader;
pub use self::shape::{Shape, describe};

/// A rank's place in a tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeNode {
    /// Parent, nothing for the root.
    pub up: Option<u32>,
    /// Children.
    pub down: Vec<u32>,
}

/// What the logs say about one communicator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Communicator {
    /// Its id in the log, or empty.
    pub id: String,
    /// Ranks: announced, or one above the largest that is named.
    pub n_ranks: u32,
    /// Previous and next rank, by channel and rank.
    pub rings: BTreeMap<u32, BTreeMap<u32, (u32, u32)>>,
    /// Tree places, by channel and rank.
    pub trees: BTreeMap<u32, BTreeMap<u32, TreeNode>>,
    /// Where two statements about the same thing differ and which was taken.
    pub notes: Vec<String>,
}

impl Communicator {
    /// Number of (rank, channel) places in trees.
    pub fn tree_records(&self) -> usize {
        self.trees.values().map(BTreeMap::len).sum()
    }

    /// Everything that is wrong with its rings and trees; names rank, channel and edge.
    pub fn problems(&self) -> Vec<String> {
        let rings = self.rings.iter().flat_map(|(channel, ring)| check::ring(*channel, ring, self.n_ranks));
        let trees = self.trees.iter().flat_map(|(channel, tree)| check::tree(*channel, tree, self.n_ranks));
        rings.chain(trees).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Communicator, Reader};

    pub(crate) fn read(text: &str) -> Vec<Communicator> {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.finish()
    }

    /// Four ranks, a chain on channel 0 in both forms, a ring.
    pub(crate) const CHAIN: &str = "\
box:10:11 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init START
box:10:11 [0] NCCL INFO Channel 00/01 : 0 1 2 3
box:10:11 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
box:10:11 [0] NCCL INFO Tree 0 : -1 -> 0 -> 1/-1/-1
box:10:11 [0] NCCL INFO Ring 00 : 3 -> 0 -> 1
[1,1]<stdout>:box:20:21 [1] NCCL INFO ncclCommInitRank comm 0x56 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 2000 commId 0xabc - Init START
[1,1]<stdout>:box:20:21 [1] NCCL INFO Trees [0] 2/-1/-1->1->0
[1,1]<stdout>:box:20:21 [1] NCCL INFO Ring 00 : 0 -> 1 -> 2
[2026-01-02 03:04:05] box:30:31 [2] NCCL INFO ncclCommInitRank comm 0x57 rank 2 nranks 4 cudaDev 2 nvmlDev 2 busId 3000 commId 0xabc - Init START
[2026-01-02 03:04:05] box:30:31 [2] NCCL INFO Trees [0] 3/-1/-1->2->1
[2026-01-02 03:04:05] box:30:31 [2] NCCL INFO Ring 00 : 1 -> 2 -> 3
box:40:41 [3] NCCL INFO ncclCommInitRank comm 0x58 rank 3 nranks 4 cudaDev 3 nvmlDev 3 busId 4000 commId 0xabc - Init START
box:40:41 [3] NCCL INFO Trees [0] -1/-1/-1->3->2
box:40:41 [3] NCCL INFO Ring 00 : 2 -> 3 -> 0
";

    #[test]
    fn both_forms_and_every_prefix_give_one_valid_chain() {
        let all = read(CHAIN);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].id.as_str(), all[0].n_ranks, all[0].tree_records()), ("0xabc", 4, 4));
        assert!(
            all[0].problems().is_empty() && all[0].notes.is_empty(),
            "{:?} {:?}",
            all[0].problems(),
            all[0].notes
        );
    }

    #[test]
    fn repeated_lines_change_nothing() {
        assert_eq!(read(&CHAIN.repeat(3)), read(CHAIN));
    }

    #[test]
    fn the_summary_form_wins_and_says_so() {
        let all = read(&CHAIN.replace("Tree 0 : -1 -> 0 -> 1/-1/-1", "Tree 0 : -1 -> 0 -> 2/-1/-1"));
        assert!(all[0].problems().is_empty());
        assert_eq!(all[0].notes.len(), 1);
        assert!(all[0].notes[0].contains("rank 0, channel 0"), "{:?}", all[0].notes);
    }

    #[test]
    fn two_communicators_stay_apart() {
        let second = CHAIN.replace("0xabc", "0xdef");
        let all = read(&(CHAIN.to_owned() + &second));
        assert_eq!(all.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["0xabc", "0xdef"]);
    }
}
