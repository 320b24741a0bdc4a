//! Crossover tables: two or more algorithms under one protocol and channel count, and selected points of them.

use crate::crossover::{Interval, Verdict, intervals, selected as chosen, verdicts};
use crate::format::count;
use crate::groups::{Lane, Scene};
use crate::report::document::Cell;
use crate::report::{Context, Section, Table};

/// Intervals per lane.
pub(crate) fn lanes(context: &Context<'_>) -> Section {
    let mut tables = Vec::new();
    for scene in &context.scenes {
        let headings = [
            "protocol",
            "#channels",
            "winner",
            "#from",
            "#to",
            "#sizes",
            "#median margin",
            "#largest margin",
            "certain",
        ];
        let mut table = Table::new(scene.title.clone(), &headings);
        for lane in scene.lanes() {
            let merged = intervals(&verdicts(&lane.curves, context.options.tie));
            table.rows.extend(merged.iter().map(|interval| row(&lane, interval)));
        }
        if !table.rows.is_empty() {
            tables.push(table);
        }
    }
    let intro = format!(
        "Algorithms that differ in nothing else, compared size by size; neighbouring sizes with one winner are one line. Below {} \
         nobody wins. \"Certain\" is no where the intervals of the medians leave the other verdict open, and - where there are none.",
        crate::format::share(context.options.tie)
    );
    Section {
        id: "crossover".into(),
        title: "Crossover between algorithms".into(),
        intro,
        tables,
        ..Section::default()
    }
}

fn row(lane: &Lane<'_>, interval: &Interval) -> Vec<Cell> {
    vec![
        Cell::text(lane.protocol),
        Cell::count(lane.n_channels as usize),
        Cell::text(winner_name(lane, interval)),
        Cell::size(interval.from_bytes()),
        Cell::size(interval.to_bytes()),
        Cell::count(interval.verdicts.len()),
        Cell::percent(interval.median_margin()),
        Cell::percent(interval.max_margin()),
        Cell::text(match interval.spans_tie() {
            Some(true) => "no",
            Some(false) => "yes",
            None => "-",
        }),
    ]
}

/// The winner's name, or `tie`.
pub(crate) fn winner_name(lane: &Lane<'_>, interval: &Interval) -> String {
    interval.winner.map_or_else(|| "tie".to_owned(), |index| lane.curves[index].name.clone())
}

/// Verdicts of a lane at the sizes a reader asked for, or at those worth a line.
pub(crate) fn selection(context: &Context<'_>, lane: &Lane<'_>) -> Vec<Verdict> {
    let all = verdicts(&lane.curves, context.options.tie);
    let points = &context.options.points;
    if points.is_empty() {
        return chosen(&all);
    }
    all.into_iter().filter(|(bytes, _)| points.contains(bytes)).filter_map(|(_, verdict)| verdict).collect()
}

/// Selected points per lane.
pub(crate) fn selected(context: &Context<'_>) -> Section {
    let mut tables = Vec::new();
    for scene in &context.scenes {
        let lanes = scene.lanes();
        let Some(table) = selected_table(context, scene, &lanes) else { continue };
        tables.push(table);
    }
    let intro = if context.options.points.is_empty() {
        "First and last size, the largest margin, and both sides of each change of winner."
    } else {
        "The sizes that were asked for."
    };
    Section {
        id: "points".into(),
        title: "Selected points".into(),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

fn selected_table(context: &Context<'_>, scene: &Scene<'_>, lanes: &[Lane<'_>]) -> Option<Table> {
    let headings = [
        "protocol",
        "#channels",
        "#size",
        "fastest",
        "#median (µs)",
        "#busbw (GB/s)",
        "second",
        "#median (µs)",
        "#busbw (GB/s)",
        "#difference",
        "verdict",
        "samples",
    ];
    let mut table = Table::new(scene.title.clone(), &headings);
    for lane in lanes {
        for verdict in selection(context, lane) {
            let (first, second) = (&lane.curves[verdict.best], &lane.curves[verdict.second]);
            let (fast, slow) = (first.points[&verdict.bytes], second.points[&verdict.bytes]);
            table.rows.push(vec![
                Cell::text(lane.protocol),
                Cell::count(lane.n_channels as usize),
                Cell::size(verdict.bytes),
                Cell::text(&first.name),
                Cell::micros(fast.time_us),
                Cell::bandwidth(fast.busbw),
                Cell::text(&second.name),
                Cell::micros(slow.time_us),
                Cell::bandwidth(slow.busbw),
                Cell::percent(verdict.margin),
                Cell::text(if verdict.tie { "tie" } else { first.name.as_str() }),
                Cell::text(format!("{} and {}", fast.n, count(slow.n, "sample"))),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
