//! Double binary tree between hosts: two spanning trees over the same hosts, so that each carries half of the data and a host that
//! works hard in one rests in the other.
//!
//! **First tree.** Even and odd hosts alternate between inner vertex and leaf. A host's lowest set bit `b` is its height: its parent
//! is the neighbour at distance `b` whose own lowest bit is larger (downwards when upwards does not exist), its children stand at
//! `b/2` below and above; where the upper one is beyond the end the distance halves until it is not. Host 0 is the root and has only
//! an upper child. For 14 hosts:
//!
//! ```text
//! 0───────────────────────┐
//!             ┌───────────8───────────┐
//!       ┌─────4─────┐           ┌─────12─┐
//!    ┌──2──┐     ┌──6──┐     ┌──10─┐     13
//!    1     3     5     7     9     11
//! ```
//!
//! **Second tree.** With an even number of hosts the first one is read in a mirror (`h` becomes `n-1-h`). All inner vertices of the
//! first tree are even; in the mirror they are odd: no host is inner in both.
//!
//! ```text
//!                ┌───────────────────────13
//!    ┌───────────5───────────┐
//! ┌──1─────┐           ┌─────9─────┐
//! 0     ┌──3──┐     ┌──7──┐     ┌──11─┐
//!       2     4     6     8     10    12
//! ```
//!
//! With an odd number of hosts a mirror would map even to even, so every host is renamed to its successor instead (`h` becomes
//! `h+1 mod n`). The last host becomes host 0, so exactly one host, number 0, is inner in both. For 13 hosts:
//!
//! ```text
//! 1───────────────────────┐
//!             ┌───────────9───────────┐
//!       ┌─────5─────┐           ┌─────0
//!    ┌──3──┐     ┌──7──┐     ┌──11─┐
//!    2     4     6     8     10    12
//! ```
//!
//! (`chorus trees N` draws these.)

/// One host's place in one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The host above; none for the root.
    pub parent: Option<usize>,
    /// The hosts below, by slot. A slot may be empty while a later one is taken.
    pub children: [Option<usize>; 2],
    /// The slot this host fills at its parent; none for the root.
    pub slot: Option<usize>,
}

impl Place {
    /// Whether something hangs below this host.
    pub fn is_inner(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    fn renamed(self, rename: impl Fn(usize) -> usize) -> Self {
        Self {
            parent: self.parent.map(&rename),
            children: self.children.map(|c| c.map(&rename)),
            slot: self.slot,
        }
    }
}

/// How the second tree follows from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Construction {
    /// One host: both trees are that host.
    Trivial,
    /// Even: host `h` becomes `n-1-h`.
    Mirror,
    /// Odd: host `h` becomes `h+1 mod n`.
    Shift,
}

impl Construction {
    /// The construction for that many hosts.
    pub fn of(n_hosts: usize) -> Self {
        match n_hosts {
            0 | 1 => Self::Trivial,
            n if n.is_multiple_of(2) => Self::Mirror,
            _ => Self::Shift,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::Mirror => "mirror",
            Self::Shift => "shift",
        }
    }
}

/// A host's place in the first tree.
pub fn single(n_hosts: usize, host: usize) -> Place {
    debug_assert!(host < n_hosts, "host {host} of {n_hosts}");
    if host == 0 {
        let child = (n_hosts > 1).then(|| n_hosts.next_power_of_two() / 2);
        return Place { parent: None, children: [None, child], slot: None };
    }
    let height = host & host.wrapping_neg();
    let below = host ^ height;
    let above = below | (height << 1);
    let parent = if above < n_hosts { above } else { below };
    let lower = (height > 1).then(|| host - height / 2);
    let upper = std::iter::successors(Some(height / 2), |distance| Some(distance / 2))
        .take_while(|&distance| distance > 0)
        .map(|distance| host + distance)
        .find(|&child| child < n_hosts);
    Place { parent: Some(parent), children: [lower, upper], slot: Some(usize::from(host > parent)) }
}

/// A host's places in both trees.
pub fn double(n_hosts: usize, host: usize) -> [Place; 2] {
    let second = match Construction::of(n_hosts) {
        Construction::Trivial => single(n_hosts, host),
        Construction::Mirror => single(n_hosts, n_hosts - 1 - host).renamed(|h| n_hosts - 1 - h),
        Construction::Shift => single(n_hosts, (host + n_hosts - 1) % n_hosts).renamed(|h| (h + 1) % n_hosts),
    };
    [single(n_hosts, host), second]
}

/// A whole tree: every host's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// By host.
    pub places: Vec<Place>,
}

impl Tree {
    /// Both trees of that many hosts.
    pub fn pair(n_hosts: usize) -> [Self; 2] {
        [0, 1].map(|t| Self { places: (0..n_hosts).map(|host| double(n_hosts, host)[t]).collect() })
    }

    /// The host without a parent.
    pub fn root(&self) -> Option<usize> {
        self.places.iter().position(|place| place.parent.is_none())
    }

    /// Edges between a host and the root.
    pub fn level(&self, host: usize) -> usize {
        std::iter::successors(self.places[host].parent, |&h| self.places[h].parent).count()
    }

    /// Edges on the longest way from the root.
    pub fn depth(&self) -> usize {
        (0..self.places.len()).map(|host| self.level(host)).max().unwrap_or(0)
    }

    /// Hosts with children, ascending.
    pub fn inner(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|&host| self.places[host].is_inner()).collect()
    }

    /// Checks the rules of a tree: one root, parents and children agree, every host reached once. The text names the first breach.
    pub fn check(&self) -> Result<(), String> {
        let n_hosts = self.places.len();
        let roots = self.places.iter().filter(|place| place.parent.is_none()).count();
        if roots != 1 {
            return Err(format!("{roots} roots in a tree of {n_hosts} hosts"));
        }
        for (host, place) in self.places.iter().enumerate() {
            if let (Some(parent), Some(slot)) = (place.parent, place.slot)
                && self.places.get(parent).and_then(|p| p.children[slot]) != Some(host)
            {
                return Err(format!(
                    "host {host} names {parent} as its parent, which has another child there"
                ));
            }
            for child in place.children.into_iter().flatten() {
                if self.places.get(child).and_then(|c| c.parent) != Some(host) {
                    return Err(format!("host {host} names {child} as its child, which has another parent"));
                }
            }
        }
        // Parents and children agree and one root exists: hosts that the root does not reach would form cycles.
        let mut reached = vec![false; n_hosts];
        let mut open: Vec<usize> = self.root().into_iter().collect();
        while let Some(host) = open.pop() {
            if std::mem::replace(&mut reached[host], true) {
                return Err(format!("host {host} is reached twice"));
            }
            open.extend(self.places[host].children.into_iter().flatten());
        }
        match reached.iter().position(|&r| !r) {
            Some(host) => Err(format!("host {host} hangs on a cycle, not on the root")),
            None => Ok(()),
        }
    }
}

/// Hosts that are inner in both trees, ascending.
pub fn shared_inner(n_hosts: usize) -> Vec<usize> {
    (0..n_hosts).filter(|&host| double(n_hosts, host).iter().all(Place::is_inner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n_hosts: usize, host: usize, t: usize) -> (Option<usize>, [Option<usize>; 2]) {
        let p = double(n_hosts, host)[t];
        (p.parent, p.children)
    }

    #[test]
    fn both_trees_of_fourteen_hosts_are_those_drawn_above() {
        assert_eq!(place(14, 0, 0), (None, [None, Some(8)]));
        assert_eq!(place(14, 12, 0), (Some(8), [Some(10), Some(13)]));
        assert_eq!(place(14, 13, 0), (Some(12), [None, None]));
        assert_eq!(place(14, 13, 1), (None, [None, Some(5)]));
        assert_eq!(place(14, 1, 1), (Some(5), [Some(3), Some(0)]));
        assert_eq!(place(14, 9, 1), (Some(5), [Some(11), Some(7)]));
    }

    #[test]
    fn both_trees_of_five_hosts_follow_the_shift() {
        assert_eq!(place(5, 4, 0), (Some(0), [Some(2), None]));
        assert_eq!(place(5, 1, 1), (None, [None, Some(0)]));
        assert_eq!(place(5, 0, 1), (Some(1), [Some(3), None]));
        assert_eq!(double(5, 3)[1].slot, Some(0));
    }

    #[test]
    fn a_single_host_is_both_trees() {
        let alone = Place { parent: None, children: [None, None], slot: None };
        assert_eq!(double(1, 0), [alone, alone]);
        assert_eq!(Construction::of(1), Construction::Trivial);
    }

    #[test]
    fn every_pair_keeps_the_rules_of_trees() {
        for n_hosts in (1..=200).chain([255, 256, 257, 1000, 1024]) {
            for tree in Tree::pair(n_hosts) {
                tree.check().unwrap_or_else(|breach| panic!("{n_hosts} hosts: {breach}"));
                assert!(tree.depth() <= n_hosts.next_power_of_two().ilog2() as usize, "{n_hosts} hosts");
            }
        }
    }

    #[test]
    fn even_numbers_share_no_inner_host_and_odd_ones_share_host_zero() {
        for n_hosts in 2..=200 {
            let expected: &[usize] = if n_hosts % 2 == 0 { &[] } else { &[0] };
            assert_eq!(shared_inner(n_hosts), expected, "{n_hosts} hosts");
        }
    }

    #[test]
    fn a_broken_tree_is_named() {
        let [mut tree, _] = Tree::pair(4);
        tree.places[3].parent = Some(1);
        assert!(tree.check().is_err_and(|breach| breach.contains("host")));
    }
}
