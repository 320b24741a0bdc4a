//! The cost model for CUDA devices: latency and bandwidth of every collective, algorithm and protocol, from the graphs' figures.
//!
//! ```text
//! time = latency + bytes / bandwidth
//! latency   = base + steps inside the host x their wire + steps between hosts x (network + NIC)
//! bandwidth = channels x GB/s per channel, cut by what protocol and algorithm reach, times data per byte moved:
//!             ring n / steps, others 1/2
//! ```
//!
//! Everything is single precision, with double precision exactly where NCCL's expressions have it, so that equal inputs give
//! bit-equal tables.

use crate::engine::graph::connect::{Connection, GraphInfo};
use crate::engine::graph::{GraphId, Pattern};
use crate::engine::topo::{CpuArch, CpuVendor, LinkType, PathType, System};
use crate::engine::tuning::constants::nccl::{
    BASE_LATENCY_US, COLLNET_THREAD_THRESHOLD_BYTES, Generation, LL_MAX_BW, LL_MAX_THREADS,
    LL128_MAX_THREADS, MAX_THREADS, N_ALGORITHMS, N_COLLECTIVES, N_PROTOCOLS, NVLS_EFFICIENCY,
    NVLS_TREE_CHANNEL_BW, PCI_BW, PerKernel, RING_LL128_CHANNEL_BW, SIMPLE_MAX_THREADS, STEP_LATENCY_US,
    THREAD_THRESHOLD_BYTES, TREE_CHANNEL_BW, TREE_LL128_CHANNEL_BW, WARP, Wire,
};
use crate::engine::tuning::exclusion::Exclusion;
use crate::engine::tuning::params::{Params, threads};
use crate::engine::types::{Algorithm, Collective, Protocol};

/// In-network reduction as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollNet {
    /// Heads of a host.
    pub n_heads: usize,
    /// Whether chains may run.
    pub chain: bool,
    /// Whether the network gathers.
    pub all_gather: bool,
    /// Whether the network reduces and scatters.
    pub reduce_scatter: bool,
}

/// What the model needs to know about a communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Ranks.
    pub n_ranks: usize,
    /// Hosts, as the network sees them.
    pub n_hosts: usize,
    /// Most ranks of a host.
    pub max_local_ranks: usize,
    /// Ranks of the first host.
    pub local_ranks: usize,
    /// Channels of rings and trees.
    pub n_channels: usize,
    /// Channels of the in-switch algorithms; 0 when they are unavailable.
    pub nvls_channels: usize,
    /// In-network reduction, when it is on.
    pub collnet: Option<CollNet>,
    /// Least compute capability (ten times the version).
    pub min_compute_cap: i32,
    /// Largest compute capability.
    pub max_compute_cap: i32,
    /// CPU architecture, when all hosts share one.
    pub cpu_arch: Option<CpuArch>,
    /// CPU vendor, when all hosts share one.
    pub cpu_vendor: Option<CpuVendor>,
    /// Whether hosts have CPUs of different vendors.
    pub mixed_vendors: bool,
    /// Whether there is an NVSwitch.
    pub nvswitch: bool,
    /// The graphs' figures by [`GraphId`].
    pub graphs: [GraphInfo; 5],
    /// The simplest tree shape of any host.
    pub max_tree_pattern: Pattern,
}

impl Facts {
    /// Facts of a connection over these systems, one for each distinct host.
    pub fn new(connection: &Connection, systems: &[&System]) -> Self {
        let caps = systems.iter().filter_map(|system| system.compute_caps());
        let (min_compute_cap, max_compute_cap) =
            caps.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0));
        let cpus: Vec<_> = systems
            .iter()
            .map(|s| {
                (s.count(crate::engine::topo::NodeType::Cpu) > 0).then(|| (s.cpu(0).arch, s.cpu(0).vendor))
            })
            .collect();
        let first = cpus.first().copied().flatten();
        let one_arch = cpus.iter().all(|cpu| cpu.map(|c| c.0) == first.map(|c| c.0));
        let one_vendor = cpus.iter().all(|cpu| cpu.map(|c| c.1) == first.map(|c| c.1));
        Self {
            n_ranks: connection.n_ranks,
            n_hosts: connection.n_hosts(),
            max_local_ranks: connection.max_local_ranks(),
            local_ranks: connection.hosts[0].len(),
            n_channels: connection.channels.len(),
            nvls_channels: connection.nvls.as_ref().map_or(0, |nvls| nvls.shape.n_channels),
            collnet: connection.collnet.as_ref().map(|collnet| CollNet {
                n_heads: collnet.n_heads,
                chain: true,
                all_gather: false,
                reduce_scatter: false,
            }),
            min_compute_cap,
            max_compute_cap,
            cpu_arch: first.and_then(|cpu| cpu.0).filter(|_| one_arch),
            cpu_vendor: first.and_then(|cpu| cpu.1).filter(|_| one_vendor),
            mixed_vendors: !one_vendor,
            nvswitch: systems.iter().any(|system| system.has_nvswitch()),
            graphs: connection.graphs,
            max_tree_pattern: connection.max_tree_pattern,
        }
    }

    /// The figures an algorithm runs on.
    pub fn graph(&self, algorithm: Algorithm) -> &GraphInfo {
        let id = match algorithm {
            Algorithm::Ring => GraphId::Ring,
            Algorithm::CollNetDirect => GraphId::CollNetDirect,
            Algorithm::CollNetChain => GraphId::CollNetChain,
            Algorithm::Nvls | Algorithm::NvlsTree => GraphId::Nvls,
            Algorithm::Tree | Algorithm::Pat | Algorithm::OneShot | Algorithm::TwoShot => GraphId::Tree,
        };
        &self.graphs[id as usize]
    }

    /// Ranks a host, on average.
    fn ranks_per_host(&self) -> f32 {
        self.n_ranks as f32 / self.n_hosts as f32
    }
}

/// The tables of one communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// What they were made from.
    pub facts: Facts,
    /// The settings they were made with.
    pub params: Params,
    /// Threads a block may have.
    pub max_threads: PerKernel<i32>,
    /// Bytes a thread should have.
    pub thread_thresholds: PerKernel<i64>,
    /// Latency in µs, by collective.
    pub latencies: [PerKernel<f32>; N_COLLECTIVES],
    /// Bandwidth in GB/s, by collective; 0 where the combination may not run.
    pub bandwidths: [PerKernel<f32>; N_COLLECTIVES],
    /// Why it may not, by collective.
    pub exclusions: [PerKernel<Option<Exclusion>>; N_COLLECTIVES],
}

/// The algorithms the model covers.
pub fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.iter().copied().take(N_ALGORITHMS)
}

/// Whether kernels exist for this combination. What is not implemented has no latency either.
pub fn is_implemented(collective: Collective, algorithm: Algorithm, protocol: Protocol) -> bool {
    let collective_fits = match collective {
        Collective::Broadcast | Collective::Reduce => algorithm == Algorithm::Ring,
        Collective::AllGather | Collective::ReduceScatter => {
            matches!(algorithm, Algorithm::Ring | Algorithm::Nvls | Algorithm::CollNetDirect | Algorithm::Pat)
        }
        Collective::AllReduce => {
            !matches!(algorithm, Algorithm::Pat | Algorithm::OneShot | Algorithm::TwoShot)
        }
    };
    let simple_only = matches!(algorithm, Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::Pat);
    collective_fits && (!simple_only || protocol == Protocol::Simple)
}

impl Model {
    /// Computes all tables.
    pub fn new(facts: Facts, params: Params) -> Self {
        let mut model = Self {
            max_threads: max_threads(&facts, &params),
            thread_thresholds: [[0; N_PROTOCOLS]; N_ALGORITHMS],
            latencies: [[[0.0; N_PROTOCOLS]; N_ALGORITHMS]; N_COLLECTIVES],
            bandwidths: [[[0.0; N_PROTOCOLS]; N_ALGORITHMS]; N_COLLECTIVES],
            exclusions: [[[None; N_PROTOCOLS]; N_ALGORITHMS]; N_COLLECTIVES],
            facts,
            params,
        };
        if model.facts.n_ranks <= 1 {
            model.exclude_all_but_ring_simple();
            return model;
        }
        model.thread_thresholds = thread_thresholds(&model.facts, &model.params);
        let pat = pat_is_on(&model.facts, &model.params);
        for &collective in Collective::ALL {
            for algorithm in algorithms() {
                for &protocol in Protocol::ALL {
                    let cell =
                        Cell { facts: &model.facts, params: &model.params, collective, algorithm, protocol };
                    let (c, a, p) = (collective as usize, algorithm as usize, protocol as usize);
                    // In-switch graphs with one channel and switched-off PAT leave their cells empty, as missing kernels do.
                    let modelled = is_implemented(collective, algorithm, protocol)
                        && (algorithm != Algorithm::Pat || pat)
                        && !(cell.is_nvls() && cell.graph().n_channels < 2);
                    if modelled {
                        model.bandwidths[c][a][p] = cell.bandwidth();
                        model.latencies[c][a][p] = cell.latency();
                    }
                    let reason = cell.exclusion(pat);
                    if reason.is_some() {
                        model.bandwidths[c][a][p] = 0.0;
                    }
                    let empty = model.bandwidths[c][a][p] == 0.0;
                    model.exclusions[c][a][p] = reason.or_else(|| empty.then_some(Exclusion::NoBandwidth));
                }
            }
        }
        model
    }

    fn exclude_all_but_ring_simple(&mut self) {
        for table in &mut self.exclusions {
            *table = [[Some(Exclusion::Alone); N_PROTOCOLS]; N_ALGORITHMS];
            table[Algorithm::Ring as usize][Protocol::Simple as usize] = None;
        }
    }
}

fn max_threads(facts: &Facts, params: &Params) -> PerKernel<i32> {
    let ring = facts.graph(Algorithm::Ring);
    let slow_ring = ring.bw_intra * ring.n_channels as f32 <= PCI_BW;
    let simple = |default| threads(params.n_threads, 2 * WARP, SIMPLE_MAX_THREADS, default);
    let ll = threads(params.n_threads, 2 * WARP, LL_MAX_THREADS, LL_MAX_THREADS);
    let ll128 = threads(params.n_threads_ll128, LL128_MAX_THREADS / 4, LL128_MAX_THREADS, LL128_MAX_THREADS);
    let heads = [0, 0, MAX_THREADS];
    let ring_simple = simple(if slow_ring { 256 } else { SIMPLE_MAX_THREADS });
    [[ll, ll128, simple(SIMPLE_MAX_THREADS)], [ll, ll128, ring_simple], heads, heads, heads, heads, [0, 0, 0]]
}

fn thread_thresholds(facts: &Facts, params: &Params) -> PerKernel<i64> {
    let mut table = [THREAD_THRESHOLD_BYTES; N_ALGORITHMS];
    table[Algorithm::Ring as usize][Protocol::LL as usize] *= facts.n_ranks as i64;
    for algorithm in [Algorithm::CollNetDirect, Algorithm::CollNetChain] {
        table[algorithm as usize][Protocol::Simple as usize] = COLLNET_THREAD_THRESHOLD_BYTES;
    }
    for (row, asked) in table.iter_mut().zip(&params.thread_thresholds) {
        for (threshold, asked) in row.iter_mut().zip(asked) {
            *threshold = asked.unwrap_or(*threshold);
        }
    }
    table
}

fn pat_is_on(facts: &Facts, params: &Params) -> bool {
    facts.min_compute_cap >= 60 && params.pat.unwrap_or(facts.n_hosts == facts.n_ranks)
}

/// One cell of the tables and what it is computed from.
pub(super) struct Cell<'a> {
    pub(super) facts: &'a Facts,
    pub(super) params: &'a Params,
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
}

impl Cell<'_> {
    pub(super) fn graph(&self) -> &GraphInfo {
        self.facts.graph(self.algorithm)
    }

    pub(super) fn is_nvls(&self) -> bool {
        matches!(self.algorithm, Algorithm::Nvls | Algorithm::NvlsTree)
    }

    pub(super) fn moves_blocks(&self) -> bool {
        matches!(self.collective, Collective::AllGather | Collective::ReduceScatter)
    }

    /// Steps of a ring.
    fn n_steps(&self) -> usize {
        match self.collective {
            Collective::AllReduce => 2 * (self.facts.n_ranks - 1),
            Collective::AllGather | Collective::ReduceScatter => self.facts.n_ranks - 1,
            Collective::Broadcast | Collective::Reduce => self.facts.n_ranks,
        }
    }

    /// A per-scale constant for this communicator.
    fn limit(&self, table: &[[f64; 3]; 4]) -> f64 {
        table[Generation::of(self.facts.min_compute_cap) as usize][self.facts.n_hosts.min(3) - 1]
    }

    /// LL is bound by the GPU inside a host and by the CPU between hosts.
    fn ll_limit(&self) -> f64 {
        if self.facts.n_hosts == 1 {
            return self.limit(&LL_MAX_BW);
        }
        let amd = self.facts.cpu_vendor == Some(CpuVendor::Amd) || self.facts.mixed_vendors;
        LL_MAX_BW[usize::from(amd)][self.facts.n_hosts.min(3) - 1]
    }

    /// GB/s of payload.
    fn bandwidth(&self) -> f32 {
        let graph = self.graph();
        let n_channels = graph.n_channels as f32;
        let collnet = matches!(self.algorithm, Algorithm::CollNetDirect | Algorithm::CollNetChain);
        let per_channel = if self.is_nvls() {
            self.nvls_channel_bw()
        } else if self.facts.n_hosts <= 2 || collnet {
            graph.bw_intra
        } else {
            graph.bw_inter
        };
        let bus = n_channels * per_channel;
        let bus = match self.algorithm {
            Algorithm::Ring => self.ring_bus_bw(bus),
            Algorithm::Tree => self.tree_bus_bw(bus),
            Algorithm::Pat => (f64::from(bus) * 0.75) as f32,
            Algorithm::CollNetDirect => self.direct_bus_bw(bus),
            Algorithm::CollNetChain if self.protocol != Protocol::Simple => 0.0,
            _ => bus,
        };
        bus * self.payload_ratio()
    }

    /// GB/s per channel of the in-switch algorithms.
    fn nvls_channel_bw(&self) -> f32 {
        let graph = self.graph();
        let n_channels = graph.n_channels;
        let efficiency = NVLS_EFFICIENCY[Generation::of(self.facts.min_compute_cap) as usize];
        let mut intra = graph.bw_intra * efficiency * (n_channels - 1) as f32 / n_channels as f32;
        if self.collective == Collective::AllReduce {
            // Reduction and multicast overlap.
            intra *= 2.0;
        } else {
            let per_host = self.facts.ranks_per_host();
            intra *= (per_host - 1.0) / per_host;
        }
        let tree = self.algorithm == Algorithm::NvlsTree;
        let inter = graph.bw_inter * if self.facts.n_hosts <= 2 && tree { 2.0 } else { 1.0 };
        let cap = if tree { self.limit(&NVLS_TREE_CHANNEL_BW) as f32 } else { f32::MAX };
        least(least(intra, inter), cap)
    }

    fn ring_bus_bw(&self, bus: f32) -> f32 {
        let bus = f64::from(bus);
        let n_channels = self.graph().n_channels as f64;
        match self.protocol {
            Protocol::LL => least_f64(self.ll_limit(), bus * 0.5) as f32,
            Protocol::LL128 => least_f64(bus * 0.92, n_channels * self.limit(&RING_LL128_CHANNEL_BW)) as f32,
            Protocol::Simple => bus as f32,
        }
    }

    fn tree_bus_bw(&self, bus: f32) -> f32 {
        let n_channels = self.graph().n_channels as f64;
        let mut bus = bus;
        if self.collective == Collective::AllReduce {
            bus = least_f64(f64::from(bus) * 0.92, n_channels * self.limit(&TREE_CHANNEL_BW)) as f32;
        }
        match self.protocol {
            Protocol::LL => bus = least_f64(f64::from(bus) / 3.8, self.ll_limit()) as f32,
            Protocol::LL128 => {
                let lines = if self.facts.n_hosts == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                bus =
                    least_f64(f64::from(bus) * lines, n_channels * self.limit(&TREE_LL128_CHANNEL_BW)) as f32;
            }
            Protocol::Simple => {}
        }
        if self.facts.max_tree_pattern == Pattern::Tree {
            bus = (f64::from(bus) * 0.85) as f32;
        }
        bus
    }

    fn direct_bus_bw(&self, bus: f32) -> f32 {
        let graph = self.graph();
        if self.protocol != Protocol::Simple {
            return 0.0;
        }
        let per_host = self.facts.ranks_per_host();
        if self.moves_blocks() {
            return per_host * least(graph.bw_intra, graph.bw_inter * 0.9);
        }
        // GPUs without a NIC of their own slow the others down, by half of the ratio.
        let mut factor = (f64::from(per_host) / graph.n_channels as f64) as f32;
        factor -= (factor - 1.0) / 2.0;
        let bus = bus / factor;
        if self.facts.min_compute_cap >= 90 { (f64::from(bus) * 0.85) as f32 } else { bus }
    }

    /// Payload per byte on the bus.
    fn payload_ratio(&self) -> f32 {
        match self.algorithm {
            Algorithm::Ring => (self.facts.n_ranks as f64 / self.n_steps() as f64) as f32,
            _ if self.moves_blocks() => 1.0,
            Algorithm::Nvls | Algorithm::NvlsTree => {
                (self.facts.n_ranks as f64 / self.n_steps() as f64) as f32
            }
            _ => 0.5,
        }
    }

    /// µs of one step over a wire.
    fn step_us(&self, wire: Wire, algorithm: Algorithm) -> f32 {
        let power_tree = self.facts.cpu_arch == Some(CpuArch::Power)
            && wire == Wire::Pci
            && algorithm == Algorithm::Tree
            && self.protocol == Protocol::Simple;
        // On POWER the tree's own figure would favour rings too much.
        let algorithm = if power_tree { Algorithm::Ring } else { algorithm };
        STEP_LATENCY_US[wire as usize][algorithm as usize][self.protocol as usize] as f32
    }

    fn latency(&self) -> f32 {
        let facts = self.facts;
        let graph = self.graph();
        let base = BASE_LATENCY_US[self.algorithm as usize][self.protocol as usize] as f32;
        let inside = if graph.type_intra as i32 == LinkType::Nvl as i32 { Wire::Nvlink } else { Wire::Pci };
        let intra = self.step_us(inside, self.algorithm);
        // One rank a host exposes the network's latency fully, as a tree does.
        let net_row = if facts.ranks_per_host() == 1.0 { Algorithm::Tree } else { self.algorithm };
        let mut inter = self.step_us(Wire::Net, net_row) + graph.latency_inter;
        if self.protocol == Protocol::Simple {
            // Data are flushed before the flag is.
            inter += graph.latency_inter;
        }
        let per_host = (facts.n_ranks / facts.n_hosts) as i32;
        let levels = facts.n_hosts.ilog2() as f32;
        match self.algorithm {
            Algorithm::Ring => base + self.ring_latency(inside, intra, inter),
            Algorithm::Tree => base + 2.0 * ((per_host - 1) as f32 * intra + levels * inter),
            Algorithm::CollNetDirect => {
                let own = (per_host - 1).min(1) as f32 * intra;
                let arity = f64::from(per_host - 1) * 0.4;
                (f64::from(base) + (2.0 * (f64::from(own) + arity) + f64::from(inter))) as f32
            }
            Algorithm::CollNetChain => base + ((2 * (per_host - 1)) as f32 * intra + inter),
            Algorithm::Nvls if facts.n_hosts > 1 => intra + inter,
            Algorithm::Nvls => intra,
            Algorithm::NvlsTree => base + (intra + 2.0 * levels * inter),
            Algorithm::Pat => {
                let logarithmic = f64::from(levels) * (f64::from(inter) / 3.5);
                (f64::from(base) + (logarithmic + facts.n_ranks as f64 * 2.8)) as f32
            }
            Algorithm::OneShot | Algorithm::TwoShot => base,
        }
    }

    fn ring_latency(&self, inside: Wire, intra: f32, inter: f32) -> f32 {
        let facts = self.facts;
        let n_steps = self.n_steps();
        if matches!(self.collective, Collective::Broadcast | Collective::Reduce) {
            let wire = if facts.n_hosts == 1 { inside } else { Wire::Net };
            return if self.graph().same_channels {
                self.step_us(wire, Algorithm::Ring)
            } else {
                // Channels in different orders delay one another by a chunk, which costs a tree's step with Simple.
                let row = if self.protocol == Protocol::Simple { Algorithm::Tree } else { Algorithm::Ring };
                n_steps as f32 * self.step_us(wire, row)
            };
        }
        let n_inter = match self.collective {
            Collective::AllReduce => 2 * (facts.n_hosts - 1),
            _ => facts.n_hosts - 1,
        };
        let intra = greatest(intra, self.net_overhead());
        (n_steps - n_inter) as f32 * intra + n_inter as f32 * inter
    }

    /// µs that posting a network step costs the ring; nothing inside a host.
    fn net_overhead(&self) -> f32 {
        if self.facts.n_hosts == 1 {
            return 0.0;
        }
        let amd = self.facts.cpu_arch == Some(CpuArch::X86) && self.facts.cpu_vendor == Some(CpuVendor::Amd);
        let overhead = match self.params.net_overhead_ns {
            Some(ns) => (ns as f64 * 0.001) as f32,
            None if amd => 2.0,
            None => 1.0,
        };
        if self.protocol == Protocol::Simple { overhead * 3.0 } else { overhead }
    }

    /// Farthest path that LL128 may cross between rank and NIC unless the user insists.
    pub(super) fn ll128_reach(&self) -> PathType {
        if self.params.ll128_c2c && self.facts.min_compute_cap >= 90 { PathType::Pxn } else { PathType::Pxb }
    }
}

// C++'s std::min and std::max return the first argument when the comparison fails, NaN included; f32::min does not.

fn least(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

fn least_f64(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

fn greatest(a: f32, b: f32) -> f32 {
    if a < b { b } else { a }
}
