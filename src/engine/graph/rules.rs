//! What every graph must keep, however it was found: ranks once per channel, NICs that exist, no link reserved beyond its bandwidth.

use crate::engine::graph::search_fabric::{Allowance, Fabric, Stop};
use crate::engine::graph::{Channel, GraphId, Pattern, SearchGraph};
use crate::engine::topo::{NodeType, PathType, System};

/// The bandwidth of the last resort, when no graph was found.
const SIMPLE_ORDER_BW: f32 = 0.1;

/// Checks a graph against the machine it was found on; says what is broken.
pub fn check(system: &System, graph: &SearchGraph) -> Result<(), String> {
    let mut fabric = Fabric::new(system);
    let mut meter = Meter { system, graph, fabric: &mut fabric };
    for (c, channel) in graph.channels.iter().enumerate() {
        meter
            .check_ranks(channel)
            .map_err(|text| format!("channel {c} of the {} graph {text}", graph.id.name()))?;
        meter.load(channel).map_err(|text| format!("channel {c} of the {} graph {text}", graph.id.name()))?;
    }
    if graph.bw_intra == SIMPLE_ORDER_BW && graph.type_intra == PathType::Sys {
        return Ok(());
    }
    match fabric.overload() {
        Some(text) => Err(format!("the {} graph {text}", graph.id.name())),
        None => Ok(()),
    }
}

struct Meter<'a> {
    system: &'a System,
    graph: &'a SearchGraph,
    fabric: &'a mut Fabric,
}

impl Meter<'_> {
    fn check_ranks(&self, channel: &Channel) -> Result<(), String> {
        let mut ranks = channel.intra.clone();
        ranks.sort_unstable();
        let mut all = self.system.ranks();
        all.sort_unstable();
        let is_head = self.graph.id == GraphId::Nvls && ranks.len() == 1 && all.contains(&ranks[0]);
        if ranks != all && !is_head {
            return Err(format!("visits {:?}, want each of {all:?} once", channel.intra));
        }
        if channel.inter.is_some() != self.system.inter {
            return Err("has NICs where it should have none, or none where it should".to_owned());
        }
        Ok(())
    }

    fn net(&self, id: i64) -> Result<Option<Stop>, String> {
        if id == -1 {
            return Ok(None);
        }
        let index = self.system.index_of(NodeType::Net, id);
        index
            .map(|index| Some(Stop::Net(index)))
            .ok_or_else(|| format!("uses NIC {id:#x}, which does not exist"))
    }

    /// Books all that a channel carries.
    fn load(&mut self, channel: &Channel) -> Result<(), String> {
        let gpus: Vec<Stop> =
            channel.intra.iter().filter_map(|&rank| self.system.index_of_rank(rank)).map(Stop::Gpu).collect();
        let (Some(&first), Some(&last)) = (gpus.first(), gpus.last()) else { return Ok(()) };
        if let Some([start, end]) = channel.inter {
            let (start, end) = (self.net(start)?, self.net(end)?);
            if let (Some(start), Some(end)) = (start, end) {
                self.book(start, first, 1.0);
                match self.graph.pattern {
                    Pattern::Ring => self.book(last, end, 1.0),
                    Pattern::SplitTree => self.book(gpus[1 % gpus.len()], end, 1.0),
                    Pattern::BalancedTree => {
                        self.book(first, end, 0.5);
                        self.book(gpus[1 % gpus.len()], end, 0.5);
                    }
                    _ => self.book(first, end, 1.0),
                }
            }
        }
        let n = self.system.n_gpus();
        match self.graph.pattern {
            Pattern::Nvls => {
                for g in (0..n).map(Stop::Gpu) {
                    let share = if g == first { 2.0 } else { 1.0 };
                    self.book(Stop::Nvs, g, share);
                    self.book(g, Stop::Nvs, share);
                }
            }
            Pattern::CollNetDirect => {
                for g in (0..n).map(Stop::Gpu) {
                    let share = 1.0 / (n as f32 - 1.0);
                    self.book(first, g, share);
                    self.book(g, first, share);
                }
            }
            pattern => {
                for pair in gpus.windows(2) {
                    self.book(pair[0], pair[1], 1.0);
                }
                if pattern == Pattern::Ring && channel.inter.is_none() {
                    self.book(last, first, 1.0);
                }
            }
        }
        Ok(())
    }

    fn book(&mut self, from: Stop, to: Stop, share: f32) {
        let bw = if Fabric::is_inside(from, to) { self.graph.bw_intra } else { self.graph.bw_inter };
        self.fabric.book(from, to, Allowance { bw, kind: PathType::Dis as i32, both_ways: false, share });
    }
}
