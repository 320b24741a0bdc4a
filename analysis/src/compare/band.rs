//! Bands: one configuration over its small or its large sizes, and one number per launch for each.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::compare::rules::{Rules, matches};
use crate::dataset::{Dataset, Group};
use crate::record::Placement;
use crate::stats::{median_of, quantile, sorted};

/// Which sizes of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Its sizes, where a rule with a range of sizes cut the part.
    pub range: Option<(u64, u64)>,
}

impl BandKey {
    /// `all_reduce/4/ring/simple/1/bandwidth`: what quarantine lists and test reports call it. A part that a rule cut has its sizes
    /// behind it: `…/bandwidth/65536-1048576`.
    pub fn name(&self) -> String {
        let sizes = self.range.map_or(String::new(), |(first, last)| format!("/{first}-{last}"));
        self.part_name() + &sizes
    }

    /// Whether a pattern means this band, or the part that it was cut from.
    pub fn is_named(&self, pattern: &str) -> bool {
        matches(pattern, &self.part_name()) || (self.range.is_some() && matches(pattern, &self.name()))
    }

    /// Whether both are parts of one configuration.
    pub fn part_of_configuration(&self, other: &Self) -> bool {
        let bare = |key: &Self| Self { part: Part::Latency, range: None, ..key.clone() };
        bare(self) == bare(other)
    }

    fn part_name(&self) -> String {
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
    /// Points of the baseline that the current side lacks, where it has others of the band.
    pub lost_points: usize,
}

/// Median times of one configuration: point, then launch.
type Medians = BTreeMap<Point, BTreeMap<u32, f64>>;

/// Groups the bands of two recordings. A band that a side lacks has no launches there. Rules with a range of sizes cut bands.
pub fn sides(baseline: &Dataset, current: &Dataset, rules: &Rules) -> Vec<Sides> {
    let (before, after) = (configurations(baseline), configurations(current));
    let keys: BTreeSet<&BandKey> = before.keys().chain(after.keys()).collect();
    let empty = Medians::new();
    let mut all = Vec::new();
    for key in keys {
        let (a, b) = (before.get(key).unwrap_or(&empty), after.get(key).unwrap_or(&empty));
        let split = split_point(if a.is_empty() { b } else { a });
        for part in [Part::Latency, Part::Bandwidth] {
            let key = BandKey { part, ..key.clone() };
            let cuts = rules.cuts(&key);
            for index in 0..=cuts.len() {
                let first = if index == 0 { 0 } else { cuts[index - 1] };
                let last = cuts.get(index).map_or(u64::MAX, |cut| cut.saturating_sub(1));
                let inside = |point: &Point| {
                    (point.1 < split) == (part == Part::Latency) && (first..=last).contains(&point.1)
                };
                let found = part_sides(key.clone(), (a, b), inside);
                all.extend(found.map(|mut sides| {
                    sides.key.range = (!cuts.is_empty()).then_some(sides.span);
                    sides
                }));
            }
        }
    }
    all
}

fn part_sides(key: BandKey, (a, b): (&Medians, &Medians), inside: impl Fn(&Point) -> bool) -> Option<Sides> {
    let points: BTreeSet<Point> = a.keys().chain(b.keys()).copied().filter(&inside).collect();
    let span = (points.iter().map(|point| point.1).min()?, points.iter().map(|point| point.1).max()?);
    let of_baseline = points.iter().filter(|point| a.contains_key(point)).count();
    let both: Vec<Point> =
        points.iter().copied().filter(|point| a.contains_key(point) && b.contains_key(point)).collect();
    // One side alone: keep its launches, so the band is reported as missing or new.
    let is_one_sided = both.is_empty();
    let shared = if is_one_sided { points.into_iter().collect() } else { both };
    let of_side = |side: &Medians| -> Vec<Point> {
        if is_one_sided {
            shared.iter().copied().filter(|point| side.contains_key(point)).collect()
        } else {
            shared.clone()
        }
    };
    let (used_a, baseline) = per_launch(a, &of_side(a));
    let (used_b, current) = per_launch(b, &of_side(b));
    // Sizes that only one side has say nothing, but a band of the baseline without any size in common is missing.
    let current = if is_one_sided && of_baseline > 0 { Vec::new() } else { current };
    let of = |side: &Medians, used: &[u32], point: &Point| -> Vec<f64> {
        let by_launch = side.get(point);
        used.iter().filter_map(|launch| by_launch?.get(launch).copied()).collect()
    };
    let lost_points = if is_one_sided { 0 } else { of_baseline - shared.len() };
    let points = shared.iter().map(|point| (*point, of(a, &used_a, point), of(b, &used_b, point))).collect();
    Some(Sides { key, span, baseline, current, points, lost_points })
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
        range: None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, sides};
    use crate::compare::Rules;
    use crate::dataset::tests::{dataset, row};

    #[test]
    fn a_configuration_splits_at_half_of_its_peak_bandwidth() {
        let rows: Vec<_> = [(8, 10.0), (1024, 10.0), (8192, 10.0), (16384, 20.0)]
            .iter()
            .map(|&(bytes, time)| row("a", "ring", bytes, time))
            .collect();
        let data = dataset(&rows);
        let all = sides(&data, &data, &Rules::default());
        let spans: Vec<_> = all.iter().map(|sides| (sides.key.part, sides.span)).collect();
        assert_eq!(spans, [(Part::Latency, (8, 1024)), (Part::Bandwidth, (8192, 16384))]);
        assert!((all[0].baseline[0] - 10f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn launches_that_lack_a_size_are_left_out() {
        let data = dataset(&[row("a", "ring", 8, 1.0), row("a", "ring", 16, 1.0), row("b", "ring", 8, 9.0)]);
        let all = sides(&data, &data, &Rules::default());
        assert!(all.iter().any(|sides| sides.baseline.len() == 1 || sides.baseline.len() == 2));
        let total: usize = all.iter().map(|sides| sides.points.len()).sum();
        assert_eq!(total, 2);
    }

    #[test]
    fn ranges_of_rules_cut_bands_and_patterns_still_know_the_part() {
        let rows: Vec<_> =
            (14..20).map(|power| row("a", "ring", 1 << power, f64::from(1 << (power - 10)))).collect();
        let data = dataset(&rows);
        let rules = Rules::parse("[[effect]]\nfrom = \"64K\"\nto = \"128K\"\nvalue = 0.2\n").unwrap();
        let all = sides(&data, &data, &rules);
        let spans: Vec<_> = all.iter().map(|sides| sides.span).collect();
        assert_eq!(spans, [(1 << 14, 1 << 15), (1 << 16, 1 << 17), (1 << 18, 1 << 19)]);
        assert_eq!(all[1].key.name(), "all_reduce/4/ring/simple/1/bandwidth/65536-131072");
        assert!(all[1].key.is_named("*/bandwidth") && all[1].key.is_named("*/65536-131072"));
        let effects: Vec<f64> = all.iter().map(|sides| rules.effect(&sides.key, sides.span)).collect();
        assert_eq!(effects, [0.05, 0.2, 0.05]);
    }

    #[test]
    fn a_band_without_a_common_size_is_missing_and_lost_sizes_are_counted() {
        let before = dataset(&[row("a", "ring", 1 << 20, 9.0), row("a", "ring", 1 << 21, 18.0)]);
        let after = dataset(&[row("b", "ring", 1 << 22, 40.0)]);
        let all = sides(&before, &after, &Rules::default());
        assert_eq!((all.len(), all[0].baseline.len(), all[0].current.len()), (1, 1, 0));
        let after = dataset(&[row("b", "ring", 1 << 20, 9.0)]);
        let all = sides(&before, &after, &Rules::default());
        assert_eq!((all[0].current.len(), all[0].lost_points), (1, 1));
    }
}
