//! The gate's own error rates, measured on recordings of one unchanged build.
//!
//! Random disjoint halves of launches are compared as if one were the baseline. Every regression found is a false alarm; with one half
//! made slower by a factor, every `pass` is a miss. Bands are computed once; a split only chooses launches.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::compare::band::{self, Sides};
use crate::compare::judge::{Verdict, all};
use crate::compare::rules::Rules;
use crate::compare::{Comparison, STATUS_PASS, STATUS_REGRESSED};
use crate::dataset::Dataset;
use crate::stats::proportion::clopper_pearson;

/// How often something happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Times it happened.
    pub hits: u64,
    /// Times it could have.
    pub of: u64,
}

impl Rate {
    /// `3 of 500 (0.6 %, 95 % interval 0.1 % to 1.7 %)`.
    pub fn text(self) -> String {
        let (low, high) = clopper_pearson(self.hits, self.of, 0.05);
        let share = if self.of == 0 { 0.0 } else { self.hits as f64 / self.of as f64 };
        format!(
            "{} of {} ({:.2} %, 95 % interval {:.2} % to {:.2} %)",
            self.hits,
            self.of,
            share * 100.0,
            low * 100.0,
            high * 100.0
        )
    }
}

/// Rates of one kind of split.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Runs of the gate with any regressed band, nothing having changed.
    pub false_alarms: Rate,
    /// Runs of the gate that end with status 0 although all bands are slower.
    pub runs_passed: Rate,
    /// Runs that end with status 1 when all bands are slower.
    pub runs_failed: Rate,
    /// Bands called `pass` although slower by more than their effect.
    pub missed: Rate,
    /// Bands called `regressed` when slower.
    pub found: Rate,
    /// The same among bands whose launches spread by at most 3 %.
    pub found_when_quiet: Rate,
    /// Bands left open when slower.
    pub open: Rate,
}

/// How splits are made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Splits to draw.
    pub splits: usize,
    /// Launches a side.
    pub launches: usize,
    /// Factor on the times of the slowed side.
    pub slowdown: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Launch spread (CV of a band's launch means) up to which a band counts as quiet.
pub const QUIET_SPREAD: f64 = 0.03;

/// Splits within one recording. Nothing when it has too few launches for two disjoint sides.
pub fn within(data: &Dataset, plan: Plan, rules: &Rules) -> Option<Rates> {
    let bands = band::sides(data, data);
    let launches = bands.iter().map(|sides| sides.baseline.len()).min()?;
    if launches < 2 * plan.launches {
        return None;
    }
    let pick = |rng: &mut ChaCha8Rng| {
        let mut order: Vec<usize> = (0..launches).collect();
        order.shuffle(rng);
        (order[..plan.launches].to_vec(), order[plan.launches..2 * plan.launches].to_vec())
    };
    Some(run(&bands, plan, rules, pick))
}

/// Splits between two recordings: the baseline from the first, the current side from the second.
pub fn across(first: &Dataset, second: &Dataset, plan: Plan, rules: &Rules) -> Option<Rates> {
    let bands = band::sides(first, second);
    let of_first = bands.iter().map(|sides| sides.baseline.len()).min()?;
    let of_second = bands.iter().map(|sides| sides.current.len()).min()?;
    if of_first < plan.launches || of_second < plan.launches {
        return None;
    }
    let pick = |rng: &mut ChaCha8Rng| {
        let side = |n: usize, rng: &mut ChaCha8Rng| {
            let mut order: Vec<usize> = (0..n).collect();
            order.shuffle(rng);
            order.truncate(plan.launches);
            order
        };
        (side(of_first, rng), side(of_second, rng))
    };
    Some(run(&bands, plan, rules, pick))
}

fn run(
    bands: &[Sides],
    plan: Plan,
    rules: &Rules,
    pick: impl Fn(&mut ChaCha8Rng) -> (Vec<usize>, Vec<usize>),
) -> Rates {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
    let zero = Rate { hits: 0, of: 0 };
    let mut rates = Rates {
        false_alarms: zero,
        runs_passed: zero,
        runs_failed: zero,
        missed: zero,
        found: zero,
        found_when_quiet: zero,
        open: zero,
    };
    for _ in 0..plan.splits {
        let (a, b) = pick(&mut rng);
        let equal = chosen(bands, &a, &b, 1.0);
        let alarm = all(&equal, rules).iter().any(|band| band.verdict == Verdict::Regressed);
        count(&mut rates.false_alarms, alarm);
        let slowed = chosen(bands, &a, &b, plan.slowdown);
        let outcome = all(&slowed, rules);
        for (sides, judged) in slowed.iter().zip(&outcome) {
            // A band whose effect is larger than the slow-down is not meant to notice it.
            if judged.effect + 1.0 >= plan.slowdown {
                continue;
            }
            let regressed = judged.verdict == Verdict::Regressed;
            count(&mut rates.missed, judged.verdict == Verdict::Pass);
            count(&mut rates.found, regressed);
            count(&mut rates.open, judged.verdict == Verdict::Inconclusive);
            if spread(&sides.baseline).max(spread(&sides.current)) <= QUIET_SPREAD {
                count(&mut rates.found_when_quiet, regressed);
            }
        }
        let status =
            Comparison { bands: outcome, sizes: Vec::new(), thresholds: Vec::new(), wrong_rows: 0 }.status();
        count(&mut rates.runs_passed, status == STATUS_PASS);
        count(&mut rates.runs_failed, status == STATUS_REGRESSED);
    }
    rates
}

fn count(rate: &mut Rate, hit: bool) {
    rate.of += 1;
    rate.hits += u64::from(hit);
}

fn chosen(bands: &[Sides], a: &[usize], b: &[usize], slowdown: f64) -> Vec<Sides> {
    let part = |sides: &Sides| Sides {
        key: sides.key.clone(),
        span: sides.span,
        baseline: a.iter().map(|&index| sides.baseline[index]).collect(),
        current: b.iter().map(|&index| sides.current[index] + slowdown.ln()).collect(),
        points: Vec::new(),
    };
    bands.iter().map(part).collect()
}

/// CV of the launches' means; of logarithms that is their standard deviation.
fn spread(logs: &[f64]) -> f64 {
    let mean = crate::stats::mean(logs);
    (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::{Plan, across, within};
    use crate::compare::Rules;
    use crate::compare::tests::recording;

    const PLAN: Plan = Plan { splits: 200, launches: 10, slowdown: 1.10, seed: 1 };

    #[test]
    fn quiet_recordings_raise_no_alarm_and_slow_downs_are_found() {
        let data = recording(24, 1.0, 0.02, 5);
        let rates = within(&data, PLAN, &Rules::default()).unwrap();
        assert_eq!(rates.false_alarms.of, 200);
        assert!(rates.false_alarms.hits <= 2, "{rates:?}");
        assert!(rates.missed.hits * 20 <= rates.missed.of, "{rates:?}");
        assert!(rates.runs_passed.hits == 0 && rates.runs_failed.hits >= 190, "{rates:?}");
        assert!(rates.found_when_quiet.hits * 20 >= rates.found_when_quiet.of * 19, "{rates:?}");
        assert_eq!(rates, within(&data, PLAN, &Rules::default()).unwrap(), "draws are seeded");
    }

    #[test]
    fn noisy_recordings_are_inconclusive_rather_than_missed() {
        let rates = within(&recording(24, 1.0, 0.25, 6), PLAN, &Rules::default()).unwrap();
        assert!(rates.missed.hits * 20 <= rates.missed.of, "{rates:?}");
        assert!(rates.false_alarms.hits <= 4, "{rates:?}");
        assert!(rates.open.hits > 0);
    }

    #[test]
    fn too_few_launches_give_no_rate() {
        assert!(within(&recording(12, 1.0, 0.02, 5), PLAN, &Rules::default()).is_none());
        let sessions = (recording(12, 1.0, 0.02, 5), recording(12, 1.0, 0.02, 6));
        assert!(across(&sessions.0, &sessions.1, PLAN, &Rules::default()).is_some());
    }
}
