//! Rings and trees where no search can be made: ranks of a host in rank order, hosts in order of their first rank; a chain inside each host, the
//! double binary tree between hosts (even channels the first tree, odd channels the second).

use crate::engine::graph::trees;
use crate::engine::plan::{Layout, Ring, Tree};
use crate::engine::transport::PeerInfo;

/// The host of every rank, numbered by first appearance.
pub(super) fn hosts(peers: &[PeerInfo]) -> Vec<usize> {
    let mut names: Vec<&str> = Vec::new();
    let number = |peer: &PeerInfo, names: &mut Vec<&str>| names.iter().position(|n| *n == peer.host);
    peers
        .iter()
        .map(|peer| {
            number(peer, &mut names).unwrap_or_else(|| {
                // The name lives in `peers`, which outlives this loop.
                names.push(&peers[peer.rank].host);
                names.len() - 1
            })
        })
        .collect()
}

/// Ranks by host.
pub(super) fn members(hosts: &[usize]) -> Vec<Vec<usize>> {
    let n_hosts = hosts.iter().max().map_or(1, |&h| h + 1);
    (0..n_hosts).map(|h| (0..hosts.len()).filter(|&r| hosts[r] == h).collect()).collect()
}

/// The ring: hosts one after the other, inside each its ranks in order.
pub(super) fn ring_order(hosts: &[usize]) -> Vec<usize> {
    members(hosts).concat()
}

/// Every channel's ring and tree as `rank` sees them.
pub(super) fn build(rank: usize, hosts: &[usize], n_channels: usize) -> Layout {
    let members = members(hosts);
    let order = ring_order(hosts);
    let trees: Vec<Tree> = (0..2).map(|t| tree(rank, hosts, &members, t)).collect();
    Layout {
        rings: (0..n_channels).map(|_| Ring::new(&order, rank)).collect(),
        trees: (0..n_channels).map(|c| trees[c % 2].clone()).collect(),
        n_hosts: members.len(),
    }
}

/// A rank's place in tree `t`: the first rank of a host is its head; below it the chain of its host, and the heads of child hosts.
fn tree(rank: usize, hosts: &[usize], members: &[Vec<usize>], t: usize) -> Tree {
    let host = hosts[rank];
    let chain = &members[host];
    let at = chain.iter().position(|&r| r == rank).expect("invariant: a rank is a member of its host");
    let mut down: Vec<usize> = chain.get(at + 1).copied().into_iter().collect();
    if at > 0 {
        return Tree { up: Some(chain[at - 1]), down };
    }
    let place = &trees::double(members.len(), host)[t];
    down.extend(place.children.iter().flatten().map(|&child| members[child][0]));
    Tree { up: place.parent.map(|parent| members[parent][0]), down }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_a_chain() {
        let hosts = [0; 4];
        for rank in 0..4 {
            let layout = build(rank, &hosts, 2);
            assert_eq!(layout.trees[0].up, rank.checked_sub(1));
            assert_eq!(layout.trees[1].down, if rank < 3 { vec![rank + 1] } else { vec![] });
        }
    }

    #[test]
    fn every_tree_over_hosts_has_one_root_and_agreeing_edges() {
        for n_hosts in 2..6 {
            for per_host in 1..4 {
                let n = n_hosts * per_host;
                // Ranks dealt round-robin, so that members of a host are not neighbours.
                let hosts: Vec<usize> = (0..n).map(|r| r % n_hosts).collect();
                let places: Vec<Layout> = (0..n).map(|r| build(r, &hosts, 2)).collect();
                for c in 0..2 {
                    assert_eq!(places.iter().filter(|p| p.trees[c].up.is_none()).count(), 1);
                    for (r, place) in places.iter().enumerate() {
                        for &d in &place.trees[c].down {
                            assert_eq!(places[d].trees[c].up, Some(r));
                        }
                        if let Some(up) = place.trees[c].up {
                            assert!(places[up].trees[c].down.contains(&r));
                        }
                    }
                }
            }
        }
    }
}
