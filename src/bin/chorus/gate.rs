//! `chorus gate`: fails on a real regression and on nothing else.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use analysis::compare::rules::Threshold;
use analysis::compare::{self, Comparison, Rules, output, selftest};
use analysis::dataset::Dataset;
use analysis::launch::{self, Ended, Launch};
use analysis::record::manifest::{self, Manifest, RunStatus};

use crate::Failure;
use crate::compare::{load, read_rules, refuse_other_machines};

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus gate --run old/all_reduce_perf new/all_reduce_perf -- -g 4 -b 8 -e 16M
  chorus gate --run old/all_reduce_perf new/all_reduce_perf --launcher 'mpirun -np 4' -- -b 8 -e 16M
  chorus gate --baseline base/ --current now/ --junit gate.xml --annotations
  chorus gate --self-test session1/ session2/ session3/

Exit status: 7 wrong data in the current run; else 3 unusable input; else 1 a band regressed or a threshold is missed; else 2 over
10 % of the bands (or a required one) are inconclusive or missing; else 0. A first run without a baseline records one and says so.")]
pub(crate) struct Args {
    /// Recording to compare with; made from the current one when absent
    #[arg(long, requires = "current")]
    baseline: Option<PathBuf>,
    /// Recording to judge
    #[arg(long, requires = "baseline")]
    current: Option<PathBuf>,
    /// Alternate launches of two programs on this machine and compare them
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "baseline")]
    run: Option<Vec<PathBuf>>,
    /// Error rates of the gate itself on recordings of one build, one folder per session
    #[arg(long, num_args = 1.., value_name = "DIR", conflicts_with_all = ["baseline", "run"])]
    self_test: Option<Vec<PathBuf>>,
    /// Launches a side, with --run and --self-test
    #[arg(long, default_value_t = 10)]
    launches: usize,
    /// Cycles per launch, with --run
    #[arg(long, default_value_t = 2)]
    cycles: usize,
    /// Words before the program, with --run: 'mpirun -np 4'
    #[arg(long, default_value = "")]
    launcher: String,
    /// Folder for the recordings of --run
    #[arg(long, default_value = "gate")]
    out: PathBuf,
    /// Random splits of --self-test
    #[arg(long, default_value_t = 500)]
    splits: usize,
    /// Compare recordings of different machines
    #[arg(long)]
    force: bool,
    /// TOML file: effects, required bands, quarantine, thresholds
    #[arg(long)]
    rules: Option<PathBuf>,
    /// TOML file with [[threshold]] tables only
    #[arg(long)]
    thresholds: Option<PathBuf>,
    /// File of band names that do not count, one a line, * for anything
    #[arg(long)]
    quarantine: Option<PathBuf>,
    /// Smallest busbw in GB/s that every size must reach
    #[arg(long)]
    min_busbw: Option<f64>,
    /// Slow-down of a bandwidth band that matters
    #[arg(long, value_parser = analysis::format::parse_fraction)]
    bandwidth_effect: Option<f64>,
    /// Slow-down of a latency band that matters
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
    /// Write JSON for github-action-benchmark
    #[arg(long)]
    benchmark_json: Option<PathBuf>,
    /// Append a row for Otava
    #[arg(long)]
    otava_csv: Option<PathBuf>,
    /// Print GitHub annotations
    #[arg(long)]
    annotations: bool,
    /// Arguments of the programs, with --run
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let rules = all_rules(args)?;
    if let Some(sessions) = &args.self_test {
        return self_test(args, sessions, &rules, out);
    }
    let (baseline, current) = match (&args.run, &args.baseline, &args.current) {
        (Some(programs), ..) => record(args, programs)?,
        (None, Some(baseline), Some(current)) => (baseline.clone(), current.clone()),
        _ => {
            return Err(Failure::Usage(
                "give --baseline and --current, or --run OLD NEW, or --self-test".into(),
            ));
        }
    };
    if args.accept || !baseline.exists() {
        return adopt(&baseline, &current, &rules, out);
    }
    // Wrong data in the current run outweighs everything, an unusable baseline included.
    let now = load(&current)?;
    let before = match load(&baseline) {
        Ok(before) => before,
        Err(_) if now.wrong_rows > 0 => Dataset::default(),
        Err(failure) => return Err(failure),
    };
    if now.wrong_rows == 0 {
        refuse_other_machines(&before, &now, args.force)?;
    }
    let comparison = compare::compare(&before, &now, &rules);
    write!(out, "{}", output::text(&comparison))?;
    if args.annotations {
        write!(out, "{}", output::annotations(&comparison))?;
    }
    write_files(args, &comparison, &now)?;
    Ok(comparison.status())
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
        rules.threshold.push(Threshold { min_busbw: Some(floor), ..Threshold::default() });
    }
    rules.bandwidth_effect = args.bandwidth_effect.unwrap_or(rules.bandwidth_effect);
    rules.latency_effect = args.latency_effect.unwrap_or(rules.latency_effect);
    Ok(rules)
}

/// Copies the current recording to where the baseline belongs. Wrong data never becomes a baseline.
fn adopt(baseline: &Path, current: &Path, rules: &Rules, out: &mut dyn Write) -> Result<u8, Failure> {
    let data = load(current)?;
    if data.wrong_rows > 0 {
        writeln!(out, "WRONG DATA in {} rows of the current run: not taken as baseline", data.wrong_rows)?;
        return Ok(compare::STATUS_WRONG);
    }
    let named = |error: std::io::Error| Failure::Input(format!("{}: {error}", baseline.display()));
    let (files, _) = analysis::dataset::record_files(current).map_err(named)?;
    let is_new = !baseline.exists();
    fs::create_dir_all(baseline).map_err(named)?;
    for stale in analysis::dataset::record_files(baseline).map(|found| found.0).unwrap_or_default() {
        fs::remove_file(stale).map_err(named)?;
    }
    let manifests = files.first().map(|file| Manifest::path_beside(file)).filter(|path| path.exists());
    for file in files.iter().chain(&manifests) {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, baseline.join(name)).map_err(named)?;
    }
    let what = if is_new { "there was no baseline: recorded one" } else { "accepted as the new baseline" };
    writeln!(out, "{what} in {} ({} samples)", baseline.display(), data.n_samples())?;
    let missed = rules.missed_floors(&data);
    for line in &missed {
        writeln!(out, "threshold: {line}")?;
    }
    Ok(if missed.is_empty() { 0 } else { compare::STATUS_REGRESSED })
}

fn write_files(args: &Args, comparison: &Comparison, current: &Dataset) -> Result<(), Failure> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => {
            fs::write(path, text()).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
        }
        None => Ok(()),
    };
    write(&args.junit, &|| output::junit(comparison))?;
    write(&args.benchmark_json, &|| output::benchmark_json(comparison))?;
    if let Some(path) = &args.markdown {
        append(path, &output::markdown(comparison))?;
    }
    if let Some(path) = &args.otava_csv {
        let started =
            current.manifests().flat_map(|manifest| &manifest.runs).map(|run| run.started.clone()).max();
        let (header, row) = output::otava_csv(comparison, &started.unwrap_or_else(manifest::now));
        let old = fs::read_to_string(path).unwrap_or_default();
        match old.lines().next() {
            None => append(path, &format!("{header}\n{row}\n"))?,
            Some(first) if first == header => append(path, &format!("{row}\n"))?,
            Some(_) => {
                return Err(Failure::Input(format!(
                    "{}: its columns are other bands; start a new file",
                    path.display()
                )));
            }
        }
    }
    Ok(())
}

fn append(path: &Path, text: &str) -> Result<(), Failure> {
    let named = |error: std::io::Error| Failure::Input(format!("{}: {error}", path.display()));
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path).map_err(named)?;
    file.write_all(text.as_bytes()).map_err(named)
}

/// Alternates launches of both programs; which one goes first alternates too.
fn record(args: &Args, programs: &[PathBuf]) -> Result<(PathBuf, PathBuf), Failure> {
    let [old, new] = programs else { return Err(Failure::Usage("--run takes two programs".into())) };
    let folder = args.out.join(format!("gate-{}", manifest::new_run_id()));
    let sides = [(old, folder.join("baseline")), (new, folder.join("current"))];
    let stop = stop_flag()?;
    let mut manifests = Vec::new();
    for (program, side) in &sides {
        fs::create_dir_all(side).map_err(|error| Failure::Input(format!("{}: {error}", side.display())))?;
        let mut manifest = Manifest::new(vec![program.display().to_string()]);
        manifest.launcher = Some(args.launcher.clone());
        manifests.push(manifest);
    }
    for repeat in 0..args.launches {
        let order = if repeat % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let (program, side) = &sides[which];
            eprintln!("launch {} of {}: {}", repeat + 1, args.launches, program.display());
            one_launch(args, (program, side), repeat, (&mut manifests[which], &stop))?;
        }
    }
    Ok((sides[0].1.clone(), sides[1].1.clone()))
}

fn one_launch(
    args: &Args,
    (program, side): (&Path, &Path),
    repeat: usize,
    (manifest, stop): (&mut Manifest, &AtomicBool),
) -> Result<(), Failure> {
    let mut command: Vec<String> = args.launcher.split_whitespace().map(str::to_owned).collect();
    command.push(program.display().to_string());
    command.extend(args.arguments.iter().cloned());
    command.extend(["-N".into(), args.cycles.to_string(), "--csv".into()]);
    command.push(side.join("raw_measurements.csv").display().to_string());
    let run_id = manifest::new_run_id();
    let log = side.join("logs").join(format!("{run_id}.log"));
    let launch =
        Launch { command, environment: Vec::new(), run_id: run_id.clone(), repeat: repeat as u32, log };
    let path = side.join(manifest::FILE_NAME);
    let named = |error: std::io::Error| Failure::Input(format!("{}: {error}", side.display()));
    manifest.begin(&run_id).command_line = launch.command.clone();
    manifest.save(&path).map_err(named)?;
    let ended = launch::run(&launch, stop).map_err(named)?;
    let status = match ended {
        Ended::Status(0 | launch::WRONG_DATA) => RunStatus::Complete,
        Ended::Stopped => RunStatus::Interrupted,
        Ended::Status(_) | Ended::Signal => RunStatus::Failed,
    };
    manifest.finish(&run_id, status);
    manifest.save(&path).map_err(named)?;
    match status {
        RunStatus::Complete => Ok(()),
        _ => Err(Failure::Input(format!(
            "{} ended with {ended:?}; its log {} ends:\n{}",
            program.display(),
            launch.log.display(),
            launch::tail(&launch.log, 5)
        ))),
    }
}

/// Set by Ctrl-C and SIGTERM; the launch under way is then ended and its rows stay unused.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| Failure::Internal(error.to_string()))?;
    }
    stop.store(false, Ordering::Relaxed);
    Ok(stop)
}

fn self_test(args: &Args, sessions: &[PathBuf], rules: &Rules, out: &mut dyn Write) -> Result<u8, Failure> {
    let data: Vec<Dataset> = sessions.iter().map(|path| load(path)).collect::<Result<_, _>>()?;
    let plan = selftest::Plan { splits: args.splits, launches: args.launches, slowdown: 1.10, seed: 1 };
    let mut any = false;
    for (path, session) in sessions.iter().zip(&data) {
        let title = format!("within {}", path.display());
        any |= print_rates(out, &title, selftest::within(session, plan, rules))?;
    }
    for (i, first) in data.iter().enumerate() {
        for (j, second) in data.iter().enumerate().filter(|(j, _)| *j != i) {
            let title = format!("baseline {}, current {}", sessions[i].display(), sessions[j].display());
            any |= print_rates(out, &title, selftest::across(first, second, plan, rules))?;
        }
    }
    if any {
        return Ok(0);
    }
    let need =
        format!("{} launches in one recording, or {} in each of two", 2 * args.launches, args.launches);
    Err(Failure::Input(format!("too few launches for two disjoint sides: it takes {need}")))
}

fn print_rates(out: &mut dyn Write, title: &str, rates: Option<selftest::Rates>) -> Result<bool, Failure> {
    let Some(rates) = rates else {
        writeln!(out, "{title}: too few launches")?;
        return Ok(false);
    };
    writeln!(out, "{title}:")?;
    let lines = [
        ("false alarms, nothing changed (gate runs)", rates.false_alarms),
        ("status 0 with everything 10 % slower (gate runs)", rates.runs_passed),
        ("status 1 with everything 10 % slower (gate runs)", rates.runs_failed),
        ("called pass although 10 % slower (bands)", rates.missed),
        ("called regressed when 10 % slower (bands)", rates.found),
        ("the same, launch spread up to 3 % (bands)", rates.found_when_quiet),
        ("left open when 10 % slower (bands)", rates.open),
    ];
    for (name, rate) in lines {
        writeln!(out, "  {name:<52} {}", rate.text())?;
    }
    Ok(true)
}
