//! Trees across hosts: every host's chain hangs from the rank that talks to the parent, and hosts form the double binary tree of
//! [`crate::engine::graph::trees`].
//!
//! Which rank of a chain talks to whom depends on the pattern the search found (`p` parent, `c0` and `c1` children):
//!
//! ```text
//! balanced tree          split tree             tree
//! p c1                   p                      p c0 c1
//!  0 ── 1 ── 2 ── 3       0 ── 1 ── 2 ── 3       0 ── 1 ── 2 ── 3
//!      c0                     c0 c1
//! ```
//!
//! A parent sees its child in slot `s` through the rank that serves slot `s`; that rank's own list of children holds the next rank of
//! its chain first, then the children on other hosts.

use crate::engine::graph::Pattern;
use crate::engine::graph::trees;

/// Children a rank can have: one in its chain, two on other hosts.
pub const ARITY: usize = 3;

/// One channel's tree over all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTree {
    /// A rank's parent, by rank; none for the root.
    pub up: Vec<Option<usize>>,
    /// A rank's children, by rank, in the order of NCCL's slots.
    pub down: Vec<[Option<usize>; ARITY]>,
}

/// A host's chain with the pattern that says who talks to other hosts.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) ranks: Vec<usize>,
    pub(super) pattern: Pattern,
}

impl Chain {
    /// The rank that serves the parent.
    fn to_parent(&self) -> usize {
        self.ranks[0]
    }

    /// The rank that serves the child in that slot.
    fn to_child(&self, slot: usize) -> usize {
        let second = match slot {
            0 => self.pattern != Pattern::Tree,
            _ => self.pattern == Pattern::SplitTree,
        };
        self.ranks[usize::from(second).min(self.ranks.len() - 1)]
    }
}

impl RankTree {
    /// Joins the hosts' chains by the first tree (0) or the second (1). Fails when a rank would get more than three children.
    pub(super) fn join(n_ranks: usize, chains: &[Chain], which: usize) -> Result<Self, String> {
        let mut tree = Self { up: vec![None; n_ranks], down: vec![[None; ARITY]; n_ranks] };
        for chain in chains {
            for pair in chain.ranks.windows(2) {
                tree.down[pair[0]][0] = Some(pair[1]);
                tree.up[pair[1]] = Some(pair[0]);
            }
        }
        for (host, chain) in chains.iter().enumerate() {
            let place = trees::double(chains.len(), host)[which];
            if let (Some(parent), Some(slot)) = (place.parent, place.slot) {
                tree.up[chain.to_parent()] = Some(chains[parent].to_child(slot));
            }
            for (slot, child) in place.children.into_iter().enumerate() {
                let Some(child) = child else { continue };
                let rank = chain.to_child(slot);
                let free = tree.down[rank].iter_mut().find(|down| down.is_none());
                *free.ok_or_else(|| format!("rank {rank} would have more than {ARITY} children"))? =
                    Some(chains[child].to_parent());
            }
        }
        Ok(tree)
    }

    /// The rank without a parent.
    pub fn root(&self) -> Option<usize> {
        self.up.iter().position(Option::is_none)
    }

    /// Edges on the longest way from the root.
    pub fn depth(&self) -> usize {
        let mut depth = 0;
        let mut level: Vec<usize> = self.root().into_iter().collect();
        loop {
            level = level.iter().flat_map(|&rank| self.down[rank].into_iter().flatten()).collect();
            if level.is_empty() || depth >= self.up.len() {
                return depth;
            }
            depth += 1;
        }
    }

    /// Most children of any rank.
    pub fn fan_out(&self) -> usize {
        self.down.iter().map(|down| down.iter().flatten().count()).max().unwrap_or(0)
    }

    /// Checks one root, N-1 edges, no cycle, and that parents and children agree.
    pub fn check(&self) -> Result<(), String> {
        let roots = self.up.iter().filter(|up| up.is_none()).count();
        if roots != 1 {
            return Err(format!("{roots} roots"));
        }
        for (rank, downs) in self.down.iter().enumerate() {
            for &child in downs.iter().flatten() {
                if self.up.get(child) != Some(&Some(rank)) {
                    return Err(format!("rank {rank} has child {child}, whose parent is another"));
                }
            }
        }
        let n_edges: usize = self.down.iter().map(|downs| downs.iter().flatten().count()).sum();
        if n_edges + 1 != self.up.len() {
            return Err(format!("{n_edges} edges over {} ranks", self.up.len()));
        }
        let mut open: Vec<usize> = self.root().into_iter().collect();
        let mut n_reached = 0;
        while let Some(rank) = open.pop() {
            n_reached += 1;
            if n_reached > self.up.len() {
                break;
            }
            open.extend(self.down[rank].into_iter().flatten());
        }
        if n_reached != self.up.len() {
            return Err(format!("the root reaches {n_reached} of {} ranks", self.up.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chains(n_hosts: usize, pattern: Pattern) -> Vec<Chain> {
        (0..n_hosts).map(|h| Chain { ranks: (4 * h..4 * h + 4).collect(), pattern }).collect()
    }

    #[test]
    fn every_pattern_gives_a_tree_for_every_number_of_hosts() {
        for pattern in [Pattern::Tree, Pattern::SplitTree, Pattern::BalancedTree] {
            for n_hosts in 1..40 {
                for which in 0..2 {
                    let tree = RankTree::join(4 * n_hosts, &chains(n_hosts, pattern), which).expect("fits");
                    assert_eq!(tree.check(), Ok(()), "{pattern:?}, {n_hosts} hosts");
                    assert!(tree.fan_out() <= ARITY);
                }
            }
        }
    }

    #[test]
    fn a_balanced_tree_serves_its_children_through_two_ranks() {
        let tree = RankTree::join(16, &chains(4, Pattern::BalancedTree), 0).expect("fits");
        // Host 2 has the hosts 1 and 3 below it: the first through its second rank, the second through its first.
        assert_eq!(tree.down[8], [Some(9), Some(12), None]);
        assert_eq!(tree.down[9], [Some(10), Some(4), None]);
        assert_eq!(tree.up[4], Some(9));
        assert_eq!(tree.up[12], Some(8));
    }

    #[test]
    fn a_lone_host_is_a_chain() {
        let tree = RankTree::join(4, &chains(1, Pattern::BalancedTree), 1).expect("fits");
        assert_eq!((tree.root(), tree.depth(), tree.fan_out()), (Some(0), 3, 1));
    }

    #[test]
    fn broken_trees_are_named() {
        let whole = RankTree::join(4, &chains(1, Pattern::Tree), 0).expect("fits");
        let mut torn = whole.clone();
        torn.down[1][0] = None;
        assert!(torn.check().is_err_and(|why| why.contains("2 edges")));
        let mut two_roots = whole;
        two_roots.up[3] = None;
        assert!(two_roots.check().is_err_and(|why| why.contains("2 roots")));
    }
}
