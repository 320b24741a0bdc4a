//! Rings across hosts: each host's chain is entered at its first rank and left at its last, and hosts follow one another in order.
//!
//! ```text
//!      host 0             host 1             host 2
//! ┌─► 0 ► 1 ► 2 ► 3 ──► 4 ► 5 ► 6 ► 7 ──► 8 ► 9 ► 10 ► 11 ─┐
//! └───────────────────────────────────────────────────────┘
//! ```

/// One channel's ring over all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Whom a rank receives from, by rank.
    pub prev: Vec<usize>,
    /// Whom a rank sends to, by rank.
    pub next: Vec<usize>,
}

impl Ring {
    /// Joins the hosts' chains, in host order.
    pub fn join(n_ranks: usize, chains: &[Vec<usize>]) -> Self {
        let mut ring = Self { prev: vec![0; n_ranks], next: vec![0; n_ranks] };
        let order = || chains.iter().flatten().copied();
        for (from, to) in order().zip(order().cycle().skip(1)) {
            ring.next[from] = to;
            ring.prev[to] = from;
        }
        ring
    }

    /// Ranks in the order data pass them, beginning with `from`.
    pub fn order(&self, from: usize) -> Vec<usize> {
        std::iter::successors(Some(from), |&rank| Some(self.next[rank])).take(self.next.len()).collect()
    }

    /// Checks that the ring visits every rank once and that neighbours agree.
    pub fn check(&self) -> Result<(), String> {
        for (rank, &next) in self.next.iter().enumerate() {
            if self.prev.get(next) != Some(&rank) {
                return Err(format!("rank {rank} sends to {next}, which receives from another"));
            }
        }
        let mut seen = vec![false; self.next.len()];
        for rank in self.order(0) {
            if std::mem::replace(&mut seen[rank], true) {
                return Err(format!("the ring comes back to rank {rank} before it has visited all"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_follow_one_another_and_the_last_closes_the_ring() {
        let ring = Ring::join(6, &[vec![1, 0, 2], vec![5, 3, 4]]);
        assert_eq!(ring.order(0), [0, 2, 5, 3, 4, 1]);
        assert_eq!(ring.prev[1], 4);
        assert_eq!(ring.check(), Ok(()));
    }

    #[test]
    fn a_single_rank_is_its_own_neighbour() {
        let ring = Ring::join(1, &[vec![0]]);
        assert_eq!((ring.prev[0], ring.next[0]), (0, 0));
        assert_eq!(ring.check(), Ok(()));
    }

    #[test]
    fn two_rings_in_one_are_found() {
        let ring = Ring { prev: vec![1, 0, 3, 2], next: vec![1, 0, 3, 2] };
        assert!(ring.check().is_err_and(|why| why.contains("before it has visited all")));
    }
}
