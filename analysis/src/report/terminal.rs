//! The report in a terminal: findings, tables in columns, and a chart of characters.

use std::fmt::Write;

use crate::crossover::Curve;
use crate::dataset::Dataset;
use crate::groups::{describe, scenes};
use crate::report::{Document, Options, Table};

/// Findings and the short tables as plain text.
pub fn render(document: &Document) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}\n", document.title);
    for warning in &document.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    for finding in &document.findings {
        let basis = if finding.basis.is_empty() { String::new() } else { format!("; {}", finding.basis) };
        if !finding.is_detail {
            let _ = writeln!(out, "{} [{}{basis}]", finding.text, finding.evidence.label());
        }
    }
    for section in document.sections.iter().filter(|section| !section.folded && !section.tables.is_empty()) {
        let _ = writeln!(out, "\n{}", section.title);
        section.tables.iter().for_each(|table| self::table(&mut out, table));
    }
    out
}

/// One table in aligned columns.
pub fn table(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        let _ = writeln!(out, "\n  {}", table.title);
    }
    let mut widths: Vec<usize> = table.columns.iter().map(|column| column.name.chars().count()).collect();
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::from(" ");
        for ((cell, width), column) in cells.zip(&widths).zip(&table.columns) {
            let pad = " ".repeat(width - cell.chars().count());
            let _ =
                if column.numeric { write!(text, " {pad}{cell} ") } else { write!(text, " {cell}{pad} ") };
        }
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(&mut table.columns.iter().map(|column| column.name.as_str()));
    for row in &table.rows {
        line(&mut row.iter().map(|cell| cell.text.as_str()));
    }
}

const PLOT_ROWS: usize = 18;
const MARKS: [char; 8] = ['o', 'x', '+', '*', '#', '@', '%', '&'];

/// One chart per scenario: time over size, both logarithmic, one mark per algorithm (with its best protocol and channels).
pub fn plots(data: &Dataset, options: &Options) -> String {
    let stats = describe(data, options.tie);
    let mut out = String::new();
    for scene in scenes(&stats) {
        let curves = scene.by_algorithm();
        plot(&mut out, &scene.title, &curves[..curves.len().min(MARKS.len())]);
    }
    out
}

fn plot(out: &mut String, title: &str, curves: &[Curve]) {
    let mut sizes: Vec<u64> = curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let times = || curves.iter().flat_map(|curve| curve.points.values().map(|point| point.time_us.log10()));
    let (low, high) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
    let height = (high - low).max(1e-9);
    let column = if sizes.len() > 32 { 2 } else { 3 };
    let mut grid = vec![vec![' '; sizes.len() * column]; PLOT_ROWS];
    for (curve, mark) in curves.iter().zip(MARKS) {
        for (x, bytes) in sizes.iter().enumerate() {
            let Some(point) = curve.points.get(bytes) else { continue };
            let part = (point.time_us.log10() - low) / height;
            let y = ((1.0 - part) * (PLOT_ROWS - 1) as f64).round() as usize;
            let cell = &mut grid[y][x * column + 1];
            *cell = if *cell == ' ' { mark } else { '▒' };
        }
    }
    let _ = writeln!(out, "\n{title}: median time (µs) over size");
    for (y, row) in grid.iter().enumerate() {
        let part = 1.0 - y as f64 / (PLOT_ROWS - 1) as f64;
        let label = if y % 4 == 0 || y + 1 == PLOT_ROWS {
            crate::format::figures(10f64.powf(low + part * height), 3)
        } else {
            String::new()
        };
        let _ = writeln!(out, "{label:>9} │{}", row.iter().collect::<String>().trim_end());
    }
    let _ = writeln!(out, "{:>9} └{}", "", "─".repeat(sizes.len() * column));
    let mut axis = String::new();
    for (x, bytes) in sizes.iter().enumerate() {
        if x * column >= axis.chars().count() && x % 3 == 0 {
            let _ = write!(
                axis,
                "{}{} ",
                " ".repeat(x * column - axis.chars().count()),
                crate::format::size(*bytes).replace(' ', "")
            );
        }
    }
    let _ = writeln!(out, "{:>11}{}", "", axis.trim_end());
    let legend: Vec<String> =
        curves.iter().zip(MARKS).map(|(curve, mark)| format!("{mark} {}", curve.name)).collect();
    let _ = writeln!(out, "{:>11}{}   ▒ several", "", legend.join("   "));
}
