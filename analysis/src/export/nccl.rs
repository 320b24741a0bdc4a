//! Tuner CSV of NCCL's example plugin and RCCL's built-in tuner. Bytes are those of the whole buffer, as in our records: for all_gather
//! what all ranks receive.
//!
//! The NCCL parser forgives wrong words by reading them as something else (an unknown collective is allreduce, an unknown algorithm ring, an
//! unknown protocol simple), drops empty fields, knows comments only in column 0 and reads at most 255 characters of a line. The reader
//! here refuses all of that, so a file that it accepts means what it says.

use crate::dataset::Config;
use crate::export::{ExportError, Exported, Rule};

pub(super) const COLLECTIVES: [(&str, &str); 5] = [
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reducescatter"),
    ("all_reduce", "allreduce"),
];
pub(super) const ALGORITHMS: [(&str, &str); 7] = [
    ("tree", "tree"),
    ("ring", "ring"),
    ("collnetdirect", "collnet_direct"),
    ("collnetchain", "collnet_chain"),
    ("nvls", "nvls"),
    ("nvlstree", "nvls_tree"),
    ("pat", "pat"),
];
pub(super) const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
/// A line with its newline must fit into the consumer's buffer of 256.
const LINE_LIMIT: usize = 254;

/// Whether the consumer has words for a configuration; channels must be known, because they must be written.
pub fn knows(collective: &str, config: &Config) -> bool {
    COLLECTIVES.iter().any(|(ours, _)| *ours == collective)
        && ALGORITHMS.iter().any(|(ours, _)| *ours == &*config.algorithm)
        && PROTOCOLS.contains(&&*config.protocol)
        && config.n_channels > 0
}

/// Our name of a collective.
pub fn collective_name(theirs: &str) -> Option<&'static str> {
    COLLECTIVES.iter().find(|(_, word)| *word == theirs).map(|(ours, _)| *ours)
}

/// Our name of an algorithm.
pub fn algorithm_name(theirs: &str) -> Option<&'static str> {
    ALGORITHMS.iter().find(|(_, word)| *word == theirs).map(|(ours, _)| *ours)
}

fn word(list: &[(&str, &'static str)], ours: &str, what: &str) -> Result<&'static str, ExportError> {
    let found = list.iter().find(|(name, _)| *name == ours).map(|(_, theirs)| *theirs);
    found.ok_or_else(|| ExportError::NoWord(format!("NCCL's tuner file has no word for the {what} {ours}")))
}

/// One line as the consumer means it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Collective, in its spelling.
    pub collective: String,
    /// First byte count.
    pub min_bytes: u64,
    /// Last byte count.
    pub max_bytes: u64,
    /// Algorithm, in its spelling.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub channels: i64,
    /// Nodes.
    pub n_nodes: i64,
    /// Ranks.
    pub n_ranks: i64,
}

pub(super) fn line_of(rule: &Rule) -> Result<Line, ExportError> {
    if !PROTOCOLS.contains(&rule.protocol.as_str()) {
        return Err(ExportError::NoWord(format!(
            "NCCL's tuner file has no word for the protocol {}",
            rule.protocol
        )));
    }
    Ok(Line {
        collective: word(&COLLECTIVES, &rule.scope.collective, "collective")?.into(),
        min_bytes: rule.min_bytes,
        max_bytes: rule.max_bytes,
        algorithm: word(&ALGORITHMS, &rule.algorithm, "algorithm")?.into(),
        protocol: rule.protocol.clone(),
        channels: i64::from(rule.n_channels),
        n_nodes: i64::from(rule.scope.n_hosts),
        n_ranks: i64::from(rule.scope.n_ranks),
    })
}

/// Writes the CSV and reads it back.
///
/// # Errors
/// When a word is missing there, or the file would not mean the same.
pub fn csv(rules: &[Rule]) -> Result<Exported, ExportError> {
    let mut text = String::from(
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n",
    );
    let mut meant = Vec::new();
    for rule in rules {
        let line = line_of(rule)?;
        if let Some(note) = &rule.note {
            let limit = LINE_LIMIT - 2;
            let end = if note.len() <= limit {
                note.len()
            } else {
                (0..=limit).rfind(|&at| note.is_char_boundary(at)).unwrap_or(0)
            };
            text.push_str(&format!("# {}\n", &note[..end]));
        }
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},-1,-1\n",
            line.collective,
            line.min_bytes,
            line.max_bytes,
            line.algorithm,
            line.protocol,
            line.channels,
            line.n_nodes,
            line.n_ranks
        ));
        meant.push(line);
    }
    let read = read_csv(&text).map_err(ExportError::Mismatch)?;
    if read != meant {
        return Err(ExportError::Mismatch("lines differ".into()));
    }
    Ok(Exported { text, notes: Vec::new() })
}

/// A word of a list, or what the consumer would make of it.
pub(super) fn known(word: &str, list: &[(&str, &str)], becomes: &str) -> Result<String, String> {
    match list.iter().any(|(_, theirs)| *theirs == word) {
        true => Ok(word.to_owned()),
        false => Err(format!("`{word}` would be read as {becomes}")),
    }
}

/// Reads a tuner CSV strictly.
///
/// # Errors
/// The line number and what the consumer would make of it.
pub fn read_csv(text: &str) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.len() > LINE_LIMIT {
            return Err(format!("line {number}: {} characters; the consumer reads 255", line.len()));
        }
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        lines.push(parse(line).map_err(|reason| format!("line {number}: {reason}"))?);
    }
    Ok(lines)
}

fn parse(line: &str) -> Result<Line, String> {
    let fields: Vec<&str> = line.split(',').collect();
    if !(8..=10).contains(&fields.len()) {
        return Err(format!("{} fields where 8 to 10 are read", fields.len()));
    }
    if fields.iter().any(|field| field.is_empty() || field.trim() != *field) {
        return Err("an empty field would shift the others, a blank would spoil a word".into());
    }
    let bytes = |word: &str| word.parse::<u64>().map_err(|_| format!("`{word}` is no byte count"));
    let number = |word: &str| match word.parse::<i64>() {
        Ok(value) if value >= -1 => Ok(value),
        _ => Err(format!("`{word}` is neither a count nor -1")),
    };
    let channels = number(fields[5])?;
    if channels < 1 {
        return Err("channels of -1 would stay at 1: they must be written".into());
    }
    let protocol = match PROTOCOLS.contains(&fields[4]) {
        true => fields[4].to_owned(),
        false => return Err(format!("`{}` would be read as simple", fields[4])),
    };
    let line = Line {
        collective: known(fields[0], &COLLECTIVES, "allreduce")?,
        min_bytes: bytes(fields[1])?,
        max_bytes: bytes(fields[2])?,
        algorithm: known(fields[3], &ALGORITHMS, "ring")?,
        protocol,
        channels,
        n_nodes: number(fields[6])?,
        n_ranks: number(fields[7])?,
    };
    if line.min_bytes > line.max_bytes {
        return Err(format!("{} is above {}", line.min_bytes, line.max_bytes));
    }
    fields[8..].iter().try_for_each(|field| number(field).map(|_| ()))?;
    Ok(line)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{ALGORITHMS, COLLECTIVES, PROTOCOLS, csv, line_of, read_csv};
    use crate::export::rules::tests::rules;
    use crate::export::{Rule, Scope};

    #[test]
    fn the_csv_says_what_was_meant() {
        let text = csv(&rules()).unwrap().text;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "allreduce,0,5792,tree,simple,1,1,4,-1,-1");
        assert_eq!(lines[2], "allreduce,5793,18446744073709551615,ring,simple,1,1,4,-1,-1");
    }

    #[test]
    fn what_the_consumer_would_misread_is_refused() {
        let good = "allreduce,0,5,tree,simple,1,1,4,-1,-1";
        assert!(read_csv(good).is_ok());
        for (from, to, word) in [
            ("allreduce", "all_reduce", "allreduce"),
            ("tree", "Tree", "ring"),
            ("simple", "fast", "simple"),
            (",1,1,4", ",-1,1,4", "channels"),
            (",tree", ",,tree", "fields"),
            ("0,5", "6,5", "above"),
            ("0,5", "0, 5", "blank"),
            (",4,-1,-1", "", "fields"),
        ] {
            let error = read_csv(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(word), "{to}: {error}");
        }
        assert!(read_csv(&format!("{good}{}", " ".repeat(300))).unwrap_err().contains("255"));
    }

    #[test]
    fn unknown_algorithms_cannot_be_exported() {
        let mut rules = rules();
        rules[0].algorithm = "oneshot".into();
        assert!(csv(&rules).unwrap_err().to_string().contains("oneshot"));
    }

    #[test]
    fn notes_never_run_into_a_second_line() {
        let mut rules = rules();
        rules[0].note = Some("µ".repeat(300));
        let text = csv(&rules).unwrap().text;
        assert!(text.lines().all(|line| line.len() <= 254) && text.lines().count() == 4);
    }

    /// Rules of several worlds and collectives, each world covered once.
    pub(crate) fn many() -> impl Strategy<Value = Vec<Rule>> {
        let bounds = proptest::collection::btree_set(1u64..1 << 45, 0..6);
        let word = |list: &'static [(&str, &str)]| proptest::sample::select(list).prop_map(|(ours, _)| ours);
        let world = (
            1u32..40,
            1u32..4,
            word(&COLLECTIVES),
            bounds,
            proptest::collection::vec((word(&ALGORITHMS), 0..3usize, 1u32..33), 7),
        );
        let world = world.prop_map(|(ranks, hosts, collective, bounds, choices)| {
            let starts: Vec<u64> = std::iter::once(0).chain(bounds).collect();
            let rule = |(at, (algorithm, protocol, n_channels)): (usize, (&str, usize, u32))| {
                let min_bytes = *starts.get(at)?;
                let max_bytes = starts.get(at + 1).map_or(u64::MAX, |next| next - 1);
                let scope = Scope { collective: collective.into(), n_hosts: hosts, n_ranks: ranks * hosts };
                let (algorithm, protocol) = (algorithm.to_owned(), PROTOCOLS[protocol].to_owned());
                Some(Rule { scope, min_bytes, max_bytes, algorithm, protocol, n_channels, note: None })
            };
            choices.into_iter().enumerate().filter_map(rule).collect::<Vec<_>>()
        });
        proptest::collection::vec(world, 1..4).prop_map(|worlds| worlds.concat())
    }

    proptest! {
        #[test]
        fn every_size_finds_the_rule_that_was_meant(rules in many()) {
            let lines = read_csv(&csv(&rules).unwrap().text).unwrap();
            for rule in &rules {
                for bytes in [rule.min_bytes, rule.max_bytes, rule.min_bytes / 2 + rule.max_bytes / 2] {
                    let meant = rules.iter().find(|other| other.scope == rule.scope && (other.min_bytes..=other.max_bytes).contains(&bytes));
                    let meant = line_of(meant.unwrap()).unwrap();
                    let found = lines.iter().find(|line| {
                        (line.min_bytes..=line.max_bytes).contains(&bytes)
                            && (&line.collective, line.n_nodes, line.n_ranks) == (&meant.collective, meant.n_nodes, meant.n_ranks)
                    });
                    prop_assert_eq!(found, Some(&meant));
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9,\\-# \n]{0,120}") {
            let _ = read_csv(&text);
        }
    }
}
