//! Rings and trees as DOT and SVG.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::io::Write;

use chorus::engine::graph::chains::RankTree;
use chorus::engine::graph::connect::Connection;
use chorus::engine::graph::rings::Ring;

use crate::Failure;
use crate::graph::Shapes;
use crate::svg::{COLOURS, Svg};
use crate::trees::ranges;

/// Most ranks of an SVG.
const DRAWN_RANKS: usize = 512;
const NODE_RADIUS: f64 = 12.0;
const STEP: f64 = 34.0;
const TITLE: f64 = 13.0;
/// Width at which a new row begins.
const ROW_WIDTH: f64 = 1400.0;

/// One digraph for each distinct ring and tree, hosts as clusters.
pub(super) fn write_dot(
    connection: &Connection,
    shapes: &Shapes<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    for (index, (ring, channels)) in shapes.rings.iter().enumerate() {
        let edges = ring.next.iter().copied().enumerate();
        write_digraph(
            &format!("ring_{index}"),
            &format!("ring on channels {}", ranges(channels)),
            connection,
            edges,
            out,
        )?;
    }
    for (index, (tree, channels)) in shapes.trees.iter().enumerate() {
        let edges = tree
            .down
            .iter()
            .enumerate()
            .flat_map(|(rank, downs)| downs.iter().flatten().map(move |&down| (rank, down)));
        write_digraph(
            &format!("tree_{index}"),
            &format!("tree on channels {}", ranges(channels)),
            connection,
            edges,
            out,
        )?;
    }
    Ok(())
}

fn write_digraph(
    name: &str,
    label: &str,
    connection: &Connection,
    edges: impl Iterator<Item = (usize, usize)>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(out, "digraph {name} {{\n  label=\"{label}\";\n  node [shape=circle];")?;
    for (host, ranks) in connection.hosts.iter().enumerate() {
        write!(out, "  subgraph cluster_host{host} {{ label=\"host {host}\";")?;
        for rank in ranks {
            write!(out, " {rank};")?;
        }
        writeln!(out, " }}")?;
    }
    for (from, to) in edges {
        writeln!(out, "  {from} -> {to};")?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// All distinct rings, then all distinct trees.
pub(super) fn write_svg(
    connection: &Connection,
    shapes: &Shapes<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if connection.n_ranks > DRAWN_RANKS {
        return Err(Failure::Usage(format!(
            "--svg draws at most {DRAWN_RANKS} ranks, this has {}; fewer --nodes, or --dot",
            connection.n_ranks
        )));
    }
    let mut svg = Svg::default();
    let mut page = Page { x: 20.0, top: 20.0, bottom: 20.0 };
    for (ring, channels) in &shapes.rings {
        let title = format!("ring, channels {}", ranges(channels));
        let size = draw_ring(&mut svg, (page.x, page.top), connection, ring, &title);
        page.advance(size);
    }
    page.new_row();
    for (tree, channels) in &shapes.trees {
        let title = format!("tree, channels {}", ranges(channels));
        let size = draw_tree(&mut svg, (page.x, page.top), connection, tree, &title);
        page.advance(size);
    }
    out.write_all(svg.finish().as_bytes())?;
    Ok(())
}

/// Where the next drawing goes: beside the last one, or in a new row.
struct Page {
    x: f64,
    top: f64,
    bottom: f64,
}

impl Page {
    fn advance(&mut self, size: (f64, f64)) {
        self.x += size.0 + 40.0;
        self.bottom = self.bottom.max(self.top + size.1);
        if self.x > ROW_WIDTH {
            self.new_row();
        }
    }

    fn new_row(&mut self) {
        if self.x > 20.0 {
            (self.x, self.top) = (20.0, self.bottom + 40.0);
        }
    }
}

fn colour(connection: &Connection, rank: usize) -> &'static str {
    COLOURS[connection.rank_to_host[rank] % COLOURS.len()]
}

fn draw_rank(svg: &mut Svg, at: (f64, f64), connection: &Connection, rank: usize) {
    svg.disc(at, NODE_RADIUS, colour(connection, rank));
    svg.centred(at, 11.0, &rank.to_string());
}

/// Ranks on a circle in ring order, coloured by host. Returns width and height.
fn draw_ring(
    svg: &mut Svg,
    corner: (f64, f64),
    connection: &Connection,
    ring: &Ring,
    title: &str,
) -> (f64, f64) {
    let order = ring.order(0);
    let radius = (order.len() as f64 * STEP / TAU).max(STEP);
    let centre = (corner.0 + radius + NODE_RADIUS, corner.1 + radius + NODE_RADIUS + 24.0);
    let on_circle =
        |turn: f64, r: f64| (centre.0 + r * (turn * TAU).sin(), centre.1 - r * (turn * TAU).cos());
    svg.text((corner.0, corner.1 + TITLE), TITLE, title);
    let n = order.len() as f64;
    for index in 0..order.len() {
        let (from, to) = (on_circle(index as f64 / n, radius), on_circle((index + 1) as f64 / n, radius));
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-9);
        let trim = (NODE_RADIUS * dx / length, NODE_RADIUS * dy / length);
        if order.len() > 1 {
            svg.arrow((from.0 + trim.0, from.1 + trim.1), (to.0 - trim.0, to.1 - trim.1), "#555555");
        }
    }
    for (index, &rank) in order.iter().enumerate() {
        draw_rank(svg, on_circle(index as f64 / n, radius), connection, rank);
    }
    (2.0 * (radius + NODE_RADIUS), 2.0 * (radius + NODE_RADIUS) + 24.0)
}

/// A layered tree: leaves side by side, parents above the middle of their children. Returns width and height.
fn draw_tree(
    svg: &mut Svg,
    corner: (f64, f64),
    connection: &Connection,
    tree: &RankTree,
    title: &str,
) -> (f64, f64) {
    let places = layout(tree);
    let at = |rank: usize| {
        let (column, level) = places[&rank];
        (corner.0 + NODE_RADIUS + column * STEP, corner.1 + 36.0 + level as f64 * STEP)
    };
    svg.text((corner.0, corner.1 + TITLE), TITLE, title);
    for (rank, downs) in tree.down.iter().enumerate() {
        for &down in downs.iter().flatten() {
            svg.line(at(rank), at(down), "#555555");
        }
    }
    let mut width = 0.62 * TITLE * title.chars().count() as f64;
    let mut height = 0.0;
    for rank in 0..tree.up.len() {
        width = f64::max(width, at(rank).0 + NODE_RADIUS - corner.0);
        height = f64::max(height, at(rank).1 + NODE_RADIUS - corner.1);
        draw_rank(svg, at(rank), connection, rank);
    }
    (width, height)
}

/// Column and level of every rank.
fn layout(tree: &RankTree) -> BTreeMap<usize, (f64, usize)> {
    let mut places = BTreeMap::new();
    let mut next_leaf = 0.0;
    // Visits every rank twice: on the way down it queues its children, on the way up they have their places.
    let mut open: Vec<(usize, usize, bool)> = tree.root().map(|root| (root, 0, false)).into_iter().collect();
    while let Some((rank, level, is_done)) = open.pop() {
        let children: Vec<usize> = tree.down[rank].into_iter().flatten().collect();
        if is_done {
            let columns: Vec<f64> =
                children.iter().map(|child| places[child]).map(|(column, _): (f64, usize)| column).collect();
            places.insert(rank, (columns.iter().sum::<f64>() / columns.len() as f64, level));
        } else if children.is_empty() {
            places.insert(rank, (next_leaf, level));
            next_leaf += 1.0;
        } else {
            open.push((rank, level, true));
            open.extend(children.iter().rev().map(|&child| (child, level + 1, false)));
        }
    }
    places
}
