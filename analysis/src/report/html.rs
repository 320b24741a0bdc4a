//! One HTML file that needs nothing else: styles, script and drawings are inside it, and the network is never asked.

use minijinja::{Environment, Value, context};

use crate::report::{Document, Evidence, Figure, Finding, Section, Table};

/// A page that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// The template refused.
    #[error("report.html: {0}")]
    Template(#[from] minijinja::Error),
    /// A chart could not be drawn.
    #[error("report.html: {0}")]
    Chart(#[from] crate::plot::DrawError),
}

const TEMPLATE: &str = include_str!("report.html.j2");

/// Renders the page.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn render(document: &Document) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_template("report.html", TEMPLATE)?;
    let sections = document.sections.iter().map(section).collect::<Result<Vec<Value>, HtmlError>>()?;
    let value = |finding: &Finding| {
        context! {
            text => finding.text, label => finding.evidence.label(), class => class(finding.evidence),
            basis => finding.basis, record => finding.record,
        }
    };
    let part = |is_detail: bool| -> Vec<Value> {
        document.findings.iter().filter(|finding| finding.is_detail == is_detail).map(value).collect()
    };
    let (findings, details) = (part(false), part(true));
    let page = environment.get_template("report.html")?.render(context! {
        title => document.title, facts => document.facts, warnings => document.warnings, findings, details, sections,
    })?;
    Ok(page)
}

fn class(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Measured => "measured",
        Evidence::Computed => "computed",
        Evidence::Inferred => "inferred",
        Evidence::NotMeasured => "absent",
    }
}

fn section(section: &Section) -> Result<Value, HtmlError> {
    let figures = section.figures.iter().map(figure).collect::<Result<Vec<Value>, HtmlError>>()?;
    let (shown, more): (Vec<Value>, Vec<Value>) =
        figures.into_iter().partition(|figure| figure.get_attr("shown").is_ok_and(|shown| shown.is_true()));
    Ok(context! {
        id => section.id, title => section.title, intro => section.intro, folded => section.folded,
        tables => section.tables.iter().map(table).collect::<Vec<Value>>(), shown, more,
    })
}

fn figure(figure: &Figure) -> Result<Value, HtmlError> {
    let svg = figure.chart.to_svg()?;
    let svg = make_fluid(&svg);
    Ok(context! { title => figure.chart.title(), shown => figure.shown, svg => Value::from_safe_string(svg) })
}

/// Fixed width and height become a view box, so drawings fit narrow screens.
fn make_fluid(svg: &str) -> String {
    match svg.find("<svg") {
        Some(at) => {
            let rest = &svg[at..];
            let head_end = rest.find('>').unwrap_or(0);
            let head =
                rest[..head_end].replacen("width=", "data-width=", 1).replacen("height=", "data-height=", 1);
            format!("{head} role=\"img\"{}", &rest[head_end..])
        }
        None => svg.to_owned(),
    }
}

fn table(table: &Table) -> Value {
    let columns: Vec<Value> = table
        .columns
        .iter()
        .map(|column| context! { name => column.name, numeric => column.numeric })
        .collect();
    let rows: Vec<Vec<Value>> = table
        .rows
        .iter()
        .map(|row| {
            let cells = row.iter().zip(&table.columns);
            cells.map(|(cell, column)| context! { text => cell.text, value => cell.value, numeric => column.numeric }).collect()
        })
        .collect();
    context! { title => table.title, columns, rows }
}
