//! Lines of a debug log to neighbours.
//!
//! A line may stand behind an MPI rank tag and a time stamp. Graph lines name rank and channel but no communicator; that is the one
//! whose initialisation the same thread announced last.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph_log::{Communicator, TreeNode};

/// Collects lines of any number of files.
#[derive(Debug, Default)]
pub struct Reader {
    communicators: BTreeMap<String, Draft>,
    /// Communicator of each thread (`host:pid:tid`).
    current: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Draft {
    announced: u32,
    rings: BTreeMap<(u32, u32), (u32, u32)>,
    /// Ring orders as rank 0 prints them, by channel.
    orders: BTreeMap<u32, Vec<u32>>,
    summaries: BTreeMap<(u32, u32), TreeNode>,
    details: BTreeMap<(u32, u32), TreeNode>,
    notes: BTreeSet<String>,
}

impl Reader {
    /// Takes one line; lines about other things are ignored.
    pub fn line(&mut self, line: &str) {
        let Some((prefix, text)) = line.split_once("NCCL INFO ") else { return };
        let thread = thread_of(prefix);
        let text = text.trim();
        if text.contains("Init START") || text.contains("Init COMPLETE") {
            self.init(&thread, text);
            return;
        }
        let id = self.current.get(&thread).cloned().unwrap_or_default();
        // A draft is made only for a line that says something, so unrelated logs give no communicator.
        let mut said = Draft::default();
        if !said.take(text) {
            return;
        }
        self.communicators.entry(id).or_default().merge(said);
    }

    fn init(&mut self, thread: &str, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let after = |name: &str| {
            words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1)).copied()
        };
        let id = after("commId").or(after("parent")).unwrap_or_default().to_owned();
        if text.contains("Init START") || !self.current.contains_key(thread) {
            self.current.insert(thread.to_owned(), id.clone());
        }
        if let Some(n_ranks) = after("nranks").and_then(|word| word.parse().ok()) {
            let draft = self.communicators.entry(id).or_default();
            draft.announced = draft.announced.max(n_ranks);
        }
    }

    /// Everything that was said, one entry per communicator that has a graph.
    pub fn finish(self) -> Vec<Communicator> {
        let with_graph = self.communicators.into_iter().filter(|(_, draft)| draft.has_graph());
        with_graph.map(|(id, draft)| draft.finish(id)).collect()
    }
}

/// `host:pid:tid` at the end of the prefix, before the device in brackets.
fn thread_of(prefix: &str) -> String {
    let words = prefix.split_whitespace().rev();
    let found =
        words.map(|word| word.rsplit('>').next().unwrap_or(word)).find(|word| word.matches(':').count() >= 2);
    found.map(|word| word.trim_start_matches(':').to_owned()).unwrap_or_default()
}

impl Draft {
    fn has_graph(&self) -> bool {
        !(self.rings.is_empty()
            && self.orders.is_empty()
            && self.summaries.is_empty()
            && self.details.is_empty())
    }

    /// Reads one text; whether it was about a graph.
    fn take(&mut self, text: &str) -> bool {
        if let Some(rest) = text.strip_prefix("Trees ") {
            return self.trees(rest);
        }
        if let Some(rest) = text.strip_prefix("Tree ") {
            return self.tree(rest).is_some();
        }
        if let Some(rest) = text.strip_prefix("Ring ") {
            return self.ring(rest).is_some();
        }
        match text.strip_prefix("Channel ") {
            Some(rest) => self.order(rest).is_some(),
            None => false,
        }
    }

    /// `[0] 1/-1/-1->0->-1 [1] …`: children, rank, parent.
    fn trees(&mut self, text: &str) -> bool {
        let mut any = false;
        for part in text.split('[').skip(1) {
            let Some((channel, place)) = part.split_once(']') else { continue };
            let words: Vec<&str> = place.trim().split("->").collect();
            let ([down, rank, up], Ok(channel)) = (words.as_slice(), channel.trim().parse()) else {
                continue;
            };
            let (Ok(rank), Some(up), Some(down)) = (rank.trim().parse(), neighbour(up), children(down))
            else {
                continue;
            };
            insert(&mut self.summaries, &mut self.notes, ("Trees", rank, channel), TreeNode { up, down });
            any = true;
        }
        any
    }

    /// `0 : -1 -> 0 -> 1/-1/-1`: parent, rank, children.
    fn tree(&mut self, text: &str) -> Option<()> {
        let (channel, place) = text.split_once(':')?;
        let words: Vec<&str> = place.split("->").collect();
        let [up, rank, down] = words.as_slice() else { return None };
        let (channel, rank) = (channel.trim().parse().ok()?, rank.trim().parse().ok()?);
        let node = TreeNode { up: neighbour(up)?, down: children(down)? };
        insert(&mut self.details, &mut self.notes, ("Tree", rank, channel), node);
        Some(())
    }

    /// `00 : 3 -> 0 -> 1`: previous, rank, next.
    fn ring(&mut self, text: &str) -> Option<()> {
        let (channel, place) = text.split_once(':')?;
        let words: Vec<u32> =
            place.split("->").map(|word| word.trim().parse().ok()).collect::<Option<_>>()?;
        let [previous, rank, next] = words.as_slice() else { return None };
        insert(
            &mut self.rings,
            &mut self.notes,
            ("Ring", *rank, channel.trim().parse().ok()?),
            (*previous, *next),
        );
        Some(())
    }

    /// `00/04 : 0 1 2 3`; a cut order (`…`) is of no use.
    fn order(&mut self, text: &str) -> Option<()> {
        let (channel, order) = text.split_once(':')?;
        let (channel, _of) = channel.split_once('/')?;
        let order: Vec<u32> =
            order.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        if order.is_empty() {
            return None;
        }
        self.orders.entry(channel.trim().parse().ok()?).or_insert(order);
        Some(())
    }

    fn merge(&mut self, other: Self) {
        for ((rank, channel), value) in other.rings {
            insert(&mut self.rings, &mut self.notes, ("Ring", rank, channel), value);
        }
        for ((rank, channel), node) in other.summaries {
            insert(&mut self.summaries, &mut self.notes, ("Trees", rank, channel), node);
        }
        for ((rank, channel), node) in other.details {
            insert(&mut self.details, &mut self.notes, ("Tree", rank, channel), node);
        }
        for (channel, order) in other.orders {
            self.orders.entry(channel).or_insert(order);
        }
        self.notes.extend(other.notes);
    }

    fn finish(self, id: String) -> Communicator {
        let mut notes = self.notes;
        let mut trees: BTreeMap<u32, BTreeMap<u32, TreeNode>> = BTreeMap::new();
        for ((rank, channel), node) in &self.summaries {
            if let Some(other) = self.details.get(&(*rank, *channel)).filter(|other| *other != node) {
                notes.insert(format!(
                    "rank {rank}, channel {channel}: the forms disagree (Trees: {}; Tree: {}); the summary is taken",
                    words(node),
                    words(other)
                ));
            }
            trees.entry(*channel).or_default().insert(*rank, node.clone());
        }
        for ((rank, channel), node) in &self.details {
            trees.entry(*channel).or_default().entry(*rank).or_insert_with(|| node.clone());
        }
        let mut rings: BTreeMap<u32, BTreeMap<u32, (u32, u32)>> = BTreeMap::new();
        for ((rank, channel), value) in &self.rings {
            rings.entry(*channel).or_default().insert(*rank, *value);
        }
        for (channel, order) in &self.orders {
            let ring = rings.entry(*channel).or_default();
            let n = order.len();
            for (at, rank) in order.iter().enumerate() {
                let said = (order[(at + n - 1) % n], order[(at + 1) % n]);
                let known = *ring.entry(*rank).or_insert(said);
                if known != said {
                    notes.insert(format!(
                        "rank {rank}, channel {channel}: its ring line says {} -> {rank} -> {}, rank 0's order says {} -> {rank} -> {}; \
                         the line is taken",
                        known.0, known.1, said.0, said.1
                    ));
                }
            }
        }
        let named =
            trees.values().flat_map(|tree| tree.keys()).chain(rings.values().flat_map(|ring| ring.keys()));
        let n_ranks = named.max().map_or(0, |rank| rank + 1).max(self.announced);
        Communicator { id, n_ranks, rings, trees, notes: notes.into_iter().collect() }
    }
}

fn words(node: &TreeNode) -> String {
    let up = node.up.map_or("root".into(), |up| format!("under {up}"));
    format!("{up}, children {:?}", node.down)
}

/// Keeps the first of two statements of one form and notes the other.
fn insert<T: PartialEq>(
    map: &mut BTreeMap<(u32, u32), T>,
    notes: &mut BTreeSet<String>,
    (form, rank, channel): (&str, u32, u32),
    value: T,
) {
    match map.get(&(rank, channel)) {
        Some(known) if *known != value => {
            notes.insert(format!(
                "rank {rank}, channel {channel}: two {form} lines differ; the first is taken"
            ));
        }
        Some(_) => {}
        None => {
            map.insert((rank, channel), value);
        }
    }
}

/// A rank, or nothing for -1.
fn neighbour(word: &str) -> Option<Option<u32>> {
    match word.trim() {
        "-1" => Some(None),
        word => word.parse().ok().map(Some),
    }
}

fn children(word: &str) -> Option<Vec<u32>> {
    let all: Vec<Option<u32>> = word.trim().split('/').map(neighbour).collect::<Option<_>>()?;
    Some(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Reader, thread_of};

    #[test]
    fn threads_are_found_behind_tags_and_times() {
        for prefix in ["box:1:2 [0] ", "[1,0]<stdout>:box:1:2 [0] ", "[2026-01-02 03:04:05] box:1:2 [0] "] {
            assert_eq!(thread_of(prefix), "box:1:2");
        }
    }

    proptest! {
        #[test]
        fn rubbish_is_ignored(text in "(Tree|Trees|Ring|Channel) [-0-9a>/\\[\\] :.]{0,40}") {
            let mut reader = Reader::default();
            reader.line(&format!("h:1:2 [0] NCCL INFO {text}"));
            for communicator in reader.finish() {
                let _ = communicator.problems();
            }
        }
    }
}
