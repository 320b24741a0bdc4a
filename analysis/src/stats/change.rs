//! Change points of a series of medians: e-divisive splits inside a sliding window, each confirmed by a t-test.
//!
//! A series of nightly runs is short and drifts; splitting the whole of it lets one old change hide a young one, so every window of the
//! series is looked at, the best split of each is a candidate, and a candidate counts when the means on both sides differ beyond chance.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// One confirmed change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the first value after it.
    pub at: usize,
    /// Mean of the segment before.
    pub before: f64,
    /// Mean of the segment after.
    pub after: f64,
    /// p-value of the t-test.
    pub p: f64,
}

/// Smallest number of values on either side of a change.
const SIDE: usize = 3;

/// Changes in a series, in order. `window` values are looked at together.
pub fn change_points(series: &[f64], window: usize, alpha: f64) -> Vec<Change> {
    let window = window.max(2 * SIDE);
    let mut cuts = std::collections::BTreeSet::new();
    let starts = series.len().saturating_sub(window);
    for start in (0..=starts).step_by((window / 2).max(1)).chain([starts]) {
        let end = (start + window).min(series.len());
        split(&series[start..end], start, alpha, &mut cuts);
    }
    confirm(series, cuts.into_iter().collect(), alpha)
}

fn split(part: &[f64], offset: usize, alpha: f64, cuts: &mut std::collections::BTreeSet<usize>) {
    if part.len() < 2 * SIDE {
        return;
    }
    let best =
        (SIDE..=part.len() - SIDE).max_by(|&i, &j| divergence(part, i).total_cmp(&divergence(part, j)));
    let Some(at) = best else { return };
    if welch(&part[..at], &part[at..]) >= alpha {
        return;
    }
    cuts.insert(offset + at);
    split(&part[..at], offset, alpha, cuts);
    split(&part[at..], offset + at, alpha, cuts);
}

/// Energy distance between the two sides, weighted by their sizes.
fn divergence(part: &[f64], at: usize) -> f64 {
    let (left, right) = part.split_at(at);
    let (m, n) = (left.len() as f64, right.len() as f64);
    let between: f64 = left.iter().flat_map(|x| right.iter().map(move |y| (x - y).abs())).sum();
    let within =
        |side: &[f64]| -> f64 { side.iter().flat_map(|x| side.iter().map(move |y| (x - y).abs())).sum() };
    let distance = 2.0 * between / (m * n) - within(left) / (m * m) - within(right) / (n * n);
    m * n / (m + n) * distance
}

/// Drops the weakest cut until every remaining one separates its two neighbouring segments.
fn confirm(series: &[f64], mut cuts: Vec<usize>, alpha: f64) -> Vec<Change> {
    loop {
        let mut bounds = vec![0];
        bounds.extend(&cuts);
        bounds.push(series.len());
        let changes: Vec<Change> = bounds
            .windows(3)
            .map(|b| {
                let (left, right) = (&series[b[0]..b[1]], &series[b[1]..b[2]]);
                Change { at: b[1], before: mean(left), after: mean(right), p: welch(left, right) }
            })
            .collect();
        let weakest = changes.iter().enumerate().max_by(|x, y| x.1.p.total_cmp(&y.1.p));
        match weakest {
            Some((index, change)) if change.p >= alpha => {
                cuts.remove(index);
            }
            _ => return changes,
        }
    }
}

fn mean(part: &[f64]) -> f64 {
    crate::stats::mean(part)
}

/// Two-sided p-value of Welch's test; 1 where a side has fewer than two values.
pub fn welch(a: &[f64], b: &[f64]) -> f64 {
    if a.len() < 2 || b.len() < 2 {
        return 1.0;
    }
    let variance =
        |side: &[f64]| side.iter().map(|x| (x - mean(side)).powi(2)).sum::<f64>() / (side.len() - 1) as f64;
    let (u, v) = (variance(a) / a.len() as f64, variance(b) / b.len() as f64);
    let gap = (mean(a) - mean(b)).abs();
    if u + v <= 0.0 {
        return if gap > 0.0 { 0.0 } else { 1.0 };
    }
    let freedom = (u + v).powi(2) / (u * u / (a.len() - 1) as f64 + v * v / (b.len() - 1) as f64);
    let t = gap / (u + v).sqrt();
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |distribution| 2.0 * distribution.sf(t))
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{change_points, welch};

    fn noise(n: usize, level: f64, seed: u64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| level * (1.0 + rng.random_range(-0.01..0.01))).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut series = noise(20, 100.0, 1);
        series.extend(noise(15, 110.0, 2));
        let changes = change_points(&series, 20, 0.001);
        assert_eq!(changes.iter().map(|c| c.at).collect::<Vec<_>>(), [20]);
        assert!((changes[0].after / changes[0].before - 1.1).abs() < 0.01);
    }

    #[test]
    fn two_steps_are_two_changes_and_noise_is_none() {
        let mut series = noise(12, 100.0, 3);
        series.extend(noise(12, 120.0, 4));
        series.extend(noise(12, 100.0, 5));
        assert_eq!(change_points(&series, 24, 0.001).iter().map(|c| c.at).collect::<Vec<_>>(), [12, 24]);
        assert!(change_points(&noise(40, 100.0, 6), 20, 0.001).is_empty());
        assert!(change_points(&[], 20, 0.001).is_empty());
        assert!(change_points(&[1.0, 2.0], 20, 0.001).is_empty());
    }

    #[test]
    fn welch_agrees_with_the_closed_form_for_four_degrees_of_freedom() {
        // t = 1.2247 with 4 degrees of freedom: p = 0.28786.
        assert!((welch(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]) - 0.287_86).abs() < 1e-5);
        assert_eq!(welch(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]), 0.0);
    }
}
