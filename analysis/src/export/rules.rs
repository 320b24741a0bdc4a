//! Few rules per world: which configuration from which size to which, sizes between the measured ones included.

use std::collections::BTreeMap;

use crate::crossover::Curve;
use crate::dataset::{Config, Dataset, Scenario};
use crate::format::{percent, size};
use crate::groups::{Scene, describe, scenes};
use crate::record::Placement;
use crate::ruleset::smallest;

/// What rules are about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Collective.
    pub collective: String,
    /// Hosts.
    pub n_hosts: u32,
    /// Ranks.
    pub n_ranks: u32,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} ranks", self.collective, self.n_ranks)?;
        if self.n_hosts == 1 { Ok(()) } else { write!(f, " on {} hosts", self.n_hosts) }
    }
}

/// One rule. Bytes are those of our records (whole buffer), inclusive on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where it holds.
    pub scope: Scope,
    /// First byte count.
    pub min_bytes: u64,
    /// Last byte count; `u64::MAX` for no end.
    pub max_bytes: u64,
    /// Algorithm.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels; 0 where the library has none.
    pub n_channels: u32,
    /// Why it is not the fastest, where it is not: a simpler setting ties.
    pub note: Option<String>,
}

/// What rules may lose.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest loss of a rule at any measured size.
    pub max_penalty: f64,
    /// Difference below which the simpler setting is taken.
    pub tie: f64,
}

/// Rules, and what somebody who uses them should know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Derived {
    /// World by world, ascending.
    pub rules: Vec<Rule>,
    /// Sentences.
    pub notes: Vec<String>,
}

/// Rules of every world of a data set: the fewest that lose at most the limit at every size, a simpler setting where it ties. Only what
/// is `usable`, because the consumer has words for it, is chosen from.
pub fn derive(data: &Dataset, limits: Limits, usable: impl Fn(&Scenario, &Config) -> bool) -> Derived {
    let stats = describe(data, limits.tie);
    let all = scenes(&stats);
    let mut worlds: BTreeMap<Scope, Vec<&Scene<'_>>> = BTreeMap::new();
    for scene in &all {
        let has_choice = scene.stats.iter().any(|stats| usable(scene.scenario, &stats.group.key.config));
        if has_choice {
            worlds.entry(scope_of(scene.scenario)).or_default().push(scene);
        }
    }
    let mut derived = Derived::default();
    for (scope, mut candidates) in worlds {
        candidates.sort_by_key(|scene| preference(scene));
        let scene = candidates[0];
        let same_placement =
            candidates[1..].iter().filter(|c| c.scenario.placement == scene.scenario.placement);
        let others: Vec<&str> = same_placement.map(|scene| scene.title.as_str()).collect();
        if !others.is_empty() {
            derived.notes.push(format!(
                "rules come from {}; {} left out, because a rule file cannot tell them apart",
                scene.title,
                others.join("; ")
            ));
        }
        let (rules, notes) = of_scene(scene, &scope, limits, &|config| usable(scene.scenario, config));
        derived.rules.extend(rules);
        derived.notes.extend(notes);
    }
    derived
}

fn scope_of(scenario: &Scenario) -> Scope {
    Scope {
        collective: scenario.collective.to_string(),
        n_hosts: scenario.n_hosts,
        n_ranks: scenario.n_ranks,
    }
}

/// Out of place is what programs mostly call with; then the widest recording; then the usual type and operator.
fn preference(scene: &Scene<'_>) -> (bool, usize, bool, bool, String) {
    let scenario = scene.scenario;
    (
        scenario.placement == Placement::InPlace,
        usize::MAX - scene.sizes().len(),
        &*scenario.dtype != "float",
        &*scenario.redop != "sum",
        scene.title.clone(),
    )
}

fn of_scene(
    scene: &Scene<'_>,
    scope: &Scope,
    limits: Limits,
    usable: &dyn Fn(&Config) -> bool,
) -> (Vec<Rule>, Vec<String>) {
    let (known, unknown): (Vec<_>, Vec<_>) =
        scene.curves(|config| config.label()).into_iter().partition(|(config, _)| usable(config));
    let mut notes = out_of_words(scope, &known, &unknown, limits.tie);
    let (configs, curves): (Vec<&Config>, Vec<Curve>) = known.into_iter().unzip();
    let Some(set) = smallest(&curves, limits.max_penalty) else { return (Vec::new(), notes) };
    if let [only] = sizes_of(&curves).as_slice() {
        notes.push(format!("{scope}: measured at {} only; its rule covers every size", size(*only)));
    }
    let mut rules: Vec<Rule> = Vec::new();
    let mut last_size = None;
    for part in &set.rules {
        let simpler =
            simplest(&configs, &curves, (part.from_bytes, part.to_bytes), (part.choice, limits.tie));
        let (config, note) = match simpler {
            Some(index) => (
                configs[index],
                Some(format!("{} ties with {} and is simpler", curves[index].name, curves[part.choice].name)),
            ),
            None => (configs[part.choice], None),
        };
        let min_bytes = last_size.map_or(0, |last| midpoint(last, part.from_bytes) + 1);
        last_size = Some(part.to_bytes);
        if let Some(previous) = rules.last_mut() {
            previous.max_bytes = min_bytes - 1;
            if (&*previous.algorithm, &*previous.protocol, previous.n_channels)
                == (&*config.algorithm, &*config.protocol, config.n_channels)
            {
                previous.max_bytes = u64::MAX;
                previous.note = previous.note.take().or(note);
                continue;
            }
        }
        rules.push(Rule {
            scope: scope.clone(),
            min_bytes,
            max_bytes: u64::MAX,
            algorithm: config.algorithm.to_string(),
            protocol: config.protocol.to_string(),
            n_channels: config.n_channels,
            note,
        });
    }
    (rules, notes)
}

fn sizes_of(curves: &[Curve]) -> Vec<u64> {
    let mut sizes: Vec<u64> = curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Where something that the file has no word for is faster than all it has words for.
fn out_of_words(
    scope: &Scope,
    known: &[(&Config, Curve)],
    unknown: &[(&Config, Curve)],
    tie: f64,
) -> Vec<String> {
    let best_at = |bytes: &u64| {
        let times = known.iter().filter_map(|(_, curve)| Some(curve.points.get(bytes)?.time_us));
        times.fold(f64::INFINITY, f64::min)
    };
    let mut notes = Vec::new();
    for (_, curve) in unknown {
        let ahead: Vec<(u64, f64)> = curve
            .points
            .iter()
            .map(|(bytes, point)| (*bytes, best_at(bytes) / point.time_us - 1.0))
            .filter(|(_, lead)| lead.is_finite() && *lead > tie)
            .collect();
        if let (Some(first), Some(last)) = (ahead.first(), ahead.last()) {
            let most = ahead.iter().map(|(_, lead)| *lead).fold(0.0, f64::max);
            notes.push(format!(
                "{scope}: {} is faster at {} of {} sizes from {} to {}, by up to {}, but the file has no word for it; \
                 the best of the others is exported",
                curve.name,
                ahead.len(),
                curve.points.len(),
                size(first.0),
                size(last.0),
                percent(most)
            ));
        }
    }
    notes
}

/// A configuration simpler than the chosen one that is within the tie bound of it at every size of the rule.
fn simplest(
    configs: &[&Config],
    curves: &[Curve],
    (from, to): (u64, u64),
    (choice, tie): (usize, f64),
) -> Option<usize> {
    let mut order: Vec<usize> = (0..configs.len()).collect();
    order.sort_by_key(|&index| complexity(configs[index]));
    let fits = |index: &usize| {
        curves[choice].points.range(from..=to).all(|(bytes, chosen)| {
            curves[*index].points.get(bytes).is_some_and(|point| point.time_us / chosen.time_us - 1.0 < tie)
        })
    };
    order.into_iter().take_while(|&index| index != choice).find(fits)
}

/// Fewer channels, then ring before others, then the protocol with the least machinery.
fn complexity(config: &Config) -> (u32, usize, usize, String) {
    let place =
        |list: &[&str], word: &str| list.iter().position(|other| *other == word).unwrap_or(list.len());
    let algorithm = place(&["ring", "tree"], &config.algorithm);
    (
        config.n_channels,
        algorithm,
        place(&["simple", "ll", "ll128"], &config.protocol),
        config.algorithm.to_string(),
    )
}

/// The geometric mean of two sizes: as far from one as from the other on the axis that sizes live on.
fn midpoint(low: u64, high: u64) -> u64 {
    let middle = ((low.max(1) as f64) * (high as f64)).sqrt() as u64;
    middle.clamp(low, high.saturating_sub(1).max(low))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{Derived, Limits, Rule, derive, midpoint};
    use crate::dataset::Dataset;
    use crate::dataset::tests::{dataset, row};

    /// Tree ahead up to 4 KiB, Ring from 8 KiB on.
    pub(crate) fn data() -> Dataset {
        let mut rows = Vec::new();
        for bytes in (3..24).map(|power| 1u64 << power) {
            for algorithm in ["ring", "tree"] {
                let fast = (algorithm == "tree") == (bytes <= 4096);
                rows.push(row("a", algorithm, bytes, if fast { 10.0 } else { 15.0 }));
            }
        }
        dataset(&rows)
    }

    pub(crate) fn from(data: &Dataset, max_penalty: f64) -> Derived {
        derive(data, Limits { max_penalty, tie: 0.02 }, |_, config| &*config.algorithm != "oneshot")
    }

    pub(crate) fn rules() -> Vec<Rule> {
        from(&data(), 0.025).rules
    }

    #[test]
    fn bounds_lie_at_geometric_midpoints_and_cover_everything() {
        let rules = rules();
        let shape: Vec<_> =
            rules.iter().map(|rule| (rule.algorithm.as_str(), rule.min_bytes, rule.max_bytes)).collect();
        assert_eq!(shape, [("tree", 0, 5792), ("ring", 5793, u64::MAX)]);
        assert_eq!(midpoint(8, 9), 8);
    }

    #[test]
    fn a_tie_takes_the_simpler_setting_and_says_so() {
        let mut wide = row("a", "ring", 1024, 10.0);
        wide.n_channels = 8;
        let rules = from(&dataset(&[row("a", "ring", 1024, 10.1), wide]), 0.0).rules;
        assert_eq!((rules.len(), rules[0].n_channels), (1, 1));
        assert!(rules[0].note.as_ref().unwrap().contains("ties with ring/simple/8"));
    }

    #[test]
    fn one_size_gives_one_rule_for_every_size_and_says_so() {
        let derived = from(&dataset(&[row("a", "ring", 1024, 10.0), row("a", "tree", 1024, 12.0)]), 0.0);
        assert_eq!((derived.rules[0].min_bytes, derived.rules[0].max_bytes), (0, u64::MAX));
        assert_eq!(
            derived.notes,
            ["all_reduce, 4 ranks: measured at 1 KiB only; its rule covers every size"]
        );
    }

    #[test]
    fn what_has_no_word_is_left_out_and_named() {
        let rows = [(8, 1.0), (16, 5.0), (32, 9.0)]
            .into_iter()
            .flat_map(|(bytes, time)| [row("a", "oneshot", bytes, time), row("a", "ring", bytes, 6.0)]);
        let derived = from(&dataset(&rows.collect::<Vec<_>>()), 0.0);
        assert_eq!(derived.rules.len(), 1);
        assert_eq!(&*derived.rules[0].algorithm, "ring");
        assert!(
            derived.notes[0]
                .contains("oneshot/simple/1 is faster at 2 of 3 sizes from 8 B to 16 B, by up to 500"),
            "{:?}",
            derived.notes
        );
        assert_eq!(from(&dataset(&[row("a", "oneshot", 8, 1.0)]), 0.0), Derived::default());
    }

    #[test]
    fn types_that_a_file_cannot_tell_apart_give_one_set_of_rules() {
        let mut rows = vec![row("a", "ring", 8, 1.0), row("a", "ring", 16, 1.0)];
        let mut half = row("a", "tree", 8, 1.0);
        half.dtype = "half".into();
        rows.push(half);
        let mut inside = row("a", "tree", 8, 1.0);
        inside.placement = crate::record::Placement::InPlace;
        rows.push(inside);
        let derived = from(&dataset(&rows), 0.0);
        assert_eq!((derived.rules.len(), derived.rules[0].algorithm.as_str()), (1, "ring"));
        assert!(derived.notes[0].contains("half left out"), "{:?}", derived.notes);
    }

    proptest! {
        #[test]
        fn rules_cover_every_byte_count_once(times in proptest::collection::vec((1.0f64..2.0, 1.0f64..2.0), 1..20)) {
            let mut rows = Vec::new();
            for (power, (ring, tree)) in times.iter().enumerate() {
                rows.push(row("a", "ring", 8 << power, *ring));
                rows.push(row("a", "tree", 8 << power, *tree));
            }
            let rules = from(&dataset(&rows), 0.05).rules;
            prop_assert_eq!(rules[0].min_bytes, 0);
            prop_assert_eq!(rules[rules.len() - 1].max_bytes, u64::MAX);
            for pair in rules.windows(2) {
                prop_assert_eq!(pair[0].max_bytes + 1, pair[1].min_bytes);
            }
        }
    }
}
