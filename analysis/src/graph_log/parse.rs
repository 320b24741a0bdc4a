//! Lines of a debug log to neighbours.
//!
//! Graph lines name rank and channel but no communicator; that is the one whose initialisation the same thread announced last.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph_log::lines::messages;
use crate::graph_log::{Communicator, TreeNode};

/// Collects lines of any number of files.
#[derive(Debug, Default)]
pub struct Reader {
    communicators: BTreeMap<String, Draft>,
    /// Communicator of each thread (`host:pid:tid`).
    current: BTreeMap<String, String>,
    /// Communicator behind a pointer of a process (`host:pid`).
    pointers: BTreeMap<(String, String), String>,
    file: String,
    n_lines: usize,
    unusable: Vec<String>,
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
    /// The lines that follow are of this file.
    pub fn file(&mut self, name: &str) {
        (self.file, self.n_lines) = (name.to_owned(), 0);
    }

    /// Takes one line; lines about other things are ignored.
    pub fn line(&mut self, line: &str) {
        self.n_lines += 1;
        for (thread, text) in messages(line, |thread| self.current.contains_key(thread)) {
            self.message(&thread, text.trim());
        }
    }

    fn message(&mut self, thread: &str, text: &str) {
        if text.contains("Init START") || text.contains("Init COMPLETE") {
            self.init(thread, text);
            return;
        }
        let id = self.current.get(thread).cloned().unwrap_or_default();
        // A draft is made only for a line that says something, so unrelated logs give no communicator.
        let mut said = Draft::default();
        let taken = said.take(text);
        if matches!(taken, Taken::All | Taken::Part) {
            self.communicators.entry(id).or_default().merge(said);
        }
        if matches!(taken, Taken::Part | Taken::Nothing) {
            let shown: String = text.chars().take(60).collect();
            let file = if self.file.is_empty() { String::new() } else { format!("{}, ", self.file) };
            self.unusable
                .push(format!("{file}line {}: cut off or mixed with another: `{shown}`", self.n_lines));
        }
    }

    fn init(&mut self, thread: &str, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let after = |name: &str| {
            words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1)).copied()
        };
        let process = thread.rsplit_once(':').map_or(thread, |(process, _)| process).to_owned();
        let id = match (after("commId"), after("parent")) {
            (Some(id), _) => id.to_owned(),
            // A split names its parent by a pointer, which is another one in every process.
            (None, Some(parent)) => {
                let known = self.pointers.get(&(process.clone(), parent.to_owned()));
                let known = known.map_or(parent, String::as_str);
                let word = |name: &str| after(name).unwrap_or("?").trim_end_matches('-').to_owned();
                format!("{known} split {} color {}", word("childCount"), word("color"))
            }
            (None, None) => String::new(),
        };
        if let Some(pointer) = after("comm") {
            self.pointers.insert((process, pointer.to_owned()), id.clone());
        }
        if text.contains("Init START") || !self.current.contains_key(thread) {
            self.current.insert(thread.to_owned(), id.clone());
        }
        if let Some(n_ranks) = after("nranks").and_then(|word| word.parse().ok()) {
            let draft = self.communicators.entry(id).or_default();
            draft.announced = draft.announced.max(n_ranks);
        }
    }

    /// Lines about graphs that could not be used, or not as a whole.
    pub fn unusable(&self) -> &[String] {
        &self.unusable
    }

    /// Everything that was said, one entry per communicator that has a graph.
    pub fn finish(mut self) -> Vec<Communicator> {
        let announced = self.communicators.iter().filter(|(id, draft)| !id.is_empty() && draft.announced > 0);
        let named: Vec<String> = announced.map(|(id, _)| id.clone()).collect();
        // Ranks whose announcement is missing belong to the only communicator there is.
        if let [only] = named.as_slice()
            && let Some(stray) = self.communicators.remove("").filter(Draft::has_graph)
        {
            let draft = self.communicators.entry(only.clone()).or_default();
            let note = "lines of threads that announced no communicator are taken for this one";
            draft.notes.insert(note.to_owned());
            draft.merge(stray);
        }
        let with_graph = self.communicators.into_iter().filter(|(_, draft)| draft.has_graph());
        with_graph.map(|(id, draft)| draft.finish(id)).collect()
    }
}

/// How much of a line could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It is about something else.
    Other,
    /// It is about a graph but cannot be read.
    Nothing,
    /// Some of it.
    Part,
    /// All of it.
    All,
}

impl Taken {
    fn all_or_nothing(read: Option<()>) -> Self {
        if read.is_some() { Self::All } else { Self::Nothing }
    }
}

impl Draft {
    fn has_graph(&self) -> bool {
        !(self.rings.is_empty()
            && self.orders.is_empty()
            && self.summaries.is_empty()
            && self.details.is_empty())
    }

    /// Reads one text.
    fn take(&mut self, text: &str) -> Taken {
        if let Some(rest) = text.strip_prefix("Trees ") {
            return self.trees(rest);
        }
        if let Some(rest) = text.strip_prefix("Tree ") {
            return Taken::all_or_nothing(self.tree(rest));
        }
        if let Some(rest) = text.strip_prefix("Ring ") {
            return Taken::all_or_nothing(self.ring(rest));
        }
        // Lines about links between ranks begin with the same word.
        match text.strip_prefix("Channel ").and_then(|rest| self.order(rest)) {
            Some(()) => Taken::All,
            None => Taken::Other,
        }
    }

    /// `[0] 1/-1/-1->0->-1 [1] …`: children, rank, parent.
    fn trees(&mut self, text: &str) -> Taken {
        let (mut used, mut lost) = (false, !text.starts_with('['));
        for part in text.split('[').skip(1) {
            match place(part) {
                Some((rank, channel, node)) => {
                    insert(&mut self.summaries, &mut self.notes, ("Trees", rank, channel), node);
                    used = true;
                }
                None => lost = true,
            }
        }
        match (used, lost) {
            (true, false) => Taken::All,
            (true, true) => Taken::Part,
            (false, _) => Taken::Nothing,
        }
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

/// `0] 1/-1/-1->0->-1`: channel, children, rank, parent.
fn place(part: &str) -> Option<(u32, u32, TreeNode)> {
    let (channel, place) = part.split_once(']')?;
    let words: Vec<&str> = place.trim().split("->").collect();
    let [down, rank, up] = words.as_slice() else { return None };
    let node = TreeNode { up: neighbour(up)?, down: children(down)? };
    Some((rank.trim().parse().ok()?, channel.trim().parse().ok()?, node))
}

/// A rank, or nothing for -1.
fn neighbour(word: &str) -> Option<Option<u32>> {
    match word.trim() {
        "-1" => Some(None),
        word => word.parse().ok().map(Some),
    }
}

/// Three of them, -1 where there is none; a line that was cut has fewer.
fn children(word: &str) -> Option<Vec<u32>> {
    let all: Vec<Option<u32>> = word.trim().split('/').map(neighbour).collect::<Option<_>>()?;
    (all.len() == 3).then_some(())?;
    Some(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Reader;
    use crate::graph_log::tests::{CHAIN, read};

    fn unusable(text: &str) -> Vec<String> {
        let mut reader = Reader::default();
        reader.file("nccl.log");
        text.lines().for_each(|line| reader.line(line));
        reader.unusable().to_vec()
    }

    #[test]
    fn cut_and_mixed_lines_are_named_and_the_rest_is_used() {
        let cut = CHAIN.replace("Trees [0] 2/-1/-1->1->0", "Trees [0] 2/-1/-1->1->0 [1] 2/-1");
        assert_eq!(read(&cut)[0].trees, read(CHAIN)[0].trees);
        assert_eq!(
            unusable(&cut),
            ["nccl.log, line 7: cut off or mixed with another: `Trees [0] 2/-1/-1->1->0 [1] 2/-1`"]
        );
        let torn = CHAIN.replace("Ring 00 : 1 -> 2 -> 3", "Ring 00 : 1 -> 2 ->");
        assert!(unusable(&torn)[0].contains("line 11"), "{:?}", unusable(&torn));
        assert!(unusable(CHAIN).is_empty());
        assert!(unusable("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC").is_empty());
    }

    #[test]
    fn lines_without_an_announcement_belong_to_the_only_communicator() {
        let lost = CHAIN.lines().filter(|line| !line.contains("comm 0x57")).collect::<Vec<_>>().join("\n");
        let all = read(&lost);
        assert_eq!((all.len(), all[0].id.as_str(), all[0].tree_records()), (1, "0xabc", 4));
        assert!(all[0].problems().is_empty());
        assert!(all[0].notes[0].contains("announced no communicator"), "{:?}", all[0].notes);
    }

    #[test]
    fn a_split_is_one_communicator_although_pointers_differ() {
        let split: String = (0..4).map(|rank| {
            let (thread, parent) = (["10:11", "20:21", "30:31", "40:41"][rank], ["0x55", "0x56", "0x57", "0x58"][rank]);
            let (ranks, down, up) = (rank / 2, if rank % 2 == 0 { "1" } else { "-1" }, if rank % 2 == 0 { "-1" } else { "0" });
            format!(
                "box:{thread} [0] NCCL INFO ncclCommSplit comm 0x9{rank} rank {} nranks 2 cudaDev 0 nvmlDev 0 busId 1 parent {parent} \
                 childCount 1 color {ranks} key 0- Init START\nbox:{thread} [0] NCCL INFO Trees [0] {down}/-1/-1->{}->{up}\n",
                rank % 2, rank % 2
            )
        }).collect();
        let all = read(&format!("{CHAIN}{split}"));
        let ids: Vec<&str> = all.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids, ["0xabc", "0xabc split 1 color 0", "0xabc split 1 color 1"]);
        assert!(all.iter().all(|c| c.problems().is_empty() && c.notes.is_empty()));
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
