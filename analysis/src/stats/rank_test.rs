//! Mann-Whitney test of two groups of launches, its shift interval, and Holm's correction over many tests.
//!
//! Without ties the distribution of U is counted exactly; with ties the normal approximation with tie and continuity correction
//! serves. The interval is the Hodges-Lehmann one: the differences that the test would not reject.

use std::collections::HashMap;
use std::sync::Arc;

use statrs::distribution::{ContinuousCDF, Normal};

/// Outcome of comparing `b` against `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankTest {
    /// Two-sided p-value.
    pub p: f64,
    /// Median of all differences `b - a`.
    pub shift: f64,
    /// Lower end of the shift's interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Beyond this many launches a side counting takes seconds, and the approximation differs from it in no printed figure.
const EXACT_LAUNCHES: usize = 400;

/// Exact distributions of U by group sizes: thousands of bands share a few of them.
#[derive(Clone, Debug, Default)]
pub struct Tables(HashMap<(usize, usize), Arc<[f64]>>);

impl Tables {
    fn cumulative(&mut self, m: usize, n: usize) -> Arc<[f64]> {
        // U of the swapped groups has the same distribution.
        let key = (m.min(n), m.max(n));
        self.0.entry(key).or_insert_with(|| tail_probabilities(key.0, key.1).into()).clone()
    }

    /// Tests whether `b` tends to be larger or smaller than `a`; the interval has confidence `1 - alpha`. Nothing when a side is empty.
    pub fn test(&mut self, a: &[f64], b: &[f64], alpha: f64) -> Option<RankTest> {
        if a.is_empty() || b.is_empty() {
            return None;
        }
        let mut differences: Vec<f64> = b.iter().flat_map(|y| a.iter().map(move |x| y - x)).collect();
        differences.sort_by(f64::total_cmp);
        let pairs = differences.len();
        let u = b.iter().flat_map(|y| a.iter().map(move |x| score(*x, *y))).sum::<f64>();
        let exact = !has_ties(a, b) && a.len().max(b.len()) <= EXACT_LAUNCHES;
        let (p, cut) = if exact {
            let cumulative = self.cumulative(a.len(), b.len());
            (exact_p(&cumulative, u as usize), exact_cut(&cumulative, alpha))
        } else {
            (normal_p(a, b, u), normal_cut(a.len(), b.len(), alpha))
        };
        let shift = crate::stats::median(&differences);
        let (low, high) = match cut {
            0 => (f64::NEG_INFINITY, f64::INFINITY),
            cut => (differences[cut - 1], differences[pairs - cut]),
        };
        Some(RankTest { p, shift, low, high })
    }
}

/// One test by itself; see [`Tables::test`].
pub fn mann_whitney(a: &[f64], b: &[f64], alpha: f64) -> Option<RankTest> {
    Tables::default().test(a, b, alpha)
}

/// The smallest p-value that so many launches on both sides can reach: 2 over the number of orders.
pub fn smallest_p(launches: usize) -> f64 {
    // C(2n, n) as a product of ratios; infinite where it no longer fits, which is a p of 0.
    let orders: f64 = (1..=launches).map(|k| (launches + k) as f64 / k as f64).product();
    (2.0 / orders).min(1.0)
}

fn score(x: f64, y: f64) -> f64 {
    if y > x {
        1.0
    } else if y == x {
        0.5
    } else {
        0.0
    }
}

fn has_ties(a: &[f64], b: &[f64]) -> bool {
    let all = crate::stats::sorted(a.iter().chain(b).copied());
    all.windows(2).any(|pair| pair[0] == pair[1])
}

/// `P(U <= u)` for every u, when all orders are equally likely.
///
/// The number of orders with each U is the Gaussian binomial of `m + n` over `m`: the product over i from 1 to m of
/// `(1 - q^(n+i)) / (1 - q^i)`. Coefficients up to the middle depend on smaller ones only, so rounding stays in the last digits
/// there; the other half is its mirror image.
fn tail_probabilities(m: usize, n: usize) -> Vec<f64> {
    let half = m * n / 2;
    let mut ways = vec![0.0f64; half + 1];
    ways[0] = 1.0;
    for i in 1..=m {
        for u in (n + i..=half).rev() {
            ways[u] -= ways[u - n - i];
        }
        for u in i..=half {
            ways[u] += ways[u - i];
        }
        // Large groups have more orders than a number can hold; only shares matter.
        if ways[half] > 1e200 {
            ways.iter_mut().for_each(|ways| *ways *= 1e-200);
        }
    }
    let all = (0..=m * n).map(|u| ways[u.min(m * n - u)]);
    let total: f64 = all.clone().sum();
    let mut sum = 0.0;
    all.map(|ways| {
        sum += ways;
        (sum / total).min(1.0)
    })
    .collect()
}

fn exact_p(cumulative: &[f64], u: usize) -> f64 {
    let below = cumulative[u];
    // U and its mirror image are equally likely.
    let above = cumulative[cumulative.len() - 1 - u];
    (2.0 * below.min(above)).min(1.0)
}

/// Largest k with `P(U <= k - 1) <= alpha / 2`: the k-th difference from either end bounds the interval.
fn exact_cut(cumulative: &[f64], alpha: f64) -> usize {
    cumulative.iter().take_while(|&&p| p <= alpha / 2.0).count()
}

fn unit_normal() -> Normal {
    Normal::new(0.0, 1.0).expect("invariant: the unit normal exists")
}

fn normal_p(a: &[f64], b: &[f64], u: f64) -> f64 {
    let (m, n) = (a.len() as f64, b.len() as f64);
    let all = crate::stats::sorted(a.iter().chain(b).copied());
    let mut ties = 0.0;
    for run in all.chunk_by(|x, y| x == y) {
        let t = run.len() as f64;
        ties += t * t * t - t;
    }
    let total = m + n;
    let variance = m * n / 12.0 * ((total + 1.0) - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - m * n / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * unit_normal().sf(z)).min(1.0)
}

fn normal_cut(m: usize, n: usize, alpha: f64) -> usize {
    let (m, n) = (m as f64, n as f64);
    let z = unit_normal().inverse_cdf(1.0 - alpha / 2.0);
    let cut = m * n / 2.0 - z * (m * n * (m + n + 1.0) / 12.0).sqrt();
    if cut < 1.0 { 0 } else { cut.floor() as usize }
}

/// Holm's step-down adjustment: p-values that may be compared with the error rate of the whole family.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&i, &j| p_values[i].total_cmp(&p_values[j]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut floor = 0.0f64;
    for (step, &index) in order.iter().enumerate() {
        floor = floor.max((p_values[index] * (p_values.len() - step) as f64).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{exact_cut, holm, mann_whitney, smallest_p, tail_probabilities};

    #[test]
    fn complete_separation_of_five_and_five_has_the_smallest_p() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [6.0, 7.0, 8.5, 9.0, 10.0];
        let test = mann_whitney(&a, &b, 0.01).unwrap();
        assert!((test.p - 2.0 / 252.0).abs() < 1e-12);
        assert_eq!((test.low, test.high), (1.0, 9.0));
        let mirrored = mann_whitney(&b, &a, 0.01).unwrap();
        assert_eq!((mirrored.p, mirrored.shift), (test.p, -test.shift));
        assert!((smallest_p(5) - test.p).abs() < 1e-15);
        assert!((smallest_p(10) - 2.0 / 184_756.0).abs() < 1e-15 && smallest_p(600) == 0.0);
    }

    #[test]
    fn a_published_example_without_ties() {
        // Hollander & Wolfe, permeability constants of placental membranes: U = 35, two-sided exact p = 0.2544.
        let a = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let b = [1.15, 0.88, 0.90, 0.74, 1.21];
        let test = mann_whitney(&a, &b, 0.05).unwrap();
        assert!((test.p - 0.2544).abs() < 5e-5, "{}", test.p);
        assert!((test.shift + 0.305).abs() < 1e-9, "{}", test.shift);
        assert!((test.low + 0.76).abs() < 1e-9 && (test.high - 0.15).abs() < 1e-9, "{test:?}");
    }

    #[test]
    fn ties_use_the_corrected_approximation() {
        // U = 27.5 of 5 and 6 with one tied pair: z = 12 / sqrt(2.5 * (12 - 6 / 110)) = 2.19589, p = 0.02810.
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [5.0, 6.0, 7.0, 8.0, 9.0, 3.5];
        let test = mann_whitney(&a, &b, 0.05).unwrap();
        assert!((test.p - 0.028_100).abs() < 1e-6, "{}", test.p);
    }

    #[test]
    fn critical_values_are_those_of_the_printed_tables() {
        // Two-sided, the largest U that rejects; none where the table shows a dash.
        let five_percent =
            [(5, 5, 2), (5, 10, 8), (7, 9, 12), (8, 8, 13), (10, 10, 23), (15, 15, 64), (20, 20, 127)];
        for (m, n, u) in five_percent {
            assert_eq!(exact_cut(&tail_probabilities(m, n), 0.05), u + 1, "{m} {n}");
        }
        let one_percent = [(5, 5, 0), (5, 10, 4), (8, 8, 7), (10, 10, 16), (15, 15, 51), (20, 20, 105)];
        for (m, n, u) in one_percent {
            assert_eq!(exact_cut(&tail_probabilities(m, n), 0.01), u + 1, "{m} {n}");
        }
        assert_eq!(exact_cut(&tail_probabilities(4, 4), 0.01), 0);
    }

    #[test]
    fn exact_counts_are_a_distribution() {
        // U of 2 against 2: 0 1 2 2 3 4.
        let expected = [1.0, 2.0, 4.0, 5.0, 6.0].map(|x| x / 6.0);
        let counts = tail_probabilities(2, 2);
        assert!(counts.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-12), "{counts:?}");
        let large = tail_probabilities(300, 300);
        assert!(large.windows(2).all(|pair| pair[0] <= pair[1]) && *large.last().unwrap() == 1.0);
        assert!((large[45_000] - 0.5).abs() < 1e-4, "{}", large[45_000]);
    }

    #[test]
    fn exact_and_approximate_tails_agree_for_large_groups() {
        let exact = tail_probabilities(100, 120);
        let (mean, deviation) = (6000.0, (100.0 * 120.0 * 221.0 / 12.0f64).sqrt());
        // U has shorter tails than the normal distribution: the Edgeworth term of its excess kurtosis.
        let kurtosis =
            -1.2 * (100.0 * 100.0 + 120.0 * 120.0 + 100.0 * 120.0 + 220.0) / (100.0 * 120.0 * 221.0);
        for wanted in [-3.0, -2.0, -1.0, 0.5, 2.0f64] {
            let u = (mean + wanted * deviation).floor();
            let z = (u + 0.5 - mean) / deviation;
            let normal = super::ContinuousCDF::cdf(&super::unit_normal(), z);
            let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let expected = normal - density * kurtosis / 24.0 * (z.powi(3) - 3.0 * z);
            assert!((exact[u as usize] - expected).abs() < 2e-5, "{z}: {} {expected}", exact[u as usize]);
        }
    }

    #[test]
    fn equal_samples_are_no_evidence() {
        let test = mann_whitney(&[2.0; 6], &[2.0; 6], 0.01).unwrap();
        assert_eq!((test.p, test.shift, test.low, test.high), (1.0, 0.0, 0.0, 0.0));
        assert!(mann_whitney(&[], &[1.0], 0.01).is_none());
    }

    #[test]
    fn too_few_pairs_give_an_unbounded_interval() {
        let test = mann_whitney(&[1.0, 2.0], &[3.0, 4.0], 0.01).unwrap();
        assert_eq!((test.low, test.high), (f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn holm_steps_down_and_keeps_order() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-12), "{adjusted:?}");
        assert!(holm(&[]).is_empty());
    }

    /// P(U <= u) by writing every order of m and n down.
    fn by_enumeration(m: usize, n: usize) -> Vec<f64> {
        let mut ways = vec![0.0; m * n + 1];
        for order in 0u32..1 << (m + n) {
            if order.count_ones() as usize == m {
                let (mut u, mut seconds) = (0, 0);
                for place in 0..m + n {
                    if order >> place & 1 == 1 { u += seconds } else { seconds += 1 }
                }
                ways[u] += 1.0;
            }
        }
        let total: f64 = ways.iter().sum();
        let mut sum = 0.0;
        ways.iter()
            .map(|ways| {
                sum += ways;
                sum / total
            })
            .collect()
    }

    proptest! {
        #[test]
        fn counts_are_those_of_all_orders(m in 1usize..7, n in 1usize..8) {
            let (counted, listed) = (tail_probabilities(m.min(n), m.max(n)), by_enumeration(m, n));
            prop_assert!(counted.iter().zip(&listed).all(|(x, y)| (x - y).abs() < 1e-12), "{:?} {:?}", counted, listed);
        }

        #[test]
        fn interval_and_p_value_say_the_same(a in proptest::collection::vec(1.0f64..2.0, 5..12),
                                             b in proptest::collection::vec(1.0f64..2.6, 5..12)) {
            let test = mann_whitney(&a, &b, 0.05).unwrap();
            prop_assert!(test.low <= test.shift && test.shift <= test.high);
            // Both are inversions of one exact test: zero is outside the interval exactly when p is small enough.
            prop_assert_eq!(test.p <= 0.05, test.low > 0.0 || test.high < 0.0, "{:?}", test);
        }
    }
}
