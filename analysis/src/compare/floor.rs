//! Floors: what a recording must reach without any baseline.

use std::collections::BTreeMap;

use crate::compare::rules::{Rules, Threshold};
use crate::dataset::{Dataset, Group};
use crate::stats::median_of;

/// Floors that a recording misses, one sentence each. A value is the median over launches of each launch's median.
pub fn missed(rules: &Rules, current: &Dataset) -> Vec<String> {
    rules.threshold.iter().flat_map(|threshold| missed_by(threshold, current)).collect()
}

fn missed_by(threshold: &Threshold, current: &Dataset) -> Vec<String> {
    let (from, to) = threshold.range().unwrap_or((0, u64::MAX));
    let applies = |group: &&Group| {
        let scenario = &group.key.scenario;
        (threshold.collective.is_empty() || *scenario.collective == *threshold.collective)
            && threshold.n_ranks.is_none_or(|n| n == scenario.n_ranks)
            && (from..=to).contains(&group.key.bytes)
    };
    let groups: Vec<&Group> = current.groups.iter().filter(applies).collect();
    if groups.is_empty() {
        return vec![format!("no row falls under the threshold {}", words(threshold))];
    }
    let mut missed = Vec::new();
    let mut peaks: BTreeMap<String, f64> = BTreeMap::new();
    for group in groups {
        let scenario = &group.key.scenario;
        let name =
            format!("{} with {} ranks, {}", scenario.collective, scenario.n_ranks, group.key.config.label());
        let busbw = over_launches(group, |sample| sample.busbw);
        let time = over_launches(group, |sample| sample.time_us);
        let place = format!(
            "{}, {}",
            crate::format::size(group.key.bytes),
            scenario.placement.name().replace('_', " ")
        );
        if let Some(floor) = threshold.min_busbw.filter(|floor| busbw < *floor) {
            missed.push(format!("{name}, {place}: busbw {busbw:.3} GB/s is below {floor} GB/s"));
        }
        if let Some(limit) = threshold.max_us.filter(|limit| time > *limit) {
            missed.push(format!("{name}, {place}: {time:.2} µs is above {limit} µs"));
        }
        let peak = peaks.entry(name).or_insert(busbw);
        *peak = peak.max(busbw);
    }
    for (name, peak) in peaks {
        if let Some(floor) = threshold.peak_busbw.filter(|floor| peak < *floor) {
            missed.push(format!("{name}: largest busbw {peak:.3} GB/s is below {floor} GB/s"));
        }
    }
    missed
}

fn over_launches(group: &Group, value: impl Fn(&crate::dataset::Sample) -> f64) -> f64 {
    let launches = group.samples.chunk_by(|a, b| a.launch == b.launch);
    median_of(launches.map(|launch| median_of(launch.iter().map(&value))))
}

fn words(threshold: &Threshold) -> String {
    let mut parts = Vec::new();
    if !threshold.collective.is_empty() {
        parts.push(threshold.collective.clone());
    }
    parts.extend(threshold.n_ranks.map(|n| crate::format::count(n as usize, "rank")));
    for (word, end) in [("from", &threshold.from), ("to", &threshold.to)] {
        if !end.is_empty() {
            parts.push(format!("{word} {end}"));
        }
    }
    if parts.is_empty() { "of any collective".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::missed;
    use crate::compare::Rules;
    use crate::dataset::tests::{dataset, row};

    #[test]
    fn floors_name_what_misses_them() {
        let data = dataset(&[row("a", "ring", 1 << 20, 1000.0), row("a", "ring", 8, 1.0)]);
        let rules = Rules::parse(
            "[[threshold]]\nfrom = \"1M\"\nmin_busbw = 3.0\n[[threshold]]\nn_ranks = 9\nmax_us = 1\n",
        )
        .unwrap();
        let missed = missed(&rules, &data);
        assert_eq!(missed.len(), 2);
        assert!(missed[0].contains("1 MiB, out of place: busbw 1.573 GB/s is below 3 GB/s"), "{missed:?}");
        assert!(missed[1].starts_with("no row falls under the threshold 9 ranks"), "{missed:?}");
    }

    #[test]
    fn a_peak_is_asked_of_the_best_size_only() {
        let data = dataset(&[row("a", "ring", 1 << 20, 1000.0), row("a", "ring", 8, 1.0)]);
        let rules = |floor: f64| Rules::parse(&format!("[[threshold]]\npeak_busbw = {floor}\n")).unwrap();
        assert!(missed(&rules(1.5), &data).is_empty());
        let missed = missed(&rules(1.6), &data);
        assert_eq!(
            missed,
            ["all_reduce with 4 ranks, ring/simple/1: largest busbw 1.573 GB/s is below 1.6 GB/s"]
        );
    }
}
