//! What counts and how much: effects, floors, quarantine, required bands. Given by options and a TOML file.
//!
//! ```toml
//! bandwidth_effect = 0.05
//! latency_effect = 0.15
//! required = ["all_reduce/8/*"]          # must be conclusive
//! quarantine = ["*/tree/ll/*"]           # reported, never counted
//!
//! [[effect]]                             # first match wins
//! band = "all_reduce/2/*"
//! value = 0.10
//!
//! [[threshold]]                          # floors that hold without any baseline
//! collective = "all_reduce"
//! n_ranks = 8
//! from = "1M"
//! to = "1G"
//! min_busbw = 3.5                        # GB/s, median over launches, at every size of the range
//! max_us = 9000.0
//! ```

use serde::Deserialize;

use crate::compare::band::{BandKey, Part};
use crate::dataset::Dataset;
use crate::stats::median_of;

/// Everything that judging depends on besides the rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Slow-down of a bandwidth band that matters.
    pub bandwidth_effect: f64,
    /// Slow-down of a latency band that matters.
    pub latency_effect: f64,
    /// Error rate of the whole family of tests, and one minus the confidence of intervals.
    pub alpha: f64,
    /// Bands that must be conclusive.
    pub required: Vec<String>,
    /// Bands that do not count.
    pub quarantine: Vec<String>,
    /// Effects of their own.
    pub effect: Vec<EffectRule>,
    /// Floors.
    pub threshold: Vec<Threshold>,
}

/// An effect for some bands.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectRule {
    /// Band name, `*` for anything.
    pub band: String,
    /// The effect, a fraction.
    pub value: f64,
}

/// A floor of the current side.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Threshold {
    /// Collective; empty for any.
    pub collective: String,
    /// Ranks; nothing for any.
    pub n_ranks: Option<u32>,
    /// First size, as on command lines.
    pub from: String,
    /// Last size.
    pub to: String,
    /// Smallest median bus bandwidth, GB/s.
    pub min_busbw: Option<f64>,
    /// Largest median time, µs.
    pub max_us: Option<f64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            bandwidth_effect: 0.05,
            latency_effect: 0.15,
            alpha: 0.01,
            required: Vec::new(),
            quarantine: Vec::new(),
            effect: Vec::new(),
            threshold: Vec::new(),
        }
    }
}

impl Rules {
    /// Reads a rule file.
    ///
    /// # Errors
    /// A sentence with line and key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rules: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for threshold in &rules.threshold {
            threshold.range()?;
            if threshold.min_busbw.is_none() && threshold.max_us.is_none() {
                return Err("a threshold needs min_busbw or max_us".into());
            }
        }
        Ok(rules)
    }

    /// The effect that matters for a band.
    pub fn effect(&self, key: &BandKey) -> f64 {
        let name = key.name();
        let own = self.effect.iter().find(|rule| matches(&rule.band, &name));
        own.map_or(
            if key.part == Part::Latency { self.latency_effect } else { self.bandwidth_effect },
            |rule| rule.value,
        )
    }

    /// Whether a band is listed as not to count.
    pub fn is_quarantined(&self, name: &str) -> bool {
        self.quarantine.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether a band must be conclusive.
    pub fn is_required(&self, name: &str) -> bool {
        self.required.iter().any(|pattern| matches(pattern, name))
    }

    /// Floors that a recording misses, one sentence each.
    pub fn missed_floors(&self, current: &Dataset) -> Vec<String> {
        let mut missed = Vec::new();
        for threshold in &self.threshold {
            let mut seen = false;
            let (from, to) = threshold.range().unwrap_or((0, u64::MAX));
            for group in &current.groups {
                let scenario = &group.key.scenario;
                let applies = (threshold.collective.is_empty()
                    || *scenario.collective == *threshold.collective)
                    && threshold.n_ranks.is_none_or(|n| n == scenario.n_ranks)
                    && (from..=to).contains(&group.key.bytes);
                if !applies {
                    continue;
                }
                seen = true;
                let name = format!(
                    "{} with {} ranks, {}, {}",
                    scenario.collective,
                    scenario.n_ranks,
                    group.key.config.label(),
                    crate::format::size(group.key.bytes)
                );
                let busbw = median_of(group.samples.iter().map(|sample| sample.busbw));
                let time = median_of(group.samples.iter().map(|sample| sample.time_us));
                if let Some(floor) = threshold.min_busbw.filter(|floor| busbw < *floor) {
                    missed.push(format!("{name}: busbw {busbw:.3} GB/s is below {floor} GB/s"));
                }
                if let Some(limit) = threshold.max_us.filter(|limit| time > *limit) {
                    missed.push(format!("{name}: {time:.2} µs is above {limit} µs"));
                }
            }
            if !seen {
                missed.push(format!("no row falls under the threshold {threshold:?}"));
            }
        }
        missed
    }
}

impl Threshold {
    fn range(&self) -> Result<(u64, u64), String> {
        let end = |text: &str, default: u64| {
            if text.is_empty() { Ok(default) } else { crate::format::parse_size(text) }
        };
        Ok((end(&self.from, 0)?, end(&self.to, u64::MAX)?))
    }
}

/// `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{Rules, matches};
    use crate::dataset::tests::{dataset, row};

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("all_reduce/4/*", "all_reduce/4/ring/ll/1/latency"));
        assert!(matches("*/ring/*/latency", "all_reduce/4/ring/ll/1/latency"));
        assert!(!matches("*/ring/*/latency", "all_reduce/4/ring/ll/1/bandwidth"));
        assert!(!matches("all_reduce/4", "all_reduce/4/ring/ll/1/latency"));
        assert!(matches("*", "x") && matches("x", "x") && !matches("", "x"));
    }

    #[test]
    fn rule_files_are_checked() {
        let rules =
            Rules::parse("latency_effect = 0.2\n[[threshold]]\nfrom = \"1M\"\nmin_busbw = 3.0\n").unwrap();
        assert_eq!((rules.latency_effect, rules.bandwidth_effect), (0.2, 0.05));
        assert!(Rules::parse("effects = 1").unwrap_err().contains("effects"));
        assert!(
            Rules::parse("[[threshold]]\nfrom = \"1X\"\nmin_busbw = 3.0\n")
                .unwrap_err()
                .contains("unknown unit")
        );
        assert!(Rules::parse("[[threshold]]\nfrom = \"1M\"\n").unwrap_err().contains("min_busbw or max_us"));
    }

    #[test]
    fn floors_name_what_misses_them() {
        let data = dataset(&[row("a", "ring", 1 << 20, 1000.0)]);
        let rules =
            Rules::parse("[[threshold]]\nmin_busbw = 3.0\n[[threshold]]\nn_ranks = 9\nmax_us = 1\n").unwrap();
        let missed = rules.missed_floors(&data);
        assert_eq!(missed.len(), 2);
        assert!(missed[0].contains("1 MiB: busbw 1.573 GB/s is below 3 GB/s"), "{missed:?}");
        assert!(missed[1].starts_with("no row falls under"));
    }
}
