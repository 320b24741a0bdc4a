//! `chorus gate`: fails on a real regression and on nothing else.

mod adopt;
mod outputs;
mod rates;
mod record;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use analysis::compare::rules::Threshold;
use analysis::compare::{self, Comparison, Rules, output};
use analysis::dataset::Dataset;

use crate::Failure;
use crate::compare::{load, read_rules, refuse_other_machines};

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus gate --run old/all_reduce_perf new/all_reduce_perf -- -g 4 -b 8 -e 16M
  chorus gate --run old/all_reduce_perf new/all_reduce_perf --launcher 'mpirun -np 4' -- -b 8 -e 16M
  chorus gate --baseline base/ --current now/ --junit gate.xml --annotations
  chorus gate --self-test session1/ session2/ session3/

--run is the form for CI: launches of both programs alternate, so whatever the machine does meets both. Two recordings made at different
times also differ by what the machine did between them, and no number of launches shows that. Where the sides lie more than 15 minutes apart
a change is called one only beyond the effect and the drift of the rules (25 % unless a rule file says otherwise; --self-test shows how far
bands of an unchanged build moved between your sessions), and a pass leaves the same room: most bands then stay inconclusive.

Exit status: 7 wrong data in the current run; else 3 unusable input; else 1 a band regressed or a threshold is missed; else 2 over
10 % of the bands (or a required one) are inconclusive or missing; else 0. A first run without a baseline records one and says so.
130 when --run was interrupted: what was recorded stays and can be judged with --baseline and --current.")]
pub(crate) struct Args {
    /// Recording to compare with; made from the current one when absent
    #[arg(long, requires = "current")]
    baseline: Option<PathBuf>,
    /// Recording to judge
    #[arg(long, requires = "baseline")]
    current: Option<PathBuf>,
    /// Alternate launches of two programs (or folders that hold them) on this machine and compare them
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["baseline", "accept"])]
    run: Option<Vec<PathBuf>>,
    /// Error rates of the gate itself on recordings of one build, one folder per session
    #[arg(long, num_args = 1.., value_name = "DIR", conflicts_with_all = ["baseline", "run", "accept"])]
    self_test: Option<Vec<PathBuf>>,
    /// Launches a side, with --run and --self-test
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    launches: u16,
    /// Cycles per launch, with --run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    cycles: u16,
    /// Words before the program, with --run: 'mpirun -np 4'
    #[arg(long, default_value = "")]
    launcher: String,
    /// Name of the program where --run is given folders
    #[arg(long, default_value = "all_reduce_perf")]
    program: String,
    /// Seconds that one launch of --run may take
    #[arg(long, default_value_t = 600)]
    launch_limit: u64,
    /// Folder for the recordings of --run
    #[arg(long, default_value = "gate")]
    out: PathBuf,
    /// Random splits of --self-test
    #[arg(long, default_value_t = 500)]
    splits: usize,
    /// Compare recordings of different machines
    #[arg(long)]
    force: bool,
    /// TOML file: effects, drift, required bands, quarantine, thresholds
    #[arg(long)]
    rules: Option<PathBuf>,
    /// TOML file with [[threshold]] tables only
    #[arg(long)]
    thresholds: Option<PathBuf>,
    /// File of band names that do not count, one a line, * for anything
    #[arg(long)]
    quarantine: Option<PathBuf>,
    /// Smallest busbw in GB/s that each configuration must reach at its best size
    #[arg(long)]
    min_busbw: Option<f64>,
    /// Slow-down of a bandwidth band that matters [default: 5%]
    #[arg(long, value_parser = analysis::format::parse_fraction)]
    bandwidth_effect: Option<f64>,
    /// Slow-down of a latency band that matters [default: 15%]
    #[arg(long, value_parser = analysis::format::parse_fraction)]
    latency_effect: Option<f64>,
    /// Make the current recording the baseline, whatever it says
    #[arg(long)]
    accept: bool,
    /// Write a Markdown summary (appended, as step summaries are)
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Write JUnit XML
    #[arg(long)]
    junit: Option<PathBuf>,
    /// Write JSON for github-action-benchmark (tool: customSmallerIsBetter)
    #[arg(long)]
    benchmark_json: Option<PathBuf>,
    /// Append a row for Otava: columns time, commit, and one per band
    #[arg(long)]
    otava_csv: Option<PathBuf>,
    /// Print GitHub annotations
    #[arg(long)]
    annotations: bool,
    /// Arguments of the programs, with --run [default: -b 8 -e 4M -f 8 -n 1000, and -g 2 without a launcher]
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Status of a gate that was interrupted.
const STATUS_INTERRUPTED: u8 = 130;

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let rules = all_rules(args)?;
    if let Some(sessions) = &args.self_test {
        return rates::self_test(args, sessions, &rules, out);
    }
    match (&args.run, &args.baseline, &args.current) {
        (Some(programs), ..) => judge_programs(args, programs, &rules, out),
        (None, Some(baseline), Some(current)) => judge_recordings(args, (baseline, current), &rules, out),
        _ => {
            Err(Failure::Usage("give --baseline and --current, or --run OLD NEW, or --self-test DIR".into()))
        }
    }
}

fn judge_programs(
    args: &Args,
    programs: &[PathBuf],
    rules: &Rules,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let [old, new] = programs else { return Err(Failure::Usage("--run takes two programs".into())) };
    let stop = stop_flag()?;
    let mut recorder = record::Recorder::new(args, [old, new], &stop)?;
    let outcome = recorder.alternate(usize::from(args.launches))?;
    if outcome == record::Outcome::Interrupted {
        return Ok(STATUS_INTERRUPTED);
    }
    if outcome == record::Outcome::WrongData {
        return wrong_data(args, &recorder, rules, out);
    }
    let (before, now) = recorder.load()?;
    let mut comparison = compare::compare(&before, &now, rules);
    if !comparison.sizes.is_empty() {
        eprintln!("single sizes stand out: further launches confirm or dismiss them");
        let mut further = recorder.confirmation()?;
        match further.alternate(usize::from(args.launches).div_ceil(2))? {
            record::Outcome::Interrupted => {
                comparison.sizes.clear();
                show(args, &comparison, &now, out)?;
                return Ok(STATUS_INTERRUPTED);
            }
            record::Outcome::WrongData => return wrong_data(args, &further, rules, out),
            record::Outcome::Done => {
                let (before, now) = further.load()?;
                compare::single::confirm(&mut comparison, &before, &now, rules);
            }
        }
    }
    show(args, &comparison, &now, out)?;
    writeln!(out, "recordings: {}", recorder.folder().display())?;
    Ok(comparison.status())
}

/// The new program has wrong data, which settles it; what else there is to compare is shown.
fn wrong_data(
    args: &Args,
    recorder: &record::Recorder<'_>,
    rules: &Rules,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let (before, now) = recorder.load_any();
    let mut comparison = compare::compare(&before, &now, rules);
    comparison.wrong_rows = comparison.wrong_rows.max(1);
    show(args, &comparison, &now, out)?;
    writeln!(out, "recordings: {}", recorder.folder().display())?;
    Ok(compare::STATUS_WRONG)
}

fn judge_recordings(
    args: &Args,
    (baseline, current): (&Path, &Path),
    rules: &Rules,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    // Wrong data in the current run outweighs everything, an unusable baseline included.
    let now = load(current)?;
    let is_wrong = now.wrong_rows + now.wrong_unfinished_rows > 0;
    let is_first = adopt::is_absent(baseline);
    let before = match if is_first { Ok(Dataset::default()) } else { load(baseline) } {
        Ok(before) => before,
        Err(failure) if !is_wrong && !args.accept => return Err(failure),
        Err(_) => Dataset::default(),
    };
    if !is_first && !is_wrong && !args.accept {
        refuse_other_machines(&before, &now, args.force)?;
    }
    let comparison = compare::compare(&before, &now, rules);
    show(args, &comparison, &now, out)?;
    if is_wrong {
        writeln!(out, "wrong data never become a baseline")?;
        return Ok(compare::STATUS_WRONG);
    }
    if !is_first && !args.accept {
        return Ok(comparison.status());
    }
    adopt::adopt(baseline, current, out)?;
    Ok(if comparison.thresholds.is_empty() || args.accept { 0 } else { compare::STATUS_REGRESSED })
}

/// Text on standard output, and every file that was asked for.
fn show(args: &Args, comparison: &Comparison, now: &Dataset, out: &mut dyn Write) -> Result<(), Failure> {
    write!(out, "{}", output::text(comparison))?;
    if args.annotations {
        write!(out, "{}", output::annotations(comparison))?;
    }
    match outputs::write(args, comparison, now) {
        // The verdict must not be lost to a folder that cannot be written.
        Err(Failure::Input(what)) if comparison.wrong_rows > 0 => {
            eprintln!("warning: {what}");
            Ok(())
        }
        other => other,
    }
}

fn all_rules(args: &Args) -> Result<Rules, Failure> {
    let mut rules = read_rules(args.rules.as_deref())?;
    if let Some(path) = &args.thresholds {
        rules.threshold.extend(read_rules(Some(path))?.threshold);
    }
    if let Some(path) = &args.quarantine {
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        rules.quarantine.extend(lines.map(str::to_owned));
    }
    if let Some(floor) = args.min_busbw {
        rules.threshold.push(Threshold { peak_busbw: Some(floor), ..Threshold::default() });
    }
    rules.bandwidth_effect = args.bandwidth_effect.unwrap_or(rules.bandwidth_effect);
    rules.latency_effect = args.latency_effect.unwrap_or(rules.latency_effect);
    Ok(rules)
}

/// Set by Ctrl-C and SIGTERM; the launch under way is then ended and its rows stay unused.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Failure::Internal(error.to_string()))?;
    }
    Ok(stop)
}
