//! `chorus history`: when did it change, over many recordings.

use std::io::Write;
use std::path::{Path, PathBuf};

use analysis::dataset::{Dataset, record_files};
use analysis::format::{count, parse_fraction};
use analysis::history::{Search, chart, series, table};
use analysis::report::terminal;

use crate::Failure;
use crate::compare::load;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus history nightly/2026-* --plots trend/
  chorus history nightly/                           every recording inside, by name

Recordings are taken in the order given. A band's value is the median over launches of its geometric mean; changes are e-divisive splits in a
sliding window, confirmed by a t-test. A change needs three recordings on either side before it can be told. Status 0; 3 when fewer than two
recordings can be used.")]
pub(crate) struct Args {
    /// Record folders or files, oldest first; a folder of recordings stands for those inside
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Recordings looked at together
    #[arg(long, default_value_t = 30)]
    window: usize,
    /// Error rate of the test that confirms a change
    #[arg(long, default_value_t = 0.001)]
    alpha: f64,
    /// Smallest change that is reported
    #[arg(long, default_value = "5%", value_parser = parse_fraction)]
    smallest: f64,
    /// Folder for one SVG per band
    #[arg(long)]
    plots: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let (recordings, names) = usable(&expand(&args.records));
    if recordings.len() < 2 {
        return Err(Failure::Input(format!(
            "{} usable: a history takes two or more",
            count(recordings.len(), "recording")
        )));
    }
    warn_of_machines(&recordings);
    let lines =
        series(&recordings, Search { window: args.window, alpha: args.alpha, smallest: args.smallest });
    let changes = table(&lines, &names);
    if changes.rows.is_empty() {
        let (bands, of) = (count(lines.len(), "band"), count(names.len(), "recording"));
        writeln!(out, "no change in {bands} over {of}")?;
    } else {
        let mut text = String::new();
        terminal::table(&mut text, &changes);
        write!(out, "{text}")?;
    }
    if let Some(folder) = &args.plots {
        let named = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(|error| named(&error))?;
        for line in &lines {
            let svg = chart(line).to_svg().map_err(|error| named(&error))?;
            std::fs::write(folder.join(format!("{}.svg", line.key.name().replace('/', "-"))), svg)
                .map_err(|error| named(&error))?;
        }
    }
    Ok(0)
}

/// A folder without records of its own stands for the recordings inside, by name.
fn expand(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for path in paths {
        let inside = if path.is_dir() && record_files(path).is_err() { folders(path) } else { Vec::new() };
        if inside.is_empty() { all.push(path.clone()) } else { all.extend(inside) }
    }
    all
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut inside: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && record_files(path).is_ok())
        .collect();
    inside.sort();
    inside
}

/// One recording that cannot be read costs its point, not the history.
fn usable(paths: &[PathBuf]) -> (Vec<Dataset>, Vec<String>) {
    let (mut recordings, mut names) = (Vec::new(), Vec::new());
    for path in paths {
        match load(path) {
            Ok(data) => {
                recordings.push(data);
                names.push(path.display().to_string());
            }
            Err(Failure::Input(what)) => eprintln!("warning: {what}; left out"),
            Err(_) => eprintln!("warning: {}: left out", path.display()),
        }
    }
    (recordings, names)
}

fn warn_of_machines(recordings: &[Dataset]) {
    let machines = || recordings.iter().flat_map(Dataset::manifests).map(|manifest| &manifest.machine);
    let Some(first) = machines().next() else { return };
    if let Some(other) = machines().find(|other| !first.differences(other).is_empty()) {
        let list = first.differences(other).join("; ");
        eprintln!("warning: not all recordings are from one machine: {list}");
    }
}
