//! Verdicts: a rank test per band, Holm over the bands, an interval of the ratio against the effect that matters.

use crate::compare::band::{BandKey, Sides};
use crate::compare::rules::Rules;
use crate::stats::rank_test::{RankTest, Tables, holm, smallest_p};

/// Launches a side needs before anything is concluded.
pub const MIN_LAUNCHES: usize = 5;

/// What is concluded about a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Slower by more than the effect, beyond chance.
    Regressed,
    /// Faster by more than the effect, beyond chance.
    Improved,
    /// Not slower by the effect, surely.
    Pass,
    /// Nothing can be said with these launches.
    Inconclusive,
    /// The current side lacks it.
    Missing,
    /// The baseline lacks it.
    New,
}

impl Verdict {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regressed => "regressed",
            Self::Improved => "improved",
            Self::Pass => "pass",
            Self::Inconclusive => "inconclusive",
            Self::Missing => "missing",
            Self::New => "new",
        }
    }
}

/// Current over baseline time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Estimate.
    pub estimate: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A band with its verdict.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Its name.
    pub key: BandKey,
    /// Smallest and largest size.
    pub span: (u64, u64),
    /// Launches of baseline and current side.
    pub launches: (usize, usize),
    /// Geometric mean of the launches' times, µs: baseline and current.
    pub time_us: (f64, f64),
    /// The larger of both sides' launch spreads (CV of the launches' values), where both have launches.
    pub spread: Option<f64>,
    /// The ratio, where both sides have launches.
    pub ratio: Option<Ratio>,
    /// p-value after Holm's correction.
    pub p: Option<f64>,
    /// The effect that matters for it, a fraction.
    pub effect: f64,
    /// What is concluded.
    pub verdict: Verdict,
    /// Launches a side that would probably settle it, for an inconclusive band.
    pub needed: Option<usize>,
    /// Points of the baseline that the current side lacks.
    pub lost_points: usize,
    /// Listed as not to count.
    pub quarantined: bool,
    /// Listed as one that must be conclusive.
    pub required: bool,
}

/// Judges all bands together: Holm's correction counts those that can be tested and are not quarantined. `drift` is what the machine
/// itself may have changed between the two recordings; see [`crate::compare::drift`].
pub fn all(sides: &[Sides], rules: &Rules, drift: f64) -> Vec<Judged> {
    all_with(sides, rules, drift, &mut Tables::default())
}

/// The same with tables of U that are kept for further comparisons.
pub(crate) fn all_with(sides: &[Sides], rules: &Rules, drift: f64, tables: &mut Tables) -> Vec<Judged> {
    let mut tests: Vec<_> =
        sides.iter().map(|sides| tables.test(&sides.baseline, &sides.current, rules.alpha)).collect();
    let counts = |index: &usize| {
        sides[*index].baseline.len() >= MIN_LAUNCHES
            && sides[*index].current.len() >= MIN_LAUNCHES
            && !rules.is_quarantined(&sides[*index].key)
    };
    let counted: Vec<usize> = (0..sides.len()).filter(counts).collect();
    let raw: Vec<f64> = counted.iter().map(|&index| tests[index].map_or(1.0, |test| test.p)).collect();
    for (&index, p) in counted.iter().zip(holm(&raw)) {
        if let Some(test) = &mut tests[index] {
            test.p = p;
        }
    }
    let family = Family { size: counted.len(), drift };
    sides.iter().zip(tests).map(|(sides, test)| one(sides, test, rules, family)).collect()
}

/// What all bands of a comparison share.
#[derive(Clone, Copy)]
struct Family {
    /// Tests that Holm's correction counts.
    size: usize,
    /// Change of the machine itself that must be allowed for, a fraction.
    drift: f64,
}

fn one(sides: &Sides, test: Option<RankTest>, rules: &Rules, family: Family) -> Judged {
    let effect = rules.effect(&sides.key, sides.span);
    let launches = (sides.baseline.len(), sides.current.len());
    let fewer = launches.0.min(launches.1);
    let ratio =
        test.map(|test| Ratio { estimate: test.shift.exp(), low: test.low.exp(), high: test.high.exp() });
    let p = test.map(|test| test.p).filter(|_| fewer >= MIN_LAUNCHES);
    let verdict = match (ratio, p) {
        _ if sides.current.is_empty() => Verdict::Missing,
        _ if sides.baseline.is_empty() => Verdict::New,
        (Some(ratio), Some(p)) => verdict(ratio, p < rules.alpha, effect, family.drift),
        _ => Verdict::Inconclusive,
    };
    let needed = || needed(ratio, fewer, effect, family.drift).max(launches_for(family.size, rules.alpha));
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    Judged {
        key: sides.key.clone(),
        span: sides.span,
        launches,
        time_us: (mean(&sides.baseline), mean(&sides.current)),
        spread: test.map(|_| spread(&sides.baseline).max(spread(&sides.current))),
        ratio,
        p,
        effect,
        verdict,
        needed: (verdict == Verdict::Inconclusive).then(needed),
        lost_points: sides.lost_points,
        quarantined: rules.is_quarantined(&sides.key),
        required: rules.is_required(&sides.key),
    }
}

/// CV of the launches' values; of logarithms that is their standard deviation.
pub(crate) fn spread(logs: &[f64]) -> f64 {
    let mean = crate::stats::mean(logs);
    (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt()
}

/// Launches a side at which the smallest possible p-value stays below `alpha` in a family of so many tests.
fn launches_for(family: usize, alpha: f64) -> usize {
    let enough = |n: &usize| smallest_p(*n) * (family.max(1) as f64) < alpha;
    (MIN_LAUNCHES..MOST).find(enough).unwrap_or(MOST)
}

/// No more launches than this are ever asked for.
pub const MOST: usize = 1000;

fn verdict(ratio: Ratio, significant: bool, effect: f64, drift: f64) -> Verdict {
    let room = 1.0 + drift;
    if significant && ratio.low > room && ratio.estimate > (1.0 + effect) * room {
        Verdict::Regressed
    } else if significant && ratio.high < 1.0 / room && ratio.estimate < 1.0 / (1.0 + effect) / room {
        Verdict::Improved
    } else if ratio.high * room < 1.0 + effect {
        Verdict::Pass
    } else {
        Verdict::Inconclusive
    }
}

/// The half width of the interval shrinks with the root of the number of launches; it has to fit between the estimate and the bound.
fn needed(ratio: Option<Ratio>, launches: usize, effect: f64, drift: f64) -> usize {
    let at_least = (launches + 1).max(MIN_LAUNCHES + 1);
    let Some(ratio) = ratio.filter(|ratio| ratio.low > 0.0 && ratio.high.is_finite()) else {
        return at_least;
    };
    let half = (ratio.high / ratio.low).ln() / 2.0;
    let regression = (1.0 + effect) * (1.0 + drift);
    let margin = if ratio.estimate > regression {
        (ratio.estimate / (1.0 + drift)).ln()
    } else {
        // Between the bounds of pass and regressed no number of launches helps.
        ((1.0 + effect) / (1.0 + drift) / ratio.estimate).ln()
    };
    let factor = (half / margin.max(1e-6)).powi(2);
    ((launches as f64 * factor).ceil().min(MOST as f64) as usize).clamp(at_least, MOST.max(at_least))
}

#[cfg(test)]
mod tests {
    use super::{Ratio, Verdict, launches_for, needed, verdict};

    fn ratio(low: f64, estimate: f64, high: f64) -> Ratio {
        Ratio { estimate, low, high }
    }

    #[test]
    fn verdicts_follow_both_ends_and_the_estimate() {
        let judge = |ratio, significant| verdict(ratio, significant, 0.05, 0.0);
        assert_eq!(judge(ratio(1.02, 1.08, 1.14), true), Verdict::Regressed);
        assert_eq!(judge(ratio(1.02, 1.08, 1.14), false), Verdict::Inconclusive);
        assert_eq!(judge(ratio(1.01, 1.03, 1.04), true), Verdict::Pass);
        assert_eq!(judge(ratio(0.98, 1.01, 1.049), false), Verdict::Pass);
        assert_eq!(judge(ratio(0.86, 0.90, 0.95), true), Verdict::Improved);
        assert_eq!(judge(ratio(0.96, 0.97, 0.99), true), Verdict::Pass);
        assert_eq!(judge(ratio(0.9, 1.0, 1.2), false), Verdict::Inconclusive);
    }

    #[test]
    fn drift_of_the_machine_asks_for_more_before_anything_is_called_changed() {
        let judge = |ratio| verdict(ratio, true, 0.05, 0.10);
        assert_eq!(judge(ratio(1.06, 1.12, 1.18)), Verdict::Inconclusive);
        assert_eq!(judge(ratio(1.12, 1.20, 1.25)), Verdict::Regressed);
        assert_eq!(judge(ratio(0.80, 0.84, 0.88)), Verdict::Improved);
        // The machine may have become faster by as much, and hide a slow-down.
        assert_eq!(judge(ratio(0.96, 0.98, 1.00)), Verdict::Inconclusive);
        assert_eq!(judge(ratio(0.88, 0.92, 0.95)), Verdict::Pass);
    }

    #[test]
    fn wider_intervals_need_more_launches() {
        let narrow = needed(Some(ratio(0.97, 1.0, 1.06)), 10, 0.05, 0.0);
        let wide = needed(Some(ratio(0.8, 1.0, 1.3)), 10, 0.05, 0.0);
        assert!(narrow > 10 && wide > narrow && wide <= 1000, "{narrow} {wide}");
        assert_eq!(needed(None, 2, 0.05, 0.0), 6);
        assert_eq!(needed(Some(ratio(0.9, 1.05, 1.2)), 10, 0.05, 0.0), 1000);
    }

    #[test]
    fn many_bands_need_more_launches_before_any_can_be_called() {
        // 2 / C(10, 5) = 0.0079, 2 / C(12, 6) = 0.0022, 2 / C(20, 10) = 1.1e-5.
        assert_eq!([1, 2, 4, 5, 900].map(|family| launches_for(family, 0.01)), [5, 6, 6, 7, 10]);
    }
}
