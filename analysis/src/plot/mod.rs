//! Charts as data, drawn to SVG text or PNG files through one path.
//!
//! Series differ in colour (a palette that colour-blind readers can tell apart), in marker and in dash, so black and white print
//! works too. Sizes are binary, axes logarithmic, units written out.

pub mod canvas;
pub mod heat;
pub mod lines;
pub mod strip;

use std::path::Path;
use std::sync::Once;

use plotters::prelude::{BitMapBackend, IntoDrawingArea, SVGBackend};
use plotters::style::{FontStyle, register_font};

pub use self::heat::{Cell, HeatMap};
pub use self::lines::{LineChart, Series};
pub use self::strip::{Strip, StripRow};

/// A chart that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct DrawError(pub String);

/// Any chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Curves over sizes.
    Lines(LineChart),
    /// Coloured cells over sizes.
    Heat(HeatMap),
    /// Single samples.
    Strip(Strip),
}

/// Okabe and Ito's palette without its yellow, which vanishes on white.
pub(crate) const PALETTE: [(u8, u8, u8); 7] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (230, 159, 0),
    (60, 60, 60),
];

/// PNG pixels per SVG unit.
const PNG_SCALE: u32 = 2;

/// DejaVu Sans, so that PNG text needs no font of the system. Its licence lies beside it.
static FONT: &[u8] = include_bytes!("../../assets/DejaVuSans.ttf");

fn prepare_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let registered = register_font("sans-serif", style, FONT);
            registered.map_err(|_| ()).expect("invariant: the font in the binary is a font");
        }
    });
}

impl Chart {
    /// Width and height in SVG units.
    fn extent(&self) -> (u32, u32) {
        match self {
            Self::Lines(chart) => chart.extent(),
            Self::Heat(chart) => chart.extent(),
            Self::Strip(chart) => chart.extent(),
        }
    }

    /// The chart's title.
    pub fn title(&self) -> &str {
        match self {
            Self::Lines(chart) => &chart.title,
            Self::Heat(chart) => &chart.title,
            Self::Strip(chart) => &chart.title,
        }
    }

    /// The chart as SVG text.
    ///
    /// # Errors
    /// When the drawing library refuses.
    pub fn to_svg(&self) -> Result<String, DrawError> {
        prepare_font();
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, self.extent()).into_drawing_area();
            self.draw(&canvas::Canvas::new(&root, 1))?;
        }
        Ok(text)
    }

    /// Writes the chart as a PNG file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_png(&self, path: &Path) -> Result<(), DrawError> {
        prepare_font();
        let (width, height) = self.extent();
        let root = BitMapBackend::new(path, (width * PNG_SCALE, height * PNG_SCALE)).into_drawing_area();
        self.draw(&canvas::Canvas::new(&root, PNG_SCALE))?;
        root.present().map_err(|error| DrawError(format!("{}: {error}", path.display())))
    }

    fn draw<B: plotters::prelude::DrawingBackend>(
        &self,
        canvas: &canvas::Canvas<'_, B>,
    ) -> Result<(), DrawError> {
        canvas.fill_all()?;
        match self {
            Self::Lines(chart) => chart.draw(canvas),
            Self::Heat(chart) => chart.draw(canvas),
            Self::Strip(chart) => chart.draw(canvas),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lines::XAxis;
    use super::{Cell, Chart, HeatMap, LineChart, Series, Strip, StripRow};

    fn charts() -> Vec<Chart> {
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            points: (3..24).map(|i| (1u64 << i, factor * (5.0 + 1.5f64.powi(i)))).collect(),
            upper: (3..24).map(|i| (1u64 << i, 1.2 * factor * (5.0 + 1.5f64.powi(i)))).collect(),
        };
        let lines = LineChart {
            title: "time".into(),
            x_axis: XAxis::Sizes,
            y_label: "time (µs)".into(),
            series: vec![series("ring", 1.0), series("tree & <more>", 2.0)],
            band: Some((0.95, 1.05)),
        };
        let cell = |kind: usize| Some(Cell { kind, text: "R".into() });
        let heat = HeatMap {
            title: "winner".into(),
            row_label: "ranks".into(),
            sizes: vec![8, 16, 1024],
            rows: vec![
                ("2".into(), vec![cell(0), None, cell(1)]),
                ("4".into(), vec![cell(1), cell(2), cell(0)]),
            ],
            legend: vec![
                ("ring".into(), (0, 114, 178)),
                ("tree".into(), (213, 94, 0)),
                ("tie".into(), (200, 200, 200)),
            ],
        };
        let strip = Strip {
            title: "samples".into(),
            rows: vec![StripRow {
                label: "ring 8 KiB".into(),
                launches: vec![vec![1.0, 1.1, 5.0], vec![1.0, 0.9]],
            }],
        };
        vec![Chart::Lines(lines), Chart::Heat(heat), Chart::Strip(strip)]
    }

    #[test]
    fn charts_are_well_formed_svg_with_their_words_and_the_same_each_time() {
        for chart in charts() {
            let svg = chart.to_svg().unwrap();
            assert_eq!(svg, chart.to_svg().unwrap());
            let mut reader = quick_xml::Reader::from_str(&svg);
            loop {
                match reader.read_event().unwrap() {
                    quick_xml::events::Event::Eof => break,
                    _ => continue,
                }
            }
            assert!(svg.contains(chart.title()));
            assert!(svg.contains("KiB"), "sizes are binary");
        }
        let svg = charts()[0].to_svg().unwrap();
        assert!(svg.contains("tree &amp; &lt;more&gt;"));
    }

    #[test]
    fn png_files_hold_ink() {
        let dir = tempfile::tempdir().unwrap();
        for (index, chart) in charts().iter().enumerate() {
            let path = dir.path().join(format!("{index}.png"));
            chart.write_png(&path).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 2000);
        }
    }

    #[test]
    fn charts_without_points_are_drawn_empty() {
        let empty = LineChart {
            title: "none".into(),
            x_axis: XAxis::Sizes,
            y_label: "µs".into(),
            series: Vec::new(),
            band: None,
        };
        assert!(Chart::Lines(empty).to_svg().unwrap().contains("none"));
    }
}
