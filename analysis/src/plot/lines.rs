//! Curves over message sizes: both axes logarithmic, median line with markers, a shade up to a higher percentile.

use plotters::prelude::DrawingBackend;
use plotters::style::{Color, RGBColor};

use crate::plot::DrawError;
use crate::plot::canvas::{Anchor, Canvas, FAINT, INK};

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Sizes and values, ascending. Sizes and values of 0 have no place on logarithmic axes and are left out.
    pub points: Vec<(u64, f64)>,
    /// Upper edge of the shade, empty for none.
    pub upper: Vec<(u64, f64)>,
}

/// What the horizontal axis counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum XAxis {
    /// Bytes, logarithmic, powers of 2.
    #[default]
    Sizes,
    /// Things in a row, from 1.
    Counted(Counted),
}

/// What a chart over things in a row has besides its curves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// What is counted.
    pub word: String,
    /// Things in front of which a line stands.
    pub marks: Vec<u64>,
    /// Lower edge of the first curve's shade; without it the shade begins at the curve.
    pub lower: Vec<(u64, f64)>,
}

/// The chart.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart {
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x_axis: XAxis,
    /// Name and unit of the values.
    pub y_label: String,
    /// Curves.
    pub series: Vec<Series>,
    /// Values between which nobody wins, shaded.
    pub band: Option<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 62.0;

/// Maps values to the sheet.
struct Frame {
    right: f64,
    x: (f64, f64),
    y: (f64, f64),
    is_counted: bool,
}

impl Frame {
    fn x_value(is_counted: bool, x: u64) -> f64 {
        if is_counted { x as f64 } else { (x as f64).log2() }
    }

    fn x_at(&self, x: u64) -> f64 {
        let part = (Self::x_value(self.is_counted, x) - self.x.0) / (self.x.1 - self.x.0);
        LEFT + part * (self.right - LEFT)
    }

    fn y_at(&self, value: f64) -> f64 {
        let part = (value.log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)
    }
}

fn usable(points: &[(u64, f64)]) -> impl Iterator<Item = (u64, f64)> + '_ {
    points.iter().copied().filter(|&(bytes, value)| bytes > 0 && value.is_finite() && value > 0.0)
}

impl LineChart {
    pub(crate) fn extent(&self) -> (u32, u32) {
        (WIDTH as u32, HEIGHT as u32)
    }

    pub(crate) fn draw<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>) -> Result<(), DrawError> {
        canvas.text((LEFT, TOP / 2.0), Anchor::Left, 15.0, &self.title)?;
        let frame = self.frame();
        self.axes(canvas, &frame)?;
        if let Some((low, high)) = self.band {
            let (top, bottom) = (frame.y_at(high).max(TOP), frame.y_at(low).min(HEIGHT - BOTTOM));
            canvas.rectangle((LEFT, top), (frame.right, bottom), RGBColor(120, 120, 120).mix(0.18))?;
        }
        for (index, series) in self.series.iter().enumerate() {
            let line: Vec<(f64, f64)> =
                usable(&series.points).map(|(b, v)| (frame.x_at(b), frame.y_at(v))).collect();
            let mut shade: Vec<(f64, f64)> =
                usable(&series.upper).map(|(b, v)| (frame.x_at(b), frame.y_at(v))).collect();
            let lower: Vec<(f64, f64)> =
                usable(self.lower(index)).map(|(b, v)| (frame.x_at(b), frame.y_at(v))).collect();
            if shade.len() > 1 {
                shade.extend(if lower.is_empty() { line.iter().rev() } else { lower.iter().rev() });
                canvas.area(&shade, index)?;
            }
        }
        if let XAxis::Counted(counted) = &self.x_axis {
            for &mark in &counted.marks {
                let x = f64::midpoint(frame.x_at(mark), frame.x_at(mark.saturating_sub(1)));
                canvas.line((x, TOP), (x, HEIGHT - BOTTOM), INK, 1.6)?;
            }
        }
        for (index, series) in self.series.iter().enumerate() {
            let line: Vec<(f64, f64)> =
                usable(&series.points).map(|(b, v)| (frame.x_at(b), frame.y_at(v))).collect();
            canvas.curve(&line, index)?;
            for &point in &line {
                canvas.marker(point, index, 3.0)?;
            }
        }
        self.legend(canvas, &frame)
    }

    fn lower(&self, index: usize) -> &[(u64, f64)] {
        match &self.x_axis {
            XAxis::Counted(counted) if index == 0 => &counted.lower,
            _ => &[],
        }
    }

    fn frame(&self) -> Frame {
        let is_counted = self.x_axis != XAxis::Sizes;
        let (mut x, mut y) = ((f64::INFINITY, f64::NEG_INFINITY), (f64::INFINITY, f64::NEG_INFINITY));
        for (index, series) in self.series.iter().enumerate() {
            let edges = usable(&series.upper).chain(usable(self.lower(index)));
            for (bytes, value) in usable(&series.points).chain(edges) {
                let (size, value) = (Frame::x_value(is_counted, bytes), value.log10());
                x = (x.0.min(size), x.1.max(size));
                y = (y.0.min(value), y.1.max(value));
            }
        }
        if let Some((low, high)) = self.band {
            y = (y.0.min(low.log10()), y.1.max(high.log10()));
        }
        if !x.0.is_finite() {
            (x, y) = ((0.0, 1.0), (0.0, 1.0));
        }
        let pad = ((y.1 - y.0) * 0.06).max(0.03);
        let longest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
        let legend = if self.series.len() > 1 { 46.0 + 7.0 * longest as f64 } else { 20.0 };
        Frame { right: WIDTH - legend, x: (x.0 - 0.3, x.1 + 0.3), y: (y.0 - pad, y.1 + pad), is_counted }
    }

    fn axes<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>, frame: &Frame) -> Result<(), DrawError> {
        let bottom = HEIGHT - BOTTOM;
        let marks = frame.x.0.ceil() as u32..=frame.x.1.floor() as u32;
        let every = (marks.clone().count() as u32).div_ceil(11).max(1);
        for mark in marks.filter(|mark| mark % every == 0) {
            let value = if frame.is_counted { u64::from(mark) } else { 1 << mark };
            let text = if frame.is_counted { mark.to_string() } else { crate::format::size(value) };
            let x = frame.x_at(value);
            canvas.line((x, TOP), (x, bottom), FAINT, 1.0)?;
            canvas.text((x, bottom + 13.0), Anchor::Middle, 11.0, &text)?;
        }
        for value in ticks(frame.y) {
            let y = frame.y_at(value);
            canvas.line((LEFT, y), (frame.right, y), FAINT, 1.0)?;
            canvas.text((LEFT - 6.0, y), Anchor::Right, 11.0, &tick_text(value))?;
        }
        canvas.outline((LEFT, TOP), (frame.right, bottom), INK)?;
        let middle = f64::midpoint(LEFT, frame.right);
        let name = match &self.x_axis {
            XAxis::Sizes => "message size (bytes, powers of 2)",
            XAxis::Counted(counted) => &counted.word,
        };
        canvas.text((middle, HEIGHT - 20.0), Anchor::Middle, 13.0, name)?;
        canvas.text((18.0, f64::midpoint(TOP, bottom)), Anchor::Upwards, 13.0, &self.y_label)
    }

    fn legend<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>, frame: &Frame) -> Result<(), DrawError> {
        if self.series.len() < 2 {
            return Ok(());
        }
        for (index, series) in self.series.iter().enumerate() {
            let y = TOP + 10.0 + 18.0 * index as f64;
            let x = frame.right + 8.0;
            canvas.curve(&[(x, y), (x + 26.0, y)], index)?;
            canvas.marker((x + 13.0, y), index, 3.0)?;
            canvas.text((x + 31.0, y), Anchor::Left, 11.0, &series.name)?;
        }
        Ok(())
    }
}

/// Round values between two powers of ten, at most a dozen of them.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let decades = low.floor() as i32..=high.ceil() as i32;
    let all: [&[f64]; 4] = [
        &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9.5],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[1.0, 2.0, 5.0],
        &[1.0],
    ];
    let inside = |steps: &[f64]| -> Vec<f64> {
        let values =
            decades.clone().flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        values.filter(|value| (low..=high).contains(&value.log10())).collect()
    };
    all.iter().map(|steps| inside(steps)).find(|ticks| ticks.len() <= 12).unwrap_or_else(|| inside(&[1.0]))
}

fn tick_text(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{tick_text, ticks};

    #[test]
    fn ticks_are_round_inside_and_few() {
        assert_eq!(ticks((0.0, 3.0)).len(), 10);
        let narrow = ticks((-0.05, 0.1));
        assert!(narrow.len() >= 2 && narrow.iter().all(|v| (0.88..1.27).contains(v)), "{narrow:?}");
        assert!(ticks((-3.0, 20.0)).len() <= 24);
        assert_eq!(tick_text(0.05), "0.05");
        assert_eq!(tick_text(100.0), "100");
    }
}
