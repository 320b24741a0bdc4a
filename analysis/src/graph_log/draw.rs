//! Shapes as DOT text and as SVG.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::graph_log::Shape;

/// One directed graph per shape.
pub fn dot(shapes: &[Shape]) -> String {
    let mut out = String::new();
    for (index, shape) in shapes.iter().enumerate() {
        let _ = writeln!(
            out,
            "digraph {}_{index} {{\n  label=\"{} on channels {}\";",
            shape.kind,
            shape.kind,
            shape.channel_list()
        );
        for (from, to) in edges(shape) {
            let _ = writeln!(out, "  {from} -> {to};");
        }
        if shape.order.len() == 1 {
            let _ = writeln!(out, "  {};", shape.order[0]);
        }
        out.push_str("}\n");
    }
    out
}

/// Parent to child, or around the ring.
fn edges(shape: &Shape) -> Vec<(u32, u32)> {
    if shape.kind == "ring" {
        let n = shape.order.len();
        return (0..n).filter(|_| n > 1).map(|at| (shape.order[at], shape.order[(at + 1) % n])).collect();
    }
    shape.parents.iter().map(|(child, parent)| (*parent, *child)).collect()
}

const CELL: f64 = 46.0;
const HEAD: f64 = 26.0;
const GAP: f64 = 18.0;

/// All shapes below each other.
pub fn svg(shapes: &[Shape]) -> String {
    let mut body = String::new();
    let (mut top, mut width) = (GAP, 360.0f64);
    for shape in shapes {
        let places = places(shape);
        let title = format!("{} on channels {}: {}", shape.kind, shape.channel_list(), shape.text());
        let shown: String = title.chars().take(90).collect();
        let _ = writeln!(
            body,
            "<text x=\"{GAP}\" y=\"{}\" class=\"t\">{}</text>",
            top + 12.0,
            quick_xml::escape::escape(&shown)
        );
        let at = |rank: &u32| places.get(rank).map(|(x, y)| (GAP + x, top + HEAD + y));
        for (from, to) in edges(shape) {
            if let (Some(a), Some(b)) = (at(&from), at(&to)) {
                let _ = writeln!(
                    body,
                    "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
                    a.0, a.1, b.0, b.1
                );
            }
        }
        let mut low = 0.0f64;
        for (rank, (x, y)) in &places {
            let (x, y) = (GAP + x, top + HEAD + y);
            let _ = writeln!(
                body,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"14\"/><text x=\"{x:.1}\" y=\"{:.1}\" class=\"n\">{rank}</text>",
                y + 4.0
            );
            low = low.max(y + CELL / 2.0);
            width = width.max(x + CELL / 2.0 + GAP);
        }
        width = width.max(GAP * 2.0 + 7.2 * shown.chars().count() as f64);
        top = low.max(top + HEAD) + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{top:.0}\" viewBox=\"0 0 {width:.0} {top:.0}\">\n\
         <style>text{{font-family:sans-serif;fill:#222}}.t{{font-size:13px}}.n{{font-size:11px;text-anchor:middle}}\
         circle{{fill:#cfe4f3;stroke:#0072b2}}line{{stroke:#666;stroke-width:1.4}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

/// A ring on a circle; a tree by levels, leaves side by side and parents over the middle of their children.
fn places(shape: &Shape) -> BTreeMap<u32, (f64, f64)> {
    let mut places = BTreeMap::new();
    let n = shape.order.len();
    if shape.kind == "ring" {
        let radius = (CELL * n as f64 / std::f64::consts::TAU).max(CELL * 0.6);
        for (at, rank) in shape.order.iter().enumerate() {
            let angle = std::f64::consts::TAU * at as f64 / n as f64;
            places.insert(
                *rank,
                (radius + CELL / 2.0 + radius * angle.sin(), radius + CELL / 2.0 - radius * angle.cos()),
            );
        }
        return places;
    }
    let mut level: BTreeMap<u32, usize> = BTreeMap::new();
    for rank in &shape.order {
        let depth = shape.parents.get(rank).and_then(|parent| level.get(parent)).map_or(0, |above| above + 1);
        level.insert(*rank, depth);
    }
    let mut next_leaf = 0.0;
    // Children come after their parents in the order, so from the back every child is placed before its parent.
    for rank in shape.order.iter().rev() {
        let below: Vec<f64> = shape
            .order
            .iter()
            .filter(|child| shape.parents.get(child) == Some(rank))
            .filter_map(|child| places.get(child).map(|place: &(f64, f64)| place.0))
            .collect();
        let x = if below.is_empty() {
            next_leaf += CELL;
            next_leaf - CELL / 2.0
        } else {
            below.iter().sum::<f64>() / below.len() as f64
        };
        places.insert(*rank, (x, CELL * (level[rank] as f64 + 0.5)));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::{dot, svg};
    use crate::graph_log::describe;
    use crate::graph_log::tests::{CHAIN, read};

    #[test]
    fn drawings_hold_every_rank_and_edge() {
        let shapes = describe(&read(CHAIN)[0]);
        let text = dot(&shapes);
        assert_eq!(text.matches(" -> ").count(), 4 + 3);
        assert!(text.contains("3 -> 0;") && text.contains("digraph tree_1"));
        let picture = svg(&shapes);
        assert_eq!(picture.matches("<circle").count(), 8);
        assert_eq!(picture.matches("<line").count(), 7);
        let mut reader = quick_xml::Reader::from_str(&picture);
        while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
    }
}
