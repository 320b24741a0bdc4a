//! `chorus graph`: every channel's ring and tree on a machine, as log lines, DOT or SVG.

mod draw;

use std::io::Write;
use std::sync::Arc;

use chorus::engine::graph::chains::RankTree;
use chorus::engine::graph::connect::{Channel, Connection};
use chorus::engine::graph::rings::Ring;
use chorus::engine::graph::{GraphId, lines, rules};

use crate::Failure;
use crate::machine::{Joined, MAX_HOSTS, Machine, Options, Source};
use crate::trees::ranges;

/// Ranks whose lines are printed unless all are asked for.
const SHOWN_RANKS: usize = 64;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus graph dgx.xml --nodes 2
  chorus graph dgx.xml --nodes 4 --dot | dot -Tpdf > channels.pdf
  chorus graph dgx.xml --nodes 2 --svg > channels.svg
  chorus graph                      the ranks of this machine")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Number of equal hosts
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_HOSTS as i64))]
    nodes: u32,
    /// DOT for Graphviz: one digraph for each distinct ring and tree
    #[arg(long, conflicts_with = "svg")]
    dot: bool,
    /// SVG of each distinct ring and tree
    #[arg(long)]
    svg: bool,
    /// Lines of all ranks, however many
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    options: Options,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let machine = Machine::of(&args.source, &args.options)?;
    let joined = machine.joined(args.nodes as usize)?;
    let shapes = Shapes::of(&joined.connection);
    if args.dot {
        draw::write_dot(&joined.connection, &shapes, out)?;
    } else if args.svg {
        draw::write_svg(&joined.connection, &shapes, out)?;
    } else {
        write_text(args, &machine, &joined, &shapes, out)?;
    }
    Ok(0)
}

/// Distinct rings and trees with the channels that share them.
pub(crate) struct Shapes<'a> {
    pub(crate) rings: Vec<(&'a Ring, Vec<usize>)>,
    pub(crate) trees: Vec<(&'a RankTree, Vec<usize>)>,
}

impl<'a> Shapes<'a> {
    fn of(connection: &'a Connection) -> Self {
        Self {
            rings: grouped(&connection.channels, |channel| &channel.ring),
            trees: grouped(&connection.channels, |channel| &channel.tree),
        }
    }
}

fn grouped<T: PartialEq>(channels: &[Arc<Channel>], part: impl Fn(&Channel) -> &T) -> Vec<(&T, Vec<usize>)> {
    let mut groups: Vec<(&T, Vec<usize>)> = Vec::new();
    for (index, channel) in channels.iter().enumerate() {
        let shape = part(channel);
        match groups.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, members)) => members.push(index),
            None => groups.push((shape, vec![index])),
        }
    }
    groups
}

fn write_text(
    args: &Args,
    machine: &Machine<'_>,
    joined: &Joined,
    shapes: &Shapes<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let connection = &joined.connection;
    writeln!(
        out,
        "{}: {} ranks on {} host{}, {} channels",
        machine.name,
        connection.n_ranks,
        connection.n_hosts(),
        if connection.n_hosts() == 1 { "" } else { "s" },
        connection.channels.len()
    )?;
    let variant = machine.variant(args.nodes as usize)?;
    for (index, domain) in variant.domains.iter().enumerate() {
        for graph in &domain.graphs {
            let which = if variant.domains.len() > 1 { format!(" of domain {index}") } else { String::new() };
            writeln!(out, "\nsearch: {}{which}", graph.id.name())?;
            for line in lines::search(graph, &domain.system) {
                writeln!(out, "{line}")?;
            }
            rules::check(&domain.system, graph).map_err(Failure::Internal)?;
        }
    }
    writeln!(out)?;
    for line in lines::rings(connection) {
        writeln!(out, "{line}")?;
    }
    let n_shown = if args.all { connection.n_ranks } else { connection.n_ranks.min(SHOWN_RANKS) };
    writeln!(out)?;
    for rank in 0..n_shown {
        writeln!(out, "{}", lines::trees(connection, rank))?;
    }
    if n_shown < connection.n_ranks {
        writeln!(out, "({} more ranks: --all)", connection.n_ranks - n_shown)?;
    }
    write_shapes(shapes, out)?;
    write_heads(connection, out)
}

fn write_shapes(shapes: &Shapes<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out)?;
    for (index, (ring, channels)) in shapes.rings.iter().enumerate() {
        let order = ring.order(0);
        writeln!(out, "ring {index}: channels {}; {}", ranges(channels), ranges_of_order(&order))?;
    }
    for (index, (tree, channels)) in shapes.trees.iter().enumerate() {
        writeln!(
            out,
            "tree {index}: channels {}; root {}, depth {}, fan-out {}",
            ranges(channels),
            tree.root().unwrap_or(0),
            tree.depth(),
            tree.fan_out()
        )?;
    }
    Ok(())
}

/// The beginning of an order of ranks.
fn ranges_of_order(order: &[usize]) -> String {
    let shown: Vec<String> = order.iter().take(24).map(ToString::to_string).collect();
    shown.join(" ") + if order.len() > 24 { " …" } else { "" }
}

fn write_heads(connection: &Connection, out: &mut dyn Write) -> Result<(), Failure> {
    for (host, ranks) in connection.hosts.iter().enumerate().take(4) {
        if let Some(nvls) = &connection.nvls {
            let heads = ranks.iter().filter(|&&rank| nvls.links[rank].head.is_some());
            let heads: Vec<String> = heads.map(ToString::to_string).collect();
            writeln!(
                out,
                "in-switch heads of host {host}: {} on {} channels",
                heads.join(" "),
                nvls.shape.n_channels
            )?;
        }
        if let Some(collnet) = connection.collnet.as_ref().filter(|collnet| !collnet.direct.is_empty()) {
            let heads = ranks.iter().filter(|&&rank| collnet.direct[rank].head.is_some());
            let heads: Vec<String> = heads.map(ToString::to_string).collect();
            writeln!(out, "in-network heads of host {host}: {}", heads.join(" "))?;
        }
    }
    let ring = connection.graph(GraphId::Ring);
    let tree = connection.graph(GraphId::Tree);
    writeln!(
        out,
        "GB/s per channel: ring {} inside and {} between hosts, tree {} and {}",
        ring.bw_intra, ring.bw_inter, tree.bw_intra, tree.bw_inter
    )?;
    Ok(())
}
