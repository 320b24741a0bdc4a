//! Measured against predicted: where a cost model changes its winner, and where the rows do.

use crate::crossover::{Curve, Interval, intervals, verdicts};
use crate::dataset::{Config, Dataset, Scenario};
use crate::format::{about_size, count, figures};
use crate::groups::{Lane, describe, scenes};
use crate::report::document::Cell;
use crate::report::findings::meeting;
use crate::report::{Context, Evidence, Finding, Options, Section, Table};

/// A cost model that can be asked for the time of a call, µs; nothing where it says nothing.
pub struct Predictor<'a> {
    /// What the report calls it.
    pub name: String,
    /// Asked with what is done, how, and the bytes.
    pub time_us: &'a dyn Fn(&Scenario, &Config, u64) -> Option<f64>,
}

impl std::fmt::Debug for Predictor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predictor").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Looks between two sizes of the model for a change of its winner: so many steps per doubling.
const STEPS: u32 = 8;

/// Where the winner changes: the winner before, the one after, the size.
type Change = (usize, usize, f64);

/// Two algorithms of a lane, measured and predicted.
struct Comparison {
    measured: Vec<Change>,
    predicted: Option<Vec<Change>>,
    /// Sizes at which the measurement has a winner and the model says who, and those where both name the same.
    decided: usize,
    agreed: usize,
    n: usize,
}

/// The section and the sentences of a comparison with a model.
pub fn compare(data: &Dataset, options: &Options, predictor: &Predictor<'_>) -> (Section, Vec<Finding>) {
    let stats = describe(data, options.tie);
    let context = Context { data, options, stats: &stats, scenes: scenes(&stats) };
    let headings = [
        "scenario",
        "protocol",
        "#channels",
        "algorithms",
        "measured crossover",
        "predicted crossover",
        "#predicted / measured",
        "same winner",
    ];
    let mut table = Table::new("", &headings);
    let mut findings = Vec::new();
    let (mut decided, mut agreed, mut silent) = (0, 0, 0);
    for scene in &context.scenes {
        for lane in scene.lanes() {
            for pair in pairs(&lane) {
                let found = look(scene.scenario, &pair, options.tie, predictor);
                decided += found.decided;
                agreed += found.agreed;
                silent += usize::from(found.predicted.is_none());
                findings.extend(sentence(&context, (&scene.title, &pair), &found, predictor));
                table.rows.push(row(&scene.title, &pair, &found));
            }
        }
    }
    let text = match decided {
        0 => format!(
            "The model of {} says nothing about any pair of algorithms measured here.",
            predictor.name
        ),
        _ => format!(
            "The model of {} names the measured winner at {agreed} of {} (algorithms under one protocol and channel count; ties left \
             out{}).",
            predictor.name,
            count(decided, "size"),
            if silent > 0 {
                format!("; it says nothing about {}", count(silent, "pair"))
            } else {
                String::new()
            }
        ),
    };
    let basis = format!("n = {}", count(data.n_samples(), "sample"));
    let record = context.record();
    findings.insert(0, Finding { text, evidence: Evidence::Computed, basis, record, is_detail: false });
    let intro = "Crossover: the size at which the two take equal time, between measured sizes on a straight line with both axes \
                 logarithmic. The model knows no placement.";
    let section = Section {
        id: "model".into(),
        title: format!("Measured against the model of {}", predictor.name),
        intro: intro.into(),
        tables: if table.rows.is_empty() { Vec::new() } else { vec![table] },
        ..Section::default()
    };
    (section, findings)
}

/// Every two algorithms of a lane.
fn pairs<'a>(lane: &Lane<'a>) -> Vec<Lane<'a>> {
    let mut all = Vec::new();
    for (index, first) in lane.curves.iter().enumerate() {
        for second in &lane.curves[index + 1..] {
            all.push(Lane { curves: vec![first.clone(), second.clone()], ..lane.clone() });
        }
    }
    all
}

fn look(scenario: &Scenario, pair: &Lane<'_>, tie: f64, predictor: &Predictor<'_>) -> Comparison {
    let config = |curve: &Curve| Config {
        algorithm: curve.name.as_str().into(),
        protocol: pair.protocol.into(),
        n_channels: pair.n_channels,
    };
    let configs = [config(&pair.curves[0]), config(&pair.curves[1])];
    // Above 0: the first is faster.
    let lead = |bytes: u64| -> Option<f64> {
        let time = |config| (predictor.time_us)(scenario, config, bytes);
        let (first, second) = (time(&configs[0])?, time(&configs[1])?);
        (first > 0.0 && second > 0.0).then(|| (second / first).ln())
    };
    let judged = verdicts(&pair.curves, tie);
    let (mut decided, mut agreed) = (0, 0);
    for (bytes, verdict) in &judged {
        let (Some(winner), Some(lead)) = (verdict.as_ref().and_then(|v| v.winner()), lead(*bytes)) else {
            continue;
        };
        decided += 1;
        agreed += usize::from((lead < 0.0) == (winner == 1));
    }
    let common: Vec<u64> = judged
        .iter()
        .filter(|(bytes, verdict)| verdict.is_some() && *bytes > 0)
        .map(|(bytes, _)| *bytes)
        .collect();
    let range = common.first().copied().zip(common.last().copied());
    let n = pair.curves.iter().flat_map(|curve| curve.points.values()).map(|point| point.n).sum();
    Comparison {
        measured: measured(pair, &intervals(&judged)),
        predicted: range.and_then(|range| predicted(range, &lead)),
        decided,
        agreed,
        n,
    }
}

fn measured(pair: &Lane<'_>, merged: &[Interval]) -> Vec<Change> {
    let wins: Vec<&Interval> = merged.iter().filter(|interval| interval.winner.is_some()).collect();
    let changed = wins.windows(2).filter(|two| two[0].winner != two[1].winner);
    changed
        .filter_map(|two| {
            Some((two[0].winner?, two[1].winner?, meeting(pair, two[0].to_bytes(), two[1].from_bytes())?))
        })
        .collect()
}

/// Changes of sign of the lead; nothing when the model is silent at an end.
fn predicted((from, to): (u64, u64), lead: &dyn Fn(u64) -> Option<f64>) -> Option<Vec<Change>> {
    let steps = ((to as f64 / from as f64).log2() * f64::from(STEPS)).ceil() as u32;
    let at = |step: u32| match step {
        0 => from,
        step if step >= steps => to,
        step => (from as f64 * 2f64.powf(f64::from(step) / f64::from(STEPS))) as u64,
    };
    let winner = |bytes: u64| lead(bytes).map(|lead| usize::from(lead < 0.0));
    let (mut before, mut found) = ((from, winner(from)?), Vec::new());
    for step in 1..=steps {
        let bytes = at(step);
        let Some(now) = winner(bytes) else { continue };
        if now != before.1 {
            let (mut low, mut high) = (before.0, bytes);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if winner(middle) == Some(now) { high = middle } else { low = middle }
            }
            found.push((before.1, now, high as f64));
        }
        before = (bytes, now);
    }
    Some(found)
}

/// `tree to ring at 46.3 KiB`, or who is ahead throughout.
fn words(pair: &Lane<'_>, changes: &[Change]) -> String {
    let name = |index: usize| &pair.curves[index].name;
    let parts: Vec<String> = changes
        .iter()
        .map(|(before, after, at)| format!("{} to {} at {}", name(*before), name(*after), about_size(*at)))
        .collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// Predicted over measured size, where both have one crossover of one direction.
fn factor(found: &Comparison) -> Option<f64> {
    match (found.measured.as_slice(), found.predicted.as_deref()?) {
        ([(a, b, measured)], [(c, d, predicted)]) if (a, b) == (c, d) => Some(predicted / measured),
        _ => None,
    }
}

fn row(title: &str, pair: &Lane<'_>, found: &Comparison) -> Vec<Cell> {
    let factor = factor(found);
    vec![
        Cell::text(title),
        Cell::text(pair.protocol),
        Cell::count(pair.n_channels as usize),
        Cell::text(format!("{}, {}", pair.curves[0].name, pair.curves[1].name)),
        Cell::text(words(pair, &found.measured)),
        Cell::text(found.predicted.as_ref().map_or("no prediction".into(), |changes| words(pair, changes))),
        factor.map_or(Cell::text("-"), |factor| Cell::number(figures(factor, 3), factor)),
        Cell::text(format!("{} of {} sizes", found.agreed, found.decided)),
    ]
}

fn sentence(
    context: &Context<'_>,
    (title, pair): (&str, &Lane<'_>),
    found: &Comparison,
    predictor: &Predictor<'_>,
) -> Option<Finding> {
    let predicted = found.predicted.as_ref()?;
    let ratio = factor(found)
        .map_or(String::new(), |factor| format!(", {} times the measured size", figures(factor, 3)));
    let text = format!(
        "{title}, {}, {}: the model of {} changes its winner {}{ratio}; measured: {}; same winner at {} of {} decided sizes.",
        pair.protocol,
        count(pair.n_channels as usize, "channel"),
        predictor.name,
        if predicted.is_empty() { "nowhere".into() } else { format!("from {}", words(pair, predicted)) },
        words(pair, &found.measured),
        found.agreed,
        found.decided,
    );
    let basis = format!("n = {}", count(found.n, "sample"));
    Some(Finding { text, evidence: Evidence::Computed, basis, record: context.record(), is_detail: true })
}

#[cfg(test)]
mod tests {
    use super::{Predictor, compare};
    use crate::dataset::tests::{dataset, row};
    use crate::report::{Evidence, Options};

    #[test]
    fn a_model_is_held_against_the_measured_crossover() {
        let mut rows = Vec::new();
        for bytes in (2..20).map(|power| 1u64 << power) {
            // Equal at 1000 bytes.
            rows.push(row("a", "ring", bytes, 10.0 + bytes as f64 * 0.01));
            rows.push(row("a", "tree", bytes, 5.0 + bytes as f64 * 0.015));
        }
        let data = dataset(&rows);
        // Equal at 2000 bytes.
        let time_us = |_: &_, config: &crate::dataset::Config, bytes: u64| match &*config.algorithm {
            "ring" => Some(10.0 + bytes as f64 * 0.01),
            _ => Some(5.0 + bytes as f64 * 0.0125),
        };
        let predictor = Predictor { name: "box.xml".into(), time_us: &time_us };
        let (section, findings) = compare(&data, &Options::default(), &predictor);
        let cells: Vec<&str> = section.tables[0].rows[0].iter().map(|cell| cell.text.as_str()).collect();
        assert!(
            cells[4].starts_with("tree to ring at 1001 B") && cells[5] == "tree to ring at 1.95 KiB",
            "{cells:?}"
        );
        let ratio: f64 = cells[6].parse().unwrap();
        assert!((1.9..2.1).contains(&ratio), "{cells:?}");
        assert_eq!((findings.len(), findings[0].evidence), (2, Evidence::Computed));
        let silent = Predictor { name: "box.xml".into(), time_us: &|_, _, _| None };
        let (section, findings) = compare(&data, &Options::default(), &silent);
        assert_eq!(section.tables[0].rows[0][5].text, "no prediction");
        assert!(findings[0].text.contains("says nothing about any pair"), "{}", findings[0].text);
    }
}
