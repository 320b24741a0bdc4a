//! A sheet to draw on in plain units: text, lines, dashes, markers, filled shapes. Knows nothing of data.

use plotters::coord::Shift;
use plotters::prelude::{
    Circle, Cross, DrawingArea, DrawingBackend, PathElement, Polygon, Rectangle, Text, TextStyle,
    TriangleMarker,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, IntoFont, RGBAColor, RGBColor, ShapeStyle};

use crate::plot::{DrawError, PALETTE};

/// Ink of axes and text.
pub(crate) const INK: RGBColor = RGBColor(40, 40, 40);
/// Grid lines.
pub(crate) const FAINT: RGBColor = RGBColor(222, 222, 222);

/// Where text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    /// To the right of it.
    Left,
    /// Centred on it.
    Middle,
    /// To the left of it.
    Right,
    /// Centred and turned by a quarter to the left.
    Upwards,
}

/// The sheet.
pub(crate) struct Canvas<'a, B: DrawingBackend> {
    area: &'a DrawingArea<B, Shift>,
    scale: f64,
}

type Point = (f64, f64);

impl<'a, B: DrawingBackend> Canvas<'a, B> {
    pub(crate) fn new(area: &'a DrawingArea<B, Shift>, scale: u32) -> Self {
        Self { area, scale: f64::from(scale) }
    }

    fn at(&self, (x, y): Point) -> (i32, i32) {
        ((x * self.scale).round() as i32, (y * self.scale).round() as i32)
    }

    fn width(&self, width: f64) -> u32 {
        (width * self.scale).round().max(1.0) as u32
    }

    pub(crate) fn fill_all(&self) -> Result<(), DrawError> {
        self.area.fill(&RGBColor(255, 255, 255)).map_err(wrap)
    }

    pub(crate) fn text(&self, at: Point, anchor: Anchor, size: f64, text: &str) -> Result<(), DrawError> {
        self.text_in(at, anchor, size, (text, INK))
    }

    pub(crate) fn text_in(
        &self,
        at: Point,
        anchor: Anchor,
        size: f64,
        (text, ink): (&str, RGBColor),
    ) -> Result<(), DrawError> {
        let font = ("sans-serif", size * self.scale).into_font();
        let font =
            if matches!(anchor, Anchor::Upwards) { font.transform(FontTransform::Rotate270) } else { font };
        let horizontal = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle | Anchor::Upwards => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let style = TextStyle::from(font).color(&ink).pos(Pos::new(horizontal, VPos::Center));
        self.area.draw(&Text::new(text.to_owned(), self.at(at), style)).map_err(wrap)
    }

    pub(crate) fn line(&self, from: Point, to: Point, ink: RGBColor, width: f64) -> Result<(), DrawError> {
        let style = ShapeStyle { color: ink.to_rgba(), filled: false, stroke_width: self.width(width) };
        self.area.draw(&PathElement::new(vec![self.at(from), self.at(to)], style)).map_err(wrap)
    }

    /// A polyline in the manner of the series of that index: every second round through the palette is dashed.
    pub(crate) fn curve(&self, points: &[Point], index: usize) -> Result<(), DrawError> {
        let style =
            ShapeStyle { color: colour(index).to_rgba(), filled: false, stroke_width: self.width(1.8) };
        let dash = DASHES[index % DASHES.len()];
        for piece in dashed(points, dash) {
            let path: Vec<(i32, i32)> = piece.into_iter().map(|point| self.at(point)).collect();
            self.area.draw(&PathElement::new(path, style)).map_err(wrap)?;
        }
        Ok(())
    }

    pub(crate) fn area(&self, points: &[Point], index: usize) -> Result<(), DrawError> {
        let path: Vec<(i32, i32)> = points.iter().map(|&point| self.at(point)).collect();
        self.area.draw(&Polygon::new(path, colour(index).mix(0.16).filled())).map_err(wrap)
    }

    pub(crate) fn rectangle(&self, from: Point, to: Point, ink: RGBAColor) -> Result<(), DrawError> {
        self.area.draw(&Rectangle::new([self.at(from), self.at(to)], ink.filled())).map_err(wrap)
    }

    pub(crate) fn outline(&self, from: Point, to: Point, ink: RGBColor) -> Result<(), DrawError> {
        let style = ShapeStyle { color: ink.to_rgba(), filled: false, stroke_width: self.width(1.0) };
        self.area.draw(&Rectangle::new([self.at(from), self.at(to)], style)).map_err(wrap)
    }

    pub(crate) fn marker(&self, at: Point, index: usize, size: f64) -> Result<(), DrawError> {
        let (centre, ink) = (self.at(at), colour(index));
        let size = (size * self.scale).round() as i32;
        let filled = ink.filled();
        let line = ShapeStyle { color: ink.to_rgba(), filled: false, stroke_width: self.width(1.6) };
        let drawn = match index % 5 {
            0 => self.area.draw(&Circle::new(centre, size, filled)),
            1 => {
                let corner = |sign: i32| (centre.0 + sign * size, centre.1 + sign * size);
                self.area.draw(&Rectangle::new([corner(-1), corner(1)], filled))
            }
            2 => self.area.draw(&TriangleMarker::new(centre, size + size / 3, filled)),
            3 => self.area.draw(&Cross::new(centre, size, line)),
            _ => {
                let (x, y) = centre;
                let diamond = vec![(x - size, y), (x, y - size), (x + size, y), (x, y + size)];
                self.area.draw(&Polygon::new(diamond, filled))
            }
        };
        drawn.map_err(wrap)
    }
}

/// Dash patterns in units: drawn, skipped. Zero skipped is a solid line.
const DASHES: [(f64, f64); 4] = [(1.0, 0.0), (9.0, 4.0), (3.0, 3.0), (14.0, 3.0)];

pub(crate) fn colour(index: usize) -> RGBColor {
    let (r, g, b) = PALETTE[index % PALETTE.len()];
    RGBColor(r, g, b)
}

fn wrap<E: std::error::Error + Send + Sync>(error: plotters::drawing::DrawingAreaErrorKind<E>) -> DrawError {
    DrawError(error.to_string())
}

/// Cuts a polyline into its drawn pieces.
fn dashed(points: &[Point], (on, off): (f64, f64)) -> Vec<Vec<Point>> {
    if off == 0.0 || points.len() < 2 {
        return vec![points.to_vec()];
    }
    let mut pieces = vec![vec![points[0]]];
    let (mut drawing, mut left) = (true, on);
    for pair in points.windows(2) {
        let (mut from, to) = (pair[0], pair[1]);
        loop {
            let length = (to.0 - from.0).hypot(to.1 - from.1);
            if length <= left {
                left -= length;
                if drawing && let Some(piece) = pieces.last_mut() {
                    piece.push(to);
                }
                break;
            }
            let part = left / length;
            from = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            if drawing && let Some(piece) = pieces.last_mut() {
                piece.push(from);
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
            if drawing {
                pieces.push(vec![from]);
            }
        }
    }
    pieces.retain(|piece| piece.len() > 1);
    pieces
}

#[cfg(test)]
mod tests {
    use super::dashed;

    #[test]
    fn dashes_cover_their_share_of_the_way() {
        let pieces = dashed(&[(0.0, 0.0), (100.0, 0.0)], (6.0, 4.0));
        assert_eq!(pieces.len(), 10);
        let drawn: f64 = pieces.iter().map(|piece| piece[piece.len() - 1].0 - piece[0].0).sum();
        assert!((drawn - 60.0).abs() < 1e-9);
    }

    #[test]
    fn a_solid_line_is_one_piece() {
        assert_eq!(dashed(&[(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)], (1.0, 0.0)).len(), 1);
    }
}
