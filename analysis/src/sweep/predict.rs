//! Predictions written down before the measurement, answered by the report: held, failed, or not answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::crossover::{Interval, intervals, verdicts};
use crate::dataset::Dataset;
use crate::format::{count, parse_size, size};
use crate::graph_log::{Communicator, describe};
use crate::groups::{Scene, describe as statistics, scenes};
use crate::record::Placement;
use crate::report::{Evidence, Finding};

/// One `[[prediction]]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// The sentence.
    pub text: String,
    /// What it means for the data.
    #[serde(flatten)]
    pub claim: Claim,
}

/// What can be predicted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Claim {
    /// Every row was checked and is right.
    Correct,
    /// The number of rows.
    Rows {
        /// How many.
        rows: usize,
    },
    /// An algorithm is ahead by the tie bound or more at every measured size of a range.
    Winner {
        /// World.
        n_ranks: u32,
        /// First size.
        from: String,
        /// Last size.
        to: String,
        /// Algorithm.
        winner: String,
    },
    /// No size range of a change of winner is common to all worlds.
    NoCommonCrossover,
    /// Trees of the graph logs: valid, with that many (rank, channel) records, and chains.
    Chains {
        /// Records of all worlds together.
        records: usize,
    },
    /// Double trees of even N share no internal node and of odd N do, up to N.
    SharedInternalNodes {
        /// Largest N.
        up_to: usize,
    },
}

/// What answers come from beside the rows.
pub struct Knowledge<'a> {
    /// Graph logs: world and communicators.
    pub graphs: &'a [(u32, Vec<Communicator>)],
    /// Internal nodes that both trees of N hosts share.
    pub shared_inner: &'a dyn Fn(usize) -> usize,
    /// Tie bound.
    pub tie: f64,
    /// Where sizes were cut.
    pub cut: Option<Cut>,
    /// Name of the record.
    pub record: String,
}

/// Sizes that a matrix names and a sweep left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Last size that was run, as it was typed.
    pub at: String,
    /// Sizes that were run.
    pub run: usize,
    /// Sizes of the matrix.
    pub all: usize,
}

impl std::fmt::Debug for Knowledge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knowledge")
            .field("worlds", &self.graphs.len())
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

/// Whether a claim held (nothing for what was not measured), why, how that is known, and the number it rests on.
type Answer = (Option<bool>, String, Evidence, String);

/// Answers every prediction.
pub fn answer(predictions: &[Prediction], data: &Dataset, known: &Knowledge<'_>) -> Vec<Finding> {
    let stats = statistics(data, known.tie);
    let scenes = scenes(&stats);
    let findings = predictions.iter().map(|prediction| {
        let (held, why, evidence, basis) = match &prediction.claim {
            Claim::Correct => correct(data),
            Claim::Rows { rows } => counted(data, *rows, known.cut.as_ref()),
            Claim::Winner { n_ranks, from, to, winner } => {
                wins(&scenes, *n_ranks, (from, to), (winner, known.tie))
            }
            Claim::NoCommonCrossover => no_common(&scenes, known.tie),
            Claim::Chains { records } => chains(known.graphs, *records),
            Claim::SharedInternalNodes { up_to } => shared(*up_to, known.shared_inner),
        };
        let word = match held {
            Some(true) => "held",
            Some(false) => "FAILED",
            None => "not answered",
        };
        let text = format!("Predicted: {} — {word}: {why}.", prediction.text.trim_end_matches('.'));
        Finding { text, evidence, basis, record: known.record.clone(), is_detail: false }
    });
    findings.collect()
}

fn correct(data: &Dataset) -> Answer {
    let (checked, unchecked, wrong) = (data.checked_rows, data.unchecked_rows, data.wrong_rows);
    let why = format!("{checked} rows checked and right, {unchecked} unchecked, {wrong} wrong");
    (Some(wrong == 0 && unchecked == 0 && checked > 0), why, Evidence::Measured, basis_of(data))
}

fn basis_of(data: &Dataset) -> String {
    format!("n = {}, {}", count(data.n_samples(), "row"), count(data.launches.len(), "launch"))
}

fn counted(data: &Dataset, rows: usize, cut: Option<&Cut>) -> Answer {
    let n = data.n_samples();
    let (expected, why) = match cut {
        Some(cut) if cut.run < cut.all => (
            rows * cut.run / cut.all,
            format!(
                " at the {} of {} up to {}, where this sweep was cut",
                cut.run,
                count(cut.all, "size"),
                cut.at
            ),
        ),
        _ => (rows, String::new()),
    };
    let text = format!("{n} rows of complete launches where {expected} were expected{why}");
    (Some(n == expected), text, Evidence::Measured, basis_of(data))
}

fn wins(scenes: &[Scene<'_>], n_ranks: u32, (from, to): (&str, &str), (winner, tie): (&str, f64)) -> Answer {
    let not_measured = |why: &str| (None, why.to_owned(), Evidence::NotMeasured, String::new());
    let (Ok(from), Ok(to)) = (parse_size(from), parse_size(to)) else {
        return not_measured("its sizes cannot be read");
    };
    let (mut ahead, mut total, mut n, mut last) = (0, 0, 0, 0);
    for scene in scenes.iter().filter(|scene| scene.scenario.n_ranks == n_ranks) {
        let curves = scene.by_algorithm();
        for (_, verdict) in
            verdicts(&curves, tie).into_iter().filter(|(bytes, _)| (from..=to).contains(bytes))
        {
            let Some(verdict) = verdict else { continue };
            total += 1;
            n += curves
                .iter()
                .filter_map(|curve| curve.points.get(&verdict.bytes))
                .map(|point| point.n)
                .sum::<usize>();
            last = last.max(verdict.bytes);
            ahead += usize::from(verdict.winner().is_some_and(|index| curves[index].name == winner));
        }
    }
    if total == 0 {
        return not_measured(&format!(
            "{n_ranks} ranks from {} to {} were not measured",
            size(from),
            size(to)
        ));
    }
    let gap =
        if last < to { format!("; sizes above {} were not measured", size(last)) } else { String::new() };
    let why = format!(
        "{winner} is ahead by {} or more at {ahead} of {total} points (sizes and placements){gap}",
        crate::format::share(tie)
    );
    (Some(ahead == total), why, Evidence::Measured, format!("n = {}", count(n, "sample")))
}

/// Size ranges in which the winner changes: from the last win of one to the first of the other.
fn changes(scene: &Scene<'_>, tie: f64) -> Vec<(u64, u64)> {
    let merged = intervals(&verdicts(&scene.by_algorithm(), tie));
    let wins: Vec<&Interval> = merged.iter().filter(|interval| interval.winner.is_some()).collect();
    let changed = wins.windows(2).filter(|pair| pair[0].winner != pair[1].winner);
    changed.map(|pair| (pair[0].to_bytes(), pair[1].from_bytes())).collect()
}

fn no_common(scenes: &[Scene<'_>], tie: f64) -> Answer {
    let mut worlds: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    let mut n = 0;
    for scene in scenes.iter().filter(|scene| scene.scenario.placement == Placement::OutOfPlace) {
        worlds.entry(scene.scenario.n_ranks).or_default().extend(changes(scene, tie));
        n += scene.stats.iter().map(|stats| stats.summary.n).sum::<usize>();
    }
    if worlds.len() < 2 {
        return (None, "fewer than two worlds were measured".into(), Evidence::NotMeasured, String::new());
    }
    let inside =
        |at: u64, ranges: &[(u64, u64)]| ranges.iter().any(|(low, high)| (*low..*high).contains(&at));
    let starts = worlds.values().flatten().map(|range| range.0);
    let common = starts.into_iter().find(|at| worlds.values().all(|ranges| inside(*at, ranges)));
    let list: Vec<String> = worlds
        .iter()
        .map(|(n_ranks, ranges)| match ranges.as_slice() {
            [] => format!("{n_ranks} ranks: no change of winner"),
            ranges => {
                let parts: Vec<String> =
                    ranges.iter().map(|(low, high)| format!("{} to {}", size(*low), size(*high))).collect();
                format!("{n_ranks} ranks: {}", parts.join(", "))
            }
        })
        .collect();
    (
        Some(common.is_none()),
        format!("the winner changes, out of place, {}", list.join("; ")),
        Evidence::Measured,
        format!("n = {}", count(n, "sample")),
    )
}

fn chains(graphs: &[(u32, Vec<Communicator>)], records: usize) -> Answer {
    if graphs.is_empty() {
        return (None, "no graph log was taken".into(), Evidence::NotMeasured, String::new());
    }
    let (mut found, mut broken, mut other) = (0, 0, Vec::new());
    for (n_ranks, communicators) in graphs {
        for communicator in communicators {
            found += communicator.tree_records();
            broken += communicator.problems().len();
            for shape in describe(communicator).iter().filter(|shape| shape.kind == "tree") {
                let chain = shape.fan_out <= 1 && shape.depth + 1 == *n_ranks as usize;
                if !chain {
                    other.push(format!(
                        "{n_ranks} ranks: {} (depth {}, fan-out {})",
                        shape.text(),
                        shape.depth,
                        shape.fan_out
                    ));
                }
            }
        }
    }
    let shapes = if other.is_empty() { "all are chains".to_owned() } else { other.join("; ") };
    let why =
        format!("{found} adjacency records where {records} were expected, {broken} broken edges, {shapes}");
    let basis = format!("n = {}", count(found, "record"));
    (Some(found == records && broken == 0 && other.is_empty()), why, Evidence::Measured, basis)
}

fn shared(up_to: usize, shared_inner: &dyn Fn(usize) -> usize) -> Answer {
    let wrong: Vec<String> = (1..=up_to)
        .filter(|&n| match n {
            1 => false,
            n => (shared_inner(n) == 0) != (n % 2 == 0),
        })
        .map(|n| format!("{n} shares {}", shared_inner(n)))
        .collect();
    let why = if wrong.is_empty() {
        format!("so it is for every N from 2 to {up_to}")
    } else {
        format!("but {}", wrong.join(", "))
    };
    (Some(wrong.is_empty()), why, Evidence::Computed, format!("N = 2 to {up_to}"))
}

#[cfg(test)]
mod tests {
    use super::{Cut, Knowledge, Prediction, answer, counted};
    use crate::dataset::tests::{dataset, row};
    use crate::graph_log::tests::{CHAIN, read};
    use crate::record::Row;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (n_ranks, change) in [(2, 1000), (4, 100_000)] {
            for bytes in (2..24).map(|power| 1u64 << power) {
                for algorithm in ["ring", "tree"] {
                    let fast = (algorithm == "tree") == (bytes < change);
                    let mut row = row("a", algorithm, bytes, if fast { 1.0 } else { 2.0 });
                    row.n_ranks = n_ranks;
                    rows.push(row);
                }
            }
        }
        rows
    }

    fn answers(toml_text: &str) -> Vec<String> {
        #[derive(serde::Deserialize)]
        struct File {
            prediction: Vec<Prediction>,
        }
        let file: File = toml::from_str(toml_text).unwrap();
        let graphs = [(4, read(CHAIN))];
        let known =
            Knowledge { graphs: &graphs, shared_inner: &|n| n % 2, tie: 0.05, cut: None, record: "r".into() };
        answer(&file.prediction, &dataset(&rows()), &known).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn a_cut_sweep_is_held_to_the_sizes_it_ran() {
        let cut = Cut { at: "16K".into(), run: 11, all: 22 };
        let (held, why, ..) = counted(&dataset(&rows()), 176, Some(&cut));
        assert_eq!(held, Some(true), "{why}");
        assert!(why.contains("88 were expected at the 11 of 22 sizes up to 16K"), "{why}");
    }

    #[test]
    fn predictions_hold_fail_or_stay_open() {
        let text = "[[prediction]]\ntext = \"a\"\nkind = \"correct\"\n\
                    [[prediction]]\ntext = \"b\"\nkind = \"rows\"\nrows = 5\n\
                    [[prediction]]\ntext = \"c\"\nkind = \"winner\"\nn_ranks = 4\nfrom = \"1M\"\nto = \"8M\"\nwinner = \"ring\"\n\
                    [[prediction]]\ntext = \"d\"\nkind = \"winner\"\nn_ranks = 9\nfrom = \"1M\"\nto = \"8M\"\nwinner = \"ring\"\n\
                    [[prediction]]\ntext = \"e\"\nkind = \"no_common_crossover\"\n\
                    [[prediction]]\ntext = \"f\"\nkind = \"chains\"\nrecords = 4\n\
                    [[prediction]]\ntext = \"g\"\nkind = \"shared_internal_nodes\"\nup_to = 16\n";
        let all = answers(text);
        let words: Vec<bool> = all.iter().map(|text| text.contains("— held:")).collect();
        assert_eq!(words, [true, false, true, false, true, true, true], "{all:#?}");
        assert!(all[1].contains("FAILED: 88 rows"), "{}", all[1]);
        assert!(all[3].contains("not answered: 9 ranks"), "{}", all[3]);
        assert!(all[4].contains("2 ranks: 512 B to 1 KiB; 4 ranks: 64 KiB to 128 KiB"), "{}", all[4]);
    }
}
