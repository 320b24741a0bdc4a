//! A comparison in the forms that people and CI systems read.

use std::fmt::Write;

use quick_xml::escape::escape;
use serde_json::json;

use crate::compare::judge::{Judged, MOST, Verdict};
use crate::compare::{Comparison, SizeNote};
use crate::format::{figures, p_value, percent, size};
use crate::report::document::{Cell, Table};
use crate::report::{markdown, terminal};

/// Step summaries may be 1 MiB; some room is left for what else a job writes there.
const MARKDOWN_LIMIT: usize = 1000 * 1024;

/// Annotations of a kind that GitHub shows for one step.
const ANNOTATIONS: usize = 10;

fn ratio_text(band: &Judged) -> String {
    match band.ratio {
        Some(ratio) if ratio.high.is_finite() => {
            format!("{} [{}, {}]", figures(ratio.estimate, 4), figures(ratio.low, 4), figures(ratio.high, 4))
        }
        Some(ratio) => format!("{} [no bounds]", figures(ratio.estimate, 4)),
        None => "-".into(),
    }
}

fn note(band: &Judged) -> String {
    let mut words = Vec::new();
    if band.quarantined {
        words.push("quarantined".to_owned());
    }
    if band.required {
        words.push("required".to_owned());
    }
    if band.lost_points > 0 {
        words.push(format!("{} missing in the current run", crate::format::count(band.lost_points, "size")));
    }
    if let Some(needed) = band.needed {
        words.push(match needed {
            MOST.. => format!("no number of launches below {MOST} would settle it"),
            needed => format!("about {needed} launches a side would settle it"),
        });
    }
    words.join("; ")
}

fn table(title: &str, bands: &[&Judged]) -> Table {
    let headings = [
        "band",
        "sizes",
        "#baseline (µs)",
        "#current (µs)",
        "#time ratio [interval]",
        "#p (Holm)",
        "#effect",
        "#launch spread",
        "launches",
        "verdict",
        "note",
    ];
    let mut table = Table::new(title, &headings);
    for band in bands {
        table.rows.push(vec![
            Cell::text(band.key.name()),
            Cell::text(format!("{} to {}", size(band.span.0), size(band.span.1))),
            Cell::micros(band.time_us.0),
            Cell::micros(band.time_us.1),
            Cell::text(ratio_text(band)),
            band.p.map_or(Cell::text("-"), |p| Cell::number(p_value(p), p)),
            Cell::percent(band.effect),
            band.spread.map_or(Cell::text("-"), Cell::percent),
            Cell::text(format!("{} and {}", band.launches.0, band.launches.1)),
            Cell::text(if band.verdict == Verdict::Regressed { "REGRESSED" } else { band.verdict.name() }),
            Cell::text(note(band)),
        ]);
    }
    table
}

/// Bands by importance: what is wrong first.
fn ordered(comparison: &Comparison) -> Vec<&Judged> {
    let order = [
        Verdict::Regressed,
        Verdict::Missing,
        Verdict::Inconclusive,
        Verdict::Improved,
        Verdict::New,
        Verdict::Pass,
    ];
    let mut all: Vec<&Judged> = comparison.bands.iter().collect();
    all.sort_by_key(|band| order.iter().position(|verdict| *verdict == band.verdict));
    all
}

fn remarks(comparison: &Comparison) -> Vec<String> {
    let mut lines: Vec<String> =
        comparison.thresholds.iter().map(|missed| format!("threshold: {missed}")).collect();
    let absent = comparison.required_absent.iter();
    lines.extend(absent.map(|pattern| format!("required: no band is called {pattern}")));
    lines.extend(comparison.apart.map(|(minutes, drift)| {
        format!(
            "the recordings lie {minutes:.0} minutes apart: the machine itself may have changed, so {} more than the effect is asked of \
             a change (--run alternates both and needs no such room)",
            crate::format::share(drift)
        )
    }));
    lines.extend(comparison.sizes.iter().map(size_line));
    lines
}

fn size_line(note: &SizeNote) -> String {
    let grounds = match note.confirmed {
        Some((before, after)) => format!("confirmed by further launches, {before} and {after}"),
        None => "in both halves of the launches".into(),
    };
    format!(
        "size: {} at {}, {}: regressed by {}, {grounds} (diagnosis, not counted)",
        note.key.name(),
        size(note.bytes),
        note.placement.name().replace('_', " "),
        percent(note.ratio - 1.0)
    )
}

/// For terminals.
pub fn text(comparison: &Comparison) -> String {
    let mut out = String::new();
    terminal::table(&mut out, &table("", &ordered(comparison)));
    for line in remarks(comparison) {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{}", comparison.headline());
    out
}

/// For a step summary that already holds `taken` bytes, under its size limit.
pub fn markdown(comparison: &Comparison, taken: usize) -> String {
    let limit = MARKDOWN_LIMIT.saturating_sub(taken);
    let mut out = format!("## {}\n\n", markdown::escape(&comparison.headline()));
    let remarks = remarks(comparison);
    // Remarks may fill a quarter; bands are what people look for.
    let mut written = 0;
    for line in &remarks {
        let line = format!("- {}\n", markdown::escape(line));
        if out.len() + line.len() > limit / 4 {
            break;
        }
        out.push_str(&line);
        written += 1;
    }
    if written < remarks.len() {
        let _ = writeln!(out, "- {} more remarks are not shown here.", remarks.len() - written);
    }
    out.push('\n');
    let all = ordered(comparison);
    let mut shown = all.len();
    loop {
        let mut body = String::new();
        markdown::table(&mut body, &table("", &all[..shown]));
        if out.len() + body.len() + 100 <= limit || shown == 0 {
            if shown > 0 {
                out.push_str(&body);
            }
            break;
        }
        shown = shown * 9 / 10;
    }
    if shown < all.len() {
        let _ = writeln!(out, "\n{} more bands are not shown here.", all.len() - shown);
    }
    if out.len() > limit { String::new() } else { out }
}

/// Workflow commands: errors for regressions and wrong data, warnings for what is open; at most ten of a kind.
pub fn annotations(comparison: &Comparison) -> String {
    let mut errors: Vec<(String, String)> = Vec::new();
    if comparison.wrong_rows > 0 {
        errors.push(("wrong data".into(), format!("{} rows hold wrong elements", comparison.wrong_rows)));
    }
    errors.extend(comparison.thresholds.iter().map(|missed| ("threshold missed".into(), missed.clone())));
    let line = |band: &Judged| {
        let more = note(band);
        let more = if more.is_empty() { more } else { format!("; {more}") };
        format!("{}: time ratio {}{more}", band.key.name(), ratio_text(band))
    };
    errors
        .extend(comparison.with(Verdict::Regressed).into_iter().map(|band| ("regressed".into(), line(band))));
    let mut warnings: Vec<(String, String)> = Vec::new();
    for verdict in [Verdict::Missing, Verdict::Inconclusive] {
        warnings.extend(comparison.with(verdict).into_iter().map(|band| (verdict.name().into(), line(band))));
    }
    let mut out = String::new();
    for (kind, mut lines) in [("error", errors), ("warning", warnings)] {
        if lines.len() > ANNOTATIONS {
            let rest = lines.len() - (ANNOTATIONS - 1);
            lines.truncate(ANNOTATIONS - 1);
            lines.push(("more".into(), format!("{rest} more of this kind; see the full report")));
        }
        for (title, text) in lines {
            let _ = writeln!(
                out,
                "::{kind} title={}::{}",
                property(&format!("chorus gate: {title}")),
                data(&text)
            );
        }
    }
    out
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Text inside XML: escaped, and without the control characters that XML cannot hold.
fn xml(text: &str) -> String {
    let legal = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    let clean: String = text.chars().map(|c| if legal(c) { c } else { '\u{fffd}' }).collect();
    escape(clean.as_str()).into_owned()
}

/// JUnit XML: one case per band.
pub fn junit(comparison: &Comparison) -> String {
    let regressed = comparison.with(Verdict::Regressed).len() + comparison.thresholds.len();
    let errors = usize::from(comparison.wrong_rows > 0);
    let is_skipped = |band: &&Judged| {
        band.quarantined || matches!(band.verdict, Verdict::Inconclusive | Verdict::Missing | Verdict::New)
    };
    let skipped = comparison.bands.iter().filter(is_skipped).count();
    let cases = comparison.bands.len() + comparison.thresholds.len() + errors;
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"chorus gate\" tests=\"{cases}\" \
         failures=\"{regressed}\" errors=\"{errors}\" skipped=\"{skipped}\">\n"
    );
    let mut case = |name: &str, inside: &str| {
        let _ =
            writeln!(out, "<testcase classname=\"chorus.gate\" name=\"{}\">{inside}</testcase>", xml(name));
    };
    if errors > 0 {
        case("data", &format!("<error message=\"{} rows hold wrong elements\"/>", comparison.wrong_rows));
    }
    for missed in &comparison.thresholds {
        case("threshold", &format!("<failure message=\"{}\"/>", xml(missed)));
    }
    for band in &comparison.bands {
        let message = format!("{}: time ratio {} {}", band.verdict.name(), ratio_text(band), note(band));
        let message = xml(message.trim_end());
        let inside = if is_skipped(&band) {
            format!("<skipped message=\"{message}\"/>")
        } else if band.verdict == Verdict::Regressed {
            format!("<failure message=\"{message}\"/>")
        } else {
            String::new()
        };
        case(&band.key.name(), &inside);
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// JSON for github-action-benchmark's `customSmallerIsBetter`.
pub fn benchmark_json(comparison: &Comparison) -> String {
    let measured = comparison.bands.iter().filter(|band| band.time_us.1.is_finite());
    let entries: Vec<serde_json::Value> = measured
        .map(|band| {
            json!({
                "name": band.key.name(),
                "unit": "us",
                "value": band.time_us.1,
                "range": band.spread.map_or(String::new(), |spread| format!("± {}", percent(spread))),
                "extra": format!("{}; ratio {}; {} launches", band.verdict.name(), ratio_text(band), band.launches.1),
            })
        })
        .collect();
    serde_json::to_string_pretty(&entries).unwrap_or_default() + "\n"
}

/// A row for Otava, which reads one table of many runs: a time, a revision, and one column of microseconds per band.
///
/// Its columns never change, because every cell it analyses must be a number: bands that the table does not know are left out, and a row
/// that would lack a band is not written.
#[derive(Clone, Debug, PartialEq)]
pub struct OtavaRow {
    /// The header, where the table has none yet.
    pub header: Option<String>,
    /// The row, unless a band of the table was not measured.
    pub row: Option<String>,
    /// Bands of this run that the table does not know.
    pub unknown: Vec<String>,
    /// Bands of the table that this run lacks.
    pub lacking: Vec<String>,
}

/// The row of a comparison's current side; `header` is the table's first line.
pub fn otava(comparison: &Comparison, header: Option<&str>, time: &str, revision: &str) -> OtavaRow {
    let measured = comparison.bands.iter().filter(|band| band.time_us.1.is_finite());
    let times: Vec<(String, f64)> =
        measured.map(|band| (csv_cell(&band.key.name()), band.time_us.1)).collect();
    let own = || {
        let names = times.iter().map(|(name, _)| name.clone());
        ["time".to_owned(), "commit".to_owned()].into_iter().chain(names).collect::<Vec<_>>().join(",")
    };
    let new = header.is_none().then(own);
    let columns: Vec<&str> = header.or(new.as_deref()).unwrap_or_default().split(',').collect();
    let mut cells = Vec::new();
    let mut lacking = Vec::new();
    for column in &columns {
        match (*column, times.iter().find(|(name, _)| name == column)) {
            ("time", _) => cells.push(csv_cell(time)),
            ("commit", _) => cells.push(csv_cell(revision)),
            (_, Some((_, time_us))) => cells.push(format!("{time_us:.4}")),
            (name, None) => lacking.push(name.to_owned()),
        }
    }
    let unknown =
        times.iter().map(|(name, _)| name.clone()).filter(|name| !columns.contains(&name.as_str())).collect();
    OtavaRow { row: lacking.is_empty().then(|| cells.join(",")), header: new, unknown, lacking }
}

/// Names hold no commas but for odd words in a record; quotes would need a reader that knows them.
fn csv_cell(text: &str) -> String {
    text.chars().map(|c| if matches!(c, ',' | '"' | '\'' | '\n' | '\r') { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::{annotations, benchmark_json, data, junit, markdown, otava, property, text};
    use crate::compare::tests::recording;
    use crate::compare::{Comparison, Rules, compare};

    fn regressed() -> Comparison {
        compare(&recording(10, 1.0, 0.01, 1), &recording(10, 1.2, 0.01, 2), &Rules::default())
    }

    #[test]
    fn text_and_markdown_put_the_regression_first() {
        let comparison = regressed();
        let plain = text(&comparison);
        assert!(plain.lines().nth(1).unwrap().contains("REGRESSED"), "{plain}");
        assert!(plain.lines().last().unwrap().starts_with("REGRESSED; 4 bands"));
        let page = markdown(&comparison, 0);
        assert!(
            page.starts_with("## REGRESSED") && page.contains("| all_reduce/4/ring/simple/1/bandwidth |")
        );
    }

    #[test]
    fn a_huge_comparison_stays_below_the_limit_of_a_summary() {
        let mut comparison = regressed();
        let one = comparison.bands[0].clone();
        comparison.bands = vec![one; 20_000];
        let page = markdown(&comparison, 0);
        assert!(page.len() < 1 << 20 && page.contains("more bands are not shown"), "{}", page.len());
        comparison.thresholds = vec!["busbw 1 µs ü".repeat(9); 30_000];
        let page = markdown(&comparison, 0);
        assert!(page.len() < 1 << 20 && page.contains("more remarks are not shown"), "{}", page.len());
        assert!(page.contains("| all_reduce/4/"), "bands stand beside many remarks");
        assert!(markdown(&comparison, 900_000).len() + 900_000 < 1 << 20);
        assert_eq!(markdown(&comparison, 1 << 20), "");
    }

    #[test]
    fn annotations_are_escaped_and_at_most_ten_of_a_kind() {
        assert_eq!(data("5%\n"), "5%25%0A");
        assert_eq!(property("a:b,c"), "a%3Ab%2Cc");
        let mut comparison = regressed();
        let one = comparison.bands.iter().find(|band| band.verdict.name() == "regressed").unwrap().clone();
        comparison.bands = vec![one; 30];
        let lines = annotations(&comparison);
        assert_eq!(lines.lines().count(), 10);
        assert!(lines.lines().all(|line| line.starts_with("::error title=chorus gate%3A ")));
        assert!(lines.contains("21 more of this kind"));
    }

    #[test]
    fn junit_is_well_formed_and_counts_agree() {
        let mut comparison = regressed();
        comparison.thresholds.push("busbw <1 & \"low\" \u{1}".into());
        let xml = junit(&comparison);
        let tree = quick_xml::Reader::from_str(&xml);
        let mut reader = tree;
        let (mut cases, mut failures) = (0, 0);
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Start(tag) if tag.name().as_ref() == b"testcase" => cases += 1,
                quick_xml::events::Event::Empty(tag) if tag.name().as_ref() == b"failure" => failures += 1,
                quick_xml::events::Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!((cases, failures), (5, 2));
        assert!(xml.contains("tests=\"5\" failures=\"2\" errors=\"0\""));
    }

    #[test]
    fn series_formats_hold_one_number_per_band() {
        let comparison = regressed();
        let parsed: serde_json::Value = serde_json::from_str(&benchmark_json(&comparison)).unwrap();
        assert_eq!(parsed.as_array().unwrap().len(), 4);
        assert!(parsed[0]["value"].as_f64().unwrap() > 0.0 && parsed[0]["unit"] == "us");
        assert!(parsed[0]["range"].as_str().unwrap().starts_with("± "));
    }

    #[test]
    fn a_table_for_otava_keeps_its_columns() {
        let comparison = regressed();
        let first = otava(&comparison, None, "2026-01-02T03:04:05Z", "abc");
        let (header, row) = (first.header.clone().unwrap(), first.row.clone().unwrap());
        assert_eq!((header.split(',').count(), row.split(',').count()), (6, 6));
        assert!(header.starts_with("time,commit,") && row.starts_with("2026-01-02T03:04:05Z,abc,"));
        let again = otava(&comparison, Some(&header), "2026-01-03T03:04:05Z", "abd");
        assert!(again.header.is_none() && again.row.is_some() && again.unknown.is_empty());
        let mut fewer = comparison.clone();
        fewer.bands.pop();
        let lacking = otava(&fewer, Some(&header), "t", "r");
        assert_eq!((lacking.row, lacking.lacking.len()), (None, 1));
        let narrow: Vec<&str> = header.split(',').take(5).collect();
        let known = otava(&comparison, Some(&narrow.join(",")), "t", "r");
        assert_eq!((known.row.unwrap().split(',').count(), known.unknown.len()), (5, 1));
    }
}
