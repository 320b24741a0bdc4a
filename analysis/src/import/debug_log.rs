//! What a library's log says it chose: algorithm, protocol and channels per collective and size, by process.
//!
//! Two forms of the TUNING line: `AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`, and the older one with numbers
//! and a time instead of channels. Where a setting forces one algorithm or protocol (`NCCL_ALGO set by environment to Ring`), it fills
//! what no such line tells. Logs of several jobs may lie together: a line counts for the launch whose device list names its process.

use std::collections::{BTreeMap, BTreeSet};

use crate::import::{Imported, collective_name, tags};

/// One choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Algorithm, as records spell it.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels; 0 where the line does not tell.
    pub n_channels: u32,
}

/// Collective and bytes.
type Key = (String, u64);

/// What one process, or several together, say.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    /// Nothing where lines contradict each other.
    choices: BTreeMap<Key, Option<Choice>>,
    algorithm: Option<String>,
    protocol: Option<String>,
}

impl Said {
    fn choose(&mut self, key: Key, choice: Option<Choice>) {
        let known = self.choices.entry(key).or_insert_with(|| choice.clone());
        if *known != choice {
            *known = None;
        }
    }

    fn take_in(&mut self, other: &Self) {
        for (key, choice) in &other.choices {
            self.choose(key.clone(), choice.clone());
        }
        self.algorithm = self.algorithm.take().or_else(|| other.algorithm.clone());
        self.protocol = self.protocol.take().or_else(|| other.protocol.clone());
    }
}

/// Everything that library logs say, by host and process id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices(BTreeMap<(String, u32), Said>);

impl Choices {
    /// Reads a log, or the library's lines among others.
    pub fn of(text: &str) -> Self {
        let mut all = Self::default();
        all.add(text);
        all
    }

    /// Takes another log in.
    pub fn add(&mut self, text: &str) {
        for line in text.lines() {
            let Some((prefix, said)) = line.split_once("NCCL INFO ") else { continue };
            let process = process(prefix).unwrap_or_default();
            if let Some((key, choice)) = tuning(said) {
                self.0.entry(process).or_default().choose(key, Some(choice));
            } else if let Some((setting, value)) = said.split_once(" set by environment to ") {
                let value = value.trim().trim_end_matches('.');
                let said = self.0.entry(process).or_default();
                match setting.trim() {
                    "NCCL_ALGO" => said.algorithm = algorithm(value),
                    "NCCL_PROTO" => said.protocol = protocol(value),
                    _ => {}
                }
            }
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the processes of a launch say; everything, where none of them is known.
    fn of_launch(&self, processes: Option<&BTreeSet<(String, u32)>>) -> Said {
        let mut said = Said::default();
        let own =
            || self.0.iter().filter(|(process, _)| processes.is_some_and(|list| list.contains(process)));
        if own().next().is_some() {
            own().for_each(|(_, other)| said.take_in(other));
        } else {
            self.0.values().for_each(|other| said.take_in(other));
        }
        said
    }
}

/// `[time] host:pid:tid [device]` in front of a message.
fn process(prefix: &str) -> Option<(String, u32)> {
    let words = tags::strip(prefix).split_whitespace().next()?;
    let mut parts = words.rsplitn(3, ':');
    let (_thread, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
    Some((host.split('.').next()?.to_owned(), pid.parse().ok()?))
}

fn tuning(text: &str) -> Option<(Key, Choice)> {
    let (name, rest) = text.split_once(':')?;
    let (bytes, rest) = rest.split_once(" Bytes -> Algo ")?;
    let (algo, rest) = rest.split_once(" proto ")?;
    let key = (collective_name(name)?.to_owned(), bytes.trim().parse().ok()?);
    let (proto, n_channels) = match rest.split_once(" channel{Lo..Hi}={") {
        Some((proto, range)) => {
            let (low, high) = range.split_once('}')?.0.split_once("..")?;
            let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            (proto, high.checked_sub(low)?.checked_add(1)?)
        }
        None => (rest.split_once(" time ")?.0, 0),
    };
    Some((key, Choice { algorithm: algorithm(algo)?, protocol: protocol(proto)?, n_channels }))
}

/// The one algorithm that a word or number means. Numbers go to `pat`; our own library's names follow.
fn algorithm(word: &str) -> Option<String> {
    const NAMES: [&str; 9] =
        ["tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat", "oneshot", "twoshot"];
    let is_number = word.trim().parse::<u32>().is_ok();
    one_of(if is_number { &NAMES[..7] } else { &NAMES }, &word.trim().to_ascii_lowercase().replace('_', ""))
}

fn protocol(word: &str) -> Option<String> {
    one_of(&["ll", "ll128", "simple"], &word.trim().to_ascii_lowercase())
}

fn one_of(names: &[&str], word: &str) -> Option<String> {
    let numbered = word.parse::<usize>().ok().and_then(|number| names.get(number));
    numbered.or_else(|| names.iter().find(|name| **name == word)).map(|name| (*name).to_owned())
}

/// Fills in what rows do not say themselves.
pub fn fill(imported: &mut Imported, choices: &Choices) {
    if choices.is_empty() {
        return;
    }
    let mut by_launch: BTreeMap<String, Said> = BTreeMap::new();
    for row in imported.rows.iter_mut().filter(|row| row.algorithm == "auto" || row.protocol == "auto") {
        let said = by_launch
            .entry(row.run_id.clone())
            .or_insert_with(|| choices.of_launch(imported.processes.get(&row.run_id)));
        if let Some(Some(choice)) = said.choices.get(&(row.collective.clone(), row.bytes)) {
            row.algorithm.clone_from(&choice.algorithm);
            row.protocol.clone_from(&choice.protocol);
            row.n_channels = choice.n_channels;
            continue;
        }
        for (field, forced) in [(&mut row.algorithm, &said.algorithm), (&mut row.protocol, &said.protocol)] {
            if let Some(forced) = forced.as_ref().filter(|_| field == "auto") {
                field.clone_from(forced);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Choices, fill, tuning};
    use crate::import::tests::hints;
    use crate::import::text;

    const LINE: &str =
        "node1:4711:2 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}\n";

    #[test]
    fn tuning_lines_fill_rows_of_their_size() {
        let log = LINE.to_owned() + crate::import::nccl_text::tests::LOG;
        let imported = text(&log, &hints());
        let of = |bytes: u64| imported.rows.iter().find(|row| row.bytes == bytes).unwrap();
        assert_eq!(
            (of(1024).algorithm.as_str(), of(1024).protocol.as_str(), of(1024).n_channels),
            ("ring", "ll", 4)
        );
        assert_eq!(of(8).algorithm, "auto");
    }

    #[test]
    fn lines_of_other_processes_say_nothing_about_this_launch() {
        let other = LINE.replace("4711", "9999").replace("RING", "TREE");
        let mut imported = text(crate::import::nccl_text::tests::LOG, &hints());
        fill(&mut imported, &Choices::of(&(LINE.to_owned() + &other)));
        let row = imported.rows.iter().find(|row| row.bytes == 1024).unwrap();
        assert_eq!(row.algorithm, "ring");
    }

    #[test]
    fn contradicting_lines_say_nothing_and_settings_fill_the_rest() {
        let log = crate::import::nccl_text::tests::LOG;
        let mut imported = text(log, &hints());
        let forced = "node1:4711:9 [0] NCCL INFO NCCL_ALGO set by environment to Tree.\n";
        fill(&mut imported, &Choices::of(&(LINE.to_owned() + &LINE.replace("RING", "TREE"))));
        assert!(imported.rows.iter().all(|row| row.algorithm == "auto"));
        fill(&mut imported, &Choices::of(forced));
        assert!(imported.rows.iter().all(|row| row.algorithm == "tree" && row.protocol == "auto"));
    }

    #[test]
    fn both_forms_of_the_line_are_read() {
        let (_, choice) = tuning("AllReduce: 1024 Bytes -> Algo 1 proto 2 time 12.300").unwrap();
        assert_eq!(
            (choice.algorithm.as_str(), choice.protocol.as_str(), choice.n_channels),
            ("ring", "simple", 0)
        );
        let (key, choice) =
            tuning("AllGather: 8 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={2..2}").unwrap();
        assert_eq!(
            (key.0.as_str(), choice.algorithm.as_str(), choice.n_channels),
            ("all_gather", "nvlstree", 1)
        );
        let (_, choice) =
            tuning("AllReduce: 8 Bytes -> Algo ONESHOT proto LL channel{Lo..Hi}={0..0}").unwrap();
        assert_eq!(choice.algorithm, "oneshot");
        assert!(tuning("AllReduce: 8 Bytes -> Algo 7 proto 2 time 1").is_none());
        assert!(tuning("AllReduce: x Bytes -> Algo 99 proto 2 time 1").is_none());
    }
}
