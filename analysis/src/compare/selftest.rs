//! The gate's own error rates, measured on recordings of one unchanged build.
//!
//! Random disjoint sets of launches are compared as if one were the baseline. Every regression found is a false alarm; with one set
//! made slower by a factor, every `pass` is a miss. Bands are computed once; a split only chooses launches. Three kinds of splits say
//! three things: both sides from one session (what `--run` does, where launches alternate), one side from each of two sessions (what
//! comparing two recordings does), and both sides from all sessions mixed.

use std::collections::HashMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::compare::band::{self, Sides};
use crate::compare::judge::{Judged, Verdict, all_with, spread};
use crate::compare::rules::Rules;
use crate::compare::{Comparison, STATUS_PASS, STATUS_REGRESSED, drift};
use crate::dataset::Dataset;
use crate::stats::proportion::clopper_pearson;
use crate::stats::rank_test::Tables;

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Times it happened.
    pub hits: u64,
    /// Times it could have.
    pub of: u64,
}

impl Rate {
    fn count(&mut self, hit: bool) {
        self.of += 1;
        self.hits += u64::from(hit);
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { hits: self.hits + other.hits, of: self.of + other.of }
    }

    /// `3 of 500 (0.60 %)`, or a dash where it could not happen.
    pub fn share(self) -> String {
        if self.of == 0 {
            return "-".into();
        }
        format!("{} of {} ({:.2} %)", self.hits, self.of, self.hits as f64 / self.of as f64 * 100.0)
    }

    /// Its 95 % interval after Clopper and Pearson: `0.12 % to 1.74 %`.
    pub fn interval(self) -> String {
        if self.of == 0 {
            return "-".into();
        }
        let (low, high) = clopper_pearson(self.hits, self.of, 0.05);
        format!("{:.2} % to {:.2} %", low * 100.0, high * 100.0)
    }
}

/// Rates of one kind of split.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Runs of the gate with any regressed band, nothing having changed.
    pub false_alarms: Rate,
    /// The same among pairs that share no launch with each other.
    pub disjoint_alarms: Rate,
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
    /// Largest change of a band's median launch between two sessions, a fraction; 0 within one.
    pub largest_shift: f64,
    /// Bands that were compared.
    pub bands: usize,
    /// Bands with too few launches, left out.
    pub bands_left_out: usize,
}

impl Rates {
    /// Rates of two kinds of splits together.
    pub fn and(self, other: Self) -> Self {
        Self {
            false_alarms: self.false_alarms.and(other.false_alarms),
            disjoint_alarms: self.disjoint_alarms.and(other.disjoint_alarms),
            runs_passed: self.runs_passed.and(other.runs_passed),
            runs_failed: self.runs_failed.and(other.runs_failed),
            missed: self.missed.and(other.missed),
            found: self.found.and(other.found),
            found_when_quiet: self.found_when_quiet.and(other.found_when_quiet),
            open: self.open.and(other.open),
            largest_shift: self.largest_shift.max(other.largest_shift),
            bands: self.bands.max(other.bands),
            bands_left_out: self.bands_left_out.max(other.bands_left_out),
        }
    }

    /// What is counted, and how often, for people. `percent` is the slow-down.
    pub fn lines(&self, percent: f64) -> Vec<(String, Rate)> {
        let slow = format!("{percent:.0} % slower");
        vec![
            ("false alarms: gate runs with a regressed band, nothing changed".into(), self.false_alarms),
            ("the same over pairs that share no launch".into(), self.disjoint_alarms),
            (format!("gate runs with status 0, everything {slow}"), self.runs_passed),
            (format!("gate runs with status 1, everything {slow}"), self.runs_failed),
            (format!("bands called pass although {slow}"), self.missed),
            (format!("bands called regressed when {slow}"), self.found),
            ("the same where launches spread by at most 3 %".into(), self.found_when_quiet),
            (format!("bands left open when {slow}"), self.open),
        ]
    }
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

/// Launch spread (CV of a band's launches) up to which a band counts as quiet.
pub const QUIET_SPREAD: f64 = 0.03;

/// Splits within one recording, or within several taken together. Nothing when it has too few launches for two disjoint sides.
pub fn within(data: &Dataset, plan: Plan, rules: &Rules) -> Option<Rates> {
    let n = plan.launches;
    let bands = band::sides(data, data, rules);
    let run = Run::new(&bands, |sides| sides.baseline.len() >= 2 * n, (plan, rules), 0.0);
    let pairs = run.bands.iter().map(|sides| sides.baseline.len() / (2 * n)).min()?;
    let choose = |sides: &Sides, pair: usize, orders: &mut [Orders; 2], rng: &mut ChaCha8Rng| {
        let order = orders[0].of(sides.baseline.len(), rng);
        let from = 2 * n * pair;
        (order[from..from + n].to_vec(), order[from + n..from + 2 * n].to_vec())
    };
    Some(run.all_splits(pairs, choose))
}

/// Splits between two recordings: the baseline from the first, the current side from the second.
pub fn across(first: &Dataset, second: &Dataset, plan: Plan, rules: &Rules) -> Option<Rates> {
    let n = plan.launches;
    let bands = band::sides(first, second, rules);
    let enough = |sides: &Sides| sides.baseline.len().min(sides.current.len()) >= n;
    let drift = if drift::lie_apart(first, second) { rules.drift } else { 0.0 };
    let mut run = Run::new(&bands, enough, (plan, rules), drift);
    let shift = |sides: &&Sides| {
        let median = |logs: &[f64]| crate::stats::median_of(logs.iter().copied());
        (median(&sides.current) - median(&sides.baseline)).abs().exp_m1()
    };
    run.rates.largest_shift = run.bands.iter().map(shift).fold(0.0, f64::max);
    let pairs = run.bands.iter().map(|sides| sides.baseline.len().min(sides.current.len()) / n).min()?;
    let choose = |sides: &Sides, pair: usize, orders: &mut [Orders; 2], rng: &mut ChaCha8Rng| {
        let part = n * pair..n * (pair + 1);
        let before = orders[0].of(sides.baseline.len(), rng)[part.clone()].to_vec();
        (before, orders[1].of(sides.current.len(), rng)[part].to_vec())
    };
    Some(run.all_splits(pairs, choose))
}

/// One shuffled order per number of launches: bands of the same launches are split alike, as the launches of one run are.
#[derive(Default)]
struct Orders(HashMap<usize, Vec<usize>>);

impl Orders {
    fn of(&mut self, launches: usize, rng: &mut ChaCha8Rng) -> &[usize] {
        self.0.entry(launches).or_insert_with(|| {
            let mut order: Vec<usize> = (0..launches).collect();
            order.shuffle(rng);
            order
        })
    }
}

/// Counts what comes of splits.
struct Run<'a> {
    bands: Vec<&'a Sides>,
    plan: Plan,
    rules: &'a Rules,
    drift: f64,
    tables: Tables,
    rates: Rates,
}

impl<'a> Run<'a> {
    fn new(
        all: &'a [Sides],
        enough: impl Fn(&Sides) -> bool,
        (plan, rules): (Plan, &'a Rules),
        drift: f64,
    ) -> Self {
        let bands: Vec<&Sides> = all.iter().filter(|sides| enough(sides)).collect();
        let rates = Rates { bands: bands.len(), bands_left_out: all.len() - bands.len(), ..Rates::default() };
        Self { bands, plan, rules, drift, tables: Tables::default(), rates }
    }

    /// Random splits, then the pairs of one split that share no launch.
    fn all_splits(
        mut self,
        pairs: usize,
        choose: impl Fn(&Sides, usize, &mut [Orders; 2], &mut ChaCha8Rng) -> (Vec<usize>, Vec<usize>),
    ) -> Rates {
        let mut rng = ChaCha8Rng::seed_from_u64(self.plan.seed);
        for _ in 0..self.plan.splits {
            let mut orders = Default::default();
            let picks: Vec<_> =
                self.bands.iter().map(|sides| choose(sides, 0, &mut orders, &mut rng)).collect();
            let alarm = self.is_alarm(&picks);
            self.rates.false_alarms.count(alarm);
            self.slowed(&picks);
        }
        let mut orders = Default::default();
        for pair in 0..pairs {
            let picks: Vec<_> =
                self.bands.iter().map(|sides| choose(sides, pair, &mut orders, &mut rng)).collect();
            let alarm = self.is_alarm(&picks);
            self.rates.disjoint_alarms.count(alarm);
        }
        self.rates
    }

    fn judge(&mut self, picks: &[(Vec<usize>, Vec<usize>)], slowdown: f64) -> (Vec<Sides>, Vec<Judged>) {
        let chosen: Vec<Sides> =
            self.bands.iter().zip(picks).map(|(sides, (a, b))| chosen(sides, a, b, slowdown)).collect();
        let judged = all_with(&chosen, self.rules, self.drift, &mut self.tables);
        (chosen, judged)
    }

    fn is_alarm(&mut self, picks: &[(Vec<usize>, Vec<usize>)]) -> bool {
        self.judge(picks, 1.0).1.iter().any(|band| band.verdict == Verdict::Regressed && !band.quarantined)
    }

    fn slowed(&mut self, picks: &[(Vec<usize>, Vec<usize>)]) {
        let (chosen, judged) = self.judge(picks, self.plan.slowdown);
        let rates = &mut self.rates;
        let mut must_notice = false;
        for (sides, band) in chosen.iter().zip(&judged) {
            // A band whose effect is as large as the slow-down is not meant to notice it.
            if band.effect + 1.0 >= self.plan.slowdown || band.quarantined {
                continue;
            }
            must_notice = true;
            let regressed = band.verdict == Verdict::Regressed;
            rates.missed.count(band.verdict == Verdict::Pass);
            rates.found.count(regressed);
            rates.open.count(band.verdict == Verdict::Inconclusive);
            if spread(&sides.baseline).max(spread(&sides.current)) <= QUIET_SPREAD {
                rates.found_when_quiet.count(regressed);
            }
        }
        if must_notice {
            let status = Comparison { bands: judged, ..Comparison::default() }.status();
            rates.runs_passed.count(status == STATUS_PASS);
            rates.runs_failed.count(status == STATUS_REGRESSED);
        }
    }
}

fn chosen(sides: &Sides, a: &[usize], b: &[usize], slowdown: f64) -> Sides {
    Sides {
        key: sides.key.clone(),
        span: sides.span,
        baseline: a.iter().map(|&index| sides.baseline[index]).collect(),
        current: b.iter().map(|&index| sides.current[index] + slowdown.ln()).collect(),
        points: Vec::new(),
        lost_points: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Plan, Rate, across, within};
    use crate::compare::Rules;
    use crate::compare::tests::recording;

    const PLAN: Plan = Plan { splits: 200, launches: 10, slowdown: 1.10, seed: 1 };

    #[test]
    fn quiet_recordings_raise_no_alarm_and_slow_downs_are_found() {
        let data = recording(44, 1.0, 0.02, 5);
        let rates = within(&data, PLAN, &Rules::default()).unwrap();
        assert_eq!((rates.false_alarms.of, rates.disjoint_alarms), (200, Rate { hits: 0, of: 2 }));
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
        let rates = across(&sessions.0, &sessions.1, PLAN, &Rules::default()).unwrap();
        assert_eq!((rates.disjoint_alarms.of, rates.bands, rates.bands_left_out), (1, 4, 0));
    }

    #[test]
    fn rates_add_up_and_name_their_intervals() {
        let rate = Rate { hits: 1, of: 300 }.and(Rate { hits: 2, of: 200 });
        assert_eq!(
            (rate.share().as_str(), rate.interval().as_str()),
            ("3 of 500 (0.60 %)", "0.12 % to 1.74 %")
        );
        assert_eq!(Rate::default().share(), "-");
    }
}
