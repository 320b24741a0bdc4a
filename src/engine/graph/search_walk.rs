//! One attempt: a depth-first walk over GPUs and NICs that builds channel after channel within a budget of steps.
//!
//! ```text
//! inside a host   ring   a → b → … → x → a           tree   a → b → … → x
//! several hosts   ring   NIC → a → b → … → x → NIC   tree   NIC → a → b → … → x
//!                                                           NIC ←┘ (tree; balanced: half here, half at b)
//! ```
//!
//! Every step to the next GPU reserves bandwidth on the way, every return gives it back. When a channel is complete the graph is
//! held against the best one, and the walk goes on with one more channel.

use std::rc::Rc;

use crate::engine::graph::Pattern;
use crate::engine::graph::search_draft::Draft;
use crate::engine::graph::search_fabric::{Allowance, Fabric, Stop};
use crate::engine::graph::search_facts::{Choice, Facts, NetSort};
use crate::engine::graph::search_nets::{Exit, may_leave, select_nets};
use crate::engine::topo::{Params, PathType, System};

/// Budget of the trial in the machine's own order; it does not count.
const TRIAL_BUDGET: i32 = 1 << 10;
/// The budget's value when nothing better can be found.
pub(crate) const PERFECT: i32 = -1;

/// In which order GPUs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The most promising first, then all others.
    Free,
    /// The machine's own.
    Machine,
    /// That of the channel before.
    Replay,
}

/// Where in a channel the walk goes back to the NIC or to the first GPU.
#[derive(Clone, Copy, Debug)]
struct Turns {
    to_net: Option<usize>,
    to_first: Option<usize>,
    order: Order,
}

/// A walk over one machine.
pub(crate) struct Walk<'a> {
    pub(crate) system: &'a System,
    pub(crate) params: &'a Params,
    pub(crate) fabric: &'a mut Fabric,
    /// The graph being built.
    pub(crate) graph: Draft,
    /// The best so far.
    pub(crate) best: Draft,
    /// Steps left; 0 when they ran out, [`PERFECT`] when as many channels as wanted were found.
    pub(crate) time: i32,
    /// For every GPU one bit per channel that has it.
    used: Vec<u64>,
    facts: Facts,
    /// NICs to try, for all GPUs and for each, while the farthest path allowed is [`Walk::lists_for`].
    net_lists: Vec<Option<Rc<[usize]>>>,
    lists_for: i32,
    /// Lists of next GPUs that are free to use again.
    spare: Vec<Vec<usize>>,
}

impl std::fmt::Debug for Walk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").field("graph", &self.graph).field("best", &self.best).finish_non_exhaustive()
    }
}

impl<'a> Walk<'a> {
    /// A walk that starts from `best` and may do better.
    pub(crate) fn new(system: &'a System, params: &'a Params, fabric: &'a mut Fabric, best: Draft) -> Self {
        Self {
            time: 0,
            used: vec![0; system.n_gpus()],
            facts: Facts::new(system),
            net_lists: Vec::new(),
            lists_for: -1,
            spare: Vec::new(),
            graph: best.clone(),
            system,
            params,
            fabric,
            best,
        }
    }

    /// Searches with what [`Walk::graph`] allows, within [`Walk::time`].
    pub(crate) fn search(&mut self) {
        self.graph.open_channel();
        let last = self.system.n_gpus().checked_sub(1);
        let turns = |order| match (self.system.inter, self.graph.pattern) {
            (true, Pattern::Ring) => Turns { to_net: last, to_first: None, order },
            (true, Pattern::SplitTree) => Turns { to_net: Some(1), to_first: None, order },
            (true, _) => Turns { to_net: Some(0), to_first: None, order },
            (false, Pattern::Ring) => Turns { to_net: None, to_first: last, order },
            (false, _) => Turns { to_net: None, to_first: None, order },
        };
        let (free, machine, replay) = (turns(Order::Free), turns(Order::Machine), turns(Order::Replay));
        if self.system.inter {
            self.start_at_nets(free, machine, replay);
        } else if self.graph.pattern == Pattern::Nvls {
            self.try_gpu(None, self.graph.n_channels, 0, free);
        } else {
            if self.graph.n_channels == 0 {
                self.try_gpu(None, 0, 0, machine);
            } else if let Some(g) = self.replayed(0) {
                self.try_gpu(None, g, 0, replay);
            }
            if !self.graph.same_channels || self.graph.n_channels == 0 {
                for g in 0..self.system.n_gpus() {
                    self.try_gpu(None, g, 0, free);
                }
            }
        }
    }

    fn nets(&mut self, gpu: Option<usize>) -> Rc<[usize]> {
        let farthest = self.graph.type_inter;
        if self.lists_for != farthest {
            self.lists_for = farthest;
            self.net_lists = vec![None; self.system.n_gpus() + 1];
        }
        let list = &mut self.net_lists[gpu.map_or(0, |gpu| gpu + 1)];
        Rc::clone(
            list.get_or_insert_with(|| select_nets(self.system, Some(farthest), gpu, self.params).into()),
        )
    }

    fn net_id(&self, net: usize) -> i64 {
        self.facts.ports[net].id
    }

    /// Adds to the bandwidth left at a NIC; ports of one chip with the same number share it.
    fn add_net_bw(&mut self, net: usize, bw: f32) {
        for &i in &self.facts.ports[net].sharers {
            self.fabric.net_bw[i] += bw;
        }
    }

    fn start_at_nets(&mut self, free: Turns, machine: Turns, replay: Turns) {
        #[expect(clippy::cast_possible_truncation, reason = "NCCL reserves whole GB/s at NICs")]
        let bw = self.graph.bw_inter as i32 as f32;
        let heads_only = matches!(self.graph.pattern, Pattern::Nvls | Pattern::CollNetDirect);
        let nets = self.nets(None);
        for i in 0..nets.len() {
            let c = self.graph.n_channels;
            let n = nets[(c + i) % nets.len()];
            if (self.graph.coll_net && !self.facts.ports[n].net.coll) || self.fabric.net_bw[n] < bw {
                continue;
            }
            let in_pairs = self.graph.pattern == Pattern::Ring && self.graph.cross_nic == 2;
            if in_pairs && c % 2 == 1 && self.net_id(n) != self.graph.inter[c - 1][1] {
                continue;
            }
            self.graph.inter[c][0] = self.net_id(n);
            self.graph.latency_inter = self.facts.ports[n].net.latency;
            self.add_net_bw(n, -bw);
            let mut found_head = false;
            if heads_only {
                found_head = c < nets.len() && self.try_head(n, free);
            } else if c > 0 && self.graph.same_channels {
                if let Some(g) = self.replayed(0) {
                    self.try_gpu(Some(Stop::Net(n)), g, 0, replay);
                }
            } else if !self.try_near_gpus(n, free, machine) {
                continue; // NCCL keeps the NIC's bandwidth in this case
            }
            self.add_net_bw(n, bw);
            if found_head {
                break;
            }
        }
    }

    /// Tries the GPU next to a NIC as head, unless it is one already.
    fn try_head(&mut self, net: usize, turns: Turns) -> bool {
        let Some(gpu) = self.facts.ports[net].net.local_gpu else { return false };
        let rank = self.facts.ranks[gpu];
        if (0..self.graph.n_channels).any(|c| self.graph.rank(c, 0) == rank) {
            return false;
        }
        self.try_gpu(Some(Stop::Net(net)), gpu, 0, turns);
        true
    }

    /// Tries all GPUs near a NIC, in the machine's order first; answers whether there is any.
    fn try_near_gpus(&mut self, net: usize, free: Turns, machine: Turns) -> bool {
        let start = Some(Stop::Net(net));
        if self.graph.n_channels == 0 && !self.system.has_nvswitch() {
            let budget = std::mem::replace(&mut self.time, TRIAL_BUDGET);
            self.try_gpu(start, 0, 0, machine);
            if self.time != PERFECT {
                self.time = budget;
            }
        }
        let first = self.facts.ports[net].net.local_gpu;
        if let Some(gpu) = first {
            self.try_gpu(start, gpu, 0, free);
        }
        if self.facts.ports[net].near_kind == PathType::Dis {
            return false;
        }
        for i in 0..self.facts.ports[net].near_gpus.len() {
            let gpu = self.facts.ports[net].near_gpus[i];
            if Some(gpu) != first {
                self.try_gpu(start, gpu, 0, free);
            }
        }
        true
    }

    /// The GPU at a place of the channel before.
    fn replayed(&self, place: usize) -> Option<usize> {
        self.facts.gpu_of(self.graph.rank(self.graph.n_channels.checked_sub(1)?, place))
    }

    /// Takes bandwidth for a walk, or gives it back when `share` is negative; answers whether there was enough.
    fn walk(&mut self, from: Stop, to: Stop, share: f32) -> bool {
        let graph = &self.graph;
        let both_ways = graph.pattern.is_tree();
        let allowance = if Fabric::is_inside(from, to) {
            Allowance { bw: graph.bw_intra, kind: graph.type_intra, both_ways, share }
        } else {
            Allowance { bw: graph.bw_inter, kind: graph.type_inter, both_ways, share }
        };
        let Some(n_hops) = self.fabric.take(from, to, allowance) else {
            return false;
        };
        #[expect(clippy::cast_possible_truncation, reason = "fractions of hops are dropped at every step")]
        {
            self.graph.n_hops = (self.graph.n_hops as f32 + share * n_hops as f32) as i32;
        }
        true
    }

    /// Goes to a GPU, from `from` or from nowhere, and on from there.
    fn try_gpu(&mut self, from: Option<Stop>, gpu: usize, step: usize, turns: Turns) {
        let flag = 1u64 << self.graph.n_channels;
        if from.is_none_or(|from| self.walk(from, Stop::Gpu(gpu), 1.0)) {
            self.used[gpu] ^= flag;
            self.visit(Some(gpu), step, turns);
            self.used[gpu] ^= flag;
            if let Some(from) = from {
                self.walk(from, Stop::Gpu(gpu), -1.0);
            }
        }
    }

    /// One step of the search: at a GPU, or past the last one.
    fn visit(&mut self, gpu: Option<usize>, step: usize, turns: Turns) {
        if self.time <= 0 {
            return;
        }
        self.time -= 1;
        let n_gpus = self.system.n_gpus();
        let Some(g) = gpu.filter(|_| step < n_gpus) else { return self.complete() };
        self.graph.put(self.graph.n_channels, step, self.facts.ranks[g]);
        if turns.to_net == Some(step) {
            self.leave(g, step, turns);
        } else if self.graph.pattern == Pattern::Nvls {
            self.try_nvls(g);
        } else if self.graph.pattern == Pattern::CollNetDirect {
            self.try_direct(g);
        } else if step + 1 < n_gpus {
            self.go_on(g, step, turns);
        } else if turns.to_first == Some(step) {
            let first = self.facts.gpu_of(self.graph.rank(self.graph.n_channels, 0));
            if let Some(first) = first
                && self.walk(Stop::Gpu(g), Stop::Gpu(first), 1.0)
            {
                self.visit(Some(first), step + 1, Turns { to_first: None, ..turns });
                self.walk(Stop::Gpu(g), Stop::Gpu(first), -1.0);
            }
        } else {
            self.visit(Some(g), n_gpus, Turns { to_net: None, to_first: None, ..turns });
        }
    }

    /// From a GPU to the next.
    fn go_on(&mut self, g: usize, step: usize, turns: Turns) {
        let from = Some(Stop::Gpu(g));
        match turns.order {
            Order::Machine => self.try_gpu(from, step + 1, step + 1, turns),
            Order::Replay => {
                if let Some(next) = self.replayed(step + 1) {
                    self.try_gpu(from, next, step + 1, turns);
                }
            }
            Order::Free => {
                let sort = match turns.to_net {
                    None => NetSort::Ignore,
                    Some(turn) if turn == step + 1 => NetSort::Nearest,
                    Some(_) => NetSort::Farthest,
                };
                let mut next = self.spare.pop().unwrap_or_default();
                let state = Choice { graph: &self.graph, fabric: self.fabric, used: &self.used, sort };
                self.facts.fill_next(g, &state, &mut next);
                for &gpu in &next {
                    self.try_gpu(from, gpu, step + 1, turns);
                }
                self.spare.push(next);
            }
        }
    }

    /// A channel is complete: keep the graph when it is better, and try one more channel.
    fn complete(&mut self) {
        self.graph.n_channels += 1;
        if self.is_better() {
            self.best.clone_from(&self.graph);
            if self.graph.n_channels == self.graph.max_channels {
                self.time = PERFECT;
            }
        }
        if self.graph.n_channels < self.graph.max_channels {
            self.search();
        }
        self.graph.n_channels -= 1;
    }

    /// Enough channels, and more bandwidth than the best, or as much over fewer links.
    fn is_better(&self) -> bool {
        let (new, best) = (&self.graph, &self.best);
        if new.n_channels < new.min_channels {
            return false;
        }
        if new.pattern == Pattern::Nvls {
            let more_heads = new.n_channels > best.n_channels && new.n_channels <= self.system.n_gpus();
            return more_heads || new.total_inter() > best.total_inter();
        }
        if new.total_intra() != best.total_intra() {
            return new.total_intra() > best.total_intra();
        }
        new.pattern == best.pattern && new.cross_nic == best.cross_nic && new.n_hops < best.n_hops
    }

    /// Leaves the host by every NIC allowed. A balanced tree takes half the bandwidth at its first GPU and half at its second.
    fn leave(&mut self, g: usize, step: usize, turns: Turns) {
        let c = self.graph.n_channels;
        let Some(start) = self.facts.port_of(self.graph.inter[c][0]) else { return };
        let nets = self.nets(Some(g));
        let balanced = self.graph.pattern == Pattern::BalancedTree;
        let to_net = (balanced && step == 0).then_some(1);
        for &n in nets.iter() {
            let exit = Exit { start, end: n, step };
            if !may_leave(&self.facts.ports, &self.graph, exit, self.params) {
                continue;
            }
            if self.walk_to_net(g, n, 1.0, balanced) {
                self.graph.inter[c][1] = self.net_id(n);
                self.visit(Some(g), step, Turns { to_net, ..turns });
                self.walk_to_net(g, n, -1.0, balanced);
            }
        }
    }

    fn walk_to_net(&mut self, g: usize, net: usize, share: f32, halved: bool) -> bool {
        let bw = self.graph.bw_inter;
        if halved {
            self.graph.bw_inter /= 2.0;
        }
        let enough = self.walk(Stop::Gpu(g), Stop::Net(net), share);
        self.graph.bw_inter = bw;
        enough
    }

    /// In-switch reduction: every GPU sends to the switch and hears from it, the head twice as much.
    fn try_nvls(&mut self, head: usize) {
        let n = self.system.n_gpus();
        let share = |g: usize| if g == head { 2.0 } else { 1.0 };
        let down = (0..n).take_while(|&g| self.walk(Stop::Nvs, Stop::Gpu(g), share(g))).count();
        if down == n {
            let up = (0..n).take_while(|&g| self.walk(Stop::Gpu(g), Stop::Nvs, share(g))).count();
            if up == n {
                self.visit(None, n, Turns { to_net: None, to_first: None, order: Order::Free });
            }
            for g in (0..up).rev() {
                self.walk(Stop::Gpu(g), Stop::Nvs, -share(g));
            }
        }
        for g in (0..down).rev() {
            self.walk(Stop::Nvs, Stop::Gpu(g), -share(g));
        }
    }

    /// In-network reduction: the head spreads its traffic evenly over all GPUs, both ways.
    fn try_direct(&mut self, head: usize) {
        let n = self.system.n_gpus();
        let share = 1.0 / (n as f32 - 1.0);
        let out = (0..n).take_while(|&g| self.walk(Stop::Gpu(head), Stop::Gpu(g), share)).count();
        if out == n {
            let back = (0..n).take_while(|&g| self.walk(Stop::Gpu(g), Stop::Gpu(head), share)).count();
            if back == n {
                for (place, g) in (0..n).filter(|&g| g != head).enumerate() {
                    self.graph.put(self.graph.n_channels, place + 1, self.facts.ranks[g]);
                }
                self.visit(None, n, Turns { to_net: None, to_first: None, order: Order::Free });
            }
            for g in (0..back).rev() {
                self.walk(Stop::Gpu(g), Stop::Gpu(head), -share);
            }
        }
        for g in (0..out).rev() {
            self.walk(Stop::Gpu(head), Stop::Gpu(g), -share);
        }
    }
}
