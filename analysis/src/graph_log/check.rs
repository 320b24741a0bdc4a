//! Rules that hold for every ring and tree. A broken one is named by rank, channel and edge.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph_log::TreeNode;

/// A ring is one cycle over all ranks, and neighbours agree.
pub fn ring(channel: u32, ring: &BTreeMap<u32, (u32, u32)>, n_ranks: u32) -> Vec<String> {
    let mut problems = missing(channel, "ring", ring.keys().copied(), n_ranks);
    for (rank, (previous, next)) in ring {
        for (other, edge) in
            [(next, format!("{rank} -> {next}")), (previous, format!("{previous} -> {rank}"))]
        {
            if *other >= n_ranks {
                problems.push(format!(
                    "channel {channel}: ring edge {edge}, but {other} is no rank of {n_ranks}"
                ));
            }
        }
        if let Some((back, _)) = ring.get(next).filter(|(back, _)| back != rank) {
            problems.push(format!(
                "channel {channel}: ring edge {rank} -> {next}, but rank {next} receives from {back}"
            ));
        }
        if let Some((_, forth)) = ring.get(previous).filter(|(_, forth)| forth != rank) {
            problems.push(format!(
                "channel {channel}: ring edge {previous} -> {rank}, but rank {previous} sends to {forth}"
            ));
        }
    }
    if problems.is_empty()
        && let Some((&first, _)) = ring.first_key_value()
    {
        let mut seen = BTreeSet::new();
        let mut at = first;
        while seen.insert(at) {
            let Some((_, next)) = ring.get(&at) else { break };
            at = *next;
        }
        if seen.len() < ring.len() {
            let left =
                ring.keys().filter(|rank| !seen.contains(rank)).map(ToString::to_string).collect::<Vec<_>>();
            problems.push(format!(
                "channel {channel}: the ring through rank {first} closes without ranks {}",
                left.join(", ")
            ));
        }
    }
    problems
}

/// A tree has one root, N - 1 edges, no cycle, every rank, and parents and children that agree.
pub fn tree(channel: u32, tree: &BTreeMap<u32, TreeNode>, n_ranks: u32) -> Vec<String> {
    let mut problems = missing(channel, "tree", tree.keys().copied(), n_ranks);
    let roots: Vec<u32> = tree.iter().filter(|(_, node)| node.up.is_none()).map(|(rank, _)| *rank).collect();
    if roots.len() != 1 && !tree.is_empty() {
        problems
            .push(format!("channel {channel}: {} roots {roots:?} where there should be one", roots.len()));
    }
    for (rank, node) in tree {
        if let Some(up) = node.up {
            match tree.get(&up) {
                Some(parent) if !parent.down.contains(rank) => problems.push(format!(
                    "channel {channel}: rank {rank} is under {up}, but {up} has children {:?}",
                    parent.down
                )),
                None if up < n_ranks => {}
                None => problems.push(format!(
                    "channel {channel}: rank {rank} is under {up}, which is no rank of {n_ranks}"
                )),
                Some(_) => {}
            }
        }
        for (at, child) in node.down.iter().enumerate() {
            if *child >= n_ranks {
                problems.push(format!(
                    "channel {channel}: rank {rank} has child {child}, which is no rank of {n_ranks}"
                ));
            }
            if node.down[..at].contains(child) {
                problems.push(format!("channel {channel}: rank {rank} has child {child} twice"));
            }
            if let Some(below) = tree.get(child).filter(|below| below.up != Some(*rank)) {
                let up = below.up.map_or("nobody".into(), |up| up.to_string());
                problems.push(format!(
                    "channel {channel}: rank {rank} has child {child}, but {child} is under {up}"
                ));
            }
        }
    }
    problems.extend(cycles(channel, tree));
    let edges: usize = tree.values().filter(|node| node.up.is_some()).count();
    let complete = tree.len() as u32 == n_ranks;
    if problems.is_empty() && complete && edges as u32 + 1 != n_ranks {
        problems.push(format!("channel {channel}: {edges} edges where {} are needed", n_ranks - 1));
    }
    problems
}

fn cycles(channel: u32, tree: &BTreeMap<u32, TreeNode>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut known: BTreeSet<u32> = BTreeSet::new();
    for &start in tree.keys() {
        let (mut path, mut at) = (Vec::new(), start);
        while !known.contains(&at) {
            if let Some(again) = path.iter().position(|&rank| rank == at) {
                let words: Vec<String> = path[again..].iter().chain([&at]).map(ToString::to_string).collect();
                problems.push(format!("channel {channel}: cycle {}", words.join(" -> ")));
                break;
            }
            path.push(at);
            match tree.get(&at).and_then(|node| node.up) {
                Some(up) => at = up,
                None => break,
            }
        }
        known.extend(path);
    }
    problems
}

fn missing(channel: u32, what: &str, ranks: impl Iterator<Item = u32>, n_ranks: u32) -> Vec<String> {
    let there: BTreeSet<u32> = ranks.collect();
    let absent: Vec<String> =
        (0..n_ranks).filter(|rank| !there.contains(rank)).take(8).map(|rank| rank.to_string()).collect();
    if absent.is_empty() {
        return Vec::new();
    }
    let count = n_ranks as usize - there.iter().filter(|rank| **rank < n_ranks).count();
    vec![format!("channel {channel}: no {what} line of {count} ranks: {}", absent.join(", "))]
}

#[cfg(test)]
mod tests {
    use crate::graph_log::tests::{CHAIN, read};

    fn problems(from: &str, to: &str) -> String {
        assert!(CHAIN.contains(from));
        let text = CHAIN
            .replace(from, to)
            .replace("Tree 0 : -1 -> 0 -> 1/-1/-1", "-")
            .replace("Channel 00/01 : 0 1 2 3", "-");
        read(&text)[0].problems().join("; ")
    }

    #[test]
    fn broken_trees_are_named_by_rank_channel_and_edge() {
        assert!(
            problems("2/-1/-1->1->0", "-1/-1/-1->1->0")
                .contains("channel 0: rank 2 is under 1, but 1 has children []")
        );
        assert!(problems("3/-1/-1->2->1", "3/-1/-1->2->-1").contains("2 roots [0, 2]"));
        assert!(problems("1/-1/-1->0->-1", "1/-1/-1->0->3").contains("cycle"));
        assert!(problems("1/-1/-1->0->-1", "1/1/-1->0->-1").contains("rank 0 has child 1 twice"));
        assert!(problems("1/-1/-1->0->-1", "1/7/-1->0->-1").contains("child 7, which is no rank of 4"));
        assert!(problems("-1/-1/-1->3->2", "junk").contains("no tree line of 1 ranks: 3"));
        assert!(
            problems("-1/-1/-1->3->2", "-1/-1/-1->3->9").contains("rank 3 is under 9, which is no rank of 4")
        );
    }

    #[test]
    fn broken_rings_are_named_by_edge() {
        assert!(
            problems("2 -> 3 -> 0", "1 -> 3 -> 0").contains("ring edge 2 -> 3, but rank 3 receives from 1")
        );
        let far = problems("2 -> 3 -> 0", "2 -> 3 -> 9");
        assert!(far.contains("ring edge 3 -> 9, but 9 is no rank of 4"), "{far}");
        assert!(far.contains("ring edge 3 -> 0, but rank 3 sends to 9"), "{far}");
        let two = CHAIN
            .replace("Channel 00/01 : 0 1 2 3", "-")
            .replace("3 -> 0 -> 1", "1 -> 0 -> 1")
            .replace("0 -> 1 -> 2", "0 -> 1 -> 0")
            .replace("1 -> 2 -> 3", "3 -> 2 -> 3")
            .replace("2 -> 3 -> 0", "2 -> 3 -> 2");
        let text = read(&two)[0].problems().join("; ");
        assert!(text.contains("closes without ranks 2, 3"), "{text}");
    }
}
