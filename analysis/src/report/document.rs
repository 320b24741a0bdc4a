//! A report as data: findings, tables and charts in sections.

use crate::plot::Chart;

/// How a statement is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// From rows of these records.
    Measured,
    /// From a model or a construction, not from a clock.
    Computed,
    /// Concluded from measurements that do not show it directly.
    Inferred,
    /// Nobody looked.
    NotMeasured,
}

impl Evidence {
    /// The words a report uses.
    pub fn label(self) -> &'static str {
        match self {
            Self::Measured => "measured here",
            Self::Computed => "computed",
            Self::Inferred => "inferred",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One sentence with what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The sentence.
    pub text: String,
    /// How it is known.
    pub evidence: Evidence,
    /// What it rests on: `n = 580 samples at 29 sizes, 2 launches`; empty where nothing was counted.
    pub basis: String,
    /// Records it comes from.
    pub record: String,
    /// Whether it goes into a part that readers may skip.
    pub is_detail: bool,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its heading, unit included.
    pub name: String,
    /// Whether values stand to the right.
    pub numeric: bool,
}

/// A cell: what is shown and what sorting compares.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Shown text.
    pub text: String,
    /// Value for sorting, where the text does not sort by itself.
    pub value: Option<f64>,
}

impl Cell {
    /// A cell that sorts by its text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    /// A cell that sorts by a number.
    pub fn number(text: impl Into<String>, value: f64) -> Self {
        Self { text: text.into(), value: Some(value) }
    }

    /// A size.
    pub fn size(bytes: u64) -> Self {
        Self::number(crate::format::size(bytes), bytes as f64)
    }

    /// A time, µs.
    pub fn micros(us: f64) -> Self {
        Self::number(crate::format::micros(us), us)
    }

    /// A bandwidth, GB/s.
    pub fn bandwidth(gb_per_s: f64) -> Self {
        Self::number(crate::format::bandwidth(gb_per_s), gb_per_s)
    }

    /// A fraction shown as a percentage.
    pub fn percent(fraction: f64) -> Self {
        Self::number(crate::format::percent(fraction), fraction)
    }

    /// A whole number.
    pub fn count(n: usize) -> Self {
        Self::number(n.to_string(), n as f64)
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows; may be empty in a section of one table.
    pub title: String,
    /// Headings.
    pub columns: Vec<Column>,
    /// Rows, each as long as the headings.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table. A heading that starts with `#` holds numbers; the sign is not shown.
    pub fn new(title: impl Into<String>, headings: &[&str]) -> Self {
        let column = |heading: &&str| Column {
            name: heading.trim_start_matches('#').to_owned(),
            numeric: heading.starts_with('#'),
        };
        Self { title: title.into(), columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }
}

/// A chart with the name of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// File name without ending.
    pub stem: String,
    /// Whether a reader sees it without asking.
    pub shown: bool,
    /// The chart.
    pub chart: Chart,
}

/// A part of the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Short name for links.
    pub id: String,
    /// Heading.
    pub title: String,
    /// How to read it.
    pub intro: String,
    /// Tables.
    pub tables: Vec<Table>,
    /// Charts.
    pub figures: Vec<Figure>,
    /// Whether the section starts closed, because it is long.
    pub folded: bool,
}

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Title.
    pub title: String,
    /// Facts about the records and the machine: name and value.
    pub facts: Vec<(String, String)>,
    /// What was skipped or is missing.
    pub warnings: Vec<String>,
    /// Sentences.
    pub findings: Vec<Finding>,
    /// Parts.
    pub sections: Vec<Section>,
}
