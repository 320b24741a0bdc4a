//! Verdicts: a rank test per band, Holm over the bands, an interval of the ratio against the effect that matters.

use crate::compare::SizeNote;
use crate::compare::band::{BandKey, Sides};
use crate::compare::rules::Rules;
use crate::stats::median_of;
use crate::stats::rank_test::{holm, mann_whitney};

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
    /// Listed as not to count.
    pub quarantined: bool,
    /// Listed as one that must be conclusive.
    pub required: bool,
}

/// Judges all bands together: Holm's correction counts those that can be tested.
pub fn all(sides: &[Sides], rules: &Rules) -> Vec<Judged> {
    let tests: Vec<_> = sides
        .iter()
        .map(|sides| {
            let enough = sides.baseline.len() >= MIN_LAUNCHES && sides.current.len() >= MIN_LAUNCHES;
            let test = mann_whitney(&sides.baseline, &sides.current, rules.alpha);
            test.map(|test| (test, enough))
        })
        .collect();
    let counted: Vec<usize> =
        (0..sides.len()).filter(|&index| tests[index].is_some_and(|(_, enough)| enough)).collect();
    let raw: Vec<f64> = counted.iter().map(|&index| tests[index].map_or(1.0, |(test, _)| test.p)).collect();
    let mut adjusted = vec![None; sides.len()];
    for (&index, p) in counted.iter().zip(holm(&raw)) {
        adjusted[index] = Some(p);
    }
    let judged = sides.iter().enumerate().map(|(index, sides)| {
        let ratio = tests[index].map(|(test, _)| Ratio {
            estimate: test.shift.exp(),
            low: test.low.exp(),
            high: test.high.exp(),
        });
        one(sides, ratio, adjusted[index], rules)
    });
    judged.collect()
}

fn one(sides: &Sides, ratio: Option<Ratio>, p: Option<f64>, rules: &Rules) -> Judged {
    let effect = rules.effect(&sides.key);
    let name = sides.key.name();
    let verdict = match (ratio, p) {
        _ if sides.current.is_empty() => Verdict::Missing,
        _ if sides.baseline.is_empty() => Verdict::New,
        (Some(ratio), Some(p)) => verdict(ratio, p < rules.alpha, effect),
        _ => Verdict::Inconclusive,
    };
    let launches = (sides.baseline.len(), sides.current.len());
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    Judged {
        key: sides.key.clone(),
        span: sides.span,
        launches,
        time_us: (mean(&sides.baseline), mean(&sides.current)),
        ratio,
        p,
        effect,
        verdict,
        needed: (verdict == Verdict::Inconclusive).then(|| needed(ratio, launches.0.min(launches.1), effect)),
        quarantined: rules.is_quarantined(&name),
        required: rules.is_required(&name),
    }
}

fn verdict(ratio: Ratio, significant: bool, effect: f64) -> Verdict {
    if significant && ratio.low > 1.0 && ratio.estimate > 1.0 + effect {
        Verdict::Regressed
    } else if significant && ratio.high < 1.0 && ratio.estimate < 1.0 / (1.0 + effect) {
        Verdict::Improved
    } else if ratio.high < 1.0 + effect {
        Verdict::Pass
    } else {
        Verdict::Inconclusive
    }
}

/// The half width of the interval shrinks with the root of the number of launches; it has to fit between the estimate and the bound.
fn needed(ratio: Option<Ratio>, launches: usize, effect: f64) -> usize {
    const MOST: usize = 1000;
    let at_least = (launches + 1).max(MIN_LAUNCHES);
    let Some(ratio) = ratio.filter(|ratio| ratio.low > 0.0 && ratio.high.is_finite()) else {
        return at_least.max(MIN_LAUNCHES + 1);
    };
    let half = (ratio.high / ratio.low).ln() / 2.0;
    let margin = if ratio.estimate > 1.0 + effect {
        ratio.estimate.ln()
    } else {
        ((1.0 + effect) / ratio.estimate).ln()
    };
    let factor = (half / margin.max(1e-6)).powi(2);
    ((launches as f64 * factor).ceil().min(MOST as f64) as usize).clamp(at_least, MOST.max(at_least))
}

/// Sizes beyond twice the effect in both halves of the current launches.
pub fn moved_sizes(sides: &Sides, effect: f64) -> Vec<SizeNote> {
    let mut notes = Vec::new();
    for ((placement, bytes), before, after) in &sides.points {
        if before.len() < 2 || after.len() < 4 {
            continue;
        }
        let reference = median_of(before.iter().copied());
        let half = |first: usize| median_of(after.iter().skip(first).step_by(2).copied()) / reference;
        if half(0) > 1.0 + 2.0 * effect && half(1) > 1.0 + 2.0 * effect {
            notes.push(SizeNote {
                band: sides.key.name(),
                place: format!("{}, {}", crate::format::size(*bytes), placement.name().replace('_', " ")),
                ratio: median_of(after.iter().copied()) / reference,
            });
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{Ratio, Verdict, needed, verdict};

    fn ratio(low: f64, estimate: f64, high: f64) -> Ratio {
        Ratio { estimate, low, high }
    }

    #[test]
    fn verdicts_follow_both_ends_and_the_estimate() {
        assert_eq!(verdict(ratio(1.02, 1.08, 1.14), true, 0.05), Verdict::Regressed);
        assert_eq!(verdict(ratio(1.02, 1.08, 1.14), false, 0.05), Verdict::Inconclusive);
        assert_eq!(verdict(ratio(1.01, 1.03, 1.04), true, 0.05), Verdict::Pass);
        assert_eq!(verdict(ratio(0.98, 1.01, 1.049), false, 0.05), Verdict::Pass);
        assert_eq!(verdict(ratio(0.86, 0.90, 0.95), true, 0.05), Verdict::Improved);
        assert_eq!(verdict(ratio(0.96, 0.97, 0.99), true, 0.05), Verdict::Pass);
        assert_eq!(verdict(ratio(0.9, 1.0, 1.2), false, 0.05), Verdict::Inconclusive);
    }

    #[test]
    fn wider_intervals_need_more_launches() {
        let narrow = needed(Some(ratio(0.97, 1.0, 1.06)), 10, 0.05);
        let wide = needed(Some(ratio(0.8, 1.0, 1.3)), 10, 0.05);
        assert!(narrow > 10 && wide > narrow && wide <= 1000, "{narrow} {wide}");
        assert_eq!(needed(None, 2, 0.05), 6);
        assert_eq!(needed(Some(ratio(0.9, 1.05, 1.2)), 10, 0.05), 1000);
    }
}
