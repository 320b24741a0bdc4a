//! The report as Markdown: the same findings and tables, charts by file name.

use std::fmt::Write;

use crate::report::{Document, Finding, Section, Table};

/// Renders the whole document.
pub fn render(document: &Document) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# {}\n", escape(&document.title));
    for (name, value) in &document.facts {
        let _ = writeln!(out, "- {}: {}", escape(name), escape(value));
    }
    if !document.warnings.is_empty() {
        let _ = writeln!(out, "\n## Warnings\n");
        for warning in &document.warnings {
            let _ = writeln!(out, "- {}", escape(warning));
        }
    }
    if !document.findings.is_empty() {
        let _ = writeln!(out, "\n## Findings\n");
        document
            .findings
            .iter()
            .filter(|f| !f.is_detail)
            .for_each(|finding| self::finding(&mut out, finding));
    }
    if document.findings.iter().any(|finding| finding.is_detail) {
        let _ = writeln!(out, "\n### By protocol and channels\n");
        document.findings.iter().filter(|f| f.is_detail).for_each(|finding| self::finding(&mut out, finding));
    }
    document.sections.iter().for_each(|section| self::section(&mut out, section));
    out
}

fn finding(out: &mut String, finding: &Finding) {
    let basis = [finding.basis.as_str(), finding.record.as_str()];
    let basis: Vec<&str> = basis.into_iter().filter(|part| !part.is_empty()).collect();
    let _ = writeln!(
        out,
        "- {} *({}; {})*",
        escape(&finding.text),
        finding.evidence.label(),
        escape(&basis.join("; "))
    );
}

fn section(out: &mut String, section: &Section) {
    let _ = writeln!(out, "\n## {}\n", escape(&section.title));
    if !section.intro.is_empty() {
        let _ = writeln!(out, "{}\n", escape(&section.intro));
    }
    for figure in section.figures.iter().filter(|figure| figure.shown) {
        let _ = writeln!(out, "![{}](plots/{}.svg)\n", escape(figure.chart.title()), figure.stem);
    }
    let hidden: Vec<String> = section
        .figures
        .iter()
        .filter(|figure| !figure.shown)
        .map(|figure| format!("[{}](plots/{}.svg)", escape(figure.chart.title()), figure.stem))
        .collect();
    if !hidden.is_empty() {
        let _ = writeln!(out, "More charts: {}\n", hidden.join(" · "));
    }
    section.tables.iter().for_each(|table| self::table(out, table));
}

/// One table, with its title above it.
pub fn table(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        let _ = writeln!(out, "### {}\n", escape(&table.title));
    }
    let names: Vec<String> = table.columns.iter().map(|column| escape(&column.name)).collect();
    let rules: Vec<&str> =
        table.columns.iter().map(|column| if column.numeric { "---:" } else { "---" }).collect();
    let _ = writeln!(out, "| {} |\n| {} |", names.join(" | "), rules.join(" | "));
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|cell| escape(&cell.text)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out.push('\n');
}

/// Text that Markdown and the HTML inside it take literally.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '`' | '[' | ']' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\n' | '\r' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{escape, table};
    use crate::report::document::{Cell, Table};

    #[test]
    fn tables_align_numbers_and_escape_bars() {
        let mut data = Table::new("t", &["name", "#µs"]);
        data.rows.push(vec![Cell::text("a|b"), Cell::micros(1.5)]);
        let mut out = String::new();
        table(&mut out, &data);
        assert_eq!(out, "### t\n\n| name | µs |\n| --- | ---: |\n| a\\|b | 1.500 |\n\n");
        assert_eq!(escape("<script>*"), "&lt;script&gt;\\*");
    }
}
