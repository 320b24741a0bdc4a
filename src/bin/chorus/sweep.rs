//! `chorus sweep`: an experiment matrix becomes a record, however often it is interrupted.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use analysis::dataset;
use analysis::format::{count, micros, parse_size, percent, size};
use analysis::groups::describe;
use analysis::sweep::{Event, Matrix, Outcome, Request, Sweep};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::gate::stop_flag;

/// Status of a machine that --strict finds too noisy.
const TOO_NOISY: u8 = 4;
/// Status of a launch that needs what is not there.
const UNAVAILABLE: u8 = 5;
/// Status of wrong elements and of a launch that ran something else.
const WRONG: u8 = 7;
/// Status of a sweep that was stopped.
const STOPPED: u8 = 130;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus sweep scripts/matrix/tree-study.toml --out results/study
  chorus sweep scripts/matrix/tree-study.toml --out results/study --resume
  chorus sweep scripts/matrix/tree-study.toml --dry-run

A launch that did not come to its end leaves its rows; they count for nothing and --resume runs it again.

Exit status: 7 wrong elements, or something else ran than was asked (rows are kept); 3 unusable matrix, folder or program, or a launch
failed; 4 too noisy for --strict; 5 a launch needs what is not there (a back end, MPI); 130 stopped, --resume goes on; 0 complete.")]
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
    let text = std::fs::read_to_string(&args.matrix).map_err(|error| named(&error))?;
    let mut matrix = Matrix::parse(&text).map_err(|error| named(&error.replace('\n', " ").trim_end()))?;
    if let Some(cut) = &args.max_size {
        let limit = parse_size(cut).map_err(|error| Failure::Usage(format!("--max-size {error}")))?;
        if limit < parse_size(&matrix.sizes.to).map_err(|error| named(&error))? {
            matrix.sizes.to.clone_from(cut);
        }
        if matrix.byte_sizes().map_err(|error| named(&error))?.is_empty() {
            return Err(Failure::Usage(format!(
                "--max-size {cut} is below the first size, {}",
                matrix.sizes.from
            )));
        }
    }
    let programs = programs(&matrix)?;
    if args.dry_run {
        return dry_run(&matrix, &programs, out);
    }
    let folder = |error: std::io::Error| Failure::Input(error.to_string());
    let request = Request {
        text: &text,
        matrix,
        cut: args.max_size.as_deref(),
        folder: &args.out,
        programs,
        resume: args.resume,
    };
    let mut sweep = Sweep::open(request).map_err(folder)?;
    let notes = sweep.preflight();
    for note in &notes {
        eprintln!("preflight: {}{}", note.text, if note.is_noise { " (noise)" } else { "" });
    }
    if args.strict && notes.iter().any(|note| note.is_noise) {
        eprintln!("chorus sweep: the machine is too noisy for --strict; nothing was run");
        return Ok(TOO_NOISY);
    }
    let stop = stop_flag()?;
    let outcome = with_progress(&mut sweep, &stop).map_err(folder)?;
    drop(sweep);
    let more = format!("rows are kept in {}; --resume goes on", args.out.display());
    finish("sweep", outcome, &more, || summary(&args.out, out))
}

/// Tells how launches ended: the status, and `done` when they are complete.
pub(crate) fn finish(
    verb: &str,
    outcome: Outcome,
    more: &str,
    done: impl FnOnce() -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let (status, text) = match outcome {
        Outcome::Complete => return done().map(|()| 0),
        Outcome::Stopped => (STOPPED, "stopped".to_owned()),
        Outcome::Wrong(reason) => (WRONG, format!("WRONG: {reason}")),
        Outcome::Unavailable(reason) => (UNAVAILABLE, reason),
        Outcome::Failed(reason) => return Err(Failure::Input(format!("{reason}; {more}"))),
    };
    eprintln!("chorus {verb}: {text}; {more}");
    Ok(status)
}

/// Folder of the benchmark programs: the matrix's, or where this tool lies; relative where that leads there too.
pub(crate) fn programs(matrix: &Matrix) -> Result<String, Failure> {
    if !matrix.programs.is_empty() {
        return Ok(matrix.programs.clone());
    }
    let internal = |error: std::io::Error| Failure::Internal(error.to_string());
    let tool = std::env::current_exe().map_err(internal)?;
    let folder = tool.parent().unwrap_or(std::path::Path::new("."));
    let here = std::env::current_dir().map_err(internal)?;
    let shown = match folder.strip_prefix(&here) {
        Ok(inside) if inside.as_os_str().is_empty() => std::path::Path::new("."),
        Ok(inside) => inside,
        Err(_) => folder,
    };
    Ok(shown.display().to_string())
}

fn dry_run(matrix: &Matrix, programs: &str, out: &mut dyn Write) -> Result<u8, Failure> {
    let launches = matrix.launches();
    let environment: Vec<String> =
        matrix.launch_environment().into_iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let environment = environment.concat();
    for (repeat, setup) in &launches {
        let mut command = matrix.command(setup, programs);
        command.extend(matrix.size_arguments());
        writeln!(out, "repeat {repeat}: {environment}{}", command.join(" "))?;
    }
    let sizes = matrix.byte_sizes().map_err(Failure::Input)?.len();
    let cycles = launches.len() * sizes * matrix.cycles as usize;
    writeln!(
        out,
        "{}, {}, {cycles} cycles, {} rows",
        count(launches.len(), "launch"),
        count(sizes, "size"),
        matrix.placements.len() * cycles
    )?;
    Ok(0)
}

/// A bar with the time left on a terminal, one line per launch elsewhere.
fn with_progress(sweep: &mut Sweep, stop: &std::sync::atomic::AtomicBool) -> std::io::Result<Outcome> {
    let pending = sweep.pending().len();
    let on_terminal = std::io::stderr().is_terminal();
    let bar = if on_terminal { ProgressBar::new(pending as u64) } else { ProgressBar::hidden() };
    let style = |left: &str| {
        let template = format!("{{bar:20}} {{pos}}/{{len}} launches, {{elapsed}} gone{left}: {{wide_msg}}");
        ProgressStyle::with_template(&template).expect("invariant: the template is a constant")
    };
    bar.set_style(style(""));
    if on_terminal {
        // Rare, so that drawing stays far below what a measurement could feel.
        bar.enable_steady_tick(std::time::Duration::from_secs(1));
    }
    let mut begun = Instant::now();
    let mut is_open = false;
    let outcome = sweep.run(stop, |event| match event {
        Event::Started(index, of, label) => {
            begun = Instant::now();
            bar.set_message(label.to_owned());
            if !on_terminal {
                eprint!("launch {} of {of}: {label}", index + 1);
                is_open = true;
            }
        }
        Event::Done(rows, fewer) => {
            bar.inc(1);
            bar.set_style(style(", {eta} left"));
            let fewer = fewer.map_or(String::new(), |n| format!(" at only {}", count(n, "size")));
            if !on_terminal {
                eprintln!(": {rows} rows{fewer} in {:.1} s", begun.elapsed().as_secs_f64());
                is_open = false;
            } else if !fewer.is_empty() {
                bar.println(format!("{}: {rows} rows{fewer}", bar.message()));
            }
        }
        Event::Note(text) if on_terminal => bar.println(text),
        Event::Note(text) => eprintln!("{text}"),
    });
    bar.finish_and_clear();
    if is_open {
        eprintln!();
    }
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
