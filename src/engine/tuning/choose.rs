//! The choice for one call: the cost table, its cheapest entry, and the channels and threads that are worth their start.
//!
//! ```text
//! table[algorithm][protocol] = latency x batches + bytes / bandwidth     (-1 where it may not run)
//! winner  = smallest; ties go to the first in table order
//! channels: given up one by one while a thread would have less than its threshold of bytes; then threads are halved
//! ```

use crate::engine::graph::channels::MAX_DIRECT_RANKS;
use crate::engine::topo::CpuArch;
use crate::engine::tuning::constants::nccl::{
    COLLECTIVES_PER_BATCH, MAX_THREADS, N_ALGORITHMS, N_PROTOCOLS, NVLS_MAX_LOCAL_RANKS, PerKernel,
    TREE_CORRECTION, WARP,
};
use crate::engine::tuning::exclusion::Exclusion;
use crate::engine::tuning::filter::COLLECTIVE_NAMES;
use crate::engine::tuning::model::{Model, algorithms};
use crate::engine::tuning::tuner;
use crate::engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};

/// Marks a combination that may not run in a cost table.
pub const UNAVAILABLE: f32 = -1.0;

/// One call, as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// What is asked.
    pub collective: Collective,
    /// Bytes of the larger buffer: all ranks' blocks together for AllGather and ReduceScatter.
    pub bytes: u64,
    /// Element type.
    pub dtype: DataType,
    /// Operator; ignored where nothing is reduced.
    pub op: RedOp,
    /// Collectives launched together per channel.
    pub n_pipe_ops: i32,
    /// Whether both buffers are registered (read by tuner files only).
    pub registered: bool,
}

impl Request {
    /// A lone call of `bytes`: sum of floats where something is reduced.
    pub fn plain(collective: Collective, bytes: u64) -> Self {
        Self { collective, bytes, dtype: DataType::Float, op: RedOp::Sum, n_pipe_ops: 1, registered: false }
    }

    fn reduces(&self) -> bool {
        !matches!(self.collective, Collective::AllGather | Collective::Broadcast)
    }

    /// Whether inputs or outputs are multiplied or divided on the way.
    fn is_scaled(&self) -> bool {
        self.reduces() && matches!(self.op, RedOp::Avg | RedOp::PreMulSum(_))
    }

    /// Whether the switch can do the arithmetic.
    fn fits_switch(&self) -> bool {
        let extremes = matches!(self.op, RedOp::Sum | RedOp::Min | RedOp::Max);
        match self.dtype {
            _ if self.collective == Collective::AllGather => true,
            DataType::Int32 | DataType::Uint32 | DataType::Int64 | DataType::Uint64 => extremes,
            DataType::Half | DataType::Bfloat16 => extremes,
            DataType::Float | DataType::Double => self.op == RedOp::Sum,
            _ => false,
        }
    }

    fn is_tiny_float(&self) -> bool {
        self.reduces() && matches!(self.dtype, DataType::F8e4m3 | DataType::F8e5m2)
    }
}

/// What a call gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Arrangement of ranks.
    pub algorithm: Algorithm,
    /// FIFO format.
    pub protocol: Protocol,
    /// Most channels it may use.
    pub n_channels: usize,
    /// Threads a block.
    pub n_threads: i32,
    /// Predicted µs.
    pub time_us: f32,
}

/// No combination is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no algorithm and protocol available for {collective} with {dtype}{hint}")]
pub struct NothingLeft {
    /// The collective, as the variables spell it.
    pub collective: &'static str,
    /// Element type.
    pub dtype: DataType,
    /// Whether settings are to blame.
    pub restricted: bool,
    hint: &'static str,
}

impl Model {
    /// Predicted µs of one combination, or nothing when it may not run.
    pub fn time_us(&self, algorithm: Algorithm, protocol: Protocol, request: &Request) -> Option<f32> {
        let (c, a, p) = (request.collective as usize, algorithm as usize, protocol as usize);
        let mut bandwidth = self.bandwidths[c][a][p];
        let mut latency = self.latencies[c][a][p];
        if bandwidth == 0.0 {
            return None;
        }
        let facts = &self.facts;
        let all_reduce = request.collective == Collective::AllReduce;
        let power = (request.bytes >> 6).checked_ilog2().map(|power| power as usize);
        let corrected = match algorithm {
            Algorithm::Tree => all_reduce && power.is_some_and(|power| power < 23),
            Algorithm::NvlsTree => {
                all_reduce
                    && power.is_some_and(|power| power < 24)
                    && facts.min_compute_cap >= 100
                    && facts.cpu_arch == Some(CpuArch::X86)
            }
            _ => false,
        };
        if let (true, Some(power)) = (corrected, power) {
            bandwidth *= TREE_CORRECTION[p][power];
        }
        let plateau = algorithm == Algorithm::Ring
            && protocol == Protocol::Simple
            && facts.n_hosts > 1
            && all_reduce
            && request.bytes / (facts.n_channels * facts.n_ranks) as u64 >= 64;
        if plateau {
            let factor = if facts.min_compute_cap < 80 { 1.9 } else { 1.4 };
            latency = (f64::from(latency) * factor) as f32;
        }
        let ops = request.n_pipe_ops;
        let batches = if algorithm == Algorithm::Ring {
            ops
        } else {
            (ops + COLLECTIVES_PER_BATCH - 1) / COLLECTIVES_PER_BATCH
        };
        Some(latency * batches as f32 + request.bytes as f32 / (1000.0 * bandwidth))
    }

    /// Why a combination may not run for this call, or nothing when it may.
    pub fn exclusion(
        &self,
        algorithm: Algorithm,
        protocol: Protocol,
        request: &Request,
    ) -> Option<Exclusion> {
        let (c, a, p) = (request.collective as usize, algorithm as usize, protocol as usize);
        let facts = &self.facts;
        let by_model = self.exclusions[c][a][p];
        if by_model.is_some() || facts.n_ranks == 1 {
            return by_model;
        }
        let all_reduce = request.collective == Collective::AllReduce;
        match algorithm {
            Algorithm::CollNetDirect | Algorithm::CollNetChain
                if facts.max_local_ranks > MAX_DIRECT_RANKS =>
            {
                Some(Exclusion::ManyLocalRanks(MAX_DIRECT_RANKS))
            }
            Algorithm::Nvls | Algorithm::NvlsTree if facts.nvls_channels == 0 => Some(Exclusion::NoNvls),
            Algorithm::Nvls | Algorithm::NvlsTree if !request.fits_switch() => {
                Some(Exclusion::OperatorOrType)
            }
            Algorithm::Nvls | Algorithm::NvlsTree
                if !all_reduce && facts.local_ranks > NVLS_MAX_LOCAL_RANKS =>
            {
                Some(Exclusion::ManyLocalRanks(NVLS_MAX_LOCAL_RANKS))
            }
            Algorithm::Pat if request.collective == Collective::ReduceScatter && request.is_scaled() => {
                Some(Exclusion::ScaledOperator)
            }
            _ => None,
        }
    }

    /// Predicted µs of every combination; [`UNAVAILABLE`] where it may not run.
    pub fn cost_table(&self, request: &Request) -> PerKernel<f32> {
        let mut table = [[UNAVAILABLE; N_PROTOCOLS]; N_ALGORITHMS];
        if self.facts.n_ranks == 1 {
            table[Algorithm::Ring as usize][Protocol::Simple as usize] = 0.0;
            return table;
        }
        for algorithm in algorithms() {
            for &protocol in Protocol::ALL {
                if self.exclusion(algorithm, protocol, request).is_some() {
                    continue;
                }
                let cell = &mut table[algorithm as usize][protocol as usize];
                *cell = self.time_us(algorithm, protocol, request).unwrap_or(UNAVAILABLE);
                // A long ring of 8-bit sums loses its precision: only if nothing else is left.
                if request.is_tiny_float() && algorithm == Algorithm::Ring && self.facts.n_ranks > 8 {
                    *cell *= 1024.0;
                }
            }
        }
        table
    }

    /// The choice for a call, after the rules of a tuner file when there is one.
    pub fn choose(&self, request: &Request, rules: Option<&tuner::Rules>) -> Result<Choice, NothingLeft> {
        let mut table = self.cost_table(request);
        let tuned = rules.map(|rules| rules.apply(request, &self.facts, &mut table));
        let mut choice = self.cheapest(request, &table)?;
        if let Some(n_channels) = tuned.filter(|&n| n != 0) {
            choice.n_channels = n_channels;
        }
        Ok(choice)
    }

    /// The cheapest entry of a table with its channels and threads.
    pub fn cheapest(&self, request: &Request, table: &PerKernel<f32>) -> Result<Choice, NothingLeft> {
        let mut best: Option<(Algorithm, Protocol, f32)> = None;
        for algorithm in algorithms() {
            for &protocol in Protocol::ALL {
                let time = table[algorithm as usize][protocol as usize];
                if time >= 0.0 && best.is_none_or(|(_, _, least)| time < least) {
                    best = Some((algorithm, protocol, time));
                }
            }
        }
        let Some((algorithm, protocol, time_us)) = best else {
            let restricted = self.params.filter.is_restricted();
            let hint = if restricted { "; NCCL_ALGO or NCCL_PROTO leaves nothing over" } else { "" };
            let collective = COLLECTIVE_NAMES[request.collective as usize];
            return Err(NothingLeft { collective, dtype: request.dtype, restricted, hint });
        };
        let (n_channels, n_threads) = self.channels_and_threads(algorithm, protocol, request.bytes);
        Ok(Choice { algorithm, protocol, n_channels, n_threads, time_us })
    }

    /// Channels and threads that leave every thread its threshold of bytes.
    pub fn channels_and_threads(&self, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> (usize, i32) {
        let (a, p) = (algorithm as usize, protocol as usize);
        let mut n_channels = self.facts.n_channels as u64;
        let mut n_threads = self.max_threads[a][p];
        let threshold = self.thread_thresholds[a][p] as u64;
        let is_short = |n_channels: u64, n_threads: i32| bytes < n_channels * n_threads as u64 * threshold;
        match algorithm {
            Algorithm::CollNetDirect => n_channels = self.direct_channels(bytes, n_threads, threshold),
            Algorithm::Nvls if self.facts.n_hosts > 1 => {
                n_channels = n_channels.min(self.facts.nvls_channels as u64)
            }
            Algorithm::Nvls | Algorithm::NvlsTree => n_channels = self.facts.nvls_channels as u64,
            _ => {
                while n_channels > 1 && is_short(n_channels, n_threads) {
                    n_channels -= 1;
                }
                while n_threads % 128 == 0 && n_threads > 0 && is_short(n_channels, n_threads) {
                    n_threads /= 2;
                }
            }
        }
        if protocol == Protocol::Simple && algorithm == Algorithm::Ring {
            // One warp more to synchronise.
            n_threads += WARP;
        }
        n_threads = n_threads.max(3 * WARP);
        if matches!(algorithm, Algorithm::Tree | Algorithm::Pat) {
            n_threads = MAX_THREADS;
        }
        (n_channels as usize, n_threads)
    }

    /// Heads need more data a channel; the need halves as channels are given up.
    fn direct_channels(&self, bytes: u64, n_threads: i32, threshold: u64) -> u64 {
        let n_heads = self.facts.collnet.map_or(0, |collnet| collnet.n_heads) as u64;
        let mut n_channels = self.facts.n_channels as u64;
        let mut threshold = threshold;
        for floor in [16, 8, 4, 2, 1] {
            let is_short = |n: u64, threshold: u64| bytes < n * n_threads as u64 * n_heads * threshold;
            while is_short(n_channels, threshold) && n_channels > floor {
                if n_channels == floor + floor / 2 {
                    threshold /= 2;
                }
                n_channels -= 1;
            }
            if !is_short(n_channels, threshold) {
                break;
            }
        }
        n_channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::graph::connect::GraphInfo;
    use crate::engine::graph::{GraphId, Pattern};
    use crate::engine::topo::PathType;
    use crate::engine::tuning::{Facts, Params};

    /// One host, two GPUs of compute capability 8.0 on PCI, two channels of 12 GB/s.
    fn facts() -> Facts {
        let graph = |pattern| GraphInfo {
            pattern: Some(pattern),
            n_channels: 2,
            bw_intra: 12.0,
            bw_inter: 12.0,
            type_intra: PathType::Phb,
            type_inter: PathType::Dis,
            ..GraphInfo::default()
        };
        let mut graphs = [GraphInfo::default(); 5];
        graphs[GraphId::Ring as usize] = graph(Pattern::Ring);
        graphs[GraphId::Tree as usize] = graph(Pattern::BalancedTree);
        Facts {
            n_ranks: 2,
            n_hosts: 1,
            max_local_ranks: 2,
            local_ranks: 2,
            n_channels: 2,
            nvls_channels: 0,
            collnet: None,
            min_compute_cap: 80,
            max_compute_cap: 80,
            cpu_arch: Some(CpuArch::X86),
            cpu_vendor: None,
            mixed_vendors: false,
            nvswitch: false,
            graphs,
            max_tree_pattern: Pattern::BalancedTree,
        }
    }

    fn model(algo: Option<&str>) -> Model {
        let lookup = |name: &str| if name == "NCCL_ALGO" { algo.map(String::from) } else { None };
        Model::new(facts(), Params::from_lookup(&lookup).expect("settings"))
    }

    fn near(got: f32, want: f32) -> bool {
        (got - want).abs() < 0.005 * want
    }

    #[test]
    fn two_gpus_on_pci_have_the_known_table() {
        let model = model(None);
        let all_reduce = Collective::AllReduce as usize;
        let cell = |a: Algorithm, p: Protocol| {
            (
                model.latencies[all_reduce][a as usize][p as usize],
                model.bandwidths[all_reduce][a as usize][p as usize],
            )
        };
        for (got, want) in [
            (cell(Algorithm::Ring, Protocol::LL), (8.6, 12.0)),
            (cell(Algorithm::Ring, Protocol::Simple), (19.8, 24.0)),
            (cell(Algorithm::Tree, Protocol::LL), (8.8, 2.905)),
            (cell(Algorithm::Tree, Protocol::Simple), (16.4, 11.04)),
        ] {
            assert!(near(got.0, want.0) && near(got.1, want.1), "{got:?}, want {want:?}");
        }
        assert_eq!(cell(Algorithm::Ring, Protocol::LL128).1, 0.0);
        let reason = model.exclusions[all_reduce][Algorithm::Ring as usize][Protocol::LL128 as usize];
        assert_eq!(reason, Some(Exclusion::Ll128Net(PathType::Dis)));
    }

    #[test]
    fn small_calls_take_one_channel_and_three_warps_and_large_ones_all() {
        let model = model(None);
        let small = model.choose(&Request::plain(Collective::AllReduce, 1024), None).expect("a choice");
        assert_eq!((small.algorithm, small.protocol), (Algorithm::Ring, Protocol::LL));
        assert_eq!((small.n_channels, small.n_threads), (1, 96));
        assert!(near(small.time_us, 8.685));
        let large = model.choose(&Request::plain(Collective::AllReduce, 1 << 20), None).expect("a choice");
        assert_eq!((large.algorithm, large.protocol), (Algorithm::Ring, Protocol::Simple));
        assert_eq!((large.n_channels, large.n_threads), (2, 544));
        assert!(near(large.time_us, 63.5));
    }

    #[test]
    fn a_filter_that_leaves_nothing_is_the_users_mistake() {
        let request = Request::plain(Collective::Broadcast, 1024);
        let error = model(Some("tree")).choose(&request, None).expect_err("broadcast has no tree");
        assert!(error.restricted && error.to_string().contains("Broadcast with float"), "{error}");
        let algorithm = model(Some("tree")).choose(&Request::plain(Collective::AllReduce, 1024), None);
        assert_eq!(algorithm.expect("a choice").algorithm, Algorithm::Tree);
    }

    #[test]
    fn a_tuner_rule_wins_and_sets_the_channels() {
        let rules =
            tuner::Rules::parse("allreduce,0,-1,tree,ll128,2,-1,-1\nallreduce,0,2048,tree,simple,2,1,2\n");
        let chosen =
            model(None).choose(&Request::plain(Collective::AllReduce, 1024), Some(&rules)).expect("a choice");
        // The first rule names a combination that may not run here.
        assert_eq!((chosen.algorithm, chosen.protocol), (Algorithm::Tree, Protocol::Simple));
        assert_eq!((chosen.n_channels, chosen.time_us), (2, 0.0));
        let other =
            model(None).choose(&Request::plain(Collective::Reduce, 1 << 30), Some(&rules)).expect("a choice");
        assert_eq!((other.algorithm, other.n_channels), (Algorithm::Ring, 1));
    }

    #[test]
    fn long_rings_of_tiny_floats_are_the_last_resort() {
        let mut many = facts();
        many.n_ranks = 16;
        many.n_hosts = 1;
        let model = Model::new(many, Params::default());
        let mut request = Request::plain(Collective::AllReduce, 1 << 30);
        let ring = (Algorithm::Ring as usize, Protocol::Simple as usize);
        let exact = model.cost_table(&request)[ring.0][ring.1];
        request.dtype = DataType::F8e4m3;
        assert_eq!(model.cost_table(&request)[ring.0][ring.1], exact * 1024.0);
        assert_eq!(model.choose(&request, None).expect("a choice").algorithm, Algorithm::Tree);
    }

    #[test]
    fn a_lone_rank_copies() {
        let mut alone = facts();
        (alone.n_ranks, alone.max_local_ranks, alone.local_ranks) = (1, 1, 1);
        let model = Model::new(alone, Params::default());
        let choice = model.choose(&Request::plain(Collective::AllReduce, 64), None).expect("a choice");
        assert_eq!(
            (choice.algorithm, choice.protocol, choice.time_us),
            (Algorithm::Ring, Protocol::Simple, 0.0)
        );
    }
}
