//! Intervals of the median: order statistics for one launch, launches resampled whole for five or more, nothing pretended between.

use statrs::distribution::{Binomial, DiscreteCDF};

use crate::stats::{bootstrap, median};

/// Coverage that is aimed for.
pub const COVERAGE: f64 = 0.95;

/// Launches from which a bootstrap over launches says something.
pub const BOOTSTRAP_LAUNCHES: usize = 5;

/// What is known about where the median of a group lies.
#[derive(Clone, Debug, PartialEq)]
pub enum MedianInterval {
    /// One sample: nothing.
    None,
    /// One launch: two order statistics and the probability that they hold the median between them.
    Order {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
        /// Its coverage; below [`COVERAGE`] with fewer than six samples.
        coverage: f64,
    },
    /// Two to four launches: their medians, in launch order. No probability is claimed.
    Launches {
        /// Median of each launch.
        medians: Vec<f64>,
        /// Whether they differ by more than the tie bound.
        disagree: bool,
    },
    /// Five launches or more: percentile interval of a bootstrap over launches.
    Bootstrap {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
}

impl MedianInterval {
    /// Chooses by the number of launches. `by_launch` holds each launch's samples; `seed` makes the bootstrap repeatable.
    pub fn of_launches(by_launch: &[Vec<f64>], tie: f64, seed: u64) -> Self {
        match by_launch {
            [] => Self::None,
            [only] => {
                let mut sorted = only.clone();
                sorted.sort_by(f64::total_cmp);
                order_interval(&sorted)
            }
            few if few.len() < BOOTSTRAP_LAUNCHES => {
                let medians: Vec<f64> =
                    few.iter().map(|launch| crate::stats::median_of(launch.iter().copied())).collect();
                let low = medians.iter().copied().fold(f64::INFINITY, f64::min);
                let high = medians.iter().copied().fold(0.0, f64::max);
                Self::Launches { medians, disagree: high / low - 1.0 > tie }
            }
            many => {
                let (low, high) = bootstrap::median_interval(many, COVERAGE, seed);
                Self::Bootstrap { low, high }
            }
        }
    }

    /// Lower and upper end, where there are any. For two to four launches: the outermost launch medians.
    pub fn ends(&self) -> Option<(f64, f64)> {
        match self {
            Self::None => None,
            Self::Order { low, high, .. } | Self::Bootstrap { low, high } => Some((*low, *high)),
            Self::Launches { medians, .. } => {
                let low = medians.iter().copied().fold(f64::INFINITY, f64::min);
                let high = medians.iter().copied().fold(0.0, f64::max);
                Some((low, high))
            }
        }
    }

    /// Whether few launches contradict each other.
    pub fn disagrees(&self) -> bool {
        matches!(self, Self::Launches { disagree: true, .. })
    }
}

/// The narrowest symmetric pair of order statistics that covers the median with at least [`COVERAGE`], or the outermost pair.
pub fn order_interval(sorted: &[f64]) -> MedianInterval {
    let n = sorted.len();
    if n < 2 {
        return MedianInterval::None;
    }
    let (rank, coverage) = order_rank(n);
    MedianInterval::Order { low: sorted[rank - 1], high: sorted[n - rank], coverage }
}

/// Rank `r` (from 1) of the lower end and the coverage of `[x_r, x_(n+1-r)]`.
pub fn order_rank(n: usize) -> (usize, f64) {
    let coin = Binomial::new(0.5, n as u64).expect("invariant: 0.5 is a probability");
    let coverage = |rank: usize| 1.0 - 2.0 * coin.cdf(rank as u64 - 1);
    let mut rank = 1;
    while rank < n / 2 && coverage(rank + 1) >= COVERAGE {
        rank += 1;
    }
    (rank, coverage(rank))
}

/// Median of the medians of launches, every launch with equal weight.
pub fn median_of_launch_medians(by_launch: &[Vec<f64>]) -> f64 {
    let mut medians: Vec<f64> =
        by_launch.iter().map(|launch| crate::stats::median_of(launch.iter().copied())).collect();
    medians.sort_by(f64::total_cmp);
    median(&medians)
}

#[cfg(test)]
mod tests {
    use super::{MedianInterval, order_interval, order_rank};

    #[test]
    fn order_statistics_have_the_coverage_of_the_tables() {
        // Published table of the sign test: n = 10 gives the 2nd and 9th order statistic, 97.85 %.
        assert_eq!(order_rank(10).0, 2);
        assert!((order_rank(10).1 - 0.978_515_625).abs() < 1e-12);
        assert!(order_rank(5).0 == 1 && (order_rank(5).1 - 0.9375).abs() < 1e-12);
        assert!(order_rank(6).0 == 1 && (order_rank(6).1 - 0.96875).abs() < 1e-12);
        assert_eq!(order_rank(20).0, 6);
        assert!((order_rank(20).1 - 0.958_610_534_667_968_8).abs() < 1e-12);
    }

    #[test]
    fn the_kind_follows_the_number_of_launches() {
        assert_eq!(order_interval(&[3.0]), MedianInterval::None);
        let one = MedianInterval::of_launches(&[vec![2.0, 1.0, 3.0]], 0.05, 1);
        assert!(
            matches!(one, MedianInterval::Order { low: 1.0, high: 3.0, coverage } if (coverage - 0.75).abs() < 1e-12)
        );
        let two = MedianInterval::of_launches(&[vec![1.0], vec![1.2]], 0.05, 1);
        assert!(two.disagrees());
        assert_eq!(two.ends(), Some((1.0, 1.2)));
        let agreeing = MedianInterval::of_launches(&[vec![1.0], vec![1.04]], 0.05, 1);
        assert!(!agreeing.disagrees());
        let five: Vec<Vec<f64>> = (1..=5).map(|x| vec![f64::from(x)]).collect();
        assert!(matches!(MedianInterval::of_launches(&five, 0.05, 1), MedianInterval::Bootstrap { .. }));
    }
}
