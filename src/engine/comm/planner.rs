//! From a call to what runs: the choice and the plan, cached by everything they depend on.

use std::collections::HashMap;
use std::sync::Arc;

use super::cta_policy::CtaPolicy;
use crate::engine::device::host::collectives::{Shape, Shots};
use crate::engine::device::host::reduce::Reducer;
use crate::engine::error::{Error, Result};
use crate::engine::log::{self, Subsys};
use crate::engine::plan::{self, Layout, Plan};
use crate::engine::tuning::host::{Choice, Forced, HostModel};
use crate::engine::tuning::tuner::Rule;
use crate::engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};

/// What a plan depends on. `scale` holds PreMulSum's scalar as bits, so that keys can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) collective: Collective,
    /// Elements of one rank's input.
    pub(super) count: usize,
    pub(super) dtype: DataType,
    op: &'static str,
    scale: u64,
}

impl Key {
    pub(super) fn new(collective: Collective, count: usize, dtype: DataType, op: RedOp) -> Self {
        let scale = if let RedOp::PreMulSum(scalar) = op { scalar.to_bits() } else { 0 };
        Self { collective, count, dtype, op: op.name(), scale }
    }
}

/// What runs for a key.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) reducer: Reducer,
    pub(super) run: Run,
}

#[derive(Clone, Debug)]
pub(super) enum Run {
    /// One rank: its input to its result.
    Local,
    Symmetric(Shape),
    Classic {
        /// Parts, chunks and steps.
        plan: Arc<Plan>,
        /// Whether results go past the caches.
        non_temporal: bool,
    },
}

/// Chooses and plans for one rank; equal inputs on all ranks give agreeing plans.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) rank: usize,
    pub(super) model: HostModel,
    pub(super) layout: Layout,
    pub(super) params: plan::Params,
    /// Lines of `NCCL_TUNER_CONFIG_FILE`, first match wins.
    pub(super) rules: Vec<Rule>,
    /// `-x`.
    pub(super) policy: CtaPolicy,
    forced: Forced,
    last: Option<(Key, Planned)>,
    known: HashMap<Key, Planned>,
}

impl Planner {
    pub(super) fn new(rank: usize, model: HostModel, layout: Layout, params: plan::Params) -> Self {
        Self {
            rank,
            model,
            layout,
            params,
            rules: Vec::new(),
            policy: CtaPolicy::Default,
            forced: Forced::default(),
            last: None,
            known: HashMap::new(),
        }
    }

    /// Fixes a part of every later choice.
    pub(super) fn force(&mut self, forced: Forced) {
        self.forced = forced;
        self.last = None;
        self.known.clear();
    }

    /// What a tuner rule says about a call, when the caller fixes nothing and what the rule names can run here. Rules count total bytes.
    /// A call that no line matches is chosen as without a file.
    fn ruled(&self, collective: Collective, input_bytes: u64) -> Option<Forced> {
        if self.forced != Forced::default() {
            return None;
        }
        let n_ranks = self.model.n_ranks as u64;
        let bytes = if collective == Collective::AllGather { input_bytes * n_ranks } else { input_bytes };
        let any_or = |field: Option<i64>, value: usize| field.is_none_or(|n| n == value as i64);
        self.rules.iter().find_map(|rule| {
            let applies = rule.collective == collective
                && (rule.min_bytes..=rule.max_bytes).contains(&bytes)
                && any_or(rule.n_hosts, self.model.n_hosts)
                && any_or(rule.n_ranks, self.model.n_ranks)
                && any_or(rule.n_pipe_ops, 1);
            let forced = Forced {
                algorithm: Some(rule.algorithm),
                protocol: Some(rule.protocol),
                // The original starts from one channel, and a line that leaves them open keeps that.
                n_channels: Some(
                    rule.n_channels.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0).unwrap_or(1),
                ),
            };
            let runs = || self.model.choose(collective, input_bytes, forced).is_ok();
            (applies && runs()).then_some(forced)
        })
    }

    /// What a call runs.
    pub(super) fn choose(&self, key: &Key) -> Result<Choice> {
        let input_bytes = (key.count * key.dtype.size()) as u64;
        let forced = self
            .ruled(key.collective, input_bytes)
            .unwrap_or_else(|| self.policy.narrow(&self.model, key.collective, input_bytes, self.forced));
        self.model.choose(key.collective, input_bytes, forced).map_err(Error::NoSuchCombination)
    }

    /// The plan of a call, from the cache when it was planned before.
    #[inline]
    pub(super) fn plan(&mut self, key: Key, op: RedOp) -> Result<Planned> {
        if let Some((last, planned)) = &self.last
            && *last == key
        {
            return Ok(planned.clone());
        }
        let planned = match self.known.get(&key) {
            Some(planned) => planned.clone(),
            None => {
                let planned = self.make(&key, op)?;
                self.known.insert(key, planned.clone());
                planned
            }
        };
        self.last = Some((key, planned.clone()));
        Ok(planned)
    }

    fn make(&self, key: &Key, op: RedOp) -> Result<Planned> {
        let choice = self.choose(key)?;
        // Data movement is planned in bytes, as in NCCL.
        let gather = key.collective == Collective::AllGather;
        let (dtype, count) =
            if gather { (DataType::Uint8, key.count * key.dtype.size()) } else { (key.dtype, key.count) };
        let reducer = Reducer::new(dtype, if gather { RedOp::Sum } else { op }, self.model.n_ranks);
        let run = match choice.algorithm {
            _ if self.model.n_ranks == 1 => Run::Local,
            Algorithm::OneShot => {
                let shots = if choice.protocol == Protocol::LL { Shots::One } else { Shots::OneDirect };
                Run::Symmetric(self.shape(shots, key.collective, (dtype, count), reducer))
            }
            Algorithm::TwoShot => {
                Run::Symmetric(self.shape(Shots::Two, key.collective, (dtype, count), reducer))
            }
            _ => {
                let request = plan::Request {
                    collective: key.collective,
                    count,
                    dtype,
                    n_ranks: self.model.n_ranks,
                    rank: self.rank,
                };
                Run::Classic {
                    plan: Arc::new(plan::build(&request, &choice, &self.layout, &self.params)),
                    non_temporal: self.exceeds_caches(key.collective, (count * dtype.size()) as u64),
                }
            }
        };
        if self.rank == 0 {
            log_choice(key, &choice);
        }
        Ok(Planned { reducer, run })
    }

    fn shape(
        &self,
        shots: Shots,
        collective: Collective,
        (dtype, n_elem): (DataType, usize),
        reducer: Reducer,
    ) -> Shape {
        let elem_bytes = dtype.size();
        let n_ranks = self.model.n_ranks;
        let input = (n_elem * elem_bytes) as u64;
        let (least, most, per_cpu) = self.model.cut.chunk;
        let workers = self.model.n_cpus.clamp(1, n_ranks) as u64;
        // AllGather already has a chunk for each source block.
        let pieces = if collective == Collective::AllGather { n_ranks as u64 } else { 1 };
        let chunk = (input * pieces / (workers * per_cpu)).clamp(least, most) / 64 * 64;
        Shape {
            collective,
            shots,
            reducer,
            elem_bytes,
            n_elem,
            chunk_elem: chunk as usize / elem_bytes,
            n_shares: workers as usize,
            non_temporal: self.exceeds_caches(collective, input),
        }
    }

    /// Whether inputs and results of all ranks together are more than the caches keep until somebody reads them.
    fn exceeds_caches(&self, collective: Collective, input_bytes: u64) -> bool {
        let inputs = self.model.n_ranks as u64;
        let results = if collective == Collective::AllGather { inputs * inputs } else { inputs };
        let footprint = (inputs + results) * input_bytes;
        footprint as f64 > self.model.cache_bytes as f64 * self.model.cut.non_temporal_factor
    }
}

/// The library's line about a choice, once per plan.
fn log_choice(key: &Key, choice: &Choice) {
    let name = match key.collective {
        Collective::AllReduce => "AllReduce",
        Collective::AllGather => "AllGather",
        other => other.name(),
    };
    log::info(
        Subsys::TUNING,
        format_args!(
            "{name}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
            key.count * key.dtype.size(),
            choice.algorithm.name().to_uppercase(),
            choice.protocol.name().to_uppercase(),
            choice.n_channels - 1
        ),
    );
}
