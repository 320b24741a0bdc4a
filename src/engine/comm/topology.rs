//! Rings and trees of a communicator: this machine's description, or the one of `NCCL_TOPO_FILE`, through search and connection.
//!
//! Every rank describes what its process sees, its own place and the NICs, and tells all others ([`own_text`]). All then lay the views of
//! each host together and compute the same from the same inputs. A file is one description already: the first rank of a host tells it
//! whole. A host's ranks are numbered as the connection wants them (host after host); results are translated back to ranks.
//! Synthetic hosts of a machine without NICs cannot be connected by the rules; they get [`layout`]'s chains and double tree.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;

use super::layout;
use crate::engine::error::{Error, Result};
use crate::engine::graph::channels;
use crate::engine::graph::connect::{Connection, Member, connect};
use crate::engine::graph::model::{ModelRequest, Variant, model_system};
use crate::engine::graph::{dump, lines};
use crate::engine::log::{self, Subsys};
use crate::engine::plan::{Layout, Ring, Tree};
use crate::engine::topo::probe::{self, OwnRank};
use crate::engine::topo::xml::{Element, Limits, read_topology};
use crate::engine::topo::{Params, System, fuse, n_ranks, number_ranks, select_ranks};

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

    /// What this rank tells the others of its host: its own view, or the whole file where it is the host's first rank.
    fn own_text(&self, place: Place<'_>) -> Result<String> {
        let Some(path) = &self.file else {
            let own = OwnRank { rank: place.local, n_ranks: place.n_local, cpus: place.cpus };
            return Ok(probe::view(Path::new("/"), own).to_text());
        };
        let text = read_text("NCCL_TOPO_FILE", path)?;
        let wrong =
            |e: crate::engine::topo::Error| Error::InvalidUsage(format!("NCCL_TOPO_FILE {path}: {e}"));
        let mut root = read_topology(&text, Limits::TOPOLOGY).map_err(wrong)?;
        select_ranks(&mut root, place.n_local).map_err(wrong)?;
        number_ranks(&mut root);
        Ok(if place.local == 0 { root.to_text() } else { String::new() })
    }

    fn params(&self) -> Params {
        if self.file.is_some() { self.params.clone() } else { self.params.clone().for_host_ranks() }
    }
}

/// A rank among those of its host.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    local: usize,
    n_local: usize,
    /// The processors it may use.
    cpus: &'a [usize],
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

/// What `rank` tells all others about its host; every rank's answer goes into [`arrange`].
pub(super) fn own_text(
    settings: &TopologySettings,
    hosts: &[usize],
    rank: usize,
    cpus: &[usize],
) -> Result<String> {
    let (mut local, mut n_local) = (0, 0);
    for (other, _) in hosts.iter().enumerate().filter(|(_, host)| **host == hosts[rank]) {
        local += usize::from(other < rank);
        n_local += 1;
    }
    settings.own_text(Place { local, n_local, cpus })
}

/// Arranges `rank` among ranks whose hosts and descriptions are given, with at least `n_wanted` channels in the layout.
pub(super) fn arrange(
    settings: &TopologySettings,
    hosts: &[usize],
    texts: &[String],
    rank: usize,
    n_wanted: usize,
) -> Result<Arrangement> {
    let members = layout::members(hosts);
    let mut searched: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut variants: Vec<Variant> = Vec::new();
    let mut variant_of_host = Vec::new();
    for host in &members {
        let told: Vec<&str> = host.iter().map(|&r| texts[r].as_str()).collect();
        let at = match searched.entry(told) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(vacant) => {
                variants.push(model_host(settings, vacant.key(), members.len() > 1)?);
                *vacant.insert(variants.len() - 1)
            }
        };
        variant_of_host.push(at);
    }
    let own = &members[hosts[rank]];
    let told: Vec<&str> = own.iter().map(|&r| texts[r].as_str()).collect();
    let local = own.iter().position(|&r| r == rank).expect("invariant: a rank is a member of its host");
    report(settings, &host_description(&told)?, &variants[variant_of_host[hosts[rank]]], (rank, local))?;
    let by_host: Vec<&Variant> = variant_of_host.iter().map(|&at| &variants[at]).collect();
    match join(settings, &by_host) {
        Ok(connection) => Ok(translate(&connection, &members.concat(), rank, n_wanted)),
        Err(why) if settings.file.is_none() => {
            log::info(Subsys::INIT | Subsys::GRAPH, format_args!("hosts joined in rank order: {why}"));
            Ok(plain(&settings.channels, hosts, rank, n_wanted))
        }
        Err(why) => Err(Error::InvalidUsage(format!("NCCL_TOPO_FILE: {why}"))),
    }
}

/// A host from what its ranks told, in rank order.
fn host_description(told: &[&str]) -> Result<Element> {
    // Machines may have more elements than a file: these texts are our own.
    let read = |text: &&str| {
        read_topology(text, Limits::GRAPH)
            .map_err(|e| Error::Internal(format!("a peer's view of its host is no topology: {e}")))
    };
    let views: Vec<Element> = told.iter().filter(|text| !text.is_empty()).map(read).collect::<Result<_>>()?;
    let root = fuse(views).filter(|root| n_ranks(root) == told.len());
    root.ok_or_else(|| {
        Error::InvalidUsage("ranks of one host disagree about NCCL_TOPO_FILE: set it for all or none".into())
    })
}

fn model_host(settings: &TopologySettings, told: &[&str], multi_host: bool) -> Result<Variant> {
    let params = settings.params();
    let wrong = |e: crate::engine::topo::Error| Error::InvalidUsage(e.to_string());
    let unusable = |e: crate::engine::topo::Error| match &settings.file {
        Some(path) => Error::InvalidUsage(format!("NCCL_TOPO_FILE {path}: {e}")),
        None => wrong(e),
    };
    let system = System::from_xml(&host_description(told)?, &params).map_err(unusable)?;
    model_system(system, &params, ModelRequest { multi_host, coll_net: false }).map_err(wrong)
}

/// Writes the dumps this rank was asked for, and the search results of its own domain to the log.
fn report(
    settings: &TopologySettings,
    root: &Element,
    variant: &Variant,
    (rank, local): (usize, usize),
) -> Result<()> {
    let write = |target: &Option<(String, usize)>, name: &str, text: &dyn Fn() -> String| match target {
        Some((path, by)) if *by == rank => {
            fs::write(path, text()).map_err(|e| Error::InvalidUsage(format!("{name} {path}: {e}")))
        }
        _ => Ok(()),
    };
    write(&settings.dump, "NCCL_TOPO_DUMP_FILE", &|| root.to_text())?;
    let domain = variant.domain_of_local_rank.get(local).and_then(|&at| variant.domains.get(at));
    let Some(domain) = domain else { return Ok(()) };
    write(&settings.graph_dump, "NCCL_GRAPH_DUMP_FILE", &|| dump::to_text(&domain.system, &domain.graphs))?;
    if log::is_on(Subsys::GRAPH) {
        for line in domain.graphs.iter().flat_map(|graph| lines::search(graph, &domain.system)) {
            log::info(Subsys::GRAPH, format_args!("{line}"));
        }
    }
    Ok(())
}

fn join(settings: &TopologySettings, hosts: &[&Variant]) -> std::result::Result<Connection, String> {
    let mut parts = Vec::new();
    let mut first_rank = 0;
    let mut least_cap = i32::MAX;
    for variant in hosts {
        for domain in &variant.domains {
            parts.push(Member { graphs: &domain.graphs, first_rank });
            least_cap = domain.system.compute_caps().map_or(least_cap, |(min, _)| least_cap.min(min));
        }
        first_rank += variant.n_gpus;
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

    fn texts(settings: &TopologySettings, hosts: &[usize]) -> Vec<String> {
        (0..hosts.len()).map(|rank| own_text(settings, hosts, rank, &[0]).unwrap()).collect()
    }

    fn check(hosts: &[usize], n_wanted: usize) {
        let settings = TopologySettings::default();
        let n = hosts.len();
        let told = texts(&settings, hosts);
        let all: Vec<Arrangement> =
            (0..n).map(|r| arrange(&settings, hosts, &told, r, n_wanted).unwrap()).collect();
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
        let error = own_text(&settings, &[0, 0], 0, &[]).unwrap_err().to_string();
        assert!(error.contains("NCCL_TOPO_FILE no/such.xml"), "{error}");
    }
}
