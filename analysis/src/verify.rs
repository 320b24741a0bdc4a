//! Whether a tuning rule is worth it: pairs of launches with the rule on and off, one after the other.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::stats::rank_test::holm;

/// Ratio (on over off) that the upper end of the interval must stay below.
pub const WORTH: f64 = 0.98;
/// Error rate over all rules.
pub const ALPHA: f64 = 0.05;

/// What the pairs say about a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// Geometric mean of on over off.
    pub ratio: f64,
    /// Upper end of its one-sided 95 % interval.
    pub upper: f64,
    /// Lower end of the mirrored interval.
    pub lower: f64,
    /// p-value of "not below [`WORTH`]" after Holm's correction over all rules.
    pub p: f64,
    /// Whether the rule survives.
    pub keep: bool,
}

impl Judged {
    /// Whether more pairs could still decide either way.
    pub fn is_open(&self) -> bool {
        !self.keep && self.lower < WORTH
    }
}

/// Judges all rules together. Each has its pairs' time ratios, on over off; fewer than two pairs decide nothing.
pub fn judge(rules: &[Vec<f64>]) -> Vec<Judged> {
    let raw: Vec<(f64, f64, f64, f64)> = rules.iter().map(|ratios| one(ratios)).collect();
    let adjusted = holm(&raw.iter().map(|(.., p)| *p).collect::<Vec<_>>());
    let judged = raw.iter().zip(adjusted).map(|((ratio, lower, upper, _), p)| Judged {
        ratio: *ratio,
        upper: *upper,
        lower: *lower,
        p,
        keep: p < ALPHA && *upper < WORTH,
    });
    judged.collect()
}

fn one(ratios: &[f64]) -> (f64, f64, f64, f64) {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let n = logs.len() as f64;
    if logs.len() < 2 {
        return (logs.first().map_or(f64::NAN, |log| log.exp()), 0.0, f64::INFINITY, 1.0);
    }
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    if error == 0.0 {
        return (mean.exp(), mean.exp(), mean.exp(), if mean < WORTH.ln() { 0.0 } else { 1.0 });
    }
    let student = StudentsT::new(0.0, 1.0, n - 1.0).expect("invariant: freedom is above 0");
    let reach = student.inverse_cdf(1.0 - ALPHA) * error;
    ((mean).exp(), (mean - reach).exp(), (mean + reach).exp(), student.cdf((mean - WORTH.ln()) / error))
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn only_rules_that_surely_help_survive() {
        let helps = vec![0.80, 0.82, 0.81, 0.79, 0.83, 0.80];
        let equal = vec![1.00, 1.02, 0.99, 1.01, 0.98, 1.00];
        let noisy = vec![0.5, 1.5, 0.8, 1.1, 0.6, 1.2];
        let all = judge(&[helps, equal, noisy, vec![0.1]]);
        assert_eq!(all.iter().map(|judged| judged.keep).collect::<Vec<_>>(), [true, false, false, false]);
        assert_eq!(all.iter().map(|judged| judged.is_open()).collect::<Vec<_>>(), [false, false, true, true]);
        assert!(all[0].ratio < 0.82 && all[0].upper < 0.84 && all[0].lower > 0.78, "{:?}", all[0]);
    }

    #[test]
    fn two_percent_are_needed_not_merely_less_than_one() {
        let slight = vec![0.990, 0.991, 0.989, 0.990, 0.991, 0.989];
        assert!(!judge(&[slight])[0].keep);
    }
}
