//! Two recordings against each other: what got slower, what got faster, what cannot be told.
//!
//! The launch is the unit: cycles of one process share its luck, and a test that counts them as independent lies. A **band** is one
//! configuration over its small sizes (latency) or its large ones (bandwidth); each launch gives a band one number, the geometric mean
//! over sizes of its medians, and one rank test compares the launches of both sides. Single sizes are diagnosis only.

pub mod band;
pub mod drift;
pub mod floor;
pub mod judge;
pub mod output;
pub mod rules;
pub mod selftest;
pub mod single;

pub use self::band::{BandKey, Part, Sides};
pub use self::judge::{Judged, Verdict};
pub use self::rules::Rules;
pub use self::single::SizeNote;

use crate::dataset::Dataset;

/// The outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// One entry per band of either side.
    pub bands: Vec<Judged>,
    /// Sizes that moved by themselves.
    pub sizes: Vec<SizeNote>,
    /// Floors that the current side misses.
    pub thresholds: Vec<String>,
    /// Rows with wrong elements on the current side.
    pub wrong_rows: u64,
    /// Patterns of required bands that no band of either side fits.
    pub required_absent: Vec<String>,
    /// Minutes between the two recordings and the change of the machine allowed for, where they are different sessions.
    pub apart: Option<(f64, f64)>,
}

/// Status of a gate that found nothing wrong.
pub const STATUS_PASS: u8 = 0;
/// A band regressed, or a floor is missed.
pub const STATUS_REGRESSED: u8 = 1;
/// Too much could not be told.
pub const STATUS_INCONCLUSIVE: u8 = 2;
/// The current run has wrong data.
pub const STATUS_WRONG: u8 = 7;

/// Share of bands that may stay open.
const OPEN_SHARE: f64 = 0.10;

/// Compares two recordings.
pub fn compare(baseline: &Dataset, current: &Dataset, rules: &Rules) -> Comparison {
    let sides = band::sides(baseline, current, rules);
    let apart = drift::minutes_between(baseline, current)
        .filter(|_| drift::lie_apart(baseline, current))
        .map(|minutes| (minutes, rules.drift));
    let bands = judge::all(&sides, rules, apart.map_or(0.0, |(_, drift)| drift));
    let mut sizes = single::moved(&sides, rules);
    // A size is news only where its band has not been called already.
    let is_called =
        |key: &BandKey| bands.iter().any(|band| band.key == *key && band.verdict == Verdict::Regressed);
    sizes.retain(|note| !is_called(&note.key));
    let absent = |pattern: &&String| !sides.iter().any(|sides| sides.key.is_named(pattern));
    Comparison {
        sizes,
        bands,
        thresholds: floor::missed(rules, current),
        wrong_rows: current.wrong_rows + current.wrong_unfinished_rows,
        required_absent: rules.required.iter().filter(absent).cloned().collect(),
        apart,
    }
}

impl Comparison {
    /// Bands that count: not quarantined, and known on the baseline side.
    pub fn counted(&self) -> impl Iterator<Item = &Judged> {
        self.bands.iter().filter(|band| !band.quarantined && band.verdict != Verdict::New)
    }

    /// Bands with that verdict among those that count.
    pub fn with(&self, verdict: Verdict) -> Vec<&Judged> {
        self.counted().filter(|band| band.verdict == verdict).collect()
    }

    /// The gate's exit status.
    pub fn status(&self) -> u8 {
        if self.wrong_rows > 0 {
            return STATUS_WRONG;
        }
        if !self.thresholds.is_empty() || !self.with(Verdict::Regressed).is_empty() {
            return STATUS_REGRESSED;
        }
        let is_open = |band: &&Judged| matches!(band.verdict, Verdict::Inconclusive | Verdict::Missing);
        let open = self.counted().filter(is_open).count();
        let required = self.counted().filter(is_open).any(|band| band.required);
        if required
            || !self.required_absent.is_empty()
            || open as f64 > OPEN_SHARE * self.counted().count() as f64
        {
            return STATUS_INCONCLUSIVE;
        }
        STATUS_PASS
    }

    /// One line that says what the status means.
    pub fn headline(&self) -> String {
        let number = |verdict| self.with(verdict).len();
        let total = self.counted().count();
        let counts = format!(
            "{}: {} regressed, {} improved, {} pass, {} inconclusive, {} missing",
            crate::format::count(total, "band"),
            number(Verdict::Regressed),
            number(Verdict::Improved),
            number(Verdict::Pass),
            number(Verdict::Inconclusive),
            number(Verdict::Missing),
        );
        let new = self.bands.iter().filter(|band| band.verdict == Verdict::New).count();
        let quarantined = self.bands.iter().filter(|band| band.quarantined).count();
        let mut counts = counts;
        for (n, word) in [(new, "new"), (quarantined, "quarantined")] {
            if n > 0 {
                counts.push_str(&format!(", {n} {word}"));
            }
        }
        match self.status() {
            STATUS_WRONG => {
                let rows = crate::format::count(self.wrong_rows as usize, "row");
                format!("WRONG DATA in {rows} of the current run; {counts}")
            }
            STATUS_REGRESSED => format!("REGRESSED; {counts}"),
            STATUS_INCONCLUSIVE => format!("INCONCLUSIVE; {counts}"),
            _ => format!("PASS; {counts}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{Rules, STATUS_INCONCLUSIVE, STATUS_PASS, STATUS_REGRESSED, STATUS_WRONG, Verdict, compare};
    use crate::dataset::Dataset;
    use crate::dataset::tests::{dataset, row};
    use crate::record::Row;

    /// Launches of both algorithms over a latency and a bandwidth part; `slow` scales Ring's large sizes.
    pub(crate) fn rows(launches: u32, slow: f64, spread: f64, seed: u64) -> Vec<Row> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut rows = Vec::new();
        for launch in 0..launches {
            for algorithm in ["ring", "tree"] {
                let luck = 1.0 + rng.random_range(-spread..spread);
                for (step, bytes) in (3..24).map(|power| (power, 1u64 << power)) {
                    for cycle in 0..2 {
                        let factor = if algorithm == "ring" && step > 17 { slow } else { 1.0 };
                        let time = (5.0 + bytes as f64 / 4000.0)
                            * factor
                            * luck
                            * (1.0 + rng.random_range(0.0..0.01));
                        let mut row = row(&format!("{seed}-{launch:03}"), algorithm, bytes, time);
                        row.cycle = cycle;
                        rows.push(row);
                    }
                }
            }
        }
        rows
    }

    pub(crate) fn recording(launches: u32, slow: f64, spread: f64, seed: u64) -> Dataset {
        dataset(&rows(launches, slow, spread, seed))
    }

    #[test]
    fn equal_recordings_pass() {
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &recording(10, 1.0, 0.01, 2), &Rules::default());
        assert_eq!(outcome.status(), STATUS_PASS, "{}", outcome.headline());
        assert_eq!(outcome.bands.len(), 4);
        assert!(outcome.headline().starts_with("PASS; 4 bands"), "{}", outcome.headline());
    }

    #[test]
    fn ten_percent_on_large_sizes_is_a_regression_of_that_band_only() {
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &recording(10, 1.1, 0.01, 2), &Rules::default());
        assert_eq!(outcome.status(), STATUS_REGRESSED);
        let regressed = outcome.with(Verdict::Regressed);
        assert_eq!(regressed.len(), 1);
        assert_eq!(regressed[0].key.name(), "all_reduce/4/ring/simple/1/bandwidth");
        let test = regressed[0].ratio.unwrap();
        assert!((1.05..1.12).contains(&test.estimate) && test.low > 1.0, "{test:?}");
        let mirrored = compare(&recording(10, 1.1, 0.01, 2), &recording(10, 1.0, 0.01, 1), &Rules::default());
        assert_eq!(mirrored.status(), STATUS_PASS);
        assert_eq!(mirrored.with(Verdict::Improved).len(), 1);
    }

    #[test]
    fn few_launches_tell_nothing_and_say_how_many_it_takes() {
        let outcome = compare(&recording(4, 1.0, 0.01, 1), &recording(4, 1.3, 0.01, 2), &Rules::default());
        assert_eq!(outcome.status(), STATUS_INCONCLUSIVE);
        assert!(
            outcome.bands.iter().all(|band| band.verdict == Verdict::Inconclusive && band.needed >= Some(5))
        );
    }

    #[test]
    fn wrong_data_wins_over_everything_and_missing_bands_are_noticed() {
        let mut wrong = rows(10, 1.0, 0.01, 2);
        wrong[0].wrong = Some(1);
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &dataset(&wrong), &Rules::default());
        assert_eq!(outcome.status(), STATUS_WRONG);
        let ring_only: Vec<Row> =
            rows(10, 1.0, 0.01, 2).into_iter().filter(|row| row.algorithm == "ring").collect();
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &dataset(&ring_only), &Rules::default());
        assert_eq!(outcome.with(Verdict::Missing).len(), 2);
        assert_eq!(outcome.status(), STATUS_INCONCLUSIVE);
        let outcome = compare(&dataset(&ring_only), &recording(10, 1.0, 0.01, 1), &Rules::default());
        assert_eq!(outcome.status(), STATUS_PASS, "new bands are no reason to fail");
    }

    #[test]
    fn quarantined_bands_do_not_count_and_required_ones_must_be_conclusive() {
        let rules = Rules { quarantine: vec!["*/ring/*/bandwidth".into()], ..Rules::default() };
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &recording(10, 1.2, 0.01, 2), &rules);
        assert_eq!(outcome.status(), STATUS_PASS);
        let noisy = compare(&recording(10, 1.0, 0.3, 1), &recording(10, 1.0, 0.3, 2), &Rules::default());
        assert_eq!(noisy.status(), STATUS_INCONCLUSIVE);
    }

    #[test]
    fn required_bands_that_exist_nowhere_leave_the_gate_open() {
        let (a, b) = (recording(10, 1.0, 0.01, 1), recording(10, 1.0, 0.01, 2));
        let rules = Rules { required: vec!["all_reduce/16/*".into(), "*/ring/*".into()], ..Rules::default() };
        let outcome = compare(&a, &b, &rules);
        assert_eq!((outcome.status(), outcome.required_absent.len()), (STATUS_INCONCLUSIVE, 1));
    }

    #[test]
    fn sessions_that_lie_apart_need_a_larger_change() {
        let at = |hour: u32, slow: f64, seed: u64| {
            let mut rows = rows(10, slow, 0.01, seed);
            for row in &mut rows {
                row.timestamp = format!("2026-01-02T{hour:02}:00:00.000+00:00");
            }
            dataset(&rows)
        };
        let rules = Rules { drift: 0.10, ..Rules::default() };
        assert_eq!(compare(&at(3, 1.0, 1), &at(3, 1.1, 2), &rules).status(), STATUS_REGRESSED);
        let apart = compare(&at(3, 1.0, 1), &at(5, 1.1, 2), &rules);
        assert_eq!((apart.status(), apart.apart), (STATUS_INCONCLUSIVE, Some((120.0, 0.10))));
        assert_eq!(compare(&at(3, 1.0, 1), &at(5, 1.3, 2), &rules).status(), STATUS_REGRESSED);
    }
}
