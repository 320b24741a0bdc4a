//! `chorus verify`: a tuning file's rules, each measured live with the rule on and off.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use analysis::dataset::{Dataset, Loader};
use analysis::export::nccl::{Line, read_csv};
use analysis::format::{figures, parse_size, size};
use analysis::launch::{self, Ended, Launch};
use analysis::record::{Machine, Placement};
use analysis::stats::median_of;
use analysis::sweep::preflight;
use analysis::verify::{Judged, judge};

use crate::Failure;
use crate::gate::stop_flag;

/// No rule survived.
const NONE: u8 = 1;
/// Too noisy to tell.
const NOISY: u8 = 2;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  chorus verify tuner.conf --keep verified.conf

For each rule, pairs of launches at up to three sizes inside its range: the automatic choice and the forced one, in alternating order. A
rule is kept when the upper end of the one-sided 95 % interval of the time ratio is under 0.98 (Holm over the rules).
Exit status: 0 some rules survived, 1 none did, 2 too noisy to tell, 3 refused by the preflight, or unusable input.")]
pub(crate) struct Args {
    /// Tuner file in NCCL's CSV form
    file: PathBuf,
    /// Write the surviving rules here
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Pairs of launches per rule
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..))]
    pairs: u32,
    /// Largest size to measure
    #[arg(long, default_value = "16M", value_parser = parse_size)]
    max_size: u64,
    /// local, or the words before the program with {ranks} in them
    #[arg(long, default_value = "local")]
    launcher: String,
    /// Measure on a noisy machine
    #[arg(long)]
    force: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", args.file.display()));
    let text = std::fs::read_to_string(&args.file).map_err(|error| named(&error))?;
    let rules = read_csv(&text).map_err(|error| named(&error))?;
    if rules.is_empty() {
        return Err(named(&"no rule in this file"));
    }
    if let Some(rule) = rules.iter().find(|rule| rule.n_ranks < 1 || rule.n_nodes > 1) {
        return Err(named(&format!(
            "only rules for a number of ranks on one host can be measured here, not {rule:?}"
        )));
    }
    refuse_noise(args, &rules)?;
    let folder = tempfile_folder()?;
    let stop = stop_flag()?;
    let mut ratios = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        eprintln!("rule {} of {}: {}", index + 1, rules.len(), words(rule));
        ratios.push(measure(args, rule, (&folder, &stop))?);
    }
    let _ = std::fs::remove_dir_all(&folder);
    conclude(args, &rules, &judge(&ratios), out)
}

fn refuse_noise(args: &Args, rules: &[Line]) -> Result<(), Failure> {
    let ranks = rules.iter().map(|rule| rule.n_ranks as u32).max().unwrap_or(1);
    let notes = preflight::check(&Machine::probe(), ranks, 2 * args.max_size * u64::from(ranks));
    let noise: Vec<String> = notes.into_iter().filter(|note| note.is_noise).map(|note| note.text).collect();
    for note in &noise {
        eprintln!("preflight: {note}");
    }
    if noise.is_empty() || args.force {
        return Ok(());
    }
    Err(Failure::Input(format!("preflight: {}; --force measures all the same", noise.join("; "))))
}

fn tempfile_folder() -> Result<PathBuf, Failure> {
    let folder = std::env::temp_dir().join(format!("chorus-verify-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::Input(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

fn words(rule: &Line) -> String {
    let end = if rule.max_bytes == u64::MAX { "no end".into() } else { size(rule.max_bytes) };
    format!(
        "{} {} ranks {}/{}/{} from {} to {end}",
        rule.collective,
        rule.n_ranks,
        rule.algorithm,
        rule.protocol,
        rule.channels,
        size(rule.min_bytes)
    )
}

/// Powers of two inside the range: first, middle, last.
fn sizes(rule: &Line, max_size: u64) -> Vec<u64> {
    let inside: Vec<u64> = (2..40)
        .map(|power| 1u64 << power)
        .filter(|bytes| (rule.min_bytes..=rule.max_bytes.min(max_size)).contains(bytes))
        .collect();
    let Some(last) = inside.len().checked_sub(1) else { return vec![rule.min_bytes.max(4)] };
    let mut chosen = vec![inside[0], inside[last / 2], inside[last]];
    chosen.dedup();
    chosen
}

/// Time ratios on over off, one per pair: the geometric mean over the sizes.
fn measure(args: &Args, rule: &Line, (folder, stop): (&Path, &AtomicBool)) -> Result<Vec<f64>, Failure> {
    let mut ratios = Vec::new();
    for pair in 0..args.pairs {
        let mut logs = Vec::new();
        for bytes in sizes(rule, args.max_size) {
            let order = if pair % 2 == 0 { [false, true] } else { [true, false] };
            let mut times = BTreeMap::new();
            for on in order {
                times.insert(on, time(args, rule, (bytes, on), (folder, stop))?);
            }
            logs.push((times[&true] / times[&false]).ln());
        }
        ratios.push((logs.iter().sum::<f64>() / logs.len() as f64).exp());
    }
    Ok(ratios)
}

/// One launch; the median of its cycles, out of place.
fn time(
    args: &Args,
    rule: &Line,
    (bytes, on): (u64, bool),
    (folder, stop): (&Path, &AtomicBool),
) -> Result<f64, Failure> {
    let here = std::env::current_exe().map_err(|error| Failure::Internal(error.to_string()))?;
    let name = analysis::import::collective_name(&rule.collective).unwrap_or("all_reduce");
    let ranks = rule.n_ranks.to_string();
    let mut command: Vec<String> = Vec::new();
    let local = args.launcher == "local";
    if !local {
        command.extend(args.launcher.split_whitespace().map(|word| word.replace("{ranks}", &ranks)));
    }
    command.push(here.with_file_name(format!("{name}_perf")).display().to_string());
    if local {
        command.extend(["-g", &ranks, "--launch", "local"].map(str::to_owned));
    }
    let csv = folder.join("rows.csv");
    let _ = std::fs::remove_file(&csv);
    let text = bytes.to_string();
    command.extend(["-b", &text, "-e", &text, "-f", "2", "-N", "5", "-c", "1", "--csv"].map(str::to_owned));
    command.push(csv.display().to_string());
    if on {
        let algorithm = rule.algorithm.replace('_', "");
        command.extend(
            ["--algo", &algorithm, "--proto", &rule.protocol, "--channels", &rule.channels.to_string()]
                .map(str::to_owned),
        );
    }
    let launch = Launch {
        command,
        environment: Vec::new(),
        run_id: "verify".into(),
        repeat: 0,
        log: folder.join("launch.log"),
    };
    match launch::run(&launch, stop).map_err(|error| Failure::Input(error.to_string()))? {
        Ended::Status(0) => {}
        other => {
            return Err(Failure::Input(format!(
                "{}: {other:?}\n{}",
                words(rule),
                launch::tail(&launch.log, 4)
            )));
        }
    }
    let mut loader = Loader::default();
    loader.add_file(&csv).map_err(|error| Failure::Input(error.to_string()))?;
    let data: Dataset = loader.finish();
    let groups = data.groups.iter().filter(|group| group.key.scenario.placement == Placement::OutOfPlace);
    let times: Vec<f64> =
        groups.flat_map(|group| group.samples.iter().map(|sample| sample.time_us)).collect();
    if times.is_empty() {
        return Err(Failure::Input(format!("{}: no row at {}", words(rule), size(bytes))));
    }
    Ok(median_of(times))
}

fn conclude(args: &Args, rules: &[Line], judged: &[Judged], out: &mut dyn Write) -> Result<u8, Failure> {
    let mut kept = String::new();
    for (rule, judged) in rules.iter().zip(judged) {
        let word = match (judged.keep, judged.is_open()) {
            (true, _) => "kept",
            (false, true) => "not shown to help",
            (false, false) => "does not help",
        };
        writeln!(
            out,
            "{}: time ratio {}, upper end {}: {word}",
            words(rule),
            figures(judged.ratio, 4),
            figures(judged.upper, 4)
        )?;
        if judged.keep {
            kept.push_str(&format!(
                "{},{},{},{},{},{},{},{},-1,-1\n",
                rule.collective,
                rule.min_bytes,
                rule.max_bytes,
                rule.algorithm,
                rule.protocol,
                rule.channels,
                rule.n_nodes,
                rule.n_ranks
            ));
        }
    }
    if let Some(path) = &args.keep {
        std::fs::write(path, &kept)
            .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    }
    let any = judged.iter().any(|judged| judged.keep);
    let noisy = judged.iter().any(Judged::is_open);
    Ok(if any {
        0
    } else if noisy {
        NOISY
    } else {
        NONE
    })
}
