//! Single sizes: diagnosis beside the verdicts of bands, never a verdict of their own.
//!
//! Many sizes are looked at and each is one noisy number a launch, so one is called regressed only when everything agrees: more than twice
//! the effect in the first half of the current launches and in the second, a rank test corrected for all sizes, and further launches where
//! there are any.

use crate::compare::band::{BandKey, Sides};
use crate::compare::judge::MIN_LAUNCHES;
use crate::compare::rules::Rules;
use crate::compare::{Comparison, band};
use crate::dataset::Dataset;
use crate::record::Placement;
use crate::stats::median_of;
use crate::stats::rank_test::{Tables, holm};

/// A single size that regressed.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeNote {
    /// The band.
    pub key: BandKey,
    /// In place or out of place.
    pub placement: Placement,
    /// Size.
    pub bytes: u64,
    /// Current over baseline.
    pub ratio: f64,
    /// The band's effect.
    pub effect: f64,
    /// Further launches of both sides that say the same, where some were made for that.
    pub confirmed: Option<(usize, usize)>,
}

fn median(times: &[f64]) -> f64 {
    median_of(times.iter().copied())
}

/// Sizes that moved by more than twice their band's effect.
pub fn moved(sides: &[Sides], rules: &Rules) -> Vec<SizeNote> {
    let mut tables = Tables::default();
    let (mut p_values, mut notes) = (Vec::new(), Vec::new());
    for sides in sides {
        let effect = rules.effect(&sides.key, sides.span);
        for ((placement, bytes), before, after) in &sides.points {
            if before.len().min(after.len()) < MIN_LAUNCHES {
                continue;
            }
            p_values.push(tables.test(before, after, rules.alpha).map_or(1.0, |test| test.p));
            let reference = median(before);
            let (first, second) = after.split_at(after.len() / 2);
            let smaller = median(first).min(median(second)) / reference;
            let ratio = median(after) / reference;
            notes.push((smaller > 1.0 + 2.0 * effect).then(|| SizeNote {
                key: sides.key.clone(),
                placement: *placement,
                bytes: *bytes,
                ratio,
                effect,
                confirmed: None,
            }));
        }
    }
    let significant = holm(&p_values).into_iter().map(|p| p < rules.alpha);
    notes.into_iter().zip(significant).filter_map(|(note, holds)| note.filter(|_| holds)).collect()
}

/// Keeps those sizes that further launches of both programs show as well: beyond twice the effect there, too.
pub fn confirm(comparison: &mut Comparison, baseline: &Dataset, current: &Dataset, rules: &Rules) {
    let sides = band::sides(baseline, current, rules);
    let times = |note: &SizeNote| {
        let all = sides.iter().filter(|sides| sides.key.part_of_configuration(&note.key));
        all.flat_map(|sides| &sides.points).find(|(point, ..)| *point == (note.placement, note.bytes))
    };
    comparison.sizes.retain_mut(|note| {
        let Some((_, before, after)) = times(note) else { return false };
        note.confirmed = Some((before.len(), after.len()));
        median(after) / median(before) > 1.0 + 2.0 * note.effect
    });
}

#[cfg(test)]
mod tests {
    use super::confirm;
    use crate::compare::tests::{recording, rows};
    use crate::compare::{Rules, compare};
    use crate::dataset::tests::dataset;

    #[test]
    fn a_single_slow_size_is_diagnosed_and_further_launches_decide() {
        let mut slow = rows(10, 1.0, 0.01, 2);
        slow.iter_mut()
            .filter(|row| row.algorithm == "ring" && row.bytes == 1 << 20)
            .for_each(|row| row.time_us *= 1.5);
        let outcome = compare(&recording(10, 1.0, 0.01, 1), &dataset(&slow), &Rules::default());
        assert_eq!(outcome.sizes.len(), 1);
        assert_eq!(outcome.sizes[0].bytes, 1 << 20);
        assert!((1.4..1.6).contains(&outcome.sizes[0].ratio));
        let mut confirmed = outcome.clone();
        confirm(&mut confirmed, &recording(3, 1.0, 0.01, 3), &dataset(&slow), &Rules::default());
        assert_eq!(confirmed.sizes[0].confirmed, Some((3, 10)));
        confirm(&mut confirmed, &recording(3, 1.0, 0.01, 3), &recording(3, 1.0, 0.01, 4), &Rules::default());
        assert!(confirmed.sizes.is_empty(), "further launches did not agree");
    }

    #[test]
    fn noise_of_single_sizes_is_not_called_regressed() {
        let noisy = compare(&recording(10, 1.0, 0.5, 1), &recording(10, 1.0, 0.5, 2), &Rules::default());
        assert!(noisy.sizes.is_empty(), "{:?}", noisy.sizes);
    }
}
