//! Rule sets and what they cost, judged on launches they were not chosen from.

use crate::crossover::{Curve, Point};
use crate::format::{percent, size};
use crate::groups::{GroupStats, Scene};
use crate::report::document::Cell;
use crate::report::{Context, Section, Table};
use crate::ruleset::{Quality, Rule, always, score, smallest};

pub(crate) fn section(context: &Context<'_>) -> Section {
    let mut tables = Vec::new();
    for scene in &context.scenes {
        let bound = context.options.max_penalty;
        for (title, curves) in candidates(scene) {
            let headings = [
                "rules",
                "#number",
                "#mean penalty",
                "#largest penalty",
                "odd launches judged by even",
                "even by odd",
                "choices",
            ];
            let mut table = Table::new(title, &headings);
            let halves = [half_curves(scene, &curves, 0), half_curves(scene, &curves, 1)];
            for (name, limit) in [
                ("best at each size".to_owned(), 0.0),
                (format!("smallest under {}", crate::format::share(bound)), bound),
            ] {
                if let Some(set) = smallest(&curves, limit) {
                    let crossed =
                        [crossed(&halves[0], &halves[1], limit), crossed(&halves[1], &halves[0], limit)];
                    table.rows.push(row(name, set.quality, &crossed, (&set.rules, &curves)));
                }
            }
            for (index, curve) in curves.iter().enumerate().take(MAX_SINGLE) {
                let full = curves
                    .iter()
                    .all(|other| other.points.keys().all(|bytes| curve.points.contains_key(bytes)));
                if let Some(set) = always(&curves, index).filter(|_| full) {
                    let judged =
                        halves.each_ref().map(|half| half.as_ref().and_then(|half| score(&set.rules, half)));
                    table.rows.push(row(
                        format!("always {}", curve.name),
                        set.quality,
                        &judged,
                        (&set.rules, &curves),
                    ));
                }
            }
            tables.push(table);
        }
    }
    let intro = "Penalty: time of the rule's choice over the best time at that size, minus one. A rule set chosen on some launches \
                 looks better on them than it is; the two crossed columns choose on one half of the launches and judge on the other \
                 (mean / largest penalty).";
    Section {
        id: "rules".into(),
        title: "Rule sets and their penalty".into(),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

/// Single choices listed at most.
const MAX_SINGLE: usize = 6;

/// Algorithms within each lane, and all configurations together when there are more.
fn candidates(scene: &Scene<'_>) -> Vec<(String, Vec<Curve>)> {
    let lanes = scene.lanes();
    let mut all: Vec<(String, Vec<Curve>)> = Vec::new();
    for lane in &lanes {
        let title = format!("{}: {}, {} channels", scene.title, lane.protocol, lane.n_channels);
        let named = |curve: &Curve| Curve {
            name: format!("{}/{}/{}", curve.name, lane.protocol, lane.n_channels),
            points: curve.points.clone(),
        };
        all.push((title, lane.curves.iter().map(named).collect()));
    }
    let every: Vec<Curve> =
        scene.curves(|config| config.label()).into_iter().map(|(_, curve)| curve).collect();
    if every.len() > 2 {
        all.push((format!("{}: all configurations", scene.title), every));
    }
    for (_, curves) in &mut all {
        keep_common_sizes(curves);
    }
    all.retain(|(_, curves)| curves.iter().any(|curve| !curve.points.is_empty()));
    all
}

/// Sizes with a single candidate offer no choice and would flatter every rule.
fn keep_common_sizes(curves: &mut [Curve]) {
    let mut seen = std::collections::BTreeMap::<u64, usize>::new();
    for bytes in curves.iter().flat_map(|curve| curve.points.keys()) {
        *seen.entry(*bytes).or_default() += 1;
    }
    for curve in curves {
        curve.points.retain(|bytes, _| seen[bytes] >= 2);
    }
}

/// The same candidates with the medians of every second launch; nothing where a group has one launch only.
fn half_curves(scene: &Scene<'_>, curves: &[Curve], half: usize) -> Option<Vec<Curve>> {
    let of = |name: &str, bytes: u64| -> Option<&GroupStats<'_>> {
        scene
            .stats
            .iter()
            .find(|stats| stats.group.key.bytes == bytes && stats.group.key.config.label() == name)
    };
    let mut halved = Vec::new();
    for curve in curves {
        let mut points = std::collections::BTreeMap::new();
        for (&bytes, point) in &curve.points {
            let time_us = of(&curve.name, bytes)?.halves?[half];
            points.insert(bytes, Point { time_us, ..*point });
        }
        halved.push(Curve { name: curve.name.clone(), points });
    }
    Some(halved)
}

fn crossed(chosen_on: &Option<Vec<Curve>>, judged_on: &Option<Vec<Curve>>, bound: f64) -> Option<Quality> {
    let set = smallest(chosen_on.as_ref()?, bound)?;
    score(&set.rules, judged_on.as_ref()?)
}

fn row(
    name: String,
    quality: Quality,
    crossed: &[Option<Quality>; 2],
    (rules, curves): (&[Rule], &[Curve]),
) -> Vec<Cell> {
    let judged = |quality: &Option<Quality>| match quality {
        Some(quality) => {
            Cell::number(format!("{} / {}", percent(quality.mean), percent(quality.max)), quality.mean)
        }
        None => Cell::text("-"),
    };
    vec![
        Cell::text(name),
        Cell::count(rules.len()),
        Cell::percent(quality.mean),
        Cell::percent(quality.max),
        judged(&crossed[0]),
        judged(&crossed[1]),
        Cell::text(words(rules, curves)),
    ]
}

/// `tree/ll/1 up to 16 KiB, ring/simple/4 up to 1 GiB`.
fn words(rules: &[Rule], curves: &[Curve]) -> String {
    let part = |rule: &Rule| format!("{} up to {}", curves[rule.choice].name, size(rule.to_bytes));
    let mut parts: Vec<String> = rules.iter().take(8).map(part).collect();
    if rules.len() > 8 {
        parts.push(format!("… {} more", rules.len() - 8));
    }
    parts.join(", ")
}
