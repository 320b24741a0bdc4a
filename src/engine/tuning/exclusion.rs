//! Why a combination of collective, algorithm and protocol may not run.

use std::fmt;

use crate::engine::topo::PathType;
use crate::engine::tuning::filter::{ALGORITHM_NAMES, PROTOCOL_NAMES, Switch};
use crate::engine::tuning::model::{Cell, is_implemented};
use crate::engine::types::{Algorithm, Collective, Protocol};

/// The rule that excludes a combination. The first that applies is named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exclusion {
    /// There is only one rank.
    Alone,
    /// The collective has no such algorithm.
    NoAlgorithm,
    /// The algorithm has no such protocol.
    NoProtocol,
    /// `NCCL_ALGO` leaves it out.
    UserAlgorithm(Algorithm),
    /// `NCCL_PROTO` leaves it out.
    UserProtocol(Protocol),
    /// A tree between hosts needs several.
    SingleHost,
    /// In-network reduction is off.
    CollNetOff,
    /// The network offers no chains.
    NoChain,
    /// Heads need an NVSwitch.
    NoNvSwitch,
    /// In-switch reduction is not available, or has fewer than two channels.
    NoNvls,
    /// PAT needs one rank per host and compute capability 6.0.
    PatConditions,
    /// The network cannot gather or scatter by itself.
    NetworkCannotMoveBlocks,
    /// A host has more ranks than heads.
    FewHeads,
    /// A host has more ranks than the algorithm serves.
    ManyLocalRanks(usize),
    /// LL128 would cross a path between rank and NIC that may tear its lines.
    Ll128Net(PathType),
    /// LL128 would cross a path between ranks that may tear its lines.
    Ll128Intra(PathType),
    /// LL128 between different GPU generations, or before compute capability 7.0.
    Ll128Gpus,
    /// The in-switch units lack this operator or type.
    OperatorOrType,
    /// PAT does not scale inputs or outputs.
    ScaledOperator,
    /// The graph has no channel or no bandwidth.
    NoBandwidth,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => write!(f, "a single rank copies with ring/simple"),
            Self::NoAlgorithm => write!(f, "the collective has no such algorithm"),
            Self::NoProtocol => write!(f, "the algorithm runs with simple only"),
            Self::UserAlgorithm(a) => {
                write!(f, "NCCL_ALGO leaves {} out", ALGORITHM_NAMES.get(*a as usize).unwrap_or(&"it"))
            }
            Self::UserProtocol(p) => write!(f, "NCCL_PROTO leaves {} out", PROTOCOL_NAMES[*p as usize]),
            Self::SingleHost => write!(f, "a tree between hosts needs more than one"),
            Self::CollNetOff => write!(f, "in-network reduction (CollNet) is off"),
            Self::NoChain => write!(f, "the network offers no chains"),
            Self::NoNvSwitch => write!(f, "heads need an NVSwitch"),
            Self::NoNvls => write!(
                f,
                "no in-switch reduction: it needs NVSwitch, compute capability 9.0 and two channels"
            ),
            Self::PatConditions => {
                write!(f, "PAT needs one rank per host and compute capability 6.0 (NCCL_PAT_ENABLE)")
            }
            Self::NetworkCannotMoveBlocks => write!(f, "the network cannot gather or scatter by itself"),
            Self::FewHeads => write!(f, "a host has more ranks than heads"),
            Self::ManyLocalRanks(most) => write!(f, "a host has more than {most} ranks"),
            Self::Ll128Net(path) => write!(f, "LL128 is not trusted over {path} between GPU and NIC"),
            Self::Ll128Intra(path) => write!(f, "LL128 is not trusted over {path} between GPUs"),
            Self::Ll128Gpus => write!(f, "LL128 needs equal GPUs of compute capability 7.0, or 9.0 and up"),
            Self::OperatorOrType => write!(f, "the switch lacks this operator or type"),
            Self::ScaledOperator => write!(f, "PAT does not scale (avg, mulsum)"),
            Self::NoBandwidth => write!(f, "the search found no channel for it"),
        }
    }
}

impl Cell<'_> {
    /// The first rule that keeps this combination from running, whatever the operator and type.
    pub(super) fn exclusion(&self, pat: bool) -> Option<Exclusion> {
        if !is_implemented(self.collective, self.algorithm, Protocol::Simple) {
            return Some(Exclusion::NoAlgorithm);
        }
        let network_heads = matches!(self.algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain);
        if !is_implemented(self.collective, self.algorithm, self.protocol)
            || (network_heads && self.protocol != Protocol::Simple)
        {
            return Some(Exclusion::NoProtocol);
        }
        let filter = &self.params.filter;
        if filter.algorithm(self.collective, self.algorithm) == Switch::Off {
            return Some(Exclusion::UserAlgorithm(self.algorithm));
        }
        if filter.protocol(self.collective, self.protocol) == Switch::Off {
            return Some(Exclusion::UserProtocol(self.protocol));
        }
        if self.algorithm == Algorithm::Pat && !pat {
            return Some(Exclusion::PatConditions);
        }
        self.excluded_by_heads().or_else(|| self.excluded_ll128())
    }

    fn excluded_by_heads(&self) -> Option<Exclusion> {
        let facts = self.facts;
        let several = facts.n_hosts > 1;
        if self.algorithm == Algorithm::NvlsTree && !several {
            return Some(Exclusion::SingleHost);
        }
        if self.is_nvls() && self.graph().n_channels < 2 {
            return Some(Exclusion::NoNvls);
        }
        let network_heads = matches!(self.algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain);
        if !(network_heads || self.algorithm == Algorithm::Nvls && several) {
            return None;
        }
        let Some(collnet) = &facts.collnet else {
            return Some(Exclusion::CollNetOff);
        };
        if self.algorithm == Algorithm::CollNetChain && !collnet.chain {
            return Some(Exclusion::NoChain);
        }
        if self.algorithm == Algorithm::CollNetDirect && !facts.nvswitch {
            return Some(Exclusion::NoNvSwitch);
        }
        if self.moves_blocks() && several {
            let able = match self.collective {
                Collective::AllGather => collnet.all_gather,
                _ => collnet.reduce_scatter,
            };
            if !able {
                return Some(Exclusion::NetworkCannotMoveBlocks);
            }
            if facts.max_local_ranks > collnet.n_heads {
                return Some(Exclusion::FewHeads);
            }
        }
        None
    }

    fn excluded_ll128(&self) -> Option<Exclusion> {
        let graph = self.graph();
        let auto = self.params.filter.protocol(self.collective, self.protocol) == Switch::Auto;
        if self.protocol != Protocol::LL128 || !auto {
            return None;
        }
        let (low, high) = (self.facts.min_compute_cap, self.facts.max_compute_cap);
        if graph.type_inter > self.ll128_reach() {
            Some(Exclusion::Ll128Net(graph.type_inter))
        } else if graph.type_intra > PathType::Nvb {
            Some(Exclusion::Ll128Intra(graph.type_intra))
        } else if (low != high && low < 90) || low < 70 {
            Some(Exclusion::Ll128Gpus)
        } else {
            None
        }
    }
}
