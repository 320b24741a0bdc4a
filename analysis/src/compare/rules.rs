//! What counts and how much: effects, floors, quarantine, required bands. Given by options and a TOML file.
//!
//! ```toml
//! bandwidth_effect = 0.05
//! latency_effect = 0.15
//! drift = 0.25                           # room for the machine itself, between recordings of different sessions
//! required = ["all_reduce/8/*"]          # must be there and conclusive
//! quarantine = ["*/tree/ll/*"]           # reported, never counted
//!
//! [[effect]]                             # first match wins; every key but value may be left out
//! collective = "all_reduce"
//! n_ranks = 2
//! from = "64K"                           # a range of sizes makes a band of its own
//! to = "1M"
//! part = "bandwidth"
//! band = "*/ring/*"
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
    /// Change of the machine itself that is allowed for between recordings of different sessions, a fraction.
    pub drift: f64,
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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectRule {
    /// Band name, `*` for anything; nothing for any.
    pub band: Option<String>,
    /// Collective; nothing for any.
    pub collective: Option<String>,
    /// Ranks; nothing for any.
    pub n_ranks: Option<u32>,
    /// Latency or bandwidth; nothing for both.
    pub part: Option<Part>,
    /// First size, as on command lines.
    pub from: Option<String>,
    /// Last size.
    pub to: Option<String>,
    /// The effect, a fraction.
    pub value: f64,
}

impl EffectRule {
    /// Its range of sizes, where it has one.
    ///
    /// # Errors
    /// A sentence that names the size.
    pub fn range(&self) -> Result<Option<(u64, u64)>, String> {
        if self.from.is_none() && self.to.is_none() {
            return Ok(None);
        }
        ends(self.from.as_deref().unwrap_or_default(), self.to.as_deref().unwrap_or_default()).map(Some)
    }

    /// Whether it speaks about a band, sizes left aside.
    fn names(&self, key: &BandKey) -> bool {
        self.collective.as_ref().is_none_or(|collective| *collective == key.collective)
            && self.n_ranks.is_none_or(|n| n == key.n_ranks)
            && self.part.is_none_or(|part| part == key.part)
            && self.band.as_ref().is_none_or(|pattern| key.is_named(pattern))
    }
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
    /// Bus bandwidth that each configuration must reach at its best size, GB/s.
    pub peak_busbw: Option<f64>,
}

/// Room for the machine itself between recordings of different sessions, where nobody measured it (`chorus gate --self-test` does). A virtual
/// machine with two cores moved single bands by up to a quarter within an hour; see the record of the gate's error rates in results/.
pub const DRIFT: f64 = 0.25;

impl Default for Rules {
    fn default() -> Self {
        Self {
            bandwidth_effect: 0.05,
            latency_effect: 0.15,
            alpha: 0.01,
            drift: DRIFT,
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
        let rules: Self = toml::from_str(text).map_err(|error| one_line(&error))?;
        for threshold in &rules.threshold {
            threshold.range()?;
            if threshold.min_busbw.or(threshold.max_us).or(threshold.peak_busbw).is_none() {
                return Err("a threshold needs min_busbw, peak_busbw or max_us".into());
            }
        }
        for rule in &rules.effect {
            rule.range()?;
        }
        let own = rules.effect.iter().map(|rule| rule.value);
        for effect in own.chain([rules.bandwidth_effect, rules.latency_effect]) {
            if !(effect > 0.0 && effect < 10.0) {
                return Err(format!("an effect of {effect}: a fraction such as 0.05 is meant"));
            }
        }
        if !(rules.alpha > 0.0 && rules.alpha < 0.5) {
            return Err(format!("alpha = {}: an error rate such as 0.01 is meant", rules.alpha));
        }
        if !(0.0..10.0).contains(&rules.drift) {
            return Err(format!("drift = {}: a fraction such as 0.1 is meant", rules.drift));
        }
        Ok(rules)
    }

    /// The effect that matters for a band. Rules with a range of sizes speak about bands inside it.
    pub fn effect(&self, key: &BandKey, (first, last): (u64, u64)) -> f64 {
        let inside = |rule: &EffectRule| match rule.range() {
            Ok(Some((from, to))) => from <= first && last <= to,
            _ => true,
        };
        let own = self.effect.iter().find(|rule| rule.names(key) && inside(rule));
        own.map_or(
            if key.part == Part::Latency { self.latency_effect } else { self.bandwidth_effect },
            |rule| rule.value,
        )
    }

    /// Sizes at which a band is cut, because a rule with a range of sizes begins or ends there.
    pub fn cuts(&self, key: &BandKey) -> Vec<u64> {
        let rules = self.effect.iter().filter(|rule| rule.names(key));
        let ranges = rules.filter_map(|rule| rule.range().ok().flatten());
        let mut cuts: Vec<u64> = ranges.flat_map(|(from, to)| [from, to.saturating_add(1)]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Whether a band is listed as not to count.
    pub fn is_quarantined(&self, key: &BandKey) -> bool {
        self.quarantine.iter().any(|pattern| key.is_named(pattern))
    }

    /// Whether a band must be conclusive.
    pub fn is_required(&self, key: &BandKey) -> bool {
        self.required.iter().any(|pattern| key.is_named(pattern))
    }
}

impl Threshold {
    /// Its range of sizes.
    ///
    /// # Errors
    /// A sentence that names the size.
    pub fn range(&self) -> Result<(u64, u64), String> {
        ends(&self.from, &self.to)
    }
}

fn ends(from: &str, to: &str) -> Result<(u64, u64), String> {
    let end = |text: &str, default: u64| {
        if text.is_empty() { Ok(default) } else { crate::format::parse_size(text) }
    };
    let (first, last) = (end(from, 0)?, end(to, u64::MAX)?);
    if first > last {
        return Err(format!("from = \"{from}\" is larger than to = \"{to}\""));
    }
    Ok((first, last))
}

/// The reader's message without its drawing of the file.
fn one_line(error: &toml::de::Error) -> String {
    let line = error.to_string().lines().next().unwrap_or_default().replace("TOML parse error at ", "");
    format!("{line}: {}", error.message().lines().collect::<Vec<_>>().join("; "))
}

/// `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
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
    use crate::compare::band::{BandKey, Part};

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
        assert!(Rules::parse("[[threshold]]\nfrom = \"1M\"\n").unwrap_err().contains("needs min_busbw"));
        assert!(
            Rules::parse("[[effect]]\nfrom = \"2M\"\nto = \"1M\"\nvalue = 0.1\n")
                .unwrap_err()
                .contains("larger")
        );
        assert!(Rules::parse("bandwidth_effect = 5\nalpha = 7\n").unwrap_err().contains("alpha"));
        let broken = Rules::parse("required = 3\n").unwrap_err();
        assert!(!broken.contains('\n') && broken.contains("line 1"), "{broken}");
    }

    #[test]
    fn effects_follow_collective_world_part_and_sizes() {
        let rules = Rules::parse(
            "[[effect]]\ncollective = \"all_reduce\"\nn_ranks = 4\nfrom = \"64K\"\nto = \"1M\"\nvalue = 0.5\n\
             [[effect]]\npart = \"latency\"\nband = \"*/ring/*\"\nvalue = 0.3\n",
        )
        .unwrap();
        let key = |n_ranks, part| BandKey {
            collective: "all_reduce".into(),
            n_hosts: 1,
            n_ranks,
            variant: String::new(),
            algorithm: "ring".into(),
            protocol: "ll".into(),
            n_channels: 1,
            part,
            range: None,
        };
        let middle = (65536, 1 << 20);
        assert_eq!(rules.effect(&key(4, Part::Bandwidth), middle), 0.5);
        assert_eq!(rules.effect(&key(4, Part::Bandwidth), (8, 1 << 20)), 0.05);
        assert_eq!(rules.effect(&key(2, Part::Bandwidth), middle), 0.05);
        assert_eq!(rules.effect(&key(2, Part::Latency), (8, 64)), 0.3);
        assert_eq!(rules.cuts(&key(4, Part::Bandwidth)), [65536, (1 << 20) + 1]);
        assert!(rules.cuts(&key(2, Part::Bandwidth)).is_empty());
    }
}
