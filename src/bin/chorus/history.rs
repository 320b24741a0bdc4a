//! `chorus history`: when did it change, over many recordings.

use std::io::Write;
use std::path::PathBuf;

use analysis::format::{count, parse_fraction};
use analysis::history::{Search, chart, series, table};
use analysis::report::terminal;

use crate::Failure;
use crate::compare::load;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  chorus history nightly/2026-* --plots trend/

Recordings are taken in the order given. A band's value is the median over launches of its geometric mean; changes are e-divisive splits in a
sliding window, confirmed by a t-test.")]
pub(crate) struct Args {
    /// Record folders or files, oldest first
    #[arg(required = true, num_args = 2..)]
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
    let recordings = args.records.iter().map(|path| load(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = args.records.iter().map(|path| path.display().to_string()).collect();
    let lines =
        series(&recordings, Search { window: args.window, alpha: args.alpha, smallest: args.smallest });
    let changes = table(&lines, &names);
    if changes.rows.is_empty() {
        writeln!(
            out,
            "no change in {} over {}",
            count(lines.len(), "band"),
            count(names.len(), "recording")
        )?;
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
