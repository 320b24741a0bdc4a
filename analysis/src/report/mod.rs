//! The report: what recordings say, as findings in words, tables, charts and files.
//!
//! [`build`] turns a data set into a [`Document`]; the renderers know nothing of measurements. The same rows give the same bytes: no
//! clock, no random seed, no order of files enters.

pub mod crossings;
pub mod document;
pub mod figures;
pub mod findings;
pub mod html;
pub mod markdown;
pub mod model;
pub mod overview;
pub mod penalty;
pub mod retest;
pub mod tables;
pub mod terminal;

use std::fs;
use std::io;
use std::path::Path;

pub use self::document::{Column, Document, Evidence, Figure, Finding, Section, Table};
use crate::dataset::Dataset;
use crate::groups::{GroupStats, Scene, describe, scenes};

/// What a reader may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Margin below which nobody wins, a fraction.
    pub tie: f64,
    /// Penalty that a small rule set may cost at most, a fraction.
    pub max_penalty: f64,
    /// Sizes of the selected points table; empty: chosen from the data.
    pub points: Vec<u64>,
    /// Whether charts are drawn.
    pub plots: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { tie: 0.05, max_penalty: 0.025, points: Vec::new(), plots: true }
    }
}

/// What comes from elsewhere than the rows.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Re-measurements: file name and rows.
    pub retests: Vec<(String, Dataset)>,
    /// Answers to predictions and other findings made elsewhere, with their evidence.
    pub findings: Vec<Finding>,
    /// Sections made elsewhere (a model's predictions, say).
    pub sections: Vec<Section>,
}

/// Everything the parts of a report look at.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) data: &'a Dataset,
    pub(crate) options: &'a Options,
    pub(crate) stats: &'a [GroupStats<'a>],
    pub(crate) scenes: Vec<Scene<'a>>,
}

impl Context<'_> {
    /// Names of the records, for findings.
    pub(crate) fn record(&self) -> String {
        let mut names: Vec<String> =
            self.data.sources.iter().map(|source| record_name(&source.path)).collect();
        names.dedup();
        if names.len() > 3 { format!("{} and {} more", names[0], names.len() - 1) } else { names.join(", ") }
    }
}

/// Folder and file of a record, without the way there: reports must not depend on where a folder lies.
pub fn record_name(path: &Path) -> String {
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match folder {
        Some(folder) if !folder.is_empty() => format!("{folder}/{file}"),
        _ => file,
    }
}

/// Builds the report of a data set.
pub fn build(data: &Dataset, options: &Options, extras: Extras) -> Document {
    let stats = describe(data, options.tie);
    let context = Context { data, options, stats: &stats, scenes: scenes(&stats) };
    let mut findings = findings::all(&context);
    let again: Vec<Section> =
        extras.retests.iter().map(|(name, data)| retest::section(&context, name, data)).collect();
    let told = again.iter().zip(&extras.retests);
    findings
        .extend(told.filter_map(|(section, (name, data))| retest::finding(&context, section, (name, data))));
    findings.extend(extras.findings);
    let mut sections =
        vec![overview::winners(&context), crossings::lanes(&context), crossings::selected(&context)];
    sections.push(penalty::section(&context));
    sections.push(overview::configurations(&context));
    sections.push(overview::unstable(&context));
    sections.extend(again);
    sections.extend(extras.sections);
    if options.plots {
        figures::attach(&context, &mut sections);
    }
    sections.push(overview::groups(&context));
    sections.retain(|section| !section.tables.is_empty() || !section.figures.is_empty());
    Document {
        title: overview::title(&context),
        facts: overview::facts(&context),
        warnings: data.warnings(),
        findings,
        sections,
    }
}

/// Writes the report's files into a folder: `report.html`, `report.md`, the CSV tables, and `plots/` with every chart as SVG and PNG.
///
/// # Errors
/// When a file cannot be written or a chart cannot be drawn.
pub fn write(document: &Document, data: &Dataset, options: &Options, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let plots = folder.join("plots");
    for figure in document.sections.iter().flat_map(|section| &section.figures) {
        fs::create_dir_all(&plots)?;
        let svg = figure.chart.to_svg().map_err(io::Error::other)?;
        fs::write(plots.join(format!("{}.svg", figure.stem)), svg)?;
        figure.chart.write_png(&plots.join(format!("{}.png", figure.stem))).map_err(io::Error::other)?;
    }
    fs::write(folder.join("report.html"), html::render(document).map_err(io::Error::other)?)?;
    fs::write(folder.join("report.md"), markdown::render(document))?;
    let stats = describe(data, options.tie);
    let context = Context { data, options, stats: &stats, scenes: scenes(&stats) };
    fs::write(folder.join("crossover.csv"), tables::crossover(&context)?)?;
    fs::write(folder.join("selected_points.csv"), tables::selected_points(&context)?)?;
    fs::write(folder.join("groups.csv"), tables::groups(&context)?)?;
    Ok(())
}
