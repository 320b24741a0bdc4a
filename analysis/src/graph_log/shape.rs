//! Distinct rings and trees with the channels that share them.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph_log::{Communicator, TreeNode};

/// A ring or tree that one or more channels use.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// `ring` or `tree`.
    pub kind: &'static str,
    /// Ranks: around the ring, or down the tree level by level.
    pub order: Vec<u32>,
    /// Parent of each rank, for a tree.
    pub parents: BTreeMap<u32, u32>,
    /// Edges from the root to the deepest rank.
    pub depth: usize,
    /// Most children of a rank.
    pub fan_out: usize,
    /// Channels that share it.
    pub channels: Vec<u32>,
}

/// Every distinct shape of a communicator, rings first.
pub fn describe(communicator: &Communicator) -> Vec<Shape> {
    let mut all: Vec<Shape> = Vec::new();
    for (channel, ring) in &communicator.rings {
        add(&mut all, *channel, ring_shape(ring));
    }
    for (channel, tree) in &communicator.trees {
        add(&mut all, *channel, tree_shape(tree));
    }
    all
}

fn add(all: &mut Vec<Shape>, channel: u32, shape: Shape) {
    let same = |other: &&mut Shape| {
        (other.kind, &other.order, &other.parents) == (shape.kind, &shape.order, &shape.parents)
    };
    match all.iter_mut().find(same) {
        Some(known) => known.channels.push(channel),
        None => all.push(Shape { channels: vec![channel], ..shape }),
    }
}

fn ring_shape(ring: &BTreeMap<u32, (u32, u32)>) -> Shape {
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = ring.keys().next().copied();
    while let Some(rank) = at.filter(|rank| seen.insert(*rank)) {
        order.push(rank);
        at = ring.get(&rank).map(|(_, next)| *next);
    }
    Shape { kind: "ring", order, parents: BTreeMap::new(), depth: 0, fan_out: 1, channels: Vec::new() }
}

fn tree_shape(tree: &BTreeMap<u32, TreeNode>) -> Shape {
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let mut level: Vec<u32> =
        tree.iter().filter(|(_, node)| node.up.is_none()).map(|(rank, _)| *rank).collect();
    let mut depth = 0;
    while !level.is_empty() {
        level.retain(|rank| seen.insert(*rank));
        order.extend(&level);
        let next: Vec<u32> =
            level.iter().filter_map(|rank| tree.get(rank)).flat_map(|node| node.down.clone()).collect();
        let next: Vec<u32> = next.into_iter().filter(|rank| !seen.contains(rank)).collect();
        depth += usize::from(!next.is_empty());
        level = next;
    }
    let parents = tree.iter().filter_map(|(rank, node)| Some((*rank, node.up?))).collect();
    let fan_out = tree.values().map(|node| node.down.len()).max().unwrap_or(0);
    Shape { kind: "tree", order, parents, depth, fan_out, channels: Vec::new() }
}

impl Shape {
    /// `0-1-2-3` for a chain or ring, else `0(1(3) 2)`.
    pub fn text(&self) -> String {
        if self.kind == "ring" || self.fan_out <= 1 {
            return self.order.iter().map(ToString::to_string).collect::<Vec<_>>().join("-");
        }
        self.order.first().map_or(String::new(), |root| self.nested(*root, self.order.len()))
    }

    /// `fuel` bounds the descent where a broken log holds a cycle.
    fn nested(&self, rank: u32, fuel: usize) -> String {
        let children = self.order.iter().filter(|child| self.parents.get(child) == Some(&rank));
        let inside: Vec<String> =
            children.filter(|_| fuel > 0).map(|child| self.nested(*child, fuel - 1)).collect();
        if inside.is_empty() { rank.to_string() } else { format!("{rank}({})", inside.join(" ")) }
    }

    /// `0, 2-5`.
    pub fn channel_list(&self) -> String {
        let runs = self.channels.chunk_by(|a, b| a + 1 == *b);
        let text = runs.map(|run| match run {
            [only] => only.to_string(),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        });
        text.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::describe;
    use crate::graph_log::tests::{CHAIN, read};

    #[test]
    fn shapes_are_named_with_depth_fan_out_and_channels() {
        let shapes = describe(&read(CHAIN)[0]);
        assert_eq!((shapes[0].kind, shapes[0].text().as_str()), ("ring", "0-1-2-3"));
        assert_eq!((shapes[1].kind, shapes[1].text().as_str()), ("tree", "0-1-2-3"));
        assert_eq!((shapes[1].depth, shapes[1].fan_out), (3, 1));
    }

    #[test]
    fn channels_with_one_shape_share_a_line() {
        let mut text = String::new();
        for channel in [0, 1, 2, 5] {
            for (rank, place) in [(0, "1/2/-1->0->-1"), (1, "-1/-1/-1->1->0"), (2, "-1/-1/-1->2->0")] {
                text += &format!("h:{rank}:1 [0] NCCL INFO Trees [{channel}] {place}\n");
            }
        }
        let all = read(&text);
        let shapes = describe(&all[0]);
        assert_eq!(shapes.len(), 1);
        assert_eq!((shapes[0].text().as_str(), shapes[0].channel_list().as_str()), ("0(1 2)", "0-2, 5"));
        assert_eq!((shapes[0].depth, shapes[0].fan_out, all[0].tree_records()), (1, 2, 12));
        assert!(all[0].problems().is_empty());
    }
}
