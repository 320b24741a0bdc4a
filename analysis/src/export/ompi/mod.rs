//! Open MPI's tuned component: dynamic rules as counted text (4, and 5 with its version line) or as JSON (6).
//!
//! Its algorithms are its own, so rules come from sweeps over them, which records name `ompi:ring` and so on ([`Tuned`]). The byte count
//! of allgather and alltoall there is the communicator's size times what a rank sends: our whole buffer. Algorithm 0 means the
//! library's built-in table; what was not measured is left to it in so many words.

pub mod json;
pub mod text;

use crate::export::{ExportError, Exported, Rule};
use crate::record::Tuned;

/// Collective: our name, JSON name, number in text files.
pub const COLLECTIVES: [(&str, &str, u32); 6] = [
    ("all_gather", "allgather", 0),
    ("all_reduce", "allreduce", 2),
    ("alltoall", "alltoall", 3),
    ("broadcast", "bcast", 7),
    ("reduce", "reduce", 11),
    ("reduce_scatter", "reducescatterblock", 13),
];

/// Collectives that the library counts; a number from here on is refused.
const COLLECTIVE_COUNT: u32 = 22;

/// What is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// The library's number of the algorithm, 0 for its built-in table.
    pub number: u32,
    /// Segment, bytes, 0 for none.
    pub segment_bytes: u32,
}

/// A rule as the library means it; byte counts are inclusive on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning {
    /// The library's number of the collective.
    pub collective: u32,
    /// Communicator size.
    pub n_ranks: u32,
    /// First byte count.
    pub min_bytes: u64,
    /// Last byte count, `u64::MAX` for no end.
    pub max_bytes: u64,
    /// What is run.
    pub choice: Choice,
}

impl Meaning {
    /// Our name of its collective.
    pub fn collective_name(&self) -> Option<&'static str> {
        COLLECTIVES.iter().find(|(.., number)| *number == self.collective).map(|(ours, ..)| *ours)
    }

    /// Its algorithm, where records have a word for it.
    pub fn algorithm(&self) -> Option<&'static Tuned> {
        Tuned::numbered(self.collective_name()?, self.choice.number)
    }
}

/// Which major release reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Counted text.
    Four,
    /// Counted text behind a version line (5.0.7 and later; earlier ones read the form of 4).
    Five,
    /// JSON, version 3.
    Six,
}

impl Release {
    fn major(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Five => 5,
            Self::Six => 6,
        }
    }
}

/// Whether the library has a number for an algorithm of a record.
pub fn knows(collective: &str, algorithm: &str) -> bool {
    COLLECTIVES.iter().any(|(ours, ..)| *ours == collective) && choice(collective, algorithm).is_some()
}

/// `ompi:ring`, or `alg4` for what has no word here.
fn choice(collective: &str, algorithm: &str) -> Option<Choice> {
    if let Some(known) = Tuned::named(collective, algorithm) {
        return Some(Choice { number: known.number, segment_bytes: known.segment_bytes });
    }
    let number = algorithm.strip_prefix("alg")?.parse().ok().filter(|number| *number > 0)?;
    Some(Choice { number, segment_bytes: 0 })
}

fn meaning(rule: &Rule, release: Release) -> Result<Meaning, ExportError> {
    let no_word =
        |what: String| ExportError::NoWord(format!("Open MPI's rule file has no number for {what}"));
    let name = rule.scope.collective.as_str();
    let collective = COLLECTIVES.iter().find(|(ours, ..)| *ours == name);
    let (_, _, collective) = collective.ok_or_else(|| no_word(format!("the collective {name}")))?;
    let choice = choice(name, &rule.algorithm)
        .ok_or_else(|| no_word(format!("the algorithm {} of {name}", rule.algorithm)))?;
    if !exists(name, choice.number, release.major()) {
        return Err(no_word(format!("{} of {name} before release 5", rule.algorithm)));
    }
    let (n_ranks, min_bytes, max_bytes) = (rule.scope.n_ranks, rule.min_bytes, rule.max_bytes);
    Ok(Meaning { collective: *collective, n_ranks, min_bytes, max_bytes, choice })
}

/// Whether a release has that algorithm, as far as is known here; 0 is always there.
fn exists(collective: &str, number: u32, major: u32) -> bool {
    Tuned::numbered(collective, number).is_none_or(|known| known.since <= major)
}

/// Writes the file for a release and reads it back.
///
/// # Errors
/// When a number is missing there, or the file would not mean the same.
pub fn rules_file(rules: &[Rule], release: Release) -> Result<Exported, ExportError> {
    let (kept, notes) = match release {
        Release::Six => (rules.iter().collect(), Vec::new()),
        _ => one_per_size(rules),
    };
    let meant: Vec<(u32, Meaning)> = kept
        .iter()
        .map(|rule| Ok((rule.scope.n_hosts, meaning(rule, release)?)))
        .collect::<Result<_, ExportError>>()?;
    let (text, read) = match release {
        Release::Six => {
            let text = json::write(&meant);
            let read = json::read(&text);
            (text, read)
        }
        _ => {
            let meant: Vec<Meaning> = meant.iter().map(|(_, meaning)| *meaning).collect();
            let text = text::write(&meant, release);
            let read = text::read(&text).map(|tables| text::meanings(&tables));
            (text, read.map(|read| read.into_iter().map(|meaning| (0, meaning)).collect()))
        }
    };
    let hosts = |n_hosts: u32| if release == Release::Six { n_hosts } else { 0 };
    let mut meant: Vec<(u32, Meaning)> = meant.into_iter().map(|(n, meaning)| (hosts(n), meaning)).collect();
    meant.sort_unstable();
    match read.map(|mut read| {
        read.sort_unstable();
        read
    }) {
        Ok(read) if read == meant => Ok(Exported { text, notes }),
        Ok(read) => Err(ExportError::Mismatch(format!("{read:?} where {meant:?} was meant"))),
        Err(reason) => Err(ExportError::Mismatch(reason)),
    }
}

/// Text rules know the communicator's size only: of worlds of one size the one on the fewest hosts stays.
fn one_per_size(rules: &[Rule]) -> (Vec<&Rule>, Vec<String>) {
    let fewest = |rule: &&Rule| {
        let same = |other: &&Rule| {
            (&other.scope.collective, other.scope.n_ranks) == (&rule.scope.collective, rule.scope.n_ranks)
        };
        rules.iter().filter(same).map(|other| other.scope.n_hosts).min() == Some(rule.scope.n_hosts)
    };
    let (kept, left): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(fewest);
    let mut notes: Vec<String> = left
        .iter()
        .map(|rule| format!("{}: left out, because text rules cannot tell hosts apart", rule.scope))
        .collect();
    notes.dedup();
    (kept, notes)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::text::{lookup, read};
    use super::{Choice, Release, rules_file};
    use crate::export::Rule;
    use crate::export::rules::tests::rules;

    pub(crate) fn theirs() -> Vec<Rule> {
        let mut rules = rules();
        for (rule, name) in rules.iter_mut().zip(["ompi:recursive_doubling", "ompi:segmented_ring"]) {
            (rule.algorithm, rule.protocol, rule.n_channels) = (name.into(), "mpi".into(), 0);
        }
        rules
    }

    #[test]
    fn every_release_reads_back_what_was_meant() {
        let four = rules_file(&theirs(), Release::Four).unwrap().text;
        let expected = "1 # collectives\n2 # allreduce\n3 # communicator sizes\n0 # ranks\n1 # rules\n0 0 0 0\n\
                        4 # ranks\n2 # rules\n0 3 0 0\n5793 5 0 1048576\n5 # ranks\n1 # rules\n0 0 0 0\n";
        assert_eq!(four, expected);
        let five = rules_file(&theirs(), Release::Five).unwrap().text;
        assert!(five.starts_with("rule-file-version-2\n1 # collectives\n"), "{five}");
        assert!(five.contains("5793 5 0 1048576 0\n"), "{five}");
        let six: serde_json::Value =
            serde_json::from_str(&rules_file(&theirs(), Release::Six).unwrap().text).unwrap();
        let world = &six["collectives"]["allreduce"][0];
        assert_eq!((&world["comm_size_min"], &world["comm_size_max"]), (&4.into(), &4.into()));
        assert_eq!(world["comm_rank_distribution"], "single-node");
        assert_eq!(world["rules"][0]["msg_size_max"], 5792);
        assert_eq!(world["rules"][1]["msg_size_max"], "inf");
        assert_eq!(world["rules"][1]["seg_size"], 1 << 20);
    }

    #[test]
    fn algorithms_the_library_lacks_are_named() {
        let error = rules_file(&rules(), Release::Four).unwrap_err().to_string();
        assert!(error.contains("the algorithm tree of all_reduce"), "{error}");
        let mut newer = theirs();
        newer[1].algorithm = "ompi:allgather_reduce".into();
        assert!(rules_file(&newer, Release::Four).unwrap_err().to_string().contains("before release 5"));
        assert!(rules_file(&newer, Release::Five).is_ok());
    }

    #[test]
    fn hosts_are_told_apart_where_the_format_can() {
        let mut all = theirs();
        all.extend(theirs().into_iter().map(|mut rule| {
            rule.scope.n_hosts = 2;
            rule.algorithm = "ompi:ring".into();
            rule
        }));
        all.remove(3);
        all[2].max_bytes = u64::MAX;
        let four = rules_file(&all, Release::Four).unwrap();
        assert_eq!(four.text, rules_file(&theirs(), Release::Four).unwrap().text);
        assert_eq!(four.notes.len(), 1);
        let six = rules_file(&all, Release::Six).unwrap().text;
        assert!(six.contains("\"single-node\"") && six.contains("\"any\""), "{six}");
    }

    /// Worlds with the bounds between their rules.
    fn worlds() -> impl Strategy<Value = Vec<(u32, Vec<(u64, u32)>)>> {
        let steps = proptest::collection::btree_map(1u64..1 << 40, 1u32..7, 0..5);
        let world = (1u32..7, steps, 1u32..7).prop_map(|(ranks, steps, first)| {
            (ranks, std::iter::once((0, first)).chain(steps).collect::<Vec<_>>())
        });
        proptest::collection::vec(world, 1..4).prop_map(|mut worlds| {
            worlds.sort();
            worlds.dedup_by_key(|(ranks, _)| *ranks);
            worlds
        })
    }

    proptest! {
        #[test]
        fn the_library_finds_what_was_meant_and_nothing_elsewhere(worlds in worlds(), five in any::<bool>()) {
            let mut all = Vec::new();
            for (ranks, steps) in &worlds {
                for (at, (bytes, number)) in steps.iter().enumerate() {
                    let mut rule = theirs().remove(0);
                    rule.scope.n_ranks = *ranks;
                    rule.min_bytes = *bytes;
                    rule.max_bytes = steps.get(at + 1).map_or(u64::MAX, |(next, _)| next - 1);
                    rule.algorithm = format!("alg{number}");
                    all.push(rule);
                }
            }
            let release = if five { Release::Five } else { Release::Four };
            let tables = read(&rules_file(&all, release).unwrap().text).unwrap();
            for ranks in 0..9 {
                let steps = worlds.iter().find(|(known, _)| *known == ranks).map(|(_, steps)| steps);
                for bytes in all.iter().flat_map(|rule| [rule.min_bytes, rule.max_bytes, rule.min_bytes + 1]) {
                    let meant = steps.and_then(|steps| steps.iter().rfind(|(from, _)| *from <= bytes));
                    let number = meant.map_or(0, |(_, number)| *number);
                    prop_assert_eq!(lookup(&tables, 2, ranks, bytes), Choice { number, segment_bytes: 0 });
                    prop_assert_eq!(lookup(&tables, 0, ranks, bytes), Choice::default());
                }
            }
        }
    }
}
