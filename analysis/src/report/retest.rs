//! Re-measured groups: both medians side by side, and whether the winner holds with either. Neither replaces the other.

use std::collections::BTreeMap;

use crate::dataset::{Dataset, GroupKey};
use crate::groups::{GroupStats, describe};
use crate::report::document::Cell;
use crate::report::{Context, Section, Table};

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
    for stats in &second {
        let key = &stats.group.key;
        let Some(before) = first.get(key) else { continue };
        let title = context
            .scenes
            .iter()
            .find(|scene| *scene.scenario == *key.scenario)
            .map(|scene| scene.title.clone());
        let [old, new] =
            [before.summary.median, stats.summary.median].map(|median| winner(context, key, median));
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
    let intro = "Groups that were unstable at first, measured once more in launches of their own. All other tables use the first \
                 measurement only.";
    Section {
        id: format!("retest-{}", name.trim_end_matches(".csv")),
        title: format!("Measured again: {name}"),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

/// Fastest algorithm among those that differ in nothing else, when this group's median is `median`.
fn winner(context: &Context<'_>, key: &GroupKey, median: f64) -> String {
    let others = context.stats.iter().filter(|stats| {
        let other = &stats.group.key;
        other.scenario == key.scenario
            && other.bytes == key.bytes
            && other.config.protocol == key.config.protocol
            && other.config.n_channels == key.config.n_channels
            && other.config.algorithm != key.config.algorithm
    });
    let mut all: Vec<(f64, &str)> =
        others.map(|stats| (stats.summary.median, &*stats.group.key.config.algorithm)).collect();
    all.push((median, &key.config.algorithm));
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
    match all.as_slice() {
        [only] => format!("{} alone", only.1),
        [first, second, ..] if second.0 / first.0 - 1.0 < context.options.tie => "tie".into(),
        [first, ..] => first.1.to_owned(),
        [] => String::new(),
    }
}
