//! Statistics of every group, computed on all allowed cores. The result does not depend on how the work was cut.

use std::collections::BTreeMap;

use crate::crossover::{Curve, Point};
use crate::dataset::{Config, Dataset, Group, Scenario};
use crate::stats::interval::MedianInterval;
use crate::stats::{Summary, median, median_of, sorted};

/// CV above which a group is called unstable.
pub const UNSTABLE_CV: f64 = 0.05;

/// Samples below which a P95 says little.
pub const P95_SAMPLES: usize = 20;

/// What is known of one group.
#[derive(Clone, Debug)]
pub struct GroupStats<'a> {
    /// The group.
    pub group: &'a Group,
    /// Launches.
    pub launches: usize,
    /// Order statistics and spread of the pooled samples, µs.
    pub summary: Summary,
    /// Where the median lies.
    pub interval: MedianInterval,
    /// Median bus bandwidth, GB/s.
    pub busbw: f64,
    /// Samples over twice the median.
    pub far_out: usize,
    /// Median over the launches of odd and of even place in the group; nothing for one launch.
    pub halves: Option<[f64; 2]>,
}

impl GroupStats<'_> {
    /// Whether its CV is above the bound.
    pub fn is_unstable(&self) -> bool {
        self.summary.cv > UNSTABLE_CV
    }

    /// The group as a point of a curve.
    pub fn point(&self) -> Point {
        Point {
            time_us: self.summary.median,
            ends: self.interval.ends(),
            busbw: self.busbw,
            n: self.summary.n,
            launches: self.launches,
        }
    }
}

/// Statistics of all groups of a data set, in its order.
pub fn describe(data: &Dataset, tie: f64) -> Vec<GroupStats<'_>> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = data.groups.len().div_ceil(workers).max(1);
    std::thread::scope(|scope| {
        let tasks: Vec<_> = data
            .groups
            .chunks(share)
            .map(|part| {
                scope.spawn(move || part.iter().map(|group| of_group(group, tie)).collect::<Vec<_>>())
            })
            .collect();
        tasks.into_iter().flat_map(|task| task.join().expect("invariant: statistics do not panic")).collect()
    })
}

fn of_group(group: &Group, tie: f64) -> GroupStats<'_> {
    let by_launch = group.times_by_launch();
    let times = sorted(group.samples.iter().map(|sample| sample.time_us));
    let summary = Summary::of_sorted(&times).expect("invariant: a group holds a sample");
    let half = |first: usize| {
        let part = by_launch.iter().skip(first).step_by(2).flatten().copied();
        median_of(part)
    };
    GroupStats {
        group,
        launches: by_launch.len(),
        summary,
        interval: MedianInterval::of_launches(&by_launch, tie, seed(group)),
        busbw: median(&sorted(group.samples.iter().map(|sample| sample.busbw))),
        far_out: times.iter().filter(|&&time| time > 2.0 * summary.median).count(),
        halves: (by_launch.len() >= 2).then(|| [half(0), half(1)]),
    }
}

/// A fixed seed per group: FNV-1a over its name, so neither order nor company of groups matters.
fn seed(group: &Group) -> u64 {
    let key = &group.key;
    let scenario = &key.scenario;
    let text = format!("{} {} {} {}", scenario.collective, scenario.n_ranks, key.config.label(), key.bytes);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// One scenario with the curves of its configurations.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// What is being done.
    pub scenario: &'a Scenario,
    /// Its name for people.
    pub title: String,
    /// Its groups, ordered by configuration and size.
    pub stats: &'a [GroupStats<'a>],
}

impl<'a> Scene<'a> {
    /// Curves of all configurations, named by `name`.
    pub fn curves(&self, name: impl Fn(&Config) -> String) -> Vec<(&'a Config, Curve)> {
        let parts = self.stats.chunk_by(|a, b| a.group.key.config == b.group.key.config);
        parts
            .map(|part| {
                let config = &part[0].group.key.config;
                let points = part.iter().map(|stats| (stats.group.key.bytes, stats.point())).collect();
                (config, Curve { name: name(config), points })
            })
            .collect()
    }

    /// Curves of algorithms under one protocol and channel count, where there are two algorithms or more.
    pub fn lanes(&self) -> Vec<Lane<'a>> {
        let mut lanes: BTreeMap<(&str, u32), Vec<Curve>> = BTreeMap::new();
        for (config, curve) in self.curves(|config| config.algorithm.to_string()) {
            lanes.entry((&config.protocol, config.n_channels)).or_default().push(curve);
        }
        let all = lanes.into_iter().filter(|(_, curves)| curves.len() >= 2);
        all.map(|((protocol, n_channels), curves)| Lane { protocol, n_channels, curves }).collect()
    }

    /// One curve per algorithm: at every size its best protocol and channel count.
    pub fn by_algorithm(&self) -> Vec<Curve> {
        let mut best: BTreeMap<&str, BTreeMap<u64, Point>> = BTreeMap::new();
        for stats in self.stats {
            let key = &stats.group.key;
            let points = best.entry(&key.config.algorithm).or_default();
            let point = points.entry(key.bytes).or_insert_with(|| stats.point());
            if stats.summary.median < point.time_us {
                *point = stats.point();
            }
        }
        best.into_iter().map(|(name, points)| Curve { name: name.to_owned(), points }).collect()
    }

    /// Sizes that any configuration was measured at.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.stats.iter().map(|stats| stats.group.key.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Algorithms that differ in nothing else.
#[derive(Clone, Debug)]
pub struct Lane<'a> {
    /// Protocol of all.
    pub protocol: &'a str,
    /// Channels of all.
    pub n_channels: u32,
    /// One curve per algorithm, ordered by name.
    pub curves: Vec<Curve>,
}

/// Cuts statistics into scenarios. Titles mention back end, type, operator, device and root only where they differ in the data.
pub fn scenes<'a>(stats: &'a [GroupStats<'a>]) -> Vec<Scene<'a>> {
    let parts: Vec<&[GroupStats<'_>]> =
        stats.chunk_by(|a, b| a.group.key.scenario == b.group.key.scenario).collect();
    let scenarios: Vec<&Scenario> = parts.iter().map(|part| &*part[0].group.key.scenario).collect();
    let variants = Variants::of(&scenarios);
    let scene = |(part, scenario): (&&'a [GroupStats<'a>], &&'a Scenario)| Scene {
        scenario,
        title: variants.title(scenario),
        stats: part,
    };
    parts.iter().zip(&scenarios).map(scene).collect()
}

/// Which secondary facts differ between the scenarios of a data set.
#[derive(Clone, Copy, Debug)]
pub struct Variants {
    backend: bool,
    device: bool,
    dtype: bool,
    redop: bool,
    root: bool,
}

impl Variants {
    /// Looks at all scenarios.
    pub fn of(scenarios: &[&Scenario]) -> Self {
        let differs =
            |fact: fn(&Scenario) -> String| scenarios.windows(2).any(|pair| fact(pair[0]) != fact(pair[1]));
        Self {
            backend: differs(|s| s.backend.to_string()),
            device: differs(|s| s.device.to_string()),
            dtype: differs(|s| s.dtype.to_string()),
            redop: differs(|s| s.redop.to_string()),
            root: differs(|s| s.root.to_string()),
        }
    }

    /// The facts that differ, joined: `mpi, half`.
    pub fn suffix(&self, scenario: &Scenario) -> String {
        let mut words: Vec<String> = Vec::new();
        let facts = [
            (self.backend, &scenario.backend),
            (self.device, &scenario.device),
            (self.dtype, &scenario.dtype),
            (self.redop, &scenario.redop),
        ];
        words.extend(facts.iter().filter(|(differs, _)| *differs).map(|(_, word)| word.to_string()));
        if self.root {
            words.push(format!("root {}", scenario.root));
        }
        words.join(", ")
    }

    /// The scenario's name for people.
    pub fn title(&self, scenario: &Scenario) -> String {
        let hosts =
            if scenario.n_hosts == 1 { String::new() } else { format!(" on {} hosts", scenario.n_hosts) };
        let ranks = crate::format::count(scenario.n_ranks as usize, "rank");
        let placement = scenario.placement.name().replace('_', " ");
        let suffix = self.suffix(scenario);
        let more = if suffix.is_empty() { String::new() } else { format!(", {suffix}") };
        format!("{}, {ranks}{hosts}, {placement}{more}", scenario.collective)
    }
}

#[cfg(test)]
mod tests {
    use super::{describe, scenes};
    use crate::dataset::tests::{dataset, row};

    #[test]
    fn halves_are_launches_of_odd_and_even_place() {
        let rows = [row("a", "ring", 8, 1.0), row("b", "ring", 8, 2.0), row("c", "ring", 8, 3.0)];
        let data = dataset(&rows);
        let stats = describe(&data, 0.05);
        assert_eq!(stats[0].halves, Some([2.0, 2.0]));
        assert_eq!((stats[0].launches, stats[0].summary.median), (3, 2.0));
        assert!(stats[0].interval.disagrees() && stats[0].is_unstable());
    }

    #[test]
    fn titles_name_what_differs() {
        let mut other = row("a", "ring", 8, 1.0);
        other.dtype = "half".into();
        let mut far = row("a", "ring", 8, 1.0);
        far.n_hosts = 2;
        let data = dataset(&[row("a", "ring", 8, 1.0), other, far]);
        let stats = describe(&data, 0.05);
        let titles: Vec<String> = scenes(&stats).into_iter().map(|scene| scene.title).collect();
        let expected = [
            "all_reduce, 4 ranks, out of place, float",
            "all_reduce, 4 ranks, out of place, half",
            "all_reduce, 4 ranks on 2 hosts, out of place, float",
        ];
        assert_eq!(titles, expected);
    }

    #[test]
    fn lanes_hold_algorithms_that_differ_in_nothing_else() {
        let mut ll = row("a", "tree", 8, 1.0);
        ll.protocol = "ll".into();
        let data = dataset(&[row("a", "ring", 8, 1.0), row("a", "tree", 8, 2.0), ll]);
        let stats = describe(&data, 0.05);
        let scenes = scenes(&stats);
        let lanes = scenes[0].lanes();
        assert_eq!(lanes.len(), 1);
        assert_eq!((lanes[0].protocol, lanes[0].curves.len()), ("simple", 2));
    }
}
