//! `--self-test`: how often the gate itself errs, on recordings of one build.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use analysis::compare::selftest::{self, Plan, Rates};
use analysis::compare::{Rules, drift};
use analysis::dataset::{self, Dataset};
use analysis::format::{count, percent};

use super::Args;
use crate::Failure;
use crate::compare::load;

/// What is made slower, in percent.
const SLOWER: f64 = 10.0;

/// Runs the self-test.
pub(super) fn self_test(
    args: &Args,
    sessions: &[PathBuf],
    rules: &Rules,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let data: Vec<Dataset> = sessions.iter().map(|path| load(path)).collect::<Result<_, _>>()?;
    let launches = usize::from(args.launches);
    let plan = Plan { splits: args.splits, launches, slowdown: 1.0 + SLOWER / 100.0, seed: 1 };
    let mut all: Vec<(String, Rates)> = Vec::new();
    let mut total: Option<Rates> = None;
    for (path, session) in sessions.iter().zip(&data) {
        note(
            &mut all,
            format!("within {}", path.display()),
            selftest::within(session, plan, rules),
            &mut total,
        );
    }
    if data.len() > 1 {
        all.extend(total.take().map(|total| ("same session, all together".into(), total)));
        for (i, first) in data.iter().enumerate() {
            for (j, second) in data.iter().enumerate().filter(|(j, _)| *j != i) {
                let gap = drift::minutes_between(first, second)
                    .map_or(String::new(), |minutes| format!(", {minutes:.0} minutes apart"));
                let title =
                    format!("baseline {}, current {}{gap}", sessions[i].display(), sessions[j].display());
                note(&mut all, title, selftest::across(first, second, plan, rules), &mut total);
            }
        }
        all.extend(total.take().map(|total| ("across sessions, all together".into(), total)));
        let pooled = dataset::load(sessions).map_err(|error| Failure::Input(error.to_string()))?;
        let title = format!("{} pooled", count(sessions.len(), "session"));
        note(&mut all, title, selftest::within(&pooled, plan, rules), &mut total);
    }
    if all.is_empty() {
        let need =
            format!("{} in one recording, or {launches} in each of two", count(2 * launches, "launch"));
        return Err(Failure::Input(format!("too few launches for two disjoint sides: it takes {need}")));
    }
    for (title, rates) in &all {
        write!(out, "{}", text(title, rates))?;
    }
    if let Some(path) = &args.markdown {
        let page = markdown(&all, plan);
        fs::write(path, page).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    }
    Ok(0)
}

fn note(all: &mut Vec<(String, Rates)>, title: String, rates: Option<Rates>, total: &mut Option<Rates>) {
    match rates {
        Some(rates) => {
            *total = Some(total.map_or(rates, |total| total.and(rates)));
            all.push((title, rates));
        }
        None => eprintln!("warning: {title}: too few launches, left out"),
    }
}

/// Bands that were looked at, and how far they moved between sessions.
fn extent(rates: &Rates) -> String {
    let mut out = count(rates.bands, "band");
    if rates.largest_shift > 0.0 {
        out.push_str(&format!(", moved by up to {} between sessions", percent(rates.largest_shift)));
    }
    out
}

fn text(title: &str, rates: &Rates) -> String {
    let mut out = format!("{title}: {}", extent(rates));
    if rates.bands_left_out > 0 {
        out.push_str(&format!(", {} with too few launches left out", rates.bands_left_out));
    }
    out.push('\n');
    for (name, rate) in rates.lines(SLOWER) {
        out.push_str(&format!("  {name:<64} {:<24} [{}]\n", rate.share(), rate.interval()));
    }
    out
}

/// One table per kind of split, for a record.
fn markdown(all: &[(String, Rates)], plan: Plan) -> String {
    let mut out = format!(
        "{} random splits a kind, {} launches a side, seed {}; intervals are Clopper-Pearson, 95 %.\n",
        plan.splits, plan.launches, plan.seed
    );
    for (title, rates) in all {
        out.push_str(&format!("\n### {title} ({})\n\n", extent(rates)));
        out.push_str("| what | how often | interval |\n| --- | ---: | ---: |\n");
        for (name, rate) in rates.lines(SLOWER) {
            out.push_str(&format!("| {name} | {} | {} |\n", rate.share(), rate.interval()));
        }
    }
    out
}
