//! Every single sample of a few groups: what a mean or a CV hides. One row a group, launches side by side in different markers,
//! time relative to the group's median on a logarithmic axis.

use plotters::prelude::DrawingBackend;

use crate::plot::DrawError;
use crate::plot::canvas::{Anchor, Canvas, FAINT, INK};

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct StripRow {
    /// Its name.
    pub label: String,
    /// Times of each launch.
    pub launches: Vec<Vec<f64>>,
}

/// The chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Strip {
    /// Title.
    pub title: String,
    /// Groups.
    pub rows: Vec<StripRow>,
}

const WIDTH: f64 = 860.0;
const TOP: f64 = 42.0;
const ROW: f64 = 30.0;
const BELOW: f64 = 66.0;

impl Strip {
    pub(crate) fn extent(&self) -> (u32, u32) {
        (WIDTH as u32, (TOP + ROW * self.rows.len() as f64 + BELOW) as u32)
    }

    pub(crate) fn draw<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>) -> Result<(), DrawError> {
        let longest = self.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let left = 16.0 + 6.4 * longest as f64;
        let (bottom, right) = (TOP + ROW * self.rows.len() as f64, WIDTH - 24.0);
        let relative: Vec<Vec<Vec<f64>>> = self.rows.iter().map(relative).collect();
        let all = || relative.iter().flatten().flatten().copied();
        let low = all().fold(1.0, f64::min).log2().min(-0.5) - 0.1;
        let high = all().fold(1.0, f64::max).log2().max(1.0) + 0.1;
        let at = |ratio: f64| left + (ratio.log2() - low) / (high - low) * (right - left);
        canvas.text((left.min(78.0), TOP / 2.0), Anchor::Left, 15.0, &self.title)?;
        let marks = low.ceil() as i32..=high.floor() as i32;
        let every = (marks.clone().count() as i32 / 12 + 1).max(1);
        for power in marks.filter(|power| power % every == 0) {
            let x = at(2f64.powi(power));
            canvas.line((x, TOP), (x, bottom), if power == 0 { INK } else { FAINT }, 1.0)?;
            canvas.text((x, bottom + 13.0), Anchor::Middle, 11.0, &format!("{}×", 2f64.powi(power)))?;
        }
        for (index, (row, launches)) in self.rows.iter().zip(&relative).enumerate() {
            let y = TOP + ROW * index as f64;
            canvas.text((left - 8.0, y + ROW / 2.0), Anchor::Right, 11.0, &row.label)?;
            for (launch, ratios) in launches.iter().enumerate() {
                let step = (ROW - 8.0) / launches.len() as f64;
                let centre = y + 4.0 + step * (launch as f64 + 0.5);
                for &ratio in ratios {
                    canvas.marker((at(ratio), centre), launch, 2.4)?;
                }
            }
        }
        canvas.outline((left, TOP), (right, bottom), INK)?;
        let text = "time of each sample over the group's median (markers: launches; log axis)";
        canvas.text((f64::midpoint(left, right), bottom + 38.0), Anchor::Middle, 12.0, text)
    }
}

fn relative(row: &StripRow) -> Vec<Vec<f64>> {
    let median = crate::stats::median_of(row.launches.iter().flatten().copied());
    row.launches.iter().map(|times| times.iter().map(|time| time / median).collect()).collect()
}
