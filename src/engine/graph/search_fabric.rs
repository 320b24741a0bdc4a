//! Bandwidth as the search spends it: links and paths of one machine laid out flat, reserved and given back step by step.
//!
//! Amounts are rounded to 0.001 at every step, so that what is given back is what was taken. The rounding is not perfect and NCCL
//! lives with what is left; a fabric is therefore kept from one graph's search to the next.

use std::ops::Range;

use crate::engine::topo::{CpuArch, CpuVendor, Hop, LinkType, NodeRef, NodeType, PathType, System};

/// One direction of a link.
#[derive(Clone, Debug)]
struct Lane {
    is_pci: bool,
    /// The way back, where traffic to this end also costs there.
    back: Option<(usize, BackCost)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackCost {
    /// Devices before compute capability 80 answer NIC traffic: an eighth of it, unless the walk started at a GPU.
    Eighth,
    /// POWER CPUs share one NVLink bandwidth between both directions.
    Whole,
}

/// A path as the search walks it.
#[derive(Clone, Debug)]
struct Route {
    lanes: Range<usize>,
    kind: PathType,
    /// The way back's type.
    back_kind: PathType,
    /// All its links cost the same, and only in its direction.
    plain: bool,
    /// It leads from a GPU through the root complex of an Intel CPU, which cuts packets small: PCI links cost 6/5.
    small_packets: bool,
    from_gpu: bool,
}

/// The kinds of vertices a search walks between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Gpu(usize),
    Net(usize),
    Nvs,
}

impl Stop {
    fn is_inside(self) -> bool {
        !matches!(self, Self::Net(_))
    }

    fn node(self) -> NodeRef {
        match self {
            Self::Gpu(index) => NodeRef { kind: NodeType::Gpu, index },
            Self::Net(index) => NodeRef { kind: NodeType::Net, index },
            Self::Nvs => NodeRef { kind: NodeType::Nvs, index: 0 },
        }
    }
}

/// What a walk may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// GB/s of a whole share.
    pub(crate) bw: f32,
    /// Farthest path type, as a number.
    pub(crate) kind: i32,
    /// The way back must be as near.
    pub(crate) both_ways: bool,
    /// How much of the bandwidth is taken; negative gives it back.
    pub(crate) share: f32,
}

/// Links, routes and NIC bandwidth of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    n_gpus: usize,
    n_nets: usize,
    lanes: Vec<Lane>,
    /// GB/s left on every link.
    left: Vec<f32>,
    walked: Vec<usize>,
    routes: Vec<Route>,
    /// For every GPU its PCI lane and the switch's lane back to it.
    gpu_pci: Vec<Option<(usize, usize)>>,
    /// GB/s left at every NIC.
    pub(crate) net_bw: Vec<f32>,
}

impl Fabric {
    /// The machine with all its bandwidth. Paths must be computed.
    pub(crate) fn new(system: &System) -> Self {
        let mut first_lane = Vec::new();
        let mut lanes = Vec::new();
        for &kind in NodeType::ALL {
            let mut firsts = Vec::new();
            for (index, node) in system.nodes(kind).iter().enumerate() {
                firsts.push(lanes.len());
                let at = NodeRef { kind, index };
                lanes.extend(node.links.iter().map(|link| (at, *link)));
            }
            first_lane.push(firsts);
        }
        let lane_of = |hop: Hop| first_lane[hop.from.kind as usize][hop.from.index] + hop.link;
        let back_of = |at: NodeRef, to: NodeRef, kind: LinkType| {
            let link = system.node(to).links.iter().position(|link| link.to == at && link.kind == kind)?;
            Some(lane_of(Hop { from: to, link }))
        };
        let n_gpus = system.n_gpus();
        let gpu_pci = (0..n_gpus).map(|g| {
            let dev = NodeRef { kind: NodeType::Dev, index: system.gpu(g).parent };
            let links =
                system.node(dev).links.iter().enumerate().filter(|(_, link)| link.kind == LinkType::Pci);
            links.into_iter().find_map(|(l, link)| {
                let back = system.node(link.to).links.iter().position(|back| back.to == dev)?;
                Some((lane_of(Hop { from: dev, link: l }), lane_of(Hop { from: link.to, link: back })))
            })
        });
        let mut fabric = Self {
            n_gpus,
            n_nets: system.n_nets(),
            gpu_pci: gpu_pci.collect(),
            net_bw: (0..system.n_nets()).map(|n| system.net(n).bw).collect(),
            lanes: Vec::new(),
            left: Vec::new(),
            walked: Vec::new(),
            routes: Vec::new(),
        };
        for (at, link) in &lanes {
            let cost = back_cost(system, link.to, link.kind);
            let back = cost.and_then(|cost| Some((back_of(*at, link.to, link.kind)?, cost)));
            fabric.lanes.push(Lane { is_pci: link.kind == LinkType::Pci, back });
            fabric.left.push(link.bw);
        }
        fabric.add_routes(system, &lane_of);
        fabric
    }

    fn add_routes(&mut self, system: &System, lane_of: &dyn Fn(Hop) -> usize) {
        let known = |stop: Stop| stop != Stop::Nvs || system.has_nvswitch();
        let kind = |from: Stop, to: Stop| match known(from) && known(to) {
            true => system.path_or_none(from.node(), to.node()).kind,
            false => PathType::Dis,
        };
        for from in self.stops() {
            for to in self.stops() {
                let start = self.walked.len();
                let from_gpu = matches!(from, Stop::Gpu(_));
                let mut passes_intel = false;
                if known(from) && known(to) {
                    for &hop in &system.path_or_none(from.node(), to.node()).hops {
                        self.walked.push(lane_of(hop));
                        passes_intel |= is_intel(system, system.link(hop).to);
                    }
                }
                let lanes = start..self.walked.len();
                let small_packets = kind(from, to) == PathType::Phb && from_gpu && passes_intel;
                let answers = |&lane: &usize| match self.lanes[lane].back {
                    Some((_, BackCost::Eighth)) => !from_gpu,
                    Some((_, BackCost::Whole)) => true,
                    None => false,
                };
                self.routes.push(Route {
                    plain: !small_packets && !self.walked[lanes.clone()].iter().any(answers),
                    kind: kind(from, to),
                    back_kind: kind(to, from),
                    lanes,
                    small_packets,
                    from_gpu,
                });
            }
        }
    }

    /// All stops, in the order of the route table.
    fn stops(&self) -> Vec<Stop> {
        let gpus = (0..self.n_gpus).map(Stop::Gpu);
        gpus.chain((0..self.n_nets).map(Stop::Net)).chain([Stop::Nvs]).collect()
    }

    fn position(&self, stop: Stop) -> usize {
        match stop {
            Stop::Gpu(index) => index,
            Stop::Net(index) => self.n_gpus + index,
            Stop::Nvs => self.n_gpus + self.n_nets,
        }
    }

    fn route_index(&self, from: Stop, to: Stop) -> usize {
        self.position(from) * (self.n_gpus + self.n_nets + 1) + self.position(to)
    }

    /// Whether a walk stays inside the host.
    pub(crate) fn is_inside(from: Stop, to: Stop) -> bool {
        from.is_inside() && to.is_inside()
    }

    /// Takes the allowed share from every link between two stops. Answers with the number of links, or nothing when a link
    /// is too far or has too little left; then nothing is taken.
    pub(crate) fn take(&mut self, from: Stop, to: Stop, allowance: Allowance) -> Option<usize> {
        let Allowance { bw, kind, both_ways, share } = allowance;
        let index = self.route_index(from, to);
        let route = &self.routes[index];
        if route.kind >= PathType::Dis {
            return None;
        }
        #[expect(clippy::float_cmp, reason = "only whole shares are held against path types, as in NCCL")]
        if share == 1.0 && (route.kind as i32 > kind || (both_ways && route.back_kind as i32 > kind)) {
            return None;
        }
        let n_lanes = route.lanes.len();
        let bw = bw * share;
        let walked = self.follow(index, n_lanes, bw);
        if walked < n_lanes {
            self.follow(index, walked, -bw);
            return None;
        }
        Some(n_lanes)
    }

    /// Walks the first `n` links of a route, taking bandwidth; answers with how many had enough.
    fn follow(&mut self, route: usize, n: usize, bw: f32) -> usize {
        let Self { routes, lanes, left, walked, .. } = self;
        let route = &routes[route];
        let steps = &walked[route.lanes.start..route.lanes.start + n];
        for (step, &lane) in steps.iter().enumerate() {
            if route.plain {
                if left[lane] < bw {
                    return step;
                }
                left[lane] = take_rounded(left[lane], bw);
                continue;
            }
            let costs = costs(route, lanes, lane, bw);
            if costs.iter().flatten().any(|&(lane, bw)| left[lane] < bw) {
                return step;
            }
            for (lane, bw) in costs.into_iter().flatten() {
                left[lane] = take_rounded(left[lane], bw);
            }
        }
        n
    }

    /// Takes a share from every link between two stops whether there is enough or not.
    pub(crate) fn book(&mut self, from: Stop, to: Stop, allowance: Allowance) {
        let route = &self.routes[self.route_index(from, to)];
        for &lane in &self.walked[route.lanes.clone()] {
            for (lane, bw) in
                costs(route, &self.lanes, lane, allowance.bw * allowance.share).into_iter().flatten()
            {
                self.left[lane] -= bw;
            }
        }
    }

    /// A link from which more was taken than it has, beyond what rounding explains.
    pub(crate) fn overload(&self) -> Option<String> {
        /// Every walk rounds to 0.001, and a link is part of a few dozen at most.
        const SLACK: f32 = 0.1;
        let worst = self.left.iter().copied().fold(0.0, f32::min);
        (worst < -SLACK).then(|| format!("takes {} GB/s more from a link than it has", -worst))
    }

    /// GB/s left on a GPU's PCI link, whole numbers; -1 without one.
    pub(crate) fn gpu_pci_bw(&self, gpu: usize) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "scores are whole numbers")]
        self.gpu_pci[gpu].map_or(-1, |(down, up)| self.left[down].min(self.left[up]) as i32)
    }
}

/// What one step of a route costs: on its own link, and on the way back.
fn costs(route: &Route, lanes: &[Lane], lane: usize, bw: f32) -> [Option<(usize, f32)>; 2] {
    let forward = if lanes[lane].is_pci && route.small_packets { bw * 6.0 / 5.0 } else { bw };
    let back = match lanes[lane].back {
        Some((back, BackCost::Eighth)) if !route.from_gpu => Some((back, forward / 8.0)),
        Some((back, BackCost::Whole)) => Some((back, forward)),
        _ => None,
    };
    [Some((lane, forward)), back.filter(|&(_, bw)| bw != 0.0)]
}

fn take_rounded(from: f32, amount: f32) -> f32 {
    rounded((from - amount) * 1000.0) / 1000.0
}

/// The nearest whole number, halves away from zero. The library's own is a call on plain x86-64, and this is the search's innermost
/// step.
fn rounded(value: f32) -> f32 {
    /// From here on single precision holds whole numbers only.
    const WHOLE: f32 = 8_388_608.0;
    if value.is_nan() || value.abs() >= WHOLE {
        return value;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "cutting the fraction is meant, and the range is checked"
    )]
    let cut = value as i32 as f32;
    let fraction = value - cut;
    if fraction >= 0.5 {
        cut + 1.0
    } else if fraction <= -0.5 {
        cut - 1.0
    } else {
        cut
    }
}

fn is_intel(system: &System, at: NodeRef) -> bool {
    if at.kind != NodeType::Cpu {
        return false;
    }
    let cpu = system.cpu(at.index);
    cpu.arch == Some(CpuArch::X86) && cpu.vendor == Some(CpuVendor::Intel)
}

fn back_cost(system: &System, to: NodeRef, kind: LinkType) -> Option<BackCost> {
    match to.kind {
        NodeType::Dev if system.dev(to.index).sm < 80 => Some(BackCost::Eighth),
        NodeType::Cpu if kind == LinkType::Nvl && system.cpu(to.index).arch == Some(CpuArch::Power) => {
            Some(BackCost::Whole)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn rounding_equals_the_librarys() {
        let tricky =
            [0.0, 0.5, -0.5, 0.499_999_97, 1.5, 2.5, -2.5, 4_999_999.5, 8_388_607.5, 8_388_608.0, 1e30, -7.3];
        for value in tricky.into_iter().chain((0..100_000).map(|i| i as f32 * 0.37 - 18_000.0)) {
            assert_eq!(rounded(value), value.round(), "of {value}");
        }
    }
}
