//! The search for a graph: attempts with looser and looser limits until one is good enough.
//!
//! ```text
//! pass 1  allow in turn: channels of different order, a simpler tree, farther GPUs, farther NICs, changing NICs, less bandwidth
//! then    split fast channels in two
//! pass 2  the same number of channels, more bandwidth each
//! ```
//!
//! Every attempt has a budget of steps, and all attempts of a graph share one: results do not depend on the machine's speed.

use crate::engine::graph::search_draft::{Draft, SearchRequest};
use crate::engine::graph::search_fabric::Fabric;
use crate::engine::graph::search_nets::select_nets;
use crate::engine::graph::search_walk::{PERFECT, Walk};
use crate::engine::graph::{Pattern, SearchGraph};
use crate::engine::topo::{CpuArch, CpuVendor, NodeType, Params, PathType, System};

/// Steps all attempts of a graph may take together.
const GLOBAL_BUDGET: i64 = 1 << 19;
/// Steps of an attempt.
const BUDGET: i32 = 1 << 14;
/// Steps of an attempt whose channels are all alike.
const BUDGET_SAME: i32 = 1 << 8;

/// GB/s a channel is tried with, inside a host and between hosts, by compute capability (NCCL 2.30.7, `search.cc`).
const SPEEDS: [(&[f32], &[f32]); 3] = [
    (
        &[40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0],
        &[
            48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2,
            0.24, 0.12,
        ],
    ),
    (
        &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0],
        &[48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12],
    ),
    (
        &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0],
        &[
            96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0,
            2.4, 1.2, 0.24, 0.12,
        ],
    ),
];

/// Most heads of in-switch reduction.
const MAX_NVLS_HEADS: usize = 32;
/// Most heads of in-network reduction.
const MAX_DIRECT_HEADS: usize = 8;

/// One attempt: its limits, what was left of its budget, and the best graph known after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// 1 or 2.
    pub pass: u8,
    /// What was searched, with its limits and channels still empty.
    pub tried: SearchGraph,
    /// Place of its bandwidth in the list of speeds.
    pub speed_index: usize,
    /// Steps left: 0 when they ran out, -1 when as many channels as wanted were found.
    pub time_left: i32,
    /// Steps left to all attempts.
    pub global_time_left: i64,
    /// Channels of the best graph.
    pub best_channels: usize,
    /// Its GB/s inside the host.
    pub best_bw_intra: f32,
    /// Its GB/s between hosts.
    pub best_bw_inter: f32,
    /// Its links.
    pub best_hops: i32,
}

/// How far relaxing may go.
struct Limits {
    sm: i32,
    cross_nic: i32,
    type_intra: (i32, i32),
    type_inter: (i32, i32),
    try_same: bool,
    speeds: &'static [f32],
    is_amd: bool,
}

impl Limits {
    fn new(system: &System, request: SearchRequest, params: &Params) -> Self {
        let sm = lowest_sm(system);
        let may_cross = matches!(request.pattern, Pattern::Ring | Pattern::BalancedTree | Pattern::SplitTree);
        let mut limits = Self {
            sm,
            cross_nic: 0,
            type_intra: (PathType::Loc as i32, PathType::Sys as i32),
            type_inter: (PathType::Pix as i32, PathType::Sys as i32),
            try_same: request.pattern != Pattern::Nvls,
            speeds: speeds(sm, system.inter),
            is_amd: system.cpu(0).arch == Some(CpuArch::X86) && system.cpu(0).vendor == Some(CpuVendor::Amd),
        };
        if may_cross && system.n_nets() > 1 {
            limits.cross_nic = i32::try_from(params.cross_nic).unwrap_or(0);
        }
        let range = |kind| (system.nearest_path(kind) as i32, system.farthest_path(kind) as i32);
        if system.n_gpus() > 1 {
            limits.type_intra = range(NodeType::Gpu);
        }
        if system.inter {
            limits.type_inter = range(NodeType::Net);
            limits.type_intra.1 = limits.type_inter.1;
        }
        if sm < 90 {
            // Their balanced trees sometimes come back to the NIC from afar.
            limits.type_inter.1 = PathType::Sys as i32;
        }
        limits
    }
}

/// Compute capability of the weakest device.
fn lowest_sm(system: &System) -> i32 {
    (0..system.count(NodeType::Dev)).map(|d| system.dev(d).sm).min().unwrap_or(0)
}

fn speeds(sm: i32, inter: bool) -> &'static [f32] {
    let generation = match sm {
        100.. => 2,
        90.. => 1,
        _ => 0,
    };
    let (inside, between) = SPEEDS[generation];
    if inter { between } else { inside }
}

/// Searches a graph. The fabric is the one the graphs before were searched on; the trace gets one row per attempt.
pub(crate) fn search(
    fabric: &mut Fabric,
    system: &System,
    request: SearchRequest,
    params: &Params,
    trace: &mut Vec<Attempt>,
) -> SearchGraph {
    let limits = Limits::new(system, request, params);
    let n_gpus = system.n_gpus();
    let mut best = Draft::new(request, n_gpus);
    best.cross_nic = i32::from(limits.cross_nic == 1);
    best.type_intra = limits.type_intra.0;
    best.type_inter = limits.type_inter.0;
    best.same_channels = limits.try_same;
    match request.pattern {
        Pattern::Nvls if !system.has_nvswitch() || limits.sm < 90 => return best.finish(system.inter),
        Pattern::Nvls => best.max_channels = MAX_NVLS_HEADS.min(n_gpus),
        Pattern::CollNetDirect => best.max_channels = MAX_DIRECT_HEADS.min(n_gpus),
        _ => {}
    }
    if n_gpus == 1 && best.pattern != Pattern::Ring {
        best.pattern = Pattern::Tree;
    }
    if !system.inter && best.pattern == Pattern::Nvls {
        best.min_channels = best.max_channels; // all GPUs pull alike
    }
    if best.pattern == Pattern::Ring && best.max_channels >= 2 && best.min_channels == 1 && is_split(system) {
        // A tree between two NVLink islands needs two channels, and rings and trees have equally many.
        best.min_channels = 2;
    }
    let mut attempts = Attempts {
        pass: 1,
        speed_index: 0,
        global: GLOBAL_BUDGET,
        walk: Walk::new(system, params, fabric, best),
        limits,
        trace,
    };
    attempts.run();
    let mut best = attempts.walk.best;
    if best.n_channels == 0 && !best.coll_net && best.pattern != Pattern::Nvls {
        simple_order(system, params, &mut best);
    }
    best.finish(system.inter)
}

struct Attempts<'a> {
    pass: u8,
    speed_index: usize,
    global: i64,
    walk: Walk<'a>,
    limits: Limits,
    trace: &'a mut Vec<Attempt>,
}

impl Attempts<'_> {
    fn run(&mut self) {
        self.start();
        loop {
            let time = self.attempt();
            if self.is_done(time) || !self.relax(time) {
                break;
            }
        }
        let sm = self.limits.sm;
        self.walk.best.duplicate(sm);
        self.walk.graph = self.walk.best.clone();
        self.speed_index = self.first_speed(|speed, best| speed > best.bw_inter);
        self.set_speed();
        self.walk.graph.min_channels = self.walk.best.n_channels;
        self.pass = 2;
        let mut time = PERFECT;
        while self.raise(time) {
            time = self.attempt();
        }
    }

    /// The first speed the machine can carry at all.
    fn start(&mut self) {
        let system = self.walk.system;
        let n_devs = system.count(NodeType::Dev);
        let mut total_bw = system.total_bw;
        if n_devs > 1 && self.walk.best.pattern != Pattern::Ring {
            // Trees need not close, so a channel loads fewer links.
            #[expect(clippy::cast_possible_truncation, reason = "bandwidths are single precision everywhere")]
            {
                total_bw = (f64::from(total_bw) * (n_devs as f64 / (n_devs - 1) as f64)) as f32;
            }
        }
        let max_bw = system.max_bw;
        self.speed_index =
            self.first_speed(|speed, best| speed > max_bw || speed * best.min_channels as f32 > total_bw);
        self.set_speed();
    }

    /// The first speed that is not too fast, or the last.
    fn first_speed(&self, too_fast: impl Fn(f32, &Draft) -> bool) -> usize {
        let speeds = self.limits.speeds;
        speeds.iter().position(|&speed| !too_fast(speed, &self.walk.best)).unwrap_or(speeds.len() - 1)
    }

    fn set_speed(&mut self) {
        self.walk.graph.bw_intra = self.limits.speeds[self.speed_index];
        self.walk.graph.bw_inter = self.limits.speeds[self.speed_index];
    }

    /// Searches once within the limits set; answers with the budget left.
    fn attempt(&mut self) -> i32 {
        let budget = if self.walk.graph.same_channels { BUDGET_SAME } else { BUDGET };
        self.walk.graph.n_channels = 0;
        self.walk.time = budget;
        self.global -= i64::from(budget);
        self.walk.search();
        let time = self.walk.time;
        let best = &self.walk.best;
        self.trace.push(Attempt {
            pass: self.pass,
            tried: self.walk.graph.finish(false),
            speed_index: self.speed_index,
            time_left: time,
            global_time_left: self.global,
            best_channels: best.n_channels,
            best_bw_intra: best.bw_intra,
            best_bw_inter: best.bw_inter,
            best_hops: best.n_hops,
        });
        time
    }

    fn is_done(&self, time: i32) -> bool {
        time == PERFECT || self.walk.best.total_inter() >= self.walk.system.total_bw
    }

    /// Loosens the next limit; answers false when there is none left or the budget is spent.
    fn relax(&mut self, time: i32) -> bool {
        let limits = &self.limits;
        let inter = self.walk.system.inter;
        let (graph, best) = (&mut self.walk.graph, &self.walk.best);
        let found = best.n_channels > 0;
        // Through AMD CPUs different orders only get in each other's way.
        if graph.same_channels && !(limits.is_amd && graph.type_intra == PathType::Sys as i32) {
            graph.same_channels = false;
            return true;
        }
        graph.same_channels = limits.try_same;
        self.global += i64::from(time);
        if self.global < 0 && found {
            return false;
        }
        if limits.sm >= 90 && graph.pattern == Pattern::BalancedTree {
            graph.pattern = Pattern::Tree;
            return true;
        }
        graph.pattern = best.pattern;
        let farthest_intra = if inter { graph.type_inter } else { limits.type_intra.1 };
        if graph.type_intra < farthest_intra && (!found || graph.type_intra < best.type_intra) {
            graph.type_intra += 1;
            if graph.type_intra < PathType::Dis as i32 {
                return true;
            }
        }
        graph.type_intra = limits.type_intra.0;
        let may_help =
            !found || graph.type_inter < best.type_inter || graph.type_inter < PathType::Pxn as i32;
        if inter && graph.type_inter < limits.type_inter.1 && may_help {
            graph.type_inter += 1;
            if graph.type_inter < PathType::Dis as i32 {
                return true;
            }
        }
        graph.type_inter = limits.type_inter.0;
        let may_cross = matches!(best.pattern, Pattern::Ring | Pattern::BalancedTree);
        if limits.cross_nic == 2 && graph.cross_nic == 0 && may_cross {
            graph.cross_nic = 2;
            return true;
        }
        graph.cross_nic = i32::from(limits.cross_nic == 1);
        match limits.speeds.get(self.speed_index + 1) {
            Some(&slower) if !found || f64::from(slower / best.bw_inter) > 0.49 => {
                self.speed_index += 1;
                self.set_speed();
                true
            }
            _ => false,
        }
    }

    /// Wants more bandwidth per channel; answers false when there is no more or the last attempt ran out of steps.
    fn raise(&mut self, time: i32) -> bool {
        if time == 0 || self.speed_index == 0 {
            return false;
        }
        let (graph, best) = (&mut self.walk.graph, &self.walk.best);
        let faster = self.limits.speeds[self.speed_index - 1];
        if best.pattern == Pattern::Ring {
            (graph.bw_intra, graph.bw_inter) = (faster, faster);
        } else if best.pattern == Pattern::Nvls
            && graph.bw_inter == best.bw_inter
            && graph.bw_inter < graph.bw_intra * 2.0
        {
            graph.min_channels = best.n_channels;
            graph.max_channels = best.n_channels;
            graph.bw_inter = faster;
        } else if graph.bw_intra == best.bw_intra && graph.bw_intra < graph.bw_inter * 2.0 {
            graph.bw_intra = faster;
        } else {
            return false;
        }
        self.speed_index -= 1;
        true
    }
}

/// Whether NVLink makes exactly two islands of several GPUs.
fn is_split(system: &System) -> bool {
    let n = system.n_gpus();
    let mut island: Vec<usize> = (0..n).collect();
    for g in 0..n {
        for p in g + 1..n {
            if system.gpu_path(g, p).kind == PathType::Nvl {
                island[p] = island[g];
            }
        }
    }
    (0..n).filter(|g| island.iter().filter(|&i| i == g).count() > 1).count() == 2
}

/// Nothing was found: one slow channel through the GPUs as they come.
fn simple_order(system: &System, params: &Params, best: &mut Draft) {
    best.open_channel();
    for g in 0..system.n_gpus() {
        best.put(0, g, system.gpu(g).rank);
    }
    best.bw_intra = 0.1;
    best.type_intra = PathType::Sys as i32;
    let near = |gpu| {
        let nets =
            if system.n_nets() == 0 { Vec::new() } else { select_nets(system, None, Some(gpu), params) };
        nets.first().map(|&net| system.nodes(NodeType::Net)[net].id)
    };
    best.inter[0] = match (near(0), near(system.n_gpus() - 1)) {
        (Some(first), Some(last)) => {
            best.bw_inter = 0.1;
            best.type_inter = PathType::Sys as i32;
            [first, last]
        }
        _ => {
            best.bw_inter = 0.0;
            best.type_inter = PathType::Dis as i32;
            [-1, -1]
        }
    };
    best.n_channels = 1;
}
