//! The path matrix as `nvidia-smi topo -m` shows it, with one for bandwidth beside it.

use std::collections::BTreeSet;
use std::io::Write;

use chorus::engine::topo::{NodeRef, NodeType, PathType, System, nvlink_bw};

use crate::Failure;

/// What the words mean, nearest first.
const LEGEND: [(&str, &str); 11] = [
    ("X", "itself"),
    ("NV#", "bonded set of # NVLinks"),
    ("NVB", "NVLink through another GPU"),
    ("C2C", "chip-to-chip link"),
    ("PIX", "at most one PCI switch"),
    ("PXB", "several PCI switches, no CPU"),
    ("P2C", "chip-to-chip link, then PCI to the NIC"),
    ("PXN", "NVLink to a GPU near the NIC"),
    ("PHB", "through a CPU"),
    ("SYS", "through the link between CPUs"),
    ("NET", "over the network"),
];

/// Writes both matrices and the legend of the words in use.
pub(super) fn write(system: &System, out: &mut dyn Write) -> Result<(), Failure> {
    let mut ends: Vec<(String, NodeRef)> = Vec::new();
    let mut gpus: Vec<usize> = (0..system.n_gpus()).collect();
    gpus.sort_by_key(|&gpu| system.gpu(gpu).rank);
    ends.extend(gpus.iter().map(|&gpu| (format!("RANK{}", system.gpu(gpu).rank), NodeRef::gpu(gpu))));
    ends.extend((0..system.n_nets()).map(|net| (format!("NET{}", system.net(net).dev), NodeRef::net(net))));
    let mut used = BTreeSet::new();
    write_one(system, &ends, Column::Numa, out, &mut |from, to| {
        let word = word(system, from, to);
        used.insert(word.trim_end_matches(|c: char| c.is_ascii_digit()).to_string());
        word
    })?;
    writeln!(out, "\nGB/s of one direction")?;
    write_one(system, &ends, Column::None, out, &mut |from, to| match system.path(from, to) {
        _ if from == to => "-".to_string(),
        Some(path) if path.kind < PathType::Dis => format!("{:.1}", path.bw),
        _ => "-".to_string(),
    })?;
    writeln!(out)?;
    for (name, meaning) in LEGEND {
        if used.contains(name) || (name == "NV#" && used.contains("NV")) {
            writeln!(out, "  {name:<4} {meaning}")?;
        }
    }
    Ok(())
}

/// What follows the cells.
#[derive(Clone, Copy, PartialEq)]
enum Column {
    None,
    Numa,
}

fn write_one(
    system: &System,
    ends: &[(String, NodeRef)],
    column: Column,
    out: &mut dyn Write,
    cell: &mut dyn FnMut(NodeRef, NodeRef) -> String,
) -> Result<(), Failure> {
    let width = ends.iter().map(|(name, _)| name.len()).max().unwrap_or(4).max(6) + 1;
    write!(out, "{:width$}", "")?;
    for (name, _) in ends {
        write!(out, "{name:>width$}")?;
    }
    writeln!(out, "{}", if column == Column::Numa { "  NUMA" } else { "" })?;
    for (name, from) in ends {
        write!(out, "{name:width$}")?;
        for (_, to) in ends {
            write!(out, "{:>width$}", cell(*from, *to))?;
        }
        match column {
            Column::None => writeln!(out)?,
            Column::Numa => writeln!(out, "  {}", numa(system, *from))?,
        }
    }
    Ok(())
}

/// The NUMA node nearest to a vertex.
pub(super) fn nearest_cpu(system: &System, from: NodeRef) -> Option<usize> {
    let cpus =
        (0..system.count(NodeType::Cpu)).filter_map(|cpu| Some((system.path(from, NodeRef::cpu(cpu))?, cpu)));
    let near = |(path, cpu): (&chorus::engine::topo::Path, usize)| (path.kind, path.hops.len(), cpu);
    cpus.filter(|(path, _)| path.kind < PathType::Dis).map(near).min().map(|(.., cpu)| cpu)
}

fn numa(system: &System, from: NodeRef) -> String {
    nearest_cpu(system, from).map_or_else(
        || "-".to_string(),
        |cpu| (system.nodes(NodeType::Cpu)[cpu].id & 0x00ff_ffff_ffff_ffff).to_string(),
    )
}

fn word(system: &System, from: NodeRef, to: NodeRef) -> String {
    let Some(path) = system.path(from, to) else { return "-".to_string() };
    match path.kind {
        _ if from == to => "X".to_string(),
        PathType::Nvl if from.kind == NodeType::Gpu => {
            let per_link = nvlink_bw(system.gpu(from.index).sm);
            format!("NV{}", (path.bw / per_link).round().max(1.0) as u32)
        }
        PathType::Dis => "-".to_string(),
        kind => kind.name().to_string(),
    }
}
