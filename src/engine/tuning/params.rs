//! Settings of the cost model.

use crate::engine::tuning::constants::nccl::WARP;
use crate::engine::tuning::filter::Filter;
use crate::env::parse_integer;

/// What the user sets. Defaults are those of an empty environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Allowed algorithms and protocols (`NCCL_ALGO`, `NCCL_PROTO`).
    pub filter: Filter,
    /// Threads a block for Simple and LL (`NCCL_NTHREADS`, 64 to 512 in whole warps).
    pub n_threads: Option<i32>,
    /// Threads a block for LL128 (`NCCL_LL128_NTHREADS`, 160 to 640 in whole warps).
    pub n_threads_ll128: Option<i32>,
    /// Bytes a thread should have (`NCCL_THREAD_THRESHOLDS`: tree LL, LL128, Simple, then ring LL, LL128, Simple).
    pub thread_thresholds: [[Option<i64>; 3]; 2],
    /// Whether PAT may run (`NCCL_PAT_ENABLE` 0 or 1); nothing lets the model decide.
    pub pat: Option<bool>,
    /// Cost of posting a network step in nanoseconds (`NCCL_NET_OVERHEAD`); by CPU vendor when unset.
    pub net_overhead_ns: Option<i64>,
    /// Whether LL128 may cross chip-to-chip links and proxies (`NCCL_LL128_C2C`; 1).
    pub ll128_c2c: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            filter: Filter::default(),
            n_threads: None,
            n_threads_ll128: None,
            thread_thresholds: [[None; 3]; 2],
            pat: None,
            net_overhead_ns: None,
            ll128_c2c: true,
        }
    }
}

impl Params {
    /// Reads the settings through `lookup`. Numbers that do not parse leave the default, as in NCCL; a list that does not is an error.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let number = |name: &str| lookup(name).and_then(|text| parse_integer(&text)).filter(|&n| n != -2);
        let threads = |name: &str| number(name).and_then(|n| i32::try_from(n).ok()).filter(|&n| n > 0);
        Ok(Self {
            filter: Filter::parse(lookup("NCCL_ALGO").as_deref(), lookup("NCCL_PROTO").as_deref())?,
            n_threads: threads("NCCL_NTHREADS"),
            n_threads_ll128: threads("NCCL_LL128_NTHREADS"),
            thread_thresholds: thresholds(&lookup("NCCL_THREAD_THRESHOLDS").unwrap_or_default()),
            pat: number("NCCL_PAT_ENABLE").filter(|&n| n != 2).map(|n| n != 0),
            net_overhead_ns: number("NCCL_NET_OVERHEAD"),
            ll128_c2c: number("NCCL_LL128_C2C").is_none_or(|n| n != 0),
        })
    }
}

/// Up to six numbers; reading stops at the first that is none, and negative ones keep the default.
fn thresholds(text: &str) -> [[Option<i64>; 3]; 2] {
    let mut table = [[None; 3]; 2];
    let numbers = text.split_whitespace().map_while(|word| word.parse::<i64>().ok());
    for (index, number) in numbers.take(6).enumerate() {
        table[index / 3][index % 3] = Some(number).filter(|&n| n >= 0);
    }
    table
}

/// A thread count as the user asks for it, brought into its limits.
pub(super) fn threads(asked: Option<i32>, least: i32, most: i32, default: i32) -> i32 {
    match asked {
        None => default,
        Some(n) if n % WARP != 0 || n > most => most,
        Some(n) => n.max(least),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_stop_at_the_first_word_that_is_no_number() {
        assert_eq!(thresholds("16 8 128 16 8 128"), [[Some(16), Some(8), Some(128)]; 2]);
        assert_eq!(thresholds("16 -1 x 4"), [[Some(16), None, None], [None; 3]]);
    }

    #[test]
    fn thread_counts_outside_their_limits_are_brought_in() {
        assert_eq!(threads(None, 64, 512, 256), 256);
        assert_eq!(threads(Some(100), 64, 512, 256), 512);
        assert_eq!(threads(Some(1024), 64, 512, 256), 512);
        assert_eq!(threads(Some(32), 64, 512, 256), 64);
        assert_eq!(threads(Some(128), 64, 512, 256), 128);
    }

    #[test]
    fn a_wrong_list_is_an_error_and_a_wrong_number_is_not() {
        let lookup = |name: &str| (name == "NCCL_NTHREADS").then(|| "many".to_string());
        assert_eq!(Params::from_lookup(&lookup), Ok(Params::default()));
        let lookup = |name: &str| (name == "NCCL_ALGO").then(|| "circle".to_string());
        assert!(Params::from_lookup(&lookup).is_err());
    }
}
