//! Rule sets: few rules that lose little against the best choice at every size.
//!
//! The penalty of a choice at a size is its time over the best time there, minus one. Among all rule sets whose penalty stays under a
//! bound at every measured size, dynamic programming finds one with the fewest rules, and of those the one with the least mean penalty.
//! That holds for any number of candidates: which rule the last size uses is all that the rest needs to know.

use crate::crossover::Curve;

/// One rule: a choice for a run of measured sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// First measured size.
    pub from_bytes: u64,
    /// Last measured size.
    pub to_bytes: u64,
    /// Index of the candidate.
    pub choice: usize,
}

/// Rules with their quality on some data.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSet {
    /// Rules, ascending, covering every size once.
    pub rules: Vec<Rule>,
    /// Their quality on the data they were made from.
    pub quality: Quality,
}

/// How much is lost against the best choice of every size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Mean penalty over sizes, a fraction.
    pub mean: f64,
    /// Largest penalty, a fraction.
    pub max: f64,
    /// Sizes that could be scored.
    pub sizes: usize,
}

/// The smallest rule set whose penalty is at most `bound` at every size; nothing without sizes.
pub fn smallest(curves: &[Curve], bound: f64) -> Option<RuleSet> {
    let sizes = sizes(curves);
    // cost[choice]: fewest rules, then least summed penalty, over the sizes so far when the last one uses this choice.
    let mut cost = vec![(0usize, 0.0f64); curves.len()];
    let mut from: Vec<Vec<usize>> = Vec::with_capacity(sizes.len());
    for (step, &bytes) in sizes.iter().enumerate() {
        let (best_before, least) = best_of(&cost);
        let penalties = penalties_at(curves, bytes);
        let mut back = vec![usize::MAX; curves.len()];
        let mut next = vec![(usize::MAX, f64::INFINITY); curves.len()];
        for choice in 0..curves.len() {
            let Some(penalty) = penalties[choice].filter(|&penalty| penalty <= bound) else { continue };
            let stay = if step == 0 { (usize::MAX, f64::INFINITY) } else { cost[choice] };
            let switch = (least.0 + 1, least.1);
            let (origin, (rules, sum)) =
                if less(stay, switch) { (choice, stay) } else { (best_before, switch) };
            next[choice] = (rules, sum + penalty);
            back[choice] = origin;
        }
        cost = next;
        from.push(back);
    }
    let (mut choice, _) = best_of(&cost);
    let mut choices = vec![0; sizes.len()];
    for step in (0..sizes.len()).rev() {
        choices[step] = choice;
        choice = from[step][choice];
    }
    let rules = join(&sizes, &choices);
    let quality = score(&rules, curves)?;
    Some(RuleSet { rules, quality })
}

/// Penalty of rules on curves, which may come from other launches than the rules. Sizes without the chosen candidate are left out.
pub fn score(rules: &[Rule], curves: &[Curve]) -> Option<Quality> {
    let mut penalties = Vec::new();
    for bytes in sizes(curves) {
        let rule = rules.iter().find(|rule| (rule.from_bytes..=rule.to_bytes).contains(&bytes));
        penalties.extend(rule.and_then(|rule| penalties_at(curves, bytes)[rule.choice]));
    }
    let max = penalties.iter().copied().fold(0.0, f64::max);
    let mean = penalties.iter().sum::<f64>() / penalties.len() as f64;
    (!penalties.is_empty()).then_some(Quality { mean, max, sizes: penalties.len() })
}

/// The one-rule set that always takes `choice`.
pub fn always(curves: &[Curve], choice: usize) -> Option<RuleSet> {
    let sizes = sizes(curves);
    let rules = vec![Rule { from_bytes: *sizes.first()?, to_bytes: *sizes.last()?, choice }];
    let quality = score(&rules, curves)?;
    Some(RuleSet { rules, quality })
}

fn sizes(curves: &[Curve]) -> Vec<u64> {
    let mut sizes: Vec<u64> = curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn penalties_at(curves: &[Curve], bytes: u64) -> Vec<Option<f64>> {
    let times: Vec<Option<f64>> =
        curves.iter().map(|curve| Some(curve.points.get(&bytes)?.time_us)).collect();
    let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    times.into_iter().map(|time| time.map(|time| time / best - 1.0)).collect()
}

fn less(a: (usize, f64), b: (usize, f64)) -> bool {
    a.0 < b.0 || (a.0 == b.0 && a.1 <= b.1)
}

fn best_of(cost: &[(usize, f64)]) -> (usize, (usize, f64)) {
    let mut best = (0, (usize::MAX, f64::INFINITY));
    for (index, &cost) in cost.iter().enumerate() {
        if cost.0 < best.1.0 || (cost.0 == best.1.0 && cost.1 < best.1.1) {
            best = (index, cost);
        }
    }
    best
}

fn join(sizes: &[u64], choices: &[usize]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (&bytes, &choice) in sizes.iter().zip(choices) {
        match rules.last_mut() {
            Some(last) if last.choice == choice => last.to_bytes = bytes,
            _ => rules.push(Rule { from_bytes: bytes, to_bytes: bytes, choice }),
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Rule, always, score, smallest};
    use crate::crossover::Curve;
    use crate::crossover::tests::curve;

    fn two(a: &[f64], b: &[f64]) -> Vec<Curve> {
        let column =
            |times: &[f64]| times.iter().enumerate().map(|(i, &t)| (1u64 << i, t)).collect::<Vec<_>>();
        vec![curve("a", &column(a)), curve("b", &column(b))]
    }

    #[test]
    fn a_loose_bound_needs_fewer_rules() {
        let curves = two(&[1.0, 1.0, 1.02, 1.0, 2.0], &[2.0, 2.0, 1.0, 2.0, 1.0]);
        let strict = smallest(&curves, 0.0).unwrap();
        assert_eq!(strict.rules.len(), 4);
        assert_eq!(strict.quality.max, 0.0);
        let loose = smallest(&curves, 0.025).unwrap();
        let expected = [
            Rule { from_bytes: 1, to_bytes: 8, choice: 0 },
            Rule { from_bytes: 16, to_bytes: 16, choice: 1 },
        ];
        assert_eq!(loose.rules, expected);
        assert!((loose.quality.max - 0.02).abs() < 1e-12 && (loose.quality.mean - 0.004).abs() < 1e-12);
        assert_eq!(always(&curves, 0).unwrap().quality.max, 1.0);
    }

    #[test]
    fn other_launches_may_judge_differently() {
        let chosen = smallest(&two(&[1.0, 2.0], &[2.0, 1.0]), 0.0).unwrap();
        let other = two(&[1.0, 2.0], &[2.0, 3.0]);
        let quality = score(&chosen.rules, &other).unwrap();
        assert_eq!((quality.max, quality.sizes), (0.5, 2));
        assert!(smallest(&[], 0.1).is_none());
    }

    /// All rule sets by brute force: the fewest rules under the bound.
    fn fewest(a: &[f64], b: &[f64], bound: f64) -> usize {
        let mut best = usize::MAX;
        for mask in 0u32..1 << a.len() {
            let pick = |i: usize| mask >> i & 1;
            let fits = (0..a.len()).all(|i| {
                let time = if pick(i) == 0 { a[i] } else { b[i] };
                time / a[i].min(b[i]) - 1.0 <= bound
            });
            if fits {
                best = best.min(1 + (1..a.len()).filter(|&i| pick(i) != pick(i - 1)).count());
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_rule_set_under_the_bound_is_smaller(
            times in proptest::collection::vec((1.0f64..1.2, 1.0f64..1.2), 1..10), bound in 0.0f64..0.1,
        ) {
            let (a, b): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
            let found = smallest(&two(&a, &b), bound).unwrap();
            prop_assert_eq!(found.rules.len(), fewest(&a, &b, bound));
            prop_assert!(found.quality.max <= bound);
            prop_assert_eq!(found.quality.sizes, a.len());
        }
    }
}
