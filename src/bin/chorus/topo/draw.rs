//! The tree of a machine as SVG: boxes below boxes, NVLinks as lines under the GPUs.

use std::collections::HashMap;

use chorus::engine::topo::{LinkType, NodeRef, NodeType, System};

use crate::svg::{COLOURS, Svg};
use crate::topo::hierarchy::{Item, of};

const BOX_HEIGHT: f64 = 26.0;
const LEVEL: f64 = 64.0;
const GAP: f64 = 14.0;
const FONT: f64 = 11.0;
const TITLE: f64 = 15.0;

/// The drawing of a machine.
pub(super) fn svg(name: &str, system: &System) -> String {
    let mut svg = Svg::default();
    svg.text((GAP, GAP + TITLE), TITLE, name);
    let top = GAP + 2.0 * TITLE;
    let mut drawing = Drawing { svg: &mut svg, system, boxes: HashMap::new(), bottom: top };
    let mut x = GAP;
    for root in of(system) {
        x += drawing.draw(&root, x, top) + 2.0 * GAP;
    }
    drawing.draw_cpu_links(top);
    drawing.draw_nvlinks();
    svg.finish()
}

struct Drawing<'a> {
    svg: &'a mut Svg,
    system: &'a System,
    /// Centre, bottom and width of every box.
    boxes: HashMap<(usize, usize), (f64, f64, f64)>,
    bottom: f64,
}

impl Drawing<'_> {
    fn text_width(&self, item: &Item) -> f64 {
        0.62 * FONT * item.name.chars().count() as f64 + 10.0
    }

    fn width(&self, item: &Item) -> f64 {
        self.text_width(item).max(self.width_below(item))
    }

    fn width_below(&self, item: &Item) -> f64 {
        item.children.iter().map(|child| self.width(child) + GAP).sum::<f64>() - GAP
    }

    /// Draws an item and what is below it with its left edge at `x`. Returns the width used.
    fn draw(&mut self, item: &Item, x: f64, y: f64) -> f64 {
        let width = self.width(item);
        let own = self.text_width(item);
        let left = x + (width - own) / 2.0;
        let centre = left + own / 2.0;
        let mut child_x = x + (width - self.width_below(item)) / 2.0;
        for child in &item.children {
            let child_width = self.width(child);
            let to = (child_x + child_width / 2.0, y + LEVEL);
            self.svg.line((centre, y + BOX_HEIGHT), to, "#777777");
            if let Some((kind, bw)) = child.link.filter(|(kind, _)| !matches!(kind, LinkType::Loc)) {
                let middle = ((centre + 2.0 * to.0) / 3.0, (y + BOX_HEIGHT + 2.0 * to.1) / 3.0);
                let text = if kind == LinkType::Pci { format!("{bw}") } else { format!("{kind} {bw}") };
                self.svg.centred(middle, FONT - 1.0, &text);
            }
            self.draw(child, child_x, y + LEVEL);
            child_x += child_width + GAP;
        }
        self.svg.rect((left, y), (own, BOX_HEIGHT), fill(item.node.kind));
        self.svg.centred((centre, y + BOX_HEIGHT / 2.0), FONT, &item.name);
        self.boxes.insert((item.node.kind as usize, item.node.index), (centre, y + BOX_HEIGHT, own));
        self.bottom = self.bottom.max(y + BOX_HEIGHT);
        width
    }

    fn centre(&self, node: NodeRef) -> Option<(f64, f64)> {
        self.boxes.get(&(node.kind as usize, node.index)).map(|&(x, y, _)| (x, y))
    }

    fn draw_cpu_links(&mut self, top: f64) {
        for index in 0..self.system.count(NodeType::Cpu) {
            for link in &self.system.nodes(NodeType::Cpu)[index].links {
                let place = |node: NodeRef| self.boxes.get(&(node.kind as usize, node.index)).copied();
                let ends = (place(NodeRef::cpu(index)), place(link.to));
                if let (NodeType::Cpu, Some(from), Some(to)) = (link.to.kind, ends.0, ends.1)
                    && link.to.index == index + 1
                {
                    let y = top + BOX_HEIGHT / 2.0;
                    self.svg.line((from.0 + from.2 / 2.0, y), (to.0 - to.2 / 2.0, y), COLOURS[5]);
                    self.svg.centred(((from.0 + to.0) / 2.0, y - 8.0), FONT, &format!("{}", link.bw));
                }
            }
        }
    }

    /// Each pair of linked devices as a bracket below the drawing; a switch as one bar.
    fn draw_nvlinks(&mut self) {
        let devices = self.system.nodes(NodeType::Dev);
        let mut depth = self.bottom + GAP;
        let mut switched: Vec<(f64, f64)> = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            let Some(from) = self.centre(NodeRef { kind: NodeType::Dev, index }) else { continue };
            for link in device.links.iter().filter(|link| link.kind == LinkType::Nvl) {
                if link.to.kind == NodeType::Nvs {
                    switched.push(from);
                }
                let Some(to) =
                    self.centre(link.to).filter(|_| link.to.kind == NodeType::Dev && link.to.index > index)
                else {
                    continue;
                };
                let colour = COLOURS[index % COLOURS.len()];
                for end in [from, to] {
                    self.svg.line(end, (end.0, depth), colour);
                }
                self.svg.line((from.0, depth), (to.0, depth), colour);
                self.svg.text(((from.0 + to.0) / 2.0, depth - 2.0), FONT - 2.0, &format!("NVL {}", link.bw));
                depth += GAP;
            }
        }
        if let (Some(first), Some(last)) = (switched.first().copied(), switched.last().copied()) {
            for end in &switched {
                self.svg.line(*end, (end.0, depth), COLOURS[2]);
            }
            let size = (last.0 - first.0 + 120.0, BOX_HEIGHT);
            self.svg.rect((first.0 - 60.0, depth), size, "#d9f2e6");
            self.svg.centred(((first.0 + last.0) / 2.0, depth + BOX_HEIGHT / 2.0), FONT, "NVSwitch");
            depth += BOX_HEIGHT;
        }
        self.bottom = self.bottom.max(depth);
    }
}

fn fill(kind: NodeType) -> &'static str {
    match kind {
        NodeType::Cpu => "#dbe9f6",
        NodeType::Pci => "#eeeeee",
        NodeType::Dev => "#d9f2e6",
        NodeType::Gpu => "#f2f9f6",
        NodeType::Nic | NodeType::Net => "#fdeccb",
        _ => "#ffffff",
    }
}
