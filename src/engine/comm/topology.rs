//! Rings and trees of a communicator: this machine's description, or the one of `NCCL_TOPO_FILE`, through search and connection.
//!
//! Every rank computes the same from the same inputs: ranks that share memory share the machine, so nothing needs to be exchanged.
//! A host's ranks are numbered as the connection wants them (host after host); results are translated back to ranks.
//! Synthetic hosts of a machine without NICs cannot be connected by the rules; they get [`layout`]'s chains and double tree.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;

use super::layout;
use crate::engine::error::{Error, Result};
use crate::engine::graph::channels;
use crate::engine::graph::connect::{Connection, Member, connect};
use crate::engine::graph::model::{ModelRequest, Variant, model_system};
use crate::engine::graph::{dump, lines};
use crate::engine::log::{self, Subsys};
use crate::engine::plan::{Layout, Ring, Tree};
use crate::engine::topo::xml::{Element, Limits, read_topology};
use crate::engine::topo::{Params, System, number_ranks, probe, select_ranks};

/// Where the machine's description comes from and goes to.
#[derive(Clone, Debug, Default)]
pub struct TopologySettings {
    /// `NCCL_TOPO_FILE`.
    pub file: Option<String>,
    /// `NCCL_TOPO_DUMP_FILE`, written by `NCCL_TOPO_DUMP_FILE_RANK`.
    pub dump: Option<(String, usize)>,
    /// `NCCL_GRAPH_DUMP_FILE`, written by `NCCL_GRAPH_DUMP_FILE_RANK`.
    pub graph_dump: Option<(String, usize)>,
    /// What topology and search look at.
    pub params: Params,
    /// What the channel rules look at.
    pub channels: channels::Params,
}

impl TopologySettings {
    /// The settings that `lookup` finds, by their full names.
    ///
    /// # Errors
    /// Names the setting, or the file that cannot be read.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let rank = |name: &str| lookup(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let with_rank = |file: &str, of: &str| lookup(file).map(|path| (path, rank(of)));
        let mut params = Params::from_lookup(lookup).map_err(|e| Error::InvalidUsage(e.to_string()))?;
        if let Some(path) = lookup("NCCL_GRAPH_FILE") {
            params.graph_xml = Some(read_text("NCCL_GRAPH_FILE", &path)?);
        }
        Ok(Self {
            file: lookup("NCCL_TOPO_FILE"),
            dump: with_rank("NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK"),
            graph_dump: with_rank("NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK"),
            params,
            channels: channels::Params::from_lookup(lookup),
        })
    }

    /// A host of `n_ranks` ranks as the rules see it.
    fn describe(&self, n_ranks: usize) -> Result<(Element, Params)> {
        let Some(path) = &self.file else {
            let root = probe::host_xml(n_ranks).map_err(|e| Error::InvalidUsage(e.to_string()))?;
            return Ok((root, self.params.clone().for_host_ranks()));
        };
        let text = read_text("NCCL_TOPO_FILE", path)?;
        let wrong =
            |e: crate::engine::topo::Error| Error::InvalidUsage(format!("NCCL_TOPO_FILE {path}: {e}"));
        let mut root = read_topology(&text, Limits::TOPOLOGY).map_err(wrong)?;
        select_ranks(&mut root, n_ranks).map_err(wrong)?;
        number_ranks(&mut root);
        Ok((root, self.params.clone()))
    }
}

fn read_text(name: &str, path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::InvalidUsage(format!("{name} {path}: {e}")))
}

/// All channels as one rank sees them.
#[derive(Clone, Debug)]
pub(super) struct Arrangement {
    /// Rings and trees by channel; as many as a caller may ask for.
    pub(super) layout: Layout,
    /// Channels that the rules give.
    pub(super) n_channels: usize,
    /// Ring order of each channel, from rank 0 on.
    pub(super) orders: Vec<Vec<usize>>,
    /// This rank's children by slot, by channel.
    pub(super) slots: Vec<[Option<usize>; 3]>,
}

/// Arranges `rank` among ranks whose hosts are given, with at least `n_wanted` channels in the layout.
pub(super) fn arrange(
    settings: &TopologySettings,
    hosts: &[usize],
    rank: usize,
    n_wanted: usize,
) -> Result<Arrangement> {
    let members = layout::members(hosts);
    let mut variants: HashMap<usize, Variant> = HashMap::new();
    for host in &members {
        if let Entry::Vacant(vacant) = variants.entry(host.len()) {
            vacant.insert(model_host(settings, host.len(), members.len() > 1, rank)?);
        }
    }
    match join(settings, &members, &variants) {
        Ok(connection) => Ok(translate(&connection, &members.concat(), rank, n_wanted)),
        Err(why) if settings.file.is_none() => {
            log::info(Subsys::INIT | Subsys::GRAPH, format_args!("hosts joined in rank order: {why}"));
            Ok(plain(&settings.channels, hosts, rank, n_wanted))
        }
        Err(why) => Err(Error::InvalidUsage(format!("NCCL_TOPO_FILE: {why}"))),
    }
}

fn model_host(settings: &TopologySettings, n_ranks: usize, multi_host: bool, rank: usize) -> Result<Variant> {
    let (root, params) = settings.describe(n_ranks)?;
    let wrong = |e: crate::engine::topo::Error| Error::InvalidUsage(e.to_string());
    let system = System::from_xml(&root, &params).map_err(wrong)?;
    let variant =
        model_system(system, &params, ModelRequest { multi_host, coll_net: false }).map_err(wrong)?;
    let write = |target: &Option<(String, usize)>, name: &str, text: &dyn Fn() -> String| match target {
        Some((path, by)) if *by == rank => {
            fs::write(path, text()).map_err(|e| Error::InvalidUsage(format!("{name} {path}: {e}")))
        }
        _ => Ok(()),
    };
    write(&settings.dump, "NCCL_TOPO_DUMP_FILE", &|| root.to_text())?;
    if let [domain] = &variant.domains[..] {
        write(&settings.graph_dump, "NCCL_GRAPH_DUMP_FILE", &|| {
            dump::to_text(&domain.system, &domain.graphs)
        })?;
    }
    if log::is_on(Subsys::GRAPH) {
        for domain in &variant.domains {
            for line in domain.graphs.iter().flat_map(|graph| lines::search(graph, &domain.system)) {
                log::info(Subsys::GRAPH, format_args!("{line}"));
            }
        }
    }
    Ok(variant)
}

fn join(
    settings: &TopologySettings,
    members: &[Vec<usize>],
    variants: &HashMap<usize, Variant>,
) -> std::result::Result<Connection, String> {
    let mut parts = Vec::new();
    let mut first_rank = 0;
    let mut least_cap = i32::MAX;
    for host in members {
        let variant = &variants[&host.len()];
        for domain in &variant.domains {
            parts.push(Member { graphs: &domain.graphs, first_rank });
            least_cap = domain.system.compute_caps().map_or(least_cap, |(min, _)| least_cap.min(min));
        }
        first_rank += host.len();
    }
    let facts = channels::Facts { min_compute_cap: least_cap, min_net_bw: 0.0 };
    let connection = connect(&parts, &facts, &settings.channels).map_err(|e| e.to_string())?;
    connection.check().map_err(|e| e.to_string())?;
    match connection.channels.is_empty() {
        true => Err("the search found no channel".into()),
        false => Ok(connection),
    }
}

/// From positions in host order to ranks, as `rank` sees every channel.
fn translate(connection: &Connection, rank_at: &[usize], rank: usize, n_wanted: usize) -> Arrangement {
    let me = rank_at.iter().position(|&r| r == rank).expect("invariant: every rank lives on a host");
    let mut arrangement = Arrangement {
        layout: Layout { rings: Vec::new(), trees: Vec::new(), n_hosts: connection.n_hosts() },
        n_channels: connection.channels.len(),
        orders: Vec::new(),
        slots: Vec::new(),
    };
    let start = rank_at.iter().position(|&r| r == 0).expect("invariant: rank 0 lives on a host");
    for c in 0..connection.channels.len().max(n_wanted) {
        let channel = &connection.channels[c % connection.channels.len()];
        let mut order = vec![rank_at[start]];
        let mut at = channel.ring.next[start];
        while at != start && order.len() < rank_at.len() {
            order.push(rank_at[at]);
            at = channel.ring.next[at];
        }
        let slots = channel.tree.down[me].map(|down| down.map(|d| rank_at[d]));
        arrangement.layout.rings.push(Ring::new(&order, rank));
        arrangement.layout.trees.push(Tree {
            up: channel.tree.up[me].map(|up| rank_at[up]),
            down: slots.iter().flatten().copied().collect(),
        });
        arrangement.orders.push(order);
        arrangement.slots.push(slots);
    }
    arrangement
}

/// Chains inside hosts and the double tree between them.
fn plain(params: &channels::Params, hosts: &[usize], rank: usize, n_wanted: usize) -> Arrangement {
    let n_channels = 2.min(params.max_channels).max(params.min_channels).max(1);
    let layout = layout::build(rank, hosts, n_channels.max(n_wanted));
    let slots = layout.trees.iter().map(|tree| std::array::from_fn(|i| tree.down.get(i).copied())).collect();
    let order = layout::ring_order(hosts);
    let from_zero = order.iter().position(|&r| r == 0).unwrap_or(0);
    let order: Vec<usize> = order[from_zero..].iter().chain(&order[..from_zero]).copied().collect();
    Arrangement { orders: vec![order; layout.rings.len()], slots, n_channels, layout }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &[usize], n_wanted: usize) {
        let settings = TopologySettings::default();
        let n = hosts.len();
        let all: Vec<Arrangement> = (0..n).map(|r| arrange(&settings, hosts, r, n_wanted).unwrap()).collect();
        for c in 0..all[0].layout.rings.len() {
            let mut order = all[0].orders[c].clone();
            assert!(all.iter().all(|a| a.orders[c] == order), "all ranks see one ring");
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
            let trees: Vec<&Tree> = all.iter().map(|a| &a.layout.trees[c]).collect();
            assert_eq!(trees.iter().filter(|t| t.up.is_none()).count(), 1, "one root");
            for (r, tree) in trees.iter().enumerate() {
                assert!(tree.down.iter().all(|&d| trees[d].up == Some(r)));
                assert!(tree.up.is_none_or(|up| trees[up].down.contains(&r)));
            }
        }
        assert!(all[0].layout.rings.len() >= n_wanted);
    }

    #[test]
    fn this_machine_gives_one_ring_and_one_tree_over_all_ranks() {
        for n in [1, 2, 3, 8, 13] {
            check(&vec![0; n], 4);
        }
    }

    #[test]
    fn synthetic_hosts_in_any_order_are_joined() {
        check(&[0, 1, 0, 1], 2);
        check(&[0, 1, 2, 2, 1, 0], 3);
        check(&[0, 0, 1], 2);
        check(&[0, 1, 2, 3, 4], 2);
    }

    #[test]
    fn a_missing_file_is_named() {
        let settings = TopologySettings { file: Some("no/such.xml".into()), ..TopologySettings::default() };
        let error = arrange(&settings, &[0, 0], 0, 1).unwrap_err().to_string();
        assert!(error.contains("NCCL_TOPO_FILE no/such.xml"), "{error}");
    }
}
