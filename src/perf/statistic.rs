//! Statistics of the harness: the `-I` columns (nccl-tests' definitions) and the `--stats` table (those of records).

/// Summary of the iterations of one row (`-I`), microseconds and percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// Mean.
    pub avg: f64,
    /// Upper median.
    pub p50: f64,
    /// Nearest-rank 95th percentile.
    pub p95: f64,
    /// Nearest-rank 99th percentile.
    pub p99: f64,
    /// Population standard deviation.
    pub stdev: f64,
    /// 100 × stdev / avg; 0 when the mean is 0.
    pub cv_percent: f64,
}

impl Summary {
    /// Of samples in any order; all zero when there are none.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let m = sorted.len();
        let (avg, stdev) = moments(&sorted);
        let nearest_rank = |percent: usize| sorted[((m * percent).div_ceil(100) - 1).min(m - 1)];
        Self {
            min,
            max,
            avg,
            p50: sorted[m / 2],
            p95: nearest_rank(95),
            p99: nearest_rank(99),
            stdev,
            cv_percent: if avg == 0.0 { 0.0 } else { 100.0 * stdev / avg },
        }
    }
}

/// Statistics of one size and placement over cycles (`--stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Samples behind it.
    pub samples: usize,
    /// Median.
    pub median: f64,
    /// 95th percentile, linear between order statistics.
    pub p95: f64,
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// 100 × population standard deviation / mean.
    pub cv_percent: f64,
}

impl Spread {
    /// Of samples in any order; all zero when there are none.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let (avg, stdev) = moments(&sorted);
        Self {
            samples: sorted.len(),
            median: interpolated(&sorted, 0.5),
            p95: interpolated(&sorted, 0.95),
            min,
            max,
            cv_percent: if avg == 0.0 { 0.0 } else { 100.0 * stdev / avg },
        }
    }
}

fn moments(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

fn interpolated(sorted: &[f64], quantile: f64) -> f64 {
    let position = quantile * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (position - below as f64) * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_take_the_elements_of_the_contract_table() {
        let table = [
            (1, 0, 0, 0),
            (2, 1, 1, 1),
            (5, 2, 4, 4),
            (20, 10, 18, 19),
            (50, 25, 47, 49),
            (100, 50, 94, 98),
            (101, 50, 95, 99),
            (1000, 500, 949, 989),
        ];
        for (m, p50, p95, p99) in table {
            let samples: Vec<f64> = (0..m).rev().map(f64::from).collect();
            let s = Summary::of(&samples);
            assert_eq!((s.p50, s.p95, s.p99), (f64::from(p50), f64::from(p95), f64::from(p99)), "m={m}");
        }
    }

    #[test]
    fn deviation_is_that_of_the_population() {
        let s = Summary::of(&[1.0, 3.0]);
        assert_eq!((s.avg, s.stdev, s.cv_percent), (2.0, 1.0, 50.0));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[0.0, 0.0]).cv_percent, 0.0);
    }

    #[test]
    fn spread_interpolates_between_order_statistics() {
        let s = Spread::of(&[4.0, 1.0, 2.0, 3.0]);
        assert_eq!((s.samples, s.median, s.min, s.max), (4, 2.5, 1.0, 4.0));
        assert!((s.p95 - 3.85).abs() < 1e-12);
    }
}
