//! The report's CSV files: for programs, so full numbers, plain bytes and fixed columns.

use std::io;

use csv::Writer;

use crate::crossover::{intervals, verdicts};
use crate::groups::{Scene, Variants};
use crate::report::Context;
use crate::report::crossings::{selection, winner_name};
use crate::stats::interval::MedianInterval;

/// Collective's name; what else differs between scenarios is appended, because the columns are fixed.
fn collective(variants: &Variants, scene: &Scene<'_>) -> String {
    let suffix = variants.suffix(scene.scenario);
    if suffix.is_empty() {
        scene.scenario.collective.to_string()
    } else {
        format!("{} ({suffix})", scene.scenario.collective)
    }
}

fn variants(context: &Context<'_>) -> Variants {
    Variants::of(&context.scenes.iter().map(|scene| scene.scenario).collect::<Vec<_>>())
}

fn finish(writer: Writer<Vec<u8>>) -> io::Result<Vec<u8>> {
    writer.into_inner().map_err(|error| io::Error::other(error.to_string()))
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

pub(crate) fn crossover(context: &Context<'_>) -> io::Result<Vec<u8>> {
    let mut writer = Writer::from_writer(Vec::new());
    writer.write_record([
        "collective",
        "n_ranks",
        "n_hosts",
        "protocol",
        "n_channels",
        "placement",
        "winner",
        "from_bytes",
        "to_bytes",
        "points",
        "median_margin_pct",
        "max_margin_pct",
        "ci_spans_tie",
    ])?;
    let variants = variants(context);
    for scene in &context.scenes {
        for lane in scene.lanes() {
            for interval in intervals(&verdicts(&lane.curves, context.options.tie)) {
                writer.write_record([
                    collective(&variants, scene),
                    scene.scenario.n_ranks.to_string(),
                    scene.scenario.n_hosts.to_string(),
                    lane.protocol.to_owned(),
                    lane.n_channels.to_string(),
                    scene.scenario.placement.name().to_owned(),
                    winner_name(&lane, &interval),
                    interval.from_bytes().to_string(),
                    interval.to_bytes().to_string(),
                    interval.verdicts.len().to_string(),
                    number(interval.median_margin() * 100.0),
                    number(interval.max_margin() * 100.0),
                    interval.spans_tie().map_or(String::new(), |spans| spans.to_string()),
                ])?;
            }
        }
    }
    finish(writer)
}

pub(crate) fn selected_points(context: &Context<'_>) -> io::Result<Vec<u8>> {
    let mut writer = Writer::from_writer(Vec::new());
    writer.write_record([
        "collective",
        "n_ranks",
        "n_hosts",
        "protocol",
        "n_channels",
        "placement",
        "bytes",
        "winner",
        "fastest",
        "fastest_median_us",
        "fastest_busbw",
        "second",
        "second_median_us",
        "second_busbw",
        "difference_pct",
    ])?;
    let variants = variants(context);
    for scene in &context.scenes {
        for lane in scene.lanes() {
            for verdict in selection(context, &lane) {
                let (first, second) = (&lane.curves[verdict.best], &lane.curves[verdict.second]);
                let (fast, slow) = (first.points[&verdict.bytes], second.points[&verdict.bytes]);
                writer.write_record([
                    collective(&variants, scene),
                    scene.scenario.n_ranks.to_string(),
                    scene.scenario.n_hosts.to_string(),
                    lane.protocol.to_owned(),
                    lane.n_channels.to_string(),
                    scene.scenario.placement.name().to_owned(),
                    verdict.bytes.to_string(),
                    if verdict.tie { "tie".to_owned() } else { first.name.clone() },
                    first.name.clone(),
                    number(fast.time_us),
                    number(fast.busbw),
                    second.name.clone(),
                    number(slow.time_us),
                    number(slow.busbw),
                    number(verdict.margin * 100.0),
                ])?;
            }
        }
    }
    finish(writer)
}

const GROUP_COLUMNS: [&str; 27] = [
    "collective",
    "n_ranks",
    "n_hosts",
    "backend",
    "device",
    "dtype",
    "redop",
    "root",
    "placement",
    "algorithm",
    "protocol",
    "n_channels",
    "bytes",
    "launches",
    "n",
    "median_us",
    "p95_us",
    "p95_few_samples",
    "cv_pct",
    "min_us",
    "max_us",
    "busbw",
    "interval_kind",
    "interval_low_us",
    "interval_high_us",
    "interval_coverage_pct",
    "launches_disagree",
];

pub(crate) fn groups(context: &Context<'_>) -> io::Result<Vec<u8>> {
    let mut writer = Writer::from_writer(Vec::new());
    writer.write_record(GROUP_COLUMNS)?;
    for stats in context.stats {
        let (key, summary) = (&stats.group.key, &stats.summary);
        let scenario = &key.scenario;
        let (kind, coverage) = match &stats.interval {
            MedianInterval::None => ("none", String::new()),
            MedianInterval::Order { coverage, .. } => ("order", number(coverage * 100.0)),
            MedianInterval::Launches { .. } => ("launches", String::new()),
            MedianInterval::Bootstrap { .. } => ("bootstrap", "95".into()),
        };
        let ends = stats.interval.ends();
        let disagree = match &stats.interval {
            MedianInterval::Launches { disagree, .. } => disagree.to_string(),
            _ => String::new(),
        };
        writer.write_record([
            scenario.collective.to_string(),
            scenario.n_ranks.to_string(),
            scenario.n_hosts.to_string(),
            scenario.backend.to_string(),
            scenario.device.to_string(),
            scenario.dtype.to_string(),
            scenario.redop.to_string(),
            scenario.root.to_string(),
            scenario.placement.name().to_owned(),
            key.config.algorithm.to_string(),
            key.config.protocol.to_string(),
            key.config.n_channels.to_string(),
            key.bytes.to_string(),
            stats.launches.to_string(),
            summary.n.to_string(),
            number(summary.median),
            number(summary.p95),
            (summary.n < crate::groups::P95_SAMPLES).to_string(),
            number(summary.cv * 100.0),
            number(summary.min),
            number(summary.max),
            number(stats.busbw),
            kind.to_owned(),
            ends.map_or(String::new(), |ends| number(ends.0)),
            ends.map_or(String::new(), |ends| number(ends.1)),
            coverage,
            disagree,
        ])?;
    }
    finish(writer)
}
