//! Many recordings in a row: each band as a series, its change points, a chart of median and spread.

use std::collections::BTreeMap;

use crate::compare::Rules;
use crate::compare::band::{BandKey, sides};
use crate::dataset::Dataset;
use crate::plot::lines::{Counted, XAxis};
use crate::plot::{Chart, LineChart, Series};
use crate::report::document::{Cell, Table};
use crate::stats::change::{Change, change_points};
use crate::stats::{median, quantile, sorted};

/// One band over the recordings.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub key: BandKey,
    /// What each recording says that has the band.
    pub points: Vec<Point>,
    /// Changes; `at` is an index into `points`.
    pub changes: Vec<Change>,
}

/// One recording of a band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Index of the recording.
    pub recording: usize,
    /// Median over launches, µs.
    pub median: f64,
    /// 5th percentile of the launches.
    pub low: f64,
    /// 95th percentile.
    pub high: f64,
}

/// How changes are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Recordings looked at together.
    pub window: usize,
    /// Error rate of the t-test.
    pub alpha: f64,
    /// Changes smaller than this fraction are not reported.
    pub smallest: f64,
}

/// Series of every band of recordings in the given order. Sizes of a band are those of its own recording: a matrix that changed makes
/// another series only where the configuration changed.
pub fn series(recordings: &[Dataset], search: Search) -> Vec<Line> {
    let mut all: BTreeMap<BandKey, Vec<Point>> = BTreeMap::new();
    for (recording, data) in recordings.iter().enumerate() {
        // The first recording fixes where latency ends and bandwidth begins.
        let against = recordings.first().unwrap_or(data);
        for side in sides(against, data, &Rules::default()) {
            let times = sorted(side.current.iter().map(|log| log.exp()));
            if !times.is_empty() {
                let (low, high) = (quantile(&times, 0.05), quantile(&times, 0.95));
                let point = Point { recording, median: median(&times), low, high };
                all.entry(side.key).or_default().push(point);
            }
        }
    }
    let line = |(key, points): (BandKey, Vec<Point>)| {
        let values: Vec<f64> = points.iter().map(|point| point.median).collect();
        let mut changes = change_points(&values, search.window, search.alpha);
        changes.retain(|change| (change.after / change.before).ln().abs() >= (1.0 + search.smallest).ln());
        Line { key, points, changes }
    };
    all.into_iter().map(line).collect()
}

/// Changes of all bands.
pub fn table(lines: &[Line], names: &[String]) -> Table {
    let mut table =
        Table::new("", &["band", "first recording after", "#before (µs)", "#after (µs)", "#change", "#p"]);
    for line in lines {
        for change in &line.changes {
            table.rows.push(vec![
                Cell::text(line.key.name()),
                Cell::text(names.get(line.points[change.at].recording).cloned().unwrap_or_default()),
                Cell::micros(change.before),
                Cell::micros(change.after),
                Cell::percent(change.after / change.before - 1.0),
                Cell::number(crate::format::p_value(change.p), change.p),
            ]);
        }
    }
    table
}

/// Time over recording number; the shade spans the launches' 5th to 95th percentile, a line stands before each change.
pub fn chart(line: &Line) -> Chart {
    let at = |point: &Point| point.recording as u64 + 1;
    let edge = |value: fn(&Point) -> f64| line.points.iter().map(|point| (at(point), value(point))).collect();
    let series =
        Series { name: "median".into(), points: edge(|point| point.median), upper: edge(|point| point.high) };
    let marks: Vec<u64> = line.changes.iter().map(|change| at(&line.points[change.at])).collect();
    let note = if marks.is_empty() {
        String::new()
    } else {
        let words: Vec<String> = marks.iter().map(u64::to_string).collect();
        format!(" — changes at recording {}", words.join(", "))
    };
    Chart::Lines(LineChart {
        title: format!("{}{note}", line.key.name()),
        x_axis: XAxis::Counted(Counted { word: "recording".into(), marks, lower: edge(|point| point.low) }),
        y_label: "time (µs): median and 5th to 95th percentile of launches".into(),
        series: vec![series],
        band: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Search, chart, series, table};
    use crate::compare::tests::recording;

    #[test]
    fn a_slow_down_is_found_in_its_band_at_its_recording() {
        let recordings: Vec<_> =
            (0..16).map(|i| recording(3, if i < 9 { 1.0 } else { 1.3 }, 0.01, i)).collect();
        let names: Vec<String> = (0..16).map(|i| format!("night{i}")).collect();
        let lines = series(&recordings, Search { window: 20, alpha: 0.001, smallest: 0.05 });
        assert_eq!(lines.len(), 4);
        let changed: Vec<&str> =
            lines.iter().filter(|line| !line.changes.is_empty()).map(|line| line.key.part.name()).collect();
        assert_eq!(changed, ["bandwidth"]);
        let table = table(&lines, &names);
        assert_eq!((table.rows.len(), table.rows[0][1].text.as_str()), (1, "night9"));
        let svg = chart(lines.iter().find(|line| !line.changes.is_empty()).unwrap()).to_svg().unwrap();
        assert!(
            svg.contains("changes at recording 10") && svg.lines().any(|line| line == "recording"),
            "axis and note"
        );
    }
}
