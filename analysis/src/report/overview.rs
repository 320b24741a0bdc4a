//! Facts, the best configuration per size, floors and peaks, unstable groups, and the table of all groups.

use std::collections::{BTreeMap, BTreeSet};

use crate::crossover::{Curve, intervals, verdicts};
use crate::format::{bandwidth, count, micros, percent, size};
use crate::groups::{GroupStats, P95_SAMPLES, UNSTABLE_CV};
use crate::report::document::Cell;
use crate::report::{Context, Section, Table, record_name};
use crate::stats::interval::MedianInterval;

pub(crate) fn title(context: &Context<'_>) -> String {
    let collectives: BTreeSet<&str> =
        context.scenes.iter().map(|scene| &*scene.scenario.collective).collect();
    let worlds: BTreeSet<u32> = context.scenes.iter().map(|scene| scene.scenario.n_ranks).collect();
    let worlds: Vec<String> = worlds.iter().map(ToString::to_string).collect();
    let what = collectives.into_iter().collect::<Vec<_>>().join(", ");
    if what.is_empty() { "No rows".into() } else { format!("{what} with {} ranks", worlds.join(", ")) }
}

pub(crate) fn facts(context: &Context<'_>) -> Vec<(String, String)> {
    let data = context.data;
    let mut facts = Vec::new();
    for source in &data.sources {
        facts
            .push(("record".to_owned(), format!("{}, {} rows used", record_name(&source.path), source.used)));
    }
    facts.push(("launches".into(), data.launches.len().to_string()));
    facts
        .push(("groups".into(), format!("{} with {}", data.groups.len(), count(data.n_samples(), "sample"))));
    let devices: BTreeSet<String> = context
        .scenes
        .iter()
        .map(|scene| format!("{} on {}", scene.scenario.backend, scene.scenario.device))
        .collect();
    facts.push(("back end".into(), devices.into_iter().collect::<Vec<_>>().join("; ")));
    let mut seen = BTreeSet::new();
    for manifest in data.manifests() {
        let machine = &manifest.machine;
        let limit =
            machine.container_cpus.map_or(String::new(), |cpus| format!(", container limit {cpus} cores"));
        let governor = machine.governor.as_deref().map_or(String::new(), |word| format!(", governor {word}"));
        let text = format!(
            "{}; {} of {} cores allowed{limit}; {}; {} GiB; Linux {}{governor}{}",
            machine.cpu,
            machine.cores_allowed,
            machine.cores,
            machine.caches,
            machine.memory_bytes >> 30,
            machine.kernel,
            if machine.gpus.is_empty() { String::new() } else { format!("; {}", machine.gpus.join(", ")) },
        );
        if !machine.cpu.is_empty() && seen.insert(text.clone()) {
            facts.push(("machine".into(), text));
        }
        let versions: Vec<String> =
            manifest.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let revision = manifest.git_revision.as_ref().map(|revision| format!("revision {revision}"));
        let text = versions.into_iter().chain(revision).collect::<Vec<_>>().join(", ");
        if !text.is_empty() && seen.insert(text.clone()) {
            facts.push(("versions".into(), text));
        }
    }
    facts
}

/// The fastest of all configurations, sizes merged.
pub(crate) fn winners(context: &Context<'_>) -> Section {
    let mut tables = Vec::new();
    for scene in &context.scenes {
        let curves: Vec<Curve> =
            scene.curves(|config| config.label()).into_iter().map(|(_, curve)| curve).collect();
        if curves.len() < 3 {
            continue;
        }
        let mut table = Table::new(
            scene.title.clone(),
            &[
                "winner",
                "#from",
                "#to",
                "#sizes",
                "#median margin",
                "#median (µs) at its end",
                "#busbw (GB/s) at its end",
            ],
        );
        // With many candidates near ties are the rule; the fastest is named even there, so the map has no holes.
        for interval in intervals(&verdicts(&curves, 0.0)) {
            let Some(last) = interval.verdicts.last() else { continue };
            let point = curves[last.best].points[&last.bytes];
            table.rows.push(vec![
                Cell::text(&curves[last.best].name),
                Cell::size(interval.from_bytes()),
                Cell::size(interval.to_bytes()),
                Cell::count(interval.verdicts.len()),
                Cell::percent(interval.median_margin()),
                Cell::micros(point.time_us),
                Cell::bandwidth(point.busbw),
            ]);
        }
        tables.push(table);
    }
    let intro = "Algorithm, protocol and channels with the smallest median at each size, however small its lead. The margin is to the \
                 second best.";
    Section {
        id: "winners".into(),
        title: "Fastest configuration".into(),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

/// Floor, half-peak size and peak of every configuration.
pub(crate) fn configurations(context: &Context<'_>) -> Section {
    let headings = [
        "scenario",
        "algorithm",
        "protocol",
        "#channels",
        "#latency floor (µs)",
        "#floor at",
        "#half of peak from",
        "#peak busbw (GB/s)",
        "#peak at",
        "#sizes",
    ];
    let mut table = Table::new("", &headings);
    for scene in &context.scenes {
        for (config, curve) in scene.curves(|config| config.label()) {
            let points: Vec<(&u64, &crate::crossover::Point)> = curve.points.iter().collect();
            let floor = points.iter().min_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us));
            let peak = points.iter().max_by(|a, b| a.1.busbw.total_cmp(&b.1.busbw));
            let (Some(floor), Some(peak)) = (floor, peak) else { continue };
            let half = points.iter().find(|(_, point)| point.busbw * 2.0 >= peak.1.busbw);
            let has_peak = peak.1.busbw > 0.0;
            table.rows.push(vec![
                Cell::text(&scene.title),
                Cell::text(&*config.algorithm),
                Cell::text(&*config.protocol),
                Cell::count(config.n_channels as usize),
                Cell::micros(floor.1.time_us),
                Cell::size(*floor.0),
                half.filter(|_| has_peak).map_or(Cell::text("-"), |(bytes, _)| Cell::size(**bytes)),
                if has_peak { Cell::bandwidth(peak.1.busbw) } else { Cell::text("-") },
                if has_peak { Cell::size(*peak.0) } else { Cell::text("-") },
                Cell::count(points.len()),
            ]);
        }
    }
    let tables = if table.rows.is_empty() { Vec::new() } else { vec![table] };
    let intro = "Latency floor: the smallest median over all sizes. Half of peak: the first size that reaches half of the largest bus \
                 bandwidth.";
    Section {
        id: "configurations".into(),
        title: "Configurations".into(),
        intro: intro.into(),
        tables,
        ..Section::default()
    }
}

/// Groups with a high CV.
pub(crate) fn unstable(context: &Context<'_>) -> Section {
    let headings = [
        "scenario",
        "configuration",
        "#size",
        "#n",
        "#CV",
        "#median (µs)",
        "#min (µs)",
        "#max (µs)",
        "#over twice the median",
    ];
    let mut table = Table::new("", &headings);
    for scene in &context.scenes {
        for stats in scene.stats.iter().filter(|stats| stats.is_unstable()) {
            let summary = &stats.summary;
            table.rows.push(vec![
                Cell::text(&scene.title),
                Cell::text(stats.group.key.config.label()),
                Cell::size(stats.group.key.bytes),
                Cell::count(summary.n),
                Cell::percent(summary.cv),
                Cell::micros(summary.median),
                Cell::micros(summary.min),
                Cell::micros(summary.max),
                Cell::count(stats.far_out),
            ]);
        }
    }
    let of = count(context.stats.len(), "group");
    let intro = format!(
        "{} of {of} have a CV above {}. Their medians may still be sound; `chorus retest` measures them again.",
        table.rows.len(),
        crate::format::share(UNSTABLE_CV)
    );
    let folded = table.rows.len() > 40;
    let tables = if table.rows.is_empty() { Vec::new() } else { vec![table] };
    Section {
        id: "unstable".into(),
        title: "Unstable groups".into(),
        intro,
        tables,
        folded,
        ..Section::default()
    }
}

/// Every group.
pub(crate) fn groups(context: &Context<'_>) -> Section {
    let mut by_scene = Vec::new();
    let headings = [
        "algorithm",
        "protocol",
        "#channels",
        "#size",
        "#launches",
        "#n",
        "#median (µs)",
        "interval of the median",
        "#P95 (µs)",
        "#CV",
        "#min (µs)",
        "#max (µs)",
        "#busbw (GB/s)",
    ];
    for scene in &context.scenes {
        let mut table = Table::new(scene.title.clone(), &headings);
        table.rows.extend(scene.stats.iter().map(group_row));
        by_scene.push(table);
    }
    let intro = format!(
        "P95 with * comes from fewer than {P95_SAMPLES} samples. Interval: with its coverage for one launch; both ends of the launch \
         medians for two to four launches, no probability claimed; 95 % by resampling launches from five up; none for a single sample."
    );
    Section {
        id: "groups".into(),
        title: "All groups".into(),
        intro,
        tables: by_scene,
        folded: true,
        ..Section::default()
    }
}

fn group_row(stats: &GroupStats<'_>) -> Vec<Cell> {
    let (key, summary) = (&stats.group.key, &stats.summary);
    let few = if summary.n < P95_SAMPLES { "*" } else { "" };
    vec![
        Cell::text(&*key.config.algorithm),
        Cell::text(&*key.config.protocol),
        Cell::count(key.config.n_channels as usize),
        Cell::size(key.bytes),
        Cell::count(stats.launches),
        Cell::count(summary.n),
        Cell::micros(summary.median),
        Cell::text(interval_text(&stats.interval)),
        Cell::number(format!("{}{few}", micros(summary.p95)), summary.p95),
        Cell::percent(summary.cv),
        Cell::micros(summary.min),
        Cell::micros(summary.max),
        Cell::number(bandwidth(stats.busbw), stats.busbw),
    ]
}

/// The interval in words.
pub(crate) fn interval_text(interval: &MedianInterval) -> String {
    match interval {
        MedianInterval::None => "none (n = 1)".into(),
        MedianInterval::Order { low, high, coverage } => {
            format!("{} to {} ({})", micros(*low), micros(*high), percent(*coverage))
        }
        MedianInterval::Bootstrap { low, high } => {
            format!("{} to {} (95 %, launches)", micros(*low), micros(*high))
        }
        MedianInterval::Launches { medians, disagree } => {
            let list = medians.iter().map(|median| micros(*median)).collect::<Vec<_>>().join(", ");
            let note = if *disagree { "; launches disagree" } else { "" };
            format!("launches: {list}{note}")
        }
    }
}

/// Largest size and smallest per world, for charts.
pub(crate) fn worlds_by_collective(context: &Context<'_>) -> BTreeMap<String, Vec<usize>> {
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, scene) in context.scenes.iter().enumerate() {
        let scenario = scene.scenario;
        let name = scene.title.replacen(&format!(", {}", count(scenario.n_ranks as usize, "rank")), "", 1);
        found.entry(name).or_default().push(index);
    }
    found
}

/// `8 B to 1 GiB`.
pub(crate) fn range_text(sizes: &[u64]) -> String {
    match (sizes.first(), sizes.last()) {
        (Some(low), Some(high)) => format!("{} to {}", size(*low), size(*high)),
        _ => "no sizes".into(),
    }
}
