//! A small SVG writer: rectangles, lines, circles and text, escaped.

use std::fmt::Write;

/// Colours told apart on white, also by most colour-blind readers (Okabe and Ito's set).
pub(crate) const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];

/// A drawing that grows as shapes are added.
#[derive(Debug, Default)]
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    fn reach(&mut self, x: f64, y: f64) {
        self.width = self.width.max(x);
        self.height = self.height.max(y);
    }

    /// A box with rounded corners.
    pub(crate) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), fill: &str) {
        let ((x, y), (w, h)) = (corner, size);
        self.reach(x + w, y + h);
        self.push(&format!(
            r##"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="4" fill="{fill}" stroke="#666666"/>"##
        ));
    }

    /// A straight line.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        self.reach(from.0.max(to.0), from.1.max(to.1));
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(&format!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="1.5"/>"#
        ));
    }

    /// A line with an arrow head.
    pub(crate) fn arrow(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-9);
        let (ux, uy) = (dx / length, dy / length);
        self.line(from, to, colour);
        let (bx, by) = (to.0 - 7.0 * ux, to.1 - 7.0 * uy);
        let (left, right) = ((bx - 3.0 * uy, by + 3.0 * ux), (bx + 3.0 * uy, by - 3.0 * ux));
        self.push(&format!(
            r#"<polygon points="{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}" fill="{colour}"/>"#,
            to.0, to.1, left.0, left.1, right.0, right.1
        ));
    }

    /// A disc that hides what was drawn below it: lines end at its edge.
    pub(crate) fn disc(&mut self, centre: (f64, f64), radius: f64, fill: &str) {
        self.reach(centre.0 + radius, centre.1 + radius);
        let at = format!(r#"cx="{:.1}" cy="{:.1}" r="{radius:.1}""#, centre.0, centre.1);
        self.push(&format!(r#"<circle {at} fill="white"/>"#));
        self.push(&format!(r##"<circle {at} fill="{fill}" fill-opacity="0.6" stroke="#333333"/>"##));
    }

    /// Text that starts at the point.
    pub(crate) fn text(&mut self, at: (f64, f64), size: f64, text: &str) {
        self.reach(at.0 + 0.62 * size * text.chars().count() as f64, at.1 + size / 3.0);
        self.label(at, size, text, "start");
    }

    /// Text centred on the point.
    pub(crate) fn centred(&mut self, at: (f64, f64), size: f64, text: &str) {
        self.label((at.0, at.1 + size / 3.0), size, text, "middle");
    }

    fn label(&mut self, at: (f64, f64), size: f64, text: &str, anchor: &str) {
        let safe = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.push(&format!(
            r#"<text x="{:.1}" y="{:.1}" font-size="{size:.0}" text-anchor="{anchor}">{safe}</text>"#,
            at.0, at.1
        ));
    }

    fn push(&mut self, element: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// The whole file.
    pub(crate) fn finish(self) -> String {
        let (w, h) = (self.width + 12.0, self.height + 12.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_well_formed_and_escape_text() {
        let mut svg = Svg::default();
        svg.rect((0.0, 0.0), (10.0, 20.0), "none");
        svg.arrow((0.0, 0.0), (0.0, 0.0), COLOURS[0]);
        svg.text((0.0, 10.0), 10.0, "a<b & c>d");
        let text = svg.finish();
        let document = roxmltree::Document::parse(&text).expect("well-formed");
        assert!(document.descendants().any(|node| node.text() == Some("a<b & c>d")));
    }
}
