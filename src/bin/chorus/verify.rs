//! `chorus verify`: a tuning file's rules, each measured live with the rule on and off.
//!
//! [`subject`] reads the file, [`proof`] sees whether the library follows it, [`measure`] times.

mod measure;
mod proof;
mod subject;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use analysis::format::{figures, parse_size};
use analysis::record::Machine;
use analysis::sweep::preflight;
use analysis::verify::{Judged, judge};

use self::subject::{File, Subject};
use crate::Failure;
use crate::gate::stop_flag;

/// No rule survived.
const NONE: u8 = 1;
/// Too noisy to tell.
const NOISY: u8 = 2;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus verify tuner.conf
  chorus verify rules.txt --launcher 'mpirun -np {ranks}' --keep good.txt

Reads NCCL's tuner CSV, measured on our engine, and Open MPI's text rules, measured on the Open MPI of this machine. First it is seen
that each rule acts: for the engine by what it would run with the file loaded, for Open MPI by the messages it sends with the file loaded
and with the rule's algorithm forced. Then launches at up to three sizes inside the rule's range, in which cycles take turns between the
automatic choice and the rule's. A launch gives one time ratio; a rule is kept when the upper end of its one-sided 95 % interval over the
launches is under 0.98 (Holm over the rules). What survives is written to FILE.verified or --keep.
Exit status: 0 some rules survived, 1 none did, 2 too noisy to tell, 3 refused by the preflight, or unusable input.")]
pub(crate) struct Args {
    /// Tuner file: NCCL's CSV, or Open MPI's counted text
    file: PathBuf,
    /// Write the surviving rules here
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Launches per rule
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..))]
    launches: u32,
    /// Pairs of cycles per launch
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Largest size to measure
    #[arg(long, default_value = "16M", value_parser = parse_size)]
    max_size: u64,
    /// Ranks for rules that hold for any number
    #[arg(long)]
    ranks: Option<u32>,
    /// local, or the words before the program with {ranks} in them [default: local, for Open MPI mpirun -np {ranks}]
    #[arg(long)]
    launcher: Option<String>,
    /// Measure on a noisy machine
    #[arg(long)]
    force: bool,
}

/// Where launches leave their files, and how they are stopped.
struct Place {
    folder: PathBuf,
    stop: std::sync::Arc<AtomicBool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", args.file.display()));
    let text = std::fs::read_to_string(&args.file).map_err(|error| named(&error))?;
    let file = File::read(&text, args.ranks).map_err(|error| named(&error))?;
    let subjects = file.subjects();
    if subjects.is_empty() {
        return Err(named(&"no rule in this file"));
    }
    refuse_noise(args, subjects)?;
    let place = place()?;
    let mut idle: Vec<Option<String>> = Vec::new();
    for subject in subjects {
        eprintln!("proving {subject}");
        idle.push(proof::idle(args, &file, subject, &place)?);
    }
    let ratios = all_ratios(args, &file, &idle, &place)?;
    let judged = judge_acting(&ratios, &idle);
    conclude(args, &file, (&idle, &judged), out)
}

/// One ratio per launch of every rule that acts. Launches go round over the rules, every second round backwards.
fn all_ratios(
    args: &Args,
    file: &File,
    idle: &[Option<String>],
    place: &Place,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut ratios = vec![Vec::new(); idle.len()];
    for launch in 0..args.launches {
        let mut order: Vec<usize> = (0..idle.len()).filter(|&index| idle[index].is_none()).collect();
        if launch % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let subject = &file.subjects()[index];
            let ratio = measure::ratio(args, file, subject, place)?;
            eprintln!("launch {} of {}: {subject}: {}", launch + 1, args.launches, figures(ratio, 4));
            ratios[index].push(ratio);
        }
    }
    Ok(ratios)
}

/// Rules that do not act are not kept and do not count among those that are judged together.
fn judge_acting(ratios: &[Vec<f64>], idle: &[Option<String>]) -> Vec<Judged> {
    let acting: Vec<Vec<f64>> = ratios
        .iter()
        .zip(idle)
        .filter(|(_, idle)| idle.is_none())
        .map(|(ratios, _)| ratios.clone())
        .collect();
    let mut judged = judge(&acting).into_iter();
    let none = Judged { ratio: f64::NAN, upper: f64::INFINITY, lower: 0.0, p: 1.0, keep: false };
    idle.iter().map(|idle| if idle.is_none() { judged.next().unwrap_or(none) } else { none }).collect()
}

fn refuse_noise(args: &Args, subjects: &[Subject]) -> Result<(), Failure> {
    let ranks = subjects.iter().map(|subject| subject.n_ranks).max().unwrap_or(1);
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

fn place() -> Result<Place, Failure> {
    let folder = std::env::temp_dir().join(format!("chorus-verify-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::Input(format!("{}: {error}", folder.display())))?;
    Ok(Place { folder, stop: stop_flag()? })
}

fn conclude(
    args: &Args,
    file: &File,
    (idle, judged): (&[Option<String>], &[Judged]),
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    for ((subject, idle), judged) in file.subjects().iter().zip(idle).zip(judged) {
        if let Some(reason) = idle {
            writeln!(out, "{subject}: {reason}: not kept")?;
            continue;
        }
        let word = match (judged.keep, judged.is_open()) {
            (true, _) => "kept",
            (false, true) => "not shown to help",
            (false, false) => "does not help",
        };
        let (ratio, upper) = (figures(judged.ratio, 4), figures(judged.upper, 4));
        writeln!(out, "{subject}: time ratio {ratio}, upper end {upper}: {word}")?;
    }
    let keep: Vec<bool> = judged.iter().map(|judged| judged.keep).collect();
    let path = args.keep.clone().unwrap_or_else(|| beside(&args.file));
    std::fs::write(&path, file.surviving(&keep))
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    let n_kept = keep.iter().filter(|kept| **kept).count();
    writeln!(out, "{n_kept} of {} rules kept: {}", keep.len(), path.display())?;
    let is_open = |(idle, judged): (&Option<String>, &Judged)| idle.is_none() && judged.is_open();
    let is_noisy = idle.iter().zip(judged).any(is_open);
    Ok(if n_kept > 0 {
        0
    } else if is_noisy {
        NOISY
    } else {
        NONE
    })
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".verified");
    PathBuf::from(name)
}
