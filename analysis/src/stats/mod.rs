//! Statistics of timing samples: order statistics, spread, intervals of a median, rank tests.
//!
//! Definitions are fixed here once: median of an even number is the mean of the middle two; P95 interpolates linearly between order
//! statistics at position `(n - 1) * 0.95`; CV is the population standard deviation over the mean.

pub mod bootstrap;
pub mod change;
pub mod interval;
pub mod proportion;
pub mod rank_test;

/// The value at fraction `q` of sorted samples, linear between neighbours.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let low = position.floor() as usize;
    let high = (low + 1).min(last);
    let part = position - low as f64;
    sorted[low] * (1.0 - part) + sorted[high] * part
}

/// The median of sorted samples.
pub fn median(sorted: &[f64]) -> f64 {
    quantile(sorted, 0.5)
}

/// The median of samples in any order.
pub fn median_of(samples: impl IntoIterator<Item = f64>) -> f64 {
    median(&sorted(samples))
}

/// Samples in ascending order.
pub fn sorted(samples: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = samples.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Arithmetic mean.
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Population standard deviation over the mean, as a fraction; 0 for one sample.
pub fn cv(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / samples.len() as f64;
    variance.sqrt() / mean
}

/// Geometric mean.
pub fn geometric_mean(samples: &[f64]) -> f64 {
    (samples.iter().map(|x| x.ln()).sum::<f64>() / samples.len() as f64).exp()
}

/// What a table says about one set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Median.
    pub median: f64,
    /// 95th percentile, linear.
    pub p95: f64,
    /// Population standard deviation over mean, a fraction.
    pub cv: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Describes sorted samples; nothing for none.
    pub fn of_sorted(sorted: &[f64]) -> Option<Self> {
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let (median, p95) = (median(sorted), quantile(sorted, 0.95));
        Some(Self { n: sorted.len(), median, p95, cv: cv(sorted), min, max })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use statrs::statistics::{Data, OrderStatistics, Statistics};

    use super::{Summary, cv, mean, median_of, quantile, sorted};

    const OUTLIER: [f64; 10] = [316.10, 57.69, 57.96, 57.61, 57.60, 57.93, 57.88, 57.69, 57.53, 57.63];

    #[test]
    fn one_outlier_moves_the_cv_and_not_the_median() {
        let summary = Summary::of_sorted(&sorted(OUTLIER)).unwrap();
        assert_eq!(format!("{:.2}", summary.median), "57.69");
        assert_eq!(format!("{:.2}", summary.cv * 100.0), "92.76");
        assert_eq!((summary.n, summary.min, summary.max), (10, 57.53, 316.10));
        // (n - 1) * 0.95 = 8.55: between the ninth and the tenth order statistic.
        assert!((summary.p95 - (57.96 + 0.55 * (316.10 - 57.96))).abs() < 1e-9);
    }

    #[test]
    fn percentiles_of_a_hand_made_vector() {
        let five = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(quantile(&five, 0.95), 4.8);
        assert_eq!(quantile(&five, 0.0), 1.0);
        assert_eq!(quantile(&five, 1.0), 5.0);
        assert_eq!(median_of([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(cv(&[7.0]), 0.0);
        assert_eq!(Summary::of_sorted(&[]), None);
    }

    proptest! {
        #[test]
        fn median_mean_and_cv_agree_with_statrs(samples in proptest::collection::vec(0.01f64..1e7, 1..60)) {
            let ours = sorted(samples.iter().copied());
            let theirs = Data::new(samples.clone()).median();
            prop_assert!((median_of(samples.iter().copied()) - theirs).abs() <= 1e-12 * theirs);
            let spread = samples.iter().population_std_dev() / samples.iter().mean();
            prop_assert!((cv(&ours) - spread).abs() <= 1e-9);
            prop_assert!((mean(&samples) - samples.iter().mean()).abs() <= 1e-9 * mean(&samples));
        }

        #[test]
        fn percentiles_lie_between_their_neighbours(samples in proptest::collection::vec(0.01f64..1e7, 1..60), q in 0.0f64..1.0) {
            let ours = sorted(samples);
            let value = quantile(&ours, q);
            let below = (q * (ours.len() - 1) as f64).floor() as usize;
            prop_assert!(value >= ours[below] * (1.0 - 1e-12));
            prop_assert!(value <= ours[(below + 1).min(ours.len() - 1)] * (1.0 + 1e-12));
        }
    }
}
