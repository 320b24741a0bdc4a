//! Bands: one configuration over its small or its large sizes, and one number per launch for each.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataset::{Dataset, Group};
use crate::record::Placement;
use crate::stats::{median_of, quantile, sorted};

/// Which sizes of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Below the size that first reaches half of the peak bandwidth.
    Latency,
    /// From there on.
    Bandwidth,
}

impl Part {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
        }
    }
}

/// Names a band. The device's name is no part of it: it may change with a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BandKey {
    /// Collective.
    pub collective: String,
    /// Hosts and ranks.
    pub n_hosts: u32,
    /// Ranks.
    pub n_ranks: u32,
    /// Back end, element type, operator and root, where they are not the usual ones.
    pub variant: String,
    /// Algorithm.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub n_channels: u32,
    /// Latency or bandwidth.
    pub part: Part,
}

impl BandKey {
    /// `all_reduce/4/ring/simple/1/bandwidth`: what quarantine lists and test reports call it.
    pub fn name(&self) -> String {
        let hosts = if self.n_hosts == 1 { String::new() } else { format!("x{}hosts", self.n_hosts) };
        let variant = if self.variant.is_empty() { String::new() } else { format!("{}/", self.variant) };
        format!(
            "{}/{}{hosts}/{variant}{}/{}/{}/{}",
            self.collective,
            self.n_ranks,
            self.algorithm,
            self.protocol,
            self.n_channels,
            self.part.name()
        )
    }
}

type Point = (Placement, u64);

/// Both sides of a band.
#[derive(Clone, Debug)]
pub struct Sides {
    /// Its name.
    pub key: BandKey,
    /// Smallest and largest size.
    pub span: (u64, u64),
    /// Logarithm of the geometric mean of each baseline launch, in launch order.
    pub baseline: Vec<f64>,
    /// The same of each current launch.
    pub current: Vec<f64>,
    /// Medians by point and launch, for diagnosis.
    pub points: Vec<(Point, Vec<f64>, Vec<f64>)>,
}

/// Median times of one configuration: point, then launch.
type Medians = BTreeMap<Point, BTreeMap<u32, f64>>;

/// Groups the bands of two recordings. A band that a side lacks has no launches there.
pub fn sides(baseline: &Dataset, current: &Dataset) -> Vec<Sides> {
    let (before, after) = (configurations(baseline), configurations(current));
    let keys: BTreeSet<&BandKey> = before.keys().chain(after.keys()).collect();
    let empty = Medians::new();
    let mut all = Vec::new();
    for key in keys {
        let (a, b) = (before.get(key).unwrap_or(&empty), after.get(key).unwrap_or(&empty));
        let split = split_point(if a.is_empty() { b } else { a });
        for part in [Part::Latency, Part::Bandwidth] {
            let inside = |point: &Point| (point.1 < split) == (part == Part::Latency);
            all.extend(part_sides(BandKey { part, ..key.clone() }, (a, b), inside));
        }
    }
    all
}

fn part_sides(key: BandKey, (a, b): (&Medians, &Medians), inside: impl Fn(&Point) -> bool) -> Option<Sides> {
    let points: BTreeSet<Point> = a.keys().chain(b.keys()).copied().filter(&inside).collect();
    let span = (points.iter().map(|point| point.1).min()?, points.iter().map(|point| point.1).max()?);
    // One side alone: keep its launches, so the band is reported as missing or new.
    let shared: Vec<Point> = points
        .iter()
        .copied()
        .filter(|point| match (a.is_empty(), b.is_empty()) {
            (true, _) => b.contains_key(point),
            (_, true) => a.contains_key(point),
            _ => a.contains_key(point) && b.contains_key(point),
        })
        .collect();
    let (used_a, baseline) = per_launch(a, &shared);
    let (used_b, current) = per_launch(b, &shared);
    let of = |side: &Medians, used: &[u32], point: &Point| -> Vec<f64> {
        let by_launch = side.get(point);
        used.iter().filter_map(|launch| by_launch?.get(launch).copied()).collect()
    };
    let points = shared.iter().map(|point| (*point, of(a, &used_a, point), of(b, &used_b, point))).collect();
    Some(Sides { key, span, baseline, current, points })
}

/// Mean logarithm per launch over the points that it has all of. Launches that lack a point would compare other sizes.
fn per_launch(side: &Medians, points: &[Point]) -> (Vec<u32>, Vec<f64>) {
    let launches: BTreeSet<u32> =
        points.iter().filter_map(|point| side.get(point)).flat_map(|m| m.keys().copied()).collect();
    let mut used = Vec::new();
    let mut values = Vec::new();
    for launch in launches {
        let logs: Vec<f64> =
            points.iter().filter_map(|point| Some(side.get(point)?.get(&launch)?.ln())).collect();
        if logs.len() == points.len() && !logs.is_empty() {
            used.push(launch);
            values.push(logs.iter().sum::<f64>() / logs.len() as f64);
        }
    }
    (used, values)
}

/// First size whose algorithm bandwidth reaches half of the largest one; bus bandwidth is proportional to it and 0 for one rank.
fn split_point(medians: &Medians) -> u64 {
    let mut rate: BTreeMap<u64, f64> = BTreeMap::new();
    for (point, launches) in medians {
        let time = quantile(&sorted(launches.values().copied()), 0.5);
        let best = rate.entry(point.1).or_insert(0.0);
        *best = best.max(point.1 as f64 / time);
    }
    let peak = rate.values().copied().fold(0.0, f64::max);
    rate.iter().find(|(_, rate)| **rate * 2.0 >= peak && peak > 0.0).map_or(u64::MAX, |(bytes, _)| *bytes)
}

fn configurations(data: &Dataset) -> BTreeMap<BandKey, Medians> {
    let mut all: BTreeMap<BandKey, Medians> = BTreeMap::new();
    for group in &data.groups {
        let medians = all.entry(key_of(group)).or_default();
        let by_launch = medians.entry((group.key.scenario.placement, group.key.bytes)).or_default();
        for part in group.samples.chunk_by(|a, b| a.launch == b.launch) {
            by_launch.insert(part[0].launch, median_of(part.iter().map(|sample| sample.time_us)));
        }
    }
    all
}

fn key_of(group: &Group) -> BandKey {
    let (scenario, config) = (&group.key.scenario, &group.key.config);
    let usual = [(&scenario.backend, "engine"), (&scenario.dtype, "float"), (&scenario.redop, "sum")];
    let mut words: Vec<String> =
        usual.iter().filter(|(word, usual)| &***word != *usual).map(|(word, _)| word.to_string()).collect();
    if scenario.root > 0 {
        words.push(format!("root{}", scenario.root));
    }
    BandKey {
        collective: scenario.collective.to_string(),
        n_hosts: scenario.n_hosts,
        n_ranks: scenario.n_ranks,
        variant: words.join("+"),
        algorithm: config.algorithm.to_string(),
        protocol: config.protocol.to_string(),
        n_channels: config.n_channels,
        part: Part::Latency,
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, sides};
    use crate::dataset::tests::{dataset, row};

    #[test]
    fn a_configuration_splits_at_half_of_its_peak_bandwidth() {
        let rows: Vec<_> = [(8, 10.0), (1024, 10.0), (8192, 10.0), (16384, 20.0)]
            .iter()
            .map(|&(bytes, time)| row("a", "ring", bytes, time))
            .collect();
        let data = dataset(&rows);
        let all = sides(&data, &data);
        let spans: Vec<_> = all.iter().map(|sides| (sides.key.part, sides.span)).collect();
        assert_eq!(spans, [(Part::Latency, (8, 1024)), (Part::Bandwidth, (8192, 16384))]);
        assert!((all[0].baseline[0] - 10f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn launches_that_lack_a_size_are_left_out() {
        let data = dataset(&[row("a", "ring", 8, 1.0), row("a", "ring", 16, 1.0), row("b", "ring", 8, 9.0)]);
        let all = sides(&data, &data);
        assert!(all.iter().any(|sides| sides.baseline.len() == 1 || sides.baseline.len() == 2));
        let total: usize = all.iter().map(|sides| sides.points.len()).sum();
        assert_eq!(total, 2);
    }
}
