//! `chorus sweep`: an experiment matrix becomes a record, however often it is interrupted.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use analysis::dataset;
use analysis::format::{count, micros, percent, size};
use analysis::groups::describe;
use analysis::sweep::{Event, Matrix, Outcome, Sweep};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::gate::stop_flag;

/// Status of a machine that --strict finds too noisy.
const TOO_NOISY: u8 = 4;
/// Status of a sweep that was stopped.
const STOPPED: u8 = 130;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus sweep scripts/matrix/tree-study.toml --out results/study
  chorus sweep scripts/matrix/tree-study.toml --out results/study --resume
  chorus sweep scripts/matrix/tree-study.toml --dry-run

Exit status: 7 wrong elements, or something else ran than was asked (rows are kept); 3 unusable matrix, folder or program; 4 too noisy
for --strict; 130 stopped, --resume goes on; 0 complete.")]
pub(crate) struct Args {
    /// Matrix file (TOML)
    matrix: PathBuf,
    /// Folder of the record
    #[arg(long, default_value = "sweep")]
    out: PathBuf,
    /// Go on with a folder that an earlier sweep of this matrix left
    #[arg(long)]
    resume: bool,
    /// Print the commands, run nothing
    #[arg(long)]
    dry_run: bool,
    /// Refuse on a noisy machine
    #[arg(long)]
    strict: bool,
    /// Cut sizes here, whatever the matrix says
    #[arg(long, value_name = "SIZE")]
    max_size: Option<String>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", args.matrix.display()));
    let mut text = std::fs::read_to_string(&args.matrix).map_err(|error| named(&error))?;
    let mut matrix = Matrix::parse(&text).map_err(|error| named(&error))?;
    if let Some(cut) = &args.max_size {
        analysis::format::parse_size(cut).map_err(Failure::Usage)?;
        matrix.sizes.to.clone_from(cut);
        // The cut is part of what the folder is; a resume with another one is another sweep.
        text.push_str(&format!("# sizes cut at {cut}\n"));
    }
    let programs = programs(&matrix)?;
    if args.dry_run {
        return dry_run(&matrix, &programs, out);
    }
    let folder = |error: std::io::Error| Failure::Input(error.to_string());
    let mut sweep = Sweep::open(&text, matrix, &args.out, programs, args.resume).map_err(folder)?;
    let notes = sweep.preflight();
    for note in &notes {
        eprintln!("preflight: {}{}", note.text, if note.is_noise { " (noise)" } else { "" });
    }
    if args.strict && notes.iter().any(|note| note.is_noise) {
        eprintln!("chorus sweep: the machine is too noisy for --strict");
        return Ok(TOO_NOISY);
    }
    let stop = stop_flag()?;
    let outcome = with_progress(&mut sweep, &stop).map_err(folder)?;
    match outcome {
        Outcome::Complete => {
            summary(&args.out, out)?;
            Ok(0)
        }
        Outcome::Stopped => {
            eprintln!("chorus sweep: stopped; --resume goes on");
            Ok(STOPPED)
        }
        Outcome::Wrong(reason) => {
            eprintln!("chorus sweep: WRONG: {reason}; the rows are kept");
            Ok(7)
        }
        Outcome::Failed(reason) => Err(Failure::Input(reason)),
    }
}

/// Folder of the benchmark programs: the matrix's, or where this tool lies.
pub(crate) fn programs(matrix: &Matrix) -> Result<String, Failure> {
    if !matrix.programs.is_empty() {
        return Ok(matrix.programs.clone());
    }
    let here = std::env::current_exe().map_err(|error| Failure::Internal(error.to_string()))?;
    Ok(here.parent().map(|folder| folder.display().to_string()).unwrap_or_default())
}

fn dry_run(matrix: &Matrix, programs: &str, out: &mut dyn Write) -> Result<u8, Failure> {
    let launches = matrix.launches();
    for (repeat, setup) in &launches {
        let mut command = matrix.command(setup, programs);
        command.extend(matrix.size_arguments());
        writeln!(out, "repeat {repeat}: {}", command.join(" "))?;
    }
    let sizes = matrix.byte_sizes().map_err(Failure::Input)?.len();
    let cycles = launches.len() * sizes * matrix.cycles as usize;
    writeln!(
        out,
        "{}, {}, {cycles} cycles, {} rows",
        count(launches.len(), "launch"),
        count(sizes, "size"),
        2 * cycles
    )?;
    Ok(0)
}

/// A bar with the time left on a terminal, one line per launch elsewhere.
fn with_progress(sweep: &mut Sweep, stop: &std::sync::atomic::AtomicBool) -> std::io::Result<Outcome> {
    let pending = sweep.pending().len();
    let on_terminal = std::io::stderr().is_terminal();
    let bar = if on_terminal { ProgressBar::new(pending as u64) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} launches, {eta} left: {msg}");
    bar.set_style(style.expect("invariant: the template is a constant"));
    let mut begun = Instant::now();
    let outcome = sweep.run(stop, |event| match event {
        Event::Started(index, of, label) => {
            begun = Instant::now();
            bar.set_message(label.to_owned());
            if !on_terminal {
                eprint!("launch {} of {of}: {label}", index + 1);
            }
        }
        Event::Done(rows) => {
            bar.inc(1);
            if !on_terminal {
                eprintln!(": {rows} rows in {:.1} s", begun.elapsed().as_secs_f64());
            }
        }
    });
    bar.finish_and_clear();
    outcome
}

/// Groups that vary much, at the end.
fn summary(folder: &std::path::Path, out: &mut dyn Write) -> Result<(), Failure> {
    let data = dataset::load(&[folder.to_owned()]).map_err(|error| Failure::Input(error.to_string()))?;
    for warning in data.warnings() {
        eprintln!("warning: {warning}");
    }
    let stats = describe(&data, 0.05);
    let unstable: Vec<_> = stats.iter().filter(|stats| stats.is_unstable()).collect();
    writeln!(out, "complete: {} in {}", count(data.n_samples(), "row"), count(data.groups.len(), "group"))?;
    if unstable.is_empty() {
        writeln!(out, "no group has a CV above 5 %")?;
        return Ok(());
    }
    writeln!(
        out,
        "{} with a CV above 5 % (chorus retest measures them again):",
        count(unstable.len(), "group")
    )?;
    for stats in unstable {
        let (key, summary) = (&stats.group.key, &stats.summary);
        writeln!(
            out,
            "  {} ranks {} {} {}: CV {}, min {} µs, median {} µs, max {} µs, {} over twice the median",
            key.scenario.n_ranks,
            key.config.label(),
            size(key.bytes),
            key.scenario.placement.name(),
            percent(summary.cv),
            micros(summary.min),
            micros(summary.median),
            micros(summary.max),
            count(stats.far_out, "sample"),
        )?;
    }
    Ok(())
}
