//! Bootstrap over launches: whole launches are drawn with replacement, because the cycles of one launch share its luck.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::stats::quantile;

/// Draws per interval. The ends' own noise is then far below the spread of the data.
const DRAWS: usize = 1000;

/// Percentile interval of the median of the pooled samples of drawn launches.
///
/// Samples are sorted once; a draw only counts how often each launch came up and walks to half of the weight.
pub fn median_interval(by_launch: &[Vec<f64>], coverage: f64, seed: u64) -> (f64, f64) {
    let mut pooled: Vec<(f64, u32)> = Vec::new();
    for (launch, samples) in by_launch.iter().enumerate() {
        pooled.extend(samples.iter().map(|&x| (x, launch as u32)));
    }
    pooled.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut weights = vec![0u32; by_launch.len()];
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            draw(&mut rng, &mut weights);
            weighted_median(&pooled, &weights, by_launch)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - coverage) / 2.0;
    (quantile(&medians, tail), quantile(&medians, 1.0 - tail))
}

/// Draws as many launches as there are, with replacement.
fn draw(rng: &mut ChaCha8Rng, weights: &mut [u32]) {
    weights.fill(0);
    let n = weights.len() as u64;
    for _ in 0..n {
        // The bias of multiply-and-shift is below 2^-32 times the number of launches.
        weights[((u64::from(rng.next_u32()) * n) >> 32) as usize] += 1;
    }
}

fn weighted_median(pooled: &[(f64, u32)], weights: &[u32], by_launch: &[Vec<f64>]) -> f64 {
    let total: u64 =
        weights.iter().zip(by_launch).map(|(&w, launch)| u64::from(w) * launch.len() as u64).sum();
    let (low_rank, high_rank) = (total.div_ceil(2), total / 2 + 1);
    let (mut seen, mut low) = (0u64, None);
    for &(value, launch) in pooled {
        seen += u64::from(weights[launch as usize]);
        if low.is_none() && seen >= low_rank {
            low = Some(value);
        }
        if seen >= high_rank {
            return f64::midpoint(low.unwrap_or(value), value);
        }
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::{median_interval, weighted_median};

    #[test]
    fn weighted_median_equals_the_median_of_the_written_out_sample() {
        let launches = [vec![1.0, 5.0], vec![2.0, 9.0], vec![4.0, 4.5]];
        let mut pooled: Vec<(f64, u32)> = Vec::new();
        for (i, launch) in launches.iter().enumerate() {
            pooled.extend(launch.iter().map(|&x| (x, i as u32)));
        }
        pooled.sort_by(|a, b| a.0.total_cmp(&b.0));
        for weights in [[1, 1, 1], [3, 0, 0], [0, 2, 1], [2, 1, 0]] {
            let mut written = Vec::new();
            for (launch, weight) in launches.iter().zip(weights) {
                for _ in 0..weight {
                    written.extend(launch.iter().copied());
                }
            }
            assert_eq!(weighted_median(&pooled, &weights, &launches), crate::stats::median_of(written));
        }
    }

    #[test]
    fn the_interval_is_repeatable_and_spans_launches_not_cycles() {
        let launches: Vec<Vec<f64>> = (0..8).map(|i| vec![10.0 + f64::from(i); 50]).collect();
        let first = median_interval(&launches, 0.95, 7);
        assert_eq!(first, median_interval(&launches, 0.95, 7));
        // 400 samples taken as independent would give an interval of width 1; eight launches give several.
        assert!(first.1 - first.0 >= 3.0, "{first:?}");
        assert!(first.0 >= 10.0 && first.1 <= 17.0);
    }
}
