//! Coloured cells over message sizes and rows. Every cell also carries a letter, so colour is never the only sign.

use plotters::prelude::DrawingBackend;
use plotters::style::{Color, RGBColor};

use crate::plot::DrawError;
use crate::plot::canvas::{Anchor, Canvas, INK};

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index into the legend.
    pub kind: usize,
    /// Its text, short.
    pub text: String,
}

/// The map. Cells without a measurement stay white and crossed.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// What the rows are.
    pub row_label: String,
    /// Columns.
    pub sizes: Vec<u64>,
    /// Rows: name and one cell per size.
    pub rows: Vec<(String, Vec<Option<Cell>>)>,
    /// Names and colours.
    pub legend: Vec<(String, (u8, u8, u8))>,
}

const WIDTH: f64 = 860.0;
const TOP: f64 = 42.0;
const ROW: f64 = 24.0;
const BELOW: f64 = 92.0;

impl HeatMap {
    pub(crate) fn extent(&self) -> (u32, u32) {
        (WIDTH as u32, (TOP + ROW * self.rows.len() as f64 + BELOW) as u32)
    }

    pub(crate) fn draw<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>) -> Result<(), DrawError> {
        let longest = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let left = 44.0 + 6.6 * longest as f64;
        let cell = (WIDTH - left - 14.0) / self.sizes.len().max(1) as f64;
        let bottom = TOP + ROW * self.rows.len() as f64;
        canvas.text((left.min(78.0), TOP / 2.0), Anchor::Left, 15.0, &self.title)?;
        canvas.text((16.0, f64::midpoint(TOP, bottom)), Anchor::Upwards, 12.0, &self.row_label)?;
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            canvas.text((left - 6.0, y + ROW / 2.0), Anchor::Right, 11.0, name)?;
            for (column, content) in cells.iter().enumerate() {
                let x = left + cell * column as f64;
                self.cell(canvas, ((x, y), (x + cell, y + ROW)), content.as_ref())?;
            }
        }
        canvas.outline((left, TOP), (left + cell * self.sizes.len() as f64, bottom), INK)?;
        let every = ((52.0 / cell).ceil() as usize).max(1);
        for (column, bytes) in self.sizes.iter().enumerate().step_by(every) {
            let x = left + cell * (column as f64 + 0.5);
            canvas.line((x, bottom), (x, bottom + 4.0), INK, 1.0)?;
            canvas.text((x, bottom + 13.0), Anchor::Middle, 11.0, &crate::format::size(*bytes))?;
        }
        canvas.text(
            (f64::midpoint(left, WIDTH), bottom + 34.0),
            Anchor::Middle,
            12.0,
            "message size (bytes)",
        )?;
        self.key(canvas, left, bottom + 62.0)
    }

    fn cell<B: DrawingBackend>(
        &self,
        canvas: &Canvas<'_, B>,
        (from, to): ((f64, f64), (f64, f64)),
        content: Option<&Cell>,
    ) -> Result<(), DrawError> {
        let Some(cell) = content else {
            return canvas.line((from.0, to.1), (to.0, from.1), RGBColor(200, 200, 200), 1.0);
        };
        let (r, g, b) = self.legend.get(cell.kind).map_or((255, 255, 255), |(_, colour)| *colour);
        canvas.rectangle(
            (from.0 + 0.5, from.1 + 0.5),
            (to.0 - 0.5, to.1 - 0.5),
            RGBColor(r, g, b).to_rgba(),
        )?;
        let light = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
        let ink = if light > 140.0 { RGBColor(0, 0, 0) } else { RGBColor(255, 255, 255) };
        let size = ((to.0 - from.0) / (0.72 * cell.text.chars().count().max(1) as f64)).clamp(6.0, 12.0);
        let middle = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
        canvas.text_in(middle, Anchor::Middle, size, (&cell.text, ink))
    }

    fn key<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>, left: f64, y: f64) -> Result<(), DrawError> {
        let mut x = left;
        for (name, (r, g, b)) in &self.legend {
            let wide = 26.0 + 7.0 * name.chars().count() as f64;
            if x + wide > WIDTH {
                return canvas.text((x, y), Anchor::Left, 11.0, "…");
            }
            canvas.rectangle((x, y - 6.0), (x + 14.0, y + 6.0), RGBColor(*r, *g, *b).to_rgba())?;
            canvas.outline((x, y - 6.0), (x + 14.0, y + 6.0), INK)?;
            canvas.text((x + 19.0, y), Anchor::Left, 11.0, name)?;
            x += wide;
        }
        Ok(())
    }
}
