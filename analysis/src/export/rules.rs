//! Few rules per world: which configuration from which size to which, sizes between the measured ones included.

use crate::crossover::Curve;
use crate::dataset::{Config, Dataset};
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
    /// Channels, at least 1.
    pub n_channels: u32,
    /// Why it is not the fastest, where it is not: a simpler setting ties.
    pub note: Option<String>,
}

/// Rules of every world of a data set: the fewest that lose at most `max_penalty` at every size, a simpler setting where it ties.
pub fn derive(data: &Dataset, max_penalty: f64, tie: f64, usable: impl Fn(&Config) -> bool) -> Vec<Rule> {
    let stats = describe(data, tie);
    let all = scenes(&stats);
    let mut rules = Vec::new();
    for scene in &all {
        let other = |other: &&Scene<'_>| {
            other.scenario.placement == Placement::OutOfPlace
                && (&other.scenario.collective, other.scenario.n_ranks, other.scenario.n_hosts)
                    == (&scene.scenario.collective, scene.scenario.n_ranks, scene.scenario.n_hosts)
        };
        // Consumers cannot tell placements apart; out of place is what they call with.
        if scene.scenario.placement == Placement::InPlace && all.iter().any(|scene| other(&scene)) {
            continue;
        }
        rules.extend(of_scene(scene, max_penalty, tie, &usable));
    }
    rules
}

fn of_scene(scene: &Scene<'_>, max_penalty: f64, tie: f64, usable: &impl Fn(&Config) -> bool) -> Vec<Rule> {
    let named = scene.curves(|config| config.label());
    let (configs, curves): (Vec<&Config>, Vec<Curve>) =
        named.into_iter().filter(|(config, _)| config.n_channels > 0 && usable(config)).unzip();
    let Some(set) = smallest(&curves, max_penalty) else { return Vec::new() };
    let scope = Scope {
        collective: scene.scenario.collective.to_string(),
        n_hosts: scene.scenario.n_hosts,
        n_ranks: scene.scenario.n_ranks,
    };
    let mut rules: Vec<Rule> = Vec::new();
    let mut last_size = None;
    for part in &set.rules {
        let simpler = simplest(&configs, &curves, (part.from_bytes, part.to_bytes), (part.choice, tie));
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
    rules
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

    use super::{Rule, derive, midpoint};
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

    pub(crate) fn rules() -> Vec<Rule> {
        derive(&data(), 0.025, 0.02, |_| true)
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
        let rules = derive(&dataset(&[row("a", "ring", 1024, 10.1), wide]), 0.0, 0.02, |_| true);
        assert_eq!((rules.len(), rules[0].n_channels), (1, 1));
        assert!(rules[0].note.as_ref().unwrap().contains("ties with ring/simple/8"));
    }

    proptest! {
        #[test]
        fn rules_cover_every_byte_count_once(times in proptest::collection::vec((1.0f64..2.0, 1.0f64..2.0), 1..20)) {
            let mut rows = Vec::new();
            for (power, (ring, tree)) in times.iter().enumerate() {
                rows.push(row("a", "ring", 8 << power, *ring));
                rows.push(row("a", "tree", 8 << power, *tree));
            }
            let rules = derive(&dataset(&rows), 0.05, 0.02, |_| true);
            prop_assert_eq!(rules[0].min_bytes, 0);
            prop_assert_eq!(rules[rules.len() - 1].max_bytes, u64::MAX);
            for pair in rules.windows(2) {
                prop_assert_eq!(pair[0].max_bytes + 1, pair[1].min_bytes);
            }
        }
    }
}
