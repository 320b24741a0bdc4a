//! The CTA policy of a communicator (`-x`, `NCCL_CTA_POLICY`): what its collectives may take from everything else that runs.
//!
//! | policy | on a GPU | on the host |
//! | --- | --- | --- |
//! | 0 DEFAULT | the cost model decides | the same |
//! | 1 EFFICIENCY | no more CTAs than the algorithm needs | one channel, hence one task a rank, through FIFOs |
//! | 2 ZERO | copy engines move data, no CTA does | AllGather is plain copies between the ranks' windows (two-shot) at every size; what reduces is as in DEFAULT |
//!
//! What the caller fixes (`--algo`, `--channels`), a tuner file and `NCCL_ALGO` go first, as in NCCL.

use crate::engine::error::{Error, Result};
use crate::engine::tuning::host::{Forced, HostModel};
use crate::engine::types::{Algorithm, Collective, Protocol};

/// What a communicator's collectives may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CtaPolicy {
    /// Whatever is fastest.
    #[default]
    Default,
    /// As few CTAs as possible.
    Efficiency,
    /// None where data only move.
    Zero,
}

impl CtaPolicy {
    /// The policy of a number (`-x`).
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Default, Self::Efficiency, Self::Zero].get(number as usize).copied()
    }

    /// The policy of `NCCL_CTA_POLICY`: numbers or words, joined by `|`; ZERO wins over EFFICIENCY.
    ///
    /// # Errors
    /// `InvalidUsage` names the piece that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut policy = Self::Default;
        for piece in text.split('|').map(str::trim) {
            let found = match piece.to_ascii_uppercase().as_str() {
                "0" | "DEFAULT" => Self::Default,
                "1" | "EFFICIENCY" => Self::Efficiency,
                "2" | "ZERO" => Self::Zero,
                _ => {
                    return Err(Error::InvalidUsage(format!(
                        "NCCL_CTA_POLICY={text}: '{piece}' is no policy; there is DEFAULT (0), EFFICIENCY (1), ZERO (2)"
                    )));
                }
            };
            if policy != Self::Zero && found != Self::Default {
                policy = found;
            }
        }
        Ok(policy)
    }

    /// What the policy fixes of a choice that is not fixed yet.
    pub(super) fn narrow(
        self,
        model: &HostModel,
        collective: Collective,
        input_bytes: u64,
        forced: Forced,
    ) -> Forced {
        match self {
            Self::Efficiency => Forced { n_channels: forced.n_channels.or(Some(1)), ..forced },
            Self::Zero if collective == Collective::AllGather && forced == Forced::default() => {
                let copies = Forced {
                    algorithm: Some(Algorithm::TwoShot),
                    protocol: Some(Protocol::Simple),
                    n_channels: None,
                };
                let symmetric = model.symmetric_anyway || !model.filter.is_restricted();
                let runs = symmetric && model.choose(collective, input_bytes, copies).is_ok();
                if runs { copies } else { forced }
            }
            Self::Zero | Self::Default => forced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tuning::filter::Filter;

    fn model(algorithms: Option<&str>) -> HostModel {
        HostModel {
            n_ranks: 4,
            n_hosts: 1,
            n_cpus: 4,
            cache_bytes: 32 << 20,
            shares_control: true,
            is_peer_mapped: true,
            filter: Filter::parse(algorithms, None).unwrap(),
            symmetric_anyway: false,
            n_channels: 4,
            cut: crate::engine::tuning::host::Cut::default(),
        }
    }

    #[test]
    fn numbers_and_words_name_a_policy() {
        let zero = ["2", "zero", "DEFAULT|ZERO", "ZERO | EFFICIENCY", "1|2|0"];
        assert!(zero.iter().all(|text| CtaPolicy::parse(text).unwrap() == CtaPolicy::Zero));
        assert_eq!(CtaPolicy::parse("EFFICIENCY").unwrap(), CtaPolicy::Efficiency);
        assert_eq!(CtaPolicy::parse("0").unwrap(), CtaPolicy::Default);
        for text in ["3", "", "ZERO,EFFICIENCY"] {
            assert!(CtaPolicy::parse(text).unwrap_err().to_string().contains("NCCL_CTA_POLICY"), "{text}");
        }
        assert_eq!(CtaPolicy::from_number(1), Some(CtaPolicy::Efficiency));
        assert_eq!(CtaPolicy::from_number(3), None);
    }

    #[test]
    fn efficiency_takes_one_channel_unless_more_are_asked_for() {
        let narrow = |forced| {
            CtaPolicy::Efficiency.narrow(&model(Some("Ring")), Collective::AllReduce, 64 << 20, forced)
        };
        let choice = |forced| model(Some("Ring")).choose(Collective::AllReduce, 64 << 20, forced).unwrap();
        assert_eq!(choice(Forced::default()).n_channels, 4);
        assert_eq!(choice(narrow(Forced::default())).n_channels, 1);
        assert_eq!(narrow(Forced { n_channels: Some(3), ..Forced::default() }).n_channels, Some(3));
    }

    #[test]
    fn zero_copies_where_data_only_move_and_nothing_else_is_asked_for() {
        let narrow = |model: &HostModel, collective| {
            CtaPolicy::Zero.narrow(model, collective, 64, Forced::default()).algorithm
        };
        assert_eq!(narrow(&model(None), Collective::AllGather), Some(Algorithm::TwoShot));
        assert_eq!(narrow(&model(None), Collective::AllReduce), None);
        assert_eq!(narrow(&model(Some("Ring")), Collective::AllGather), None);
        let apart = HostModel { is_peer_mapped: false, ..model(None) };
        assert_eq!(narrow(&apart, Collective::AllGather), None);
        let ring = Forced { algorithm: Some(Algorithm::Ring), ..Forced::default() };
        assert_eq!(CtaPolicy::Zero.narrow(&model(None), Collective::AllGather, 64, ring), ring);
    }
}
