//! Which charts a report holds: time and bandwidth over sizes, ratios with the tie band, maps of winners and of spread, single samples.

use std::collections::BTreeMap;

use crate::crossover::verdicts;
use crate::format::count;
use crate::groups::{GroupStats, Scene};
use crate::plot::lines::XAxis;
use crate::plot::{Cell, Chart, HeatMap, LineChart, PALETTE, Series, Strip, StripRow};
use crate::report::overview::{range_text, worlds_by_collective};
use crate::report::{Context, Figure, Section};

/// Groups in the chart of single samples.
const STRIP_ROWS: usize = 16;

/// Adds charts to the sections they belong to.
pub(crate) fn attach(context: &Context<'_>, sections: &mut Vec<Section>) {
    put(sections, "winners", winner_maps(context));
    put(sections, "crossover", ratios(context));
    put(sections, "unstable", strips(context));
    let mut curves = Section {
        id: "curves".into(),
        title: "Time and bandwidth over size".into(),
        intro: "Lines are medians; the shade reaches from the median to P95. Both axes are logarithmic."
            .into(),
        ..Section::default()
    };
    for scene in &context.scenes {
        curves.figures.extend(scene_curves(scene));
    }
    show_first(&mut curves.figures, 4);
    let mut spread = Section {
        id: "spread".into(),
        title: "Spread".into(),
        intro: "CV of the samples of each group, in percent.".into(),
        ..Section::default()
    };
    spread.figures.extend(context.scenes.iter().map(cv_map));
    show_first(&mut spread.figures, 1);
    let at = sections.iter().position(|section| section.id == "points").unwrap_or(sections.len());
    sections.insert(at, curves);
    let at = sections.iter().position(|section| section.id == "unstable").unwrap_or(sections.len());
    sections.insert(at, spread);
}

fn put(sections: &mut [Section], id: &str, figures: Vec<Figure>) {
    if let Some(section) = sections.iter_mut().find(|section| section.id == id) {
        section.figures = figures;
        show_first(&mut section.figures, 3);
    }
}

fn show_first(figures: &mut [Figure], n: usize) {
    figures.iter_mut().enumerate().for_each(|(index, figure)| figure.shown = index < n);
}

fn stem(kind: &str, scene: &Scene<'_>, more: &str) -> String {
    file_name(&format!("{kind} {} {more}", scene.title))
}

/// Letters, digits and single dashes.
fn file_name(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    name.trim_matches('-').to_owned()
}

/// Per channel count one chart of times and one of bandwidths.
fn scene_curves(scene: &Scene<'_>) -> Vec<Figure> {
    let mut by_channels: BTreeMap<u32, Vec<&[GroupStats<'_>]>> = BTreeMap::new();
    for part in scene.stats.chunk_by(|a, b| a.group.key.config == b.group.key.config) {
        by_channels.entry(part[0].group.key.config.n_channels).or_default().push(part);
    }
    let mut figures = Vec::new();
    for (n_channels, parts) in by_channels {
        let channels = count(n_channels as usize, "channel");
        let name = |part: &&[GroupStats<'_>]| {
            let config = &part[0].group.key.config;
            format!("{} {}", config.algorithm, config.protocol)
        };
        let values = |part: &[GroupStats<'_>], value: fn(&GroupStats<'_>) -> f64| -> Vec<(u64, f64)> {
            part.iter().map(|stats| (stats.group.key.bytes, value(stats))).collect()
        };
        let time = |part: &&[GroupStats<'_>]| Series {
            name: name(part),
            points: values(part, |stats| stats.summary.median),
            upper: values(part, |stats| stats.summary.p95),
        };
        let busbw = |part: &&[GroupStats<'_>]| Series {
            name: name(part),
            points: values(part, |stats| stats.busbw),
            upper: values(part, |stats| stats.busbw * stats.summary.median / stats.summary.p95),
        };
        for (kind, y_label, series) in [
            ("time", "time (µs)", parts.iter().map(time).collect::<Vec<_>>()),
            ("busbw", "bus bandwidth (GB/s)", parts.iter().map(busbw).collect()),
        ] {
            let title = format!("{}, {channels}", scene.title);
            let chart =
                LineChart { title, x_axis: XAxis::Sizes, y_label: y_label.into(), series, band: None };
            figures.push(Figure {
                stem: stem(kind, scene, &channels),
                shown: false,
                chart: Chart::Lines(chart),
            });
        }
    }
    figures
}

/// Second over first algorithm of every lane with two algorithms.
fn ratios(context: &Context<'_>) -> Vec<Figure> {
    let tie = context.options.tie;
    let mut figures = Vec::new();
    for scene in &context.scenes {
        let mut by_pair: BTreeMap<(String, String), Vec<Series>> = BTreeMap::new();
        for lane in scene.lanes() {
            let [first, second] = lane.curves.as_slice() else { continue };
            let ratio = |(bytes, point): (&u64, &crate::crossover::Point)| {
                Some((*bytes, second.points.get(bytes)?.time_us / point.time_us))
            };
            by_pair.entry((first.name.clone(), second.name.clone())).or_default().push(Series {
                name: format!("{}, {} ch", lane.protocol, lane.n_channels),
                points: first.points.iter().filter_map(ratio).collect(),
                upper: Vec::new(),
            });
        }
        for ((first, second), series) in by_pair {
            let chart = LineChart {
                title: format!("{}: {second} over {first}", scene.title),
                x_axis: XAxis::Sizes,
                y_label: format!("time of {second} / time of {first}"),
                series,
                band: Some((1.0 / (1.0 + tie), 1.0 + tie)),
            };
            let stem = stem("ratio", scene, &format!("{second} {first}"));
            figures.push(Figure { stem, shown: false, chart: Chart::Lines(chart) });
        }
    }
    figures
}

/// Winner over size and ranks, per collective and placement: all configurations, coloured by algorithm.
fn winner_maps(context: &Context<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (name, indices) in worlds_by_collective(context) {
        let mut algorithms: Vec<String> = Vec::new();
        let mut sizes: Vec<u64> = Vec::new();
        for &index in &indices {
            sizes.extend(context.scenes[index].sizes());
            algorithms
                .extend(context.scenes[index].stats.iter().map(|s| s.group.key.config.algorithm.to_string()));
        }
        sizes.sort_unstable();
        sizes.dedup();
        algorithms.sort();
        algorithms.dedup();
        if algorithms.len() < 2 {
            continue;
        }
        let rows = indices
            .iter()
            .map(|&index| winner_row(context, &context.scenes[index], (&sizes, &algorithms)))
            .collect();
        let mut legend: Vec<(String, (u8, u8, u8))> = algorithms
            .iter()
            .enumerate()
            .map(|(i, word)| (word.clone(), PALETTE[i % PALETTE.len()]))
            .collect();
        let limit = crate::format::share(context.options.tie);
        legend.push((format!("= tie: another algorithm within {limit}"), (216, 216, 216)));
        let chart = HeatMap {
            title: format!("Fastest algorithm: {name} ({})", range_text(&sizes)),
            row_label: "ranks".into(),
            sizes,
            rows,
            legend,
        };
        figures.push(Figure {
            stem: file_name(&format!("winner {name}")),
            shown: false,
            chart: Chart::Heat(chart),
        });
    }
    figures
}

/// One world: each algorithm stands with its best protocol and channel count.
fn winner_row(
    context: &Context<'_>,
    scene: &Scene<'_>,
    (sizes, algorithms): (&[u64], &[String]),
) -> (String, Vec<Option<Cell>>) {
    let mut best = scene.by_algorithm();
    for name in algorithms {
        if best.iter().all(|curve| curve.name != *name) {
            best.push(crate::crossover::Curve { name: name.clone(), points: BTreeMap::new() });
        }
    }
    best.sort_by(|a, b| a.name.cmp(&b.name));
    let verdicts: BTreeMap<u64, _> = verdicts(&best, context.options.tie).into_iter().collect();
    let cell = |bytes: &u64| {
        let verdict = verdicts.get(bytes)?.as_ref()?;
        Some(match verdict.winner() {
            Some(index) => Cell { kind: index, text: initial(algorithms, index) },
            None => Cell { kind: algorithms.len(), text: "=".into() },
        })
    };
    (scene.scenario.n_ranks.to_string(), sizes.iter().map(cell).collect())
}

/// The shortest beginning of a name that no other shares.
fn initial(names: &[String], index: usize) -> String {
    let name = &names[index];
    let unique =
        |n: &usize| names.iter().enumerate().all(|(i, other)| i == index || !other.starts_with(&name[..*n]));
    let length = (1..name.len()).find(unique).unwrap_or(name.len());
    crate::format::capital(&name[..length])
}

/// Light to dark blue over CV.
const CV_STEPS: [(f64, &str, (u8, u8, u8)); 5] = [
    (0.02, "below 2 %", (247, 251, 255)),
    (0.05, "to 5 %", (198, 219, 239)),
    (0.10, "to 10 %", (107, 174, 214)),
    (0.30, "to 30 %", (33, 113, 181)),
    (f64::INFINITY, "above", (8, 48, 107)),
];

fn cv_map(scene: &Scene<'_>) -> Figure {
    let sizes = scene.sizes();
    let mut rows = Vec::new();
    for part in scene.stats.chunk_by(|a, b| a.group.key.config == b.group.key.config) {
        let by_size: BTreeMap<u64, f64> =
            part.iter().map(|stats| (stats.group.key.bytes, stats.summary.cv)).collect();
        let cell = |bytes: &u64| {
            let cv = *by_size.get(bytes)?;
            let kind = CV_STEPS.iter().position(|(limit, ..)| cv < *limit).unwrap_or(CV_STEPS.len() - 1);
            Some(Cell { kind, text: format!("{:.0}", cv * 100.0) })
        };
        rows.push((part[0].group.key.config.label(), sizes.iter().map(cell).collect()));
    }
    let chart = HeatMap {
        title: format!("CV in %: {}", scene.title),
        row_label: "configuration".into(),
        sizes,
        rows,
        legend: CV_STEPS.iter().map(|(_, name, colour)| ((*name).to_owned(), *colour)).collect(),
    };
    Figure { stem: stem("cv", scene, ""), shown: false, chart: Chart::Heat(chart) }
}

/// Samples of the groups with the highest CV.
fn strips(context: &Context<'_>) -> Vec<Figure> {
    let mut worst: Vec<(&Scene<'_>, &GroupStats<'_>)> = Vec::new();
    for scene in &context.scenes {
        worst.extend(scene.stats.iter().filter(|stats| stats.is_unstable()).map(|stats| (scene, stats)));
    }
    worst.sort_by(|a, b| b.1.summary.cv.total_cmp(&a.1.summary.cv).then(a.1.group.key.cmp(&b.1.group.key)));
    worst.truncate(STRIP_ROWS);
    if worst.is_empty() {
        return Vec::new();
    }
    let row = |(scene, stats): &(&Scene<'_>, &GroupStats<'_>)| {
        let key = &stats.group.key;
        let place = match scene.scenario.placement {
            crate::record::Placement::InPlace => " in place",
            crate::record::Placement::OutOfPlace => "",
        };
        let label = format!(
            "{} ranks {} {}{place}",
            scene.scenario.n_ranks,
            key.config.label(),
            crate::format::size(key.bytes)
        );
        StripRow { label, launches: stats.group.times_by_launch() }
    };
    let rows = worst.iter().map(row).collect();
    let chart = Strip { title: format!("Samples of the {} least stable groups", worst.len()), rows };
    vec![Figure { stem: "unstable-samples".into(), shown: true, chart: Chart::Strip(chart) }]
}

#[cfg(test)]
mod tests {
    use super::{file_name, initial};

    #[test]
    fn names_of_files_and_cells_are_plain_and_unique() {
        assert_eq!(file_name("time all_reduce, 4 ranks (µs)"), "time-all-reduce-4-ranks-s");
        let names = ["ring".to_owned(), "tree".to_owned(), "twoshot".to_owned()];
        assert_eq!([0, 1, 2].map(|i| initial(&names, i)), ["R", "Tr", "Tw"]);
    }
}
