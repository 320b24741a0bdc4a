//! Re-measured groups: both medians side by side, and whether the winner holds with either. Neither replaces the other.

use std::collections::BTreeMap;

use crate::dataset::{Dataset, GroupKey};
use crate::format::{count, percent};
use crate::groups::{GroupStats, UNSTABLE_CV, describe};
use crate::report::document::Cell;
use crate::report::{Context, Evidence, Finding, Section, Table};

pub(crate) fn section(context: &Context<'_>, name: &str, again: &Dataset) -> Section {
    let second = describe(again, context.options.tie);
    let first: BTreeMap<&GroupKey, &GroupStats<'_>> =
        context.stats.iter().map(|stats| (&stats.group.key, stats)).collect();
    let headings = [
        "scenario",
        "configuration",
        "#size",
        "#first median (µs)",
        "#first CV",
        "#again (µs)",
        "#CV again",
        "#shift",
        "winner with the first",
        "winner with the second",
        "holds",
    ];
    let mut table = Table::new("", &headings);
    let medians: BTreeMap<&GroupKey, f64> =
        second.iter().map(|stats| (&stats.group.key, stats.summary.median)).collect();
    for stats in &second {
        let key = &stats.group.key;
        // The benchmark may have measured a neighbour along the way; only what was unstable is looked at again.
        let Some(before) = first.get(key).filter(|before| before.is_unstable()) else { continue };
        let title = context
            .scenes
            .iter()
            .find(|scene| *scene.scenario == *key.scenario)
            .map(|scene| scene.title.clone());
        let old = winner(context, key, before.summary.median, &BTreeMap::new());
        let new = winner(context, key, stats.summary.median, &medians);
        let holds = if old == new { "yes" } else { "NO" };
        table.rows.push(vec![
            Cell::text(title.unwrap_or_default()),
            Cell::text(key.config.label()),
            Cell::size(key.bytes),
            Cell::micros(before.summary.median),
            Cell::percent(before.summary.cv),
            Cell::micros(stats.summary.median),
            Cell::percent(stats.summary.cv),
            Cell::percent(stats.summary.median / before.summary.median - 1.0),
            Cell::text(old),
            Cell::text(new),
            Cell::text(holds),
        ]);
    }
    let tables = if table.rows.is_empty() { Vec::new() } else { vec![table] };
    let intro = "Groups that were unstable at first, measured once more in launches of their own. The winner is the fastest algorithm \
                 of the same protocol and channel count, once with the first medians alone, once with the second ones wherever there \
                 are any. All other tables use the first measurement only.";
    Section {
        id: format!("retest-{}", name.trim_end_matches(".csv")),
        title: format!("Measured again: {name}"),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

/// What a re-measurement says, in one sentence.
pub(crate) fn finding(
    context: &Context<'_>,
    section: &Section,
    (name, again): (&str, &Dataset),
) -> Option<Finding> {
    let rows = &section.tables.first()?.rows;
    let shifts: Vec<f64> = rows.iter().filter_map(|row| row[7].value).collect();
    let largest = shifts.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
    let changed = rows.iter().filter(|row| row[10].text != "yes").count();
    let still = rows.iter().filter(|row| row[6].value.is_some_and(|cv| cv > UNSTABLE_CV)).count();
    let text = format!(
        "Measured again ({name}): the medians of {} moved by {} (median), at most by {}; the winner changes at {changed} of them; {still} \
         are still unstable. Every other sentence and table rests on the first measurement.",
        count(rows.len(), "unstable group"),
        percent(crate::stats::median_of(shifts)),
        percent(largest),
    );
    let basis =
        format!("n = {}, {}", count(again.n_samples(), "sample"), count(again.launches.len(), "launch"));
    let folder = context.record();
    let record =
        folder.rsplit_once('/').map_or_else(|| name.to_owned(), |(folder, _)| format!("{folder}/{name}"));
    Some(Finding { text, evidence: Evidence::Measured, basis, record, is_detail: false })
}

/// Fastest algorithm among those that differ in nothing else, when this group's median is `median`.
/// `again` holds medians that replace the first ones of the others.
fn winner(context: &Context<'_>, key: &GroupKey, median: f64, again: &BTreeMap<&GroupKey, f64>) -> String {
    let others = context.stats.iter().filter(|stats| {
        let other = &stats.group.key;
        other.scenario == key.scenario
            && other.bytes == key.bytes
            && other.config.protocol == key.config.protocol
            && other.config.n_channels == key.config.n_channels
            && other.config.algorithm != key.config.algorithm
    });
    let mut all: Vec<(f64, &str)> = others
        .map(|stats| {
            let key = &stats.group.key;
            (again.get(key).copied().unwrap_or(stats.summary.median), &*key.config.algorithm)
        })
        .collect();
    all.push((median, &key.config.algorithm));
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
    match all.as_slice() {
        [only] => format!("{} alone", only.1),
        [first, second, ..] if second.0 / first.0 - 1.0 < context.options.tie => "tie".into(),
        [first, ..] => first.1.to_owned(),
        [] => String::new(),
    }
}
