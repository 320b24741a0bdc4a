//! Who is fastest where: sizes with the same winner merged into intervals.
//!
//! At a size, the candidates are the configurations that were measured there. The margin is second best over best minus one; below the
//! tie bound nobody wins. A size at which a candidate is missing ends the interval before it: nothing is said about gaps.

use std::collections::BTreeMap;

/// What is known of one candidate at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Median time, µs.
    pub time_us: f64,
    /// Interval of the median, where there is one.
    pub ends: Option<(f64, f64)>,
    /// Median bus bandwidth, GB/s.
    pub busbw: f64,
    /// Samples.
    pub n: usize,
    /// Launches.
    pub launches: usize,
}

/// One candidate over all its sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What tables call it.
    pub name: String,
    /// Its sizes.
    pub points: BTreeMap<u64, Point>,
}

/// Who is ahead at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Size.
    pub bytes: u64,
    /// Index of the fastest candidate.
    pub best: usize,
    /// Index of the second.
    pub second: usize,
    /// Second over best, minus one.
    pub margin: f64,
    /// Whether the margin is below the tie bound.
    pub tie: bool,
    /// Whether the intervals of the two leave the other verdict possible; nothing where a side has no interval.
    pub open: Option<bool>,
    /// Candidates measured at this size, in order.
    pub candidates: Vec<usize>,
}

impl Verdict {
    /// Index of the winner; nothing for a tie.
    pub fn winner(&self) -> Option<usize> {
        (!self.tie).then_some(self.best)
    }
}

/// Consecutive sizes with one winner.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Index of the winner; nothing for a tie.
    pub winner: Option<usize>,
    /// Its sizes, ascending.
    pub verdicts: Vec<Verdict>,
}

impl Interval {
    /// First size.
    pub fn from_bytes(&self) -> u64 {
        self.verdicts[0].bytes
    }

    /// Last size.
    pub fn to_bytes(&self) -> u64 {
        self.verdicts[self.verdicts.len() - 1].bytes
    }

    /// Median of the margins.
    pub fn median_margin(&self) -> f64 {
        crate::stats::median_of(self.verdicts.iter().map(|verdict| verdict.margin))
    }

    /// Largest margin.
    pub fn max_margin(&self) -> f64 {
        self.verdicts.iter().map(|verdict| verdict.margin).fold(0.0, f64::max)
    }

    /// Whether at any size the other verdict stays possible; nothing when no size has intervals.
    pub fn spans_tie(&self) -> Option<bool> {
        let known: Vec<bool> = self.verdicts.iter().filter_map(|verdict| verdict.open).collect();
        (!known.is_empty()).then(|| known.contains(&true))
    }
}

/// The verdict at every size of any curve, ascending; nothing where fewer than two candidates were measured.
pub fn verdicts(curves: &[Curve], tie: f64) -> Vec<(u64, Option<Verdict>)> {
    let mut sizes: Vec<u64> = curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(|bytes| (bytes, verdict_at(curves, bytes, tie))).collect()
}

fn verdict_at(curves: &[Curve], bytes: u64, tie: f64) -> Option<Verdict> {
    let mut there: Vec<(usize, &Point)> = Vec::new();
    for (index, curve) in curves.iter().enumerate() {
        there.extend(curve.points.get(&bytes).map(|point| (index, point)));
    }
    let candidates = there.iter().map(|(index, _)| *index).collect();
    there.sort_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us).then(a.0.cmp(&b.0)));
    let (&(best, fast), &(second, slow)) = (there.first()?, there.get(1)?);
    let margin = slow.time_us / fast.time_us - 1.0;
    let is_tie = margin < tie;
    let open = fast.ends.zip(slow.ends).map(|(fast, slow)| {
        let (low, high) = (slow.0 / fast.1 - 1.0, slow.1 / fast.0 - 1.0);
        if is_tie { high >= tie } else { low < tie }
    });
    Some(Verdict { bytes, best, second, margin, tie: is_tie, open, candidates })
}

/// Merges neighbours with the same winner among the same candidates. Every size with a verdict lands in exactly one interval.
pub fn intervals(verdicts: &[(u64, Option<Verdict>)]) -> Vec<Interval> {
    let mut all: Vec<Interval> = Vec::new();
    let mut joined = false;
    for (_, verdict) in verdicts {
        let Some(verdict) = verdict else {
            joined = false;
            continue;
        };
        match all.last_mut() {
            Some(last)
                if joined
                    && last.winner == verdict.winner()
                    && last.verdicts[0].candidates == verdict.candidates =>
            {
                last.verdicts.push(verdict.clone());
            }
            _ => all.push(Interval { winner: verdict.winner(), verdicts: vec![verdict.clone()] }),
        }
        joined = true;
    }
    all
}

/// Points worth a line: first, last, largest margin, and both sides of each change of winner.
pub fn selected(verdicts: &[(u64, Option<Verdict>)]) -> Vec<Verdict> {
    let all: Vec<&Verdict> = verdicts.iter().filter_map(|(_, verdict)| verdict.as_ref()).collect();
    let mut chosen: Vec<u64> = Vec::new();
    chosen.extend(all.first().map(|verdict| verdict.bytes));
    chosen.extend(all.last().map(|verdict| verdict.bytes));
    let largest = all.iter().rev().max_by(|a, b| a.margin.total_cmp(&b.margin));
    chosen.extend(largest.map(|verdict| verdict.bytes));
    for pair in all.windows(2) {
        if pair[0].winner() != pair[1].winner() {
            chosen.extend([pair[0].bytes, pair[1].bytes]);
        }
    }
    all.into_iter().filter(|verdict| chosen.contains(&verdict.bytes)).cloned().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{Curve, Point, intervals, selected, verdicts};

    /// A curve of plain medians.
    pub(crate) fn curve(name: &str, points: &[(u64, f64)]) -> Curve {
        let point = |time_us: f64| Point { time_us, ends: None, busbw: 1.0, n: 1, launches: 1 };
        Curve {
            name: name.into(),
            points: points.iter().map(|&(bytes, time)| (bytes, point(time))).collect(),
        }
    }

    #[test]
    fn equal_winners_merge_and_small_margins_are_ties() {
        let ring = curve("ring", &[(8, 10.0), (16, 10.0), (32, 10.0), (64, 10.0), (128, 10.0)]);
        let tree = curve("tree", &[(8, 5.0), (16, 6.0), (32, 10.4), (64, 12.0), (128, 16.0)]);
        let all = intervals(&verdicts(&[ring, tree], 0.05));
        let shape: Vec<_> = all.iter().map(|i| (i.winner, i.from_bytes(), i.to_bytes())).collect();
        assert_eq!(shape, [(Some(1), 8, 16), (None, 32, 32), (Some(0), 64, 128)]);
        assert!((all[2].median_margin() - 0.4).abs() < 1e-12 && (all[2].max_margin() - 0.6).abs() < 1e-12);
        assert_eq!(all[0].spans_tie(), None);
    }

    #[test]
    fn a_missing_size_ends_an_interval() {
        let ring = curve("ring", &[(8, 1.0), (16, 1.0), (32, 1.0)]);
        let tree = curve("tree", &[(8, 2.0), (32, 2.0)]);
        let all = intervals(&verdicts(&[ring, tree], 0.05));
        assert_eq!(
            all.iter().map(|i| (i.from_bytes(), i.to_bytes())).collect::<Vec<_>>(),
            [(8, 8), (32, 32)]
        );
    }

    #[test]
    fn the_tie_bound_itself_is_a_win() {
        let all = verdicts(&[curve("a", &[(8, 100.0)]), curve("b", &[(8, 125.0)])], 0.25);
        assert_eq!(all[0].1.as_ref().unwrap().winner(), Some(0));
    }

    #[test]
    fn overlapping_intervals_leave_the_verdict_open() {
        let mut ring = curve("ring", &[(8, 10.0)]);
        let mut tree = curve("tree", &[(8, 12.0)]);
        ring.points.get_mut(&8).unwrap().ends = Some((9.9, 10.1));
        tree.points.get_mut(&8).unwrap().ends = Some((11.8, 12.2));
        assert_eq!(intervals(&verdicts(&[ring.clone(), tree.clone()], 0.05))[0].spans_tie(), Some(false));
        tree.points.get_mut(&8).unwrap().ends = Some((10.2, 12.2));
        assert_eq!(intervals(&verdicts(&[ring, tree], 0.05))[0].spans_tie(), Some(true));
    }

    #[test]
    fn selected_points_hold_ends_extremes_and_changes() {
        let ring = curve("ring", &[(8, 9.0), (16, 9.0), (32, 9.0), (64, 4.0), (128, 1.0), (256, 5.0)]);
        let tree = curve("tree", &[(8, 5.0), (16, 5.0), (32, 5.0), (64, 5.0), (128, 5.0), (256, 6.0)]);
        let sizes: Vec<u64> = selected(&verdicts(&[ring, tree], 0.05)).iter().map(|v| v.bytes).collect();
        assert_eq!(sizes, [8, 32, 64, 128, 256]);
    }

    proptest! {
        #[test]
        fn merging_covers_every_size_once(
            times in proptest::collection::vec(proptest::collection::vec(proptest::option::of(1.0f64..2.0), 1..30), 1..4),
            tie in 0.0f64..0.5,
        ) {
            let curves: Vec<Curve> = times.iter().map(|column| {
                let points: Vec<(u64, f64)> =
                    column.iter().enumerate().filter_map(|(i, time)| time.map(|time| (1u64 << i, time))).collect();
                curve("c", &points)
            }).collect();
            let all = verdicts(&curves, tie);
            let merged = intervals(&all);
            let covered: Vec<u64> = merged.iter().flat_map(|i| i.verdicts.iter().map(|v| v.bytes)).collect();
            let expected: Vec<u64> = all.iter().filter(|(_, v)| v.is_some()).map(|(bytes, _)| *bytes).collect();
            prop_assert_eq!(covered, expected);
            let at_least_two = |bytes: &u64| curves.iter().filter(|c| c.points.contains_key(bytes)).count() >= 2;
            prop_assert!(all.iter().all(|(bytes, verdict)| verdict.is_some() == at_least_two(bytes)));
            for pair in merged.windows(2) {
                let touching = all.iter().skip_while(|(bytes, _)| *bytes <= pair[0].to_bytes()).map(|(bytes, _)| *bytes).next();
                if touching == Some(pair[1].from_bytes()) {
                    let same = pair[0].verdicts[0].candidates == pair[1].verdicts[0].candidates;
                    prop_assert!(pair[0].winner != pair[1].winner || !same, "neighbours that should have merged");
                }
            }
        }
    }
}
