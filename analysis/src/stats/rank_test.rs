//! Mann-Whitney test of two groups of launches, its shift interval, and Holm's correction over many tests.
//!
//! Without ties the distribution of U is counted exactly; with ties the normal approximation with tie and continuity correction
//! serves. The interval is the Hodges-Lehmann one: the differences that the test would not reject.

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

/// Beyond this many pairs the exact count gives way to the approximation, which is as good there.
const EXACT_PAIRS: usize = 2500;

/// Tests whether `b` tends to be larger or smaller than `a`; the interval has confidence `1 - alpha`. Nothing when a side is empty.
pub fn mann_whitney(a: &[f64], b: &[f64], alpha: f64) -> Option<RankTest> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut differences: Vec<f64> = b.iter().flat_map(|y| a.iter().map(move |x| y - x)).collect();
    differences.sort_by(f64::total_cmp);
    let pairs = differences.len();
    let u = b.iter().flat_map(|y| a.iter().map(move |x| score(*x, *y))).sum::<f64>();
    let tied = has_ties(a, b);
    let counts = (!tied && pairs <= EXACT_PAIRS).then(|| tail_counts(a.len(), b.len()));
    let p = match &counts {
        Some(cumulative) => exact_p(cumulative, u as usize),
        None => normal_p(a, b, u),
    };
    let cut = match &counts {
        Some(cumulative) => exact_cut(cumulative, alpha),
        None => normal_cut(a.len(), b.len(), alpha),
    };
    let shift = crate::stats::median(&differences);
    let (low, high) = match cut {
        0 => (f64::NEG_INFINITY, f64::INFINITY),
        cut => (differences[cut - 1], differences[pairs - cut]),
    };
    Some(RankTest { p, shift, low, high })
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
fn tail_counts(m: usize, n: usize) -> Vec<f64> {
    // ways[i][u]: orders of i of the first group among j of the second, built up over j.
    let mut ways = vec![vec![0.0; m * n + 1]; m + 1];
    for row in &mut ways {
        row[0] = 1.0;
    }
    for j in 1..=n {
        for i in 1..=m {
            // The largest of i + j is from the second group (beats all i of the first) or from the first.
            let mut next = vec![0.0; m * n + 1];
            for u in 0..=i * j {
                let from_second = if u >= i { ways[i][u - i] } else { 0.0 };
                next[u] = from_second + ways[i - 1][u];
            }
            ways[i] = next;
        }
    }
    let total: f64 = ways[m].iter().sum();
    let mut sum = 0.0;
    ways[m]
        .iter()
        .map(|ways| {
            sum += ways;
            sum / total
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

    use super::{holm, mann_whitney, tail_counts};

    #[test]
    fn complete_separation_of_five_and_five_has_the_smallest_p() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [6.0, 7.0, 8.5, 9.0, 10.0];
        let test = mann_whitney(&a, &b, 0.01).unwrap();
        assert!((test.p - 2.0 / 252.0).abs() < 1e-12);
        assert_eq!((test.low, test.high), (1.0, 9.0));
        let mirrored = mann_whitney(&b, &a, 0.01).unwrap();
        assert_eq!((mirrored.p, mirrored.shift), (test.p, -test.shift));
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
    fn exact_counts_are_a_distribution() {
        let counts = tail_counts(2, 2);
        // U of 2 against 2: 0 1 2 2 3 4.
        let expected = [1.0, 2.0, 4.0, 5.0, 6.0].map(|x| x / 6.0);
        assert!(counts.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-12), "{counts:?}");
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

    proptest! {
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
