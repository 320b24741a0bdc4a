//! `chorus compare`: two recordings side by side, without a verdict on the exit status.

use std::io::Write;
use std::path::{Path, PathBuf};

use analysis::compare::{self, Rules, output};
use analysis::dataset::{self, Dataset};
use analysis::record::Machine;

use crate::Failure;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  chorus compare results/monday results/tuesday

Status 0 when both could be read, whatever they say (chorus gate judges); 3 unusable input.")]
pub(crate) struct Args {
    /// Record folder or CSV file before the change
    baseline: PathBuf,
    /// Record folder or CSV file after it
    current: PathBuf,
    /// Compare recordings of different machines
    #[arg(long)]
    force: bool,
    /// TOML file with effects, thresholds, quarantine (see chorus gate)
    #[arg(long)]
    rules: Option<PathBuf>,
    /// Markdown instead of plain text
    #[arg(long)]
    markdown: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let rules = read_rules(args.rules.as_deref())?;
    let (baseline, current) = (load(&args.baseline)?, load(&args.current)?);
    refuse_other_machines(&baseline, &current, args.force)?;
    let comparison = compare::compare(&baseline, &current, &rules);
    let text = if args.markdown { output::markdown(&comparison, 0) } else { output::text(&comparison) };
    write!(out, "{text}")?;
    Ok(0)
}

/// Reads a recording; one without a usable row is unusable. Warnings go to standard error.
pub(crate) fn load(path: &Path) -> Result<Dataset, Failure> {
    let data = dataset::load(&[path.to_owned()]).map_err(|error| Failure::Input(error.to_string()))?;
    for warning in data.warnings() {
        eprintln!("warning: {warning}");
    }
    if data.n_samples() == 0 && data.wrong_rows + data.wrong_unfinished_rows == 0 {
        return Err(Failure::Input(format!("{}: no usable row", path.display())));
    }
    Ok(data)
}

/// Reads a rule file, or gives the default rules.
pub(crate) fn read_rules(path: Option<&Path>) -> Result<Rules, Failure> {
    let Some(path) = path else { return Ok(Rules::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    Rules::parse(&text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Numbers of different machines say nothing about a change of the program.
pub(crate) fn refuse_other_machines(a: &Dataset, b: &Dataset, force: bool) -> Result<(), Failure> {
    let known = |data: &Dataset| -> Vec<Machine> {
        data.manifests()
            .map(|manifest| manifest.machine.clone())
            .filter(|machine| *machine != Machine::default())
            .collect()
    };
    let (first, second) = (known(a), known(b));
    if first.is_empty() || second.is_empty() {
        eprintln!(
            "warning: a recording does not say which machine it is from; whether they are alike is unknown"
        );
        return Ok(());
    }
    let pairs = || first.iter().flat_map(|one| second.iter().map(move |other| (one, other)));
    let mut differences: Vec<String> = pairs().flat_map(|(one, other)| one.differences(other)).collect();
    differences.dedup();
    let mut notes: Vec<String> = pairs().flat_map(|(one, other)| one.changes(other)).collect();
    notes.dedup();
    if !notes.is_empty() {
        eprintln!("warning: the machine was set up differently: {}", notes.join("; "));
    }
    if differences.is_empty() {
        return Ok(());
    }
    let list = differences.join("; ");
    if force {
        eprintln!("warning: the machines differ: {list}");
        return Ok(());
    }
    Err(Failure::Input(format!(
        "the recordings come from different machines ({list}); --force compares them all the same"
    )))
}
