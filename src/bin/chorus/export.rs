//! `chorus export`: rules from a recording, as files that libraries read.

use std::io::Write;
use std::path::PathBuf;

use analysis::dataset::{Config, Scenario};
use analysis::export::{self, Derived, ExportError, Exported, Limits, Rule, ncclx, ompi, ucc};
use analysis::format::parse_fraction;

use crate::Failure;
use crate::compare::load;

/// What reads the file.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Tuner CSV of NCCL's example plugin; chorus why reads it too
    Nccl,
    /// The same file for RCCL's built-in tuner
    Rccl,
    /// NCCLX CSV, bytes per rank
    NcclxCsv,
    /// NCCLX JSON, bytes per rank
    NcclxJson,
    /// Open MPI's tuned rules, see --ompi
    Ompi,
    /// UCC score strings, one [team_size=N] section a world
    Ucc,
}

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus export results/sweep --format nccl > tuner.conf
  chorus export mpi-sweep --format ompi --ompi 4 > rules.txt

The fewest rules that lose at most --max-penalty at every measured size; bounds lie at geometric midpoints, the first rule starts at 0 and
the last has no end. Where a simpler setting ties, it is taken and a note says so. What the format has no word for is left out and
named. Rules for Open MPI come from sweeps over its own algorithms (backends = [\"mpi\"], algorithms = [\"ompi:ring\", ...]) and leave
worlds that were not measured to its built-in table. The file is read back as its consumer reads it before it is printed.")]
pub(crate) struct Args {
    /// Record folder or CSV file
    record: PathBuf,
    /// What reads the file
    #[arg(long, value_enum)]
    format: Format,
    /// Open MPI release: 4 reads text, 5 (from 5.0.7) text with a version line, 6 JSON
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=6))]
    ompi: u8,
    /// Largest loss at any measured size
    #[arg(long, default_value = "2.5%", value_parser = parse_fraction)]
    max_penalty: f64,
    /// Difference below which the simpler setting is taken
    #[arg(long, default_value = "2%", value_parser = parse_fraction)]
    tie: f64,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let data = load(&args.record)?;
    let limits = Limits { max_penalty: args.max_penalty, tie: args.tie };
    let Derived { rules, notes } =
        export::derive(&data, limits, |scenario, config| usable(args, scenario, config));
    if rules.is_empty() {
        let mut names: Vec<String> = data.groups.iter().map(|group| group.key.config.label()).collect();
        names.sort();
        names.dedup();
        return Err(Failure::Input(format!(
            "{}: this format has no words for {}",
            args.record.display(),
            names.join(", ")
        )));
    }
    let exported = write_file(args, &rules).map_err(|error| match error {
        ExportError::NoWord(_) => Failure::Input(error.to_string()),
        ExportError::Mismatch(_) => Failure::Internal(error.to_string()),
    })?;
    let ties = rules.iter().filter_map(|rule| Some(format!("{}: {}", rule.scope, rule.note.as_ref()?)));
    for note in notes.into_iter().chain(ties).chain(exported.notes) {
        eprintln!("note: {note}");
    }
    if matches!(args.format, Format::Rccl) {
        eprintln!(
            "note: this file replaces RCCL's shipped table as a whole; collectives and worlds it lacks fall back to the cost model"
        );
    }
    write!(out, "{}", exported.text)?;
    Ok(0)
}

/// Whether the consumer has words for it.
fn usable(args: &Args, scenario: &Scenario, config: &Config) -> bool {
    let (collective, algorithm) = (&*scenario.collective, &*config.algorithm);
    match args.format {
        Format::Ompi => ompi::knows(collective, algorithm),
        Format::Ucc => ucc::knows(collective, algorithm),
        Format::Nccl | Format::Rccl | Format::NcclxCsv | Format::NcclxJson => {
            export::nccl::knows(collective, config)
        }
    }
}

fn write_file(args: &Args, rules: &[Rule]) -> Result<Exported, ExportError> {
    match args.format {
        Format::Nccl | Format::Rccl => export::nccl::csv(rules),
        Format::NcclxCsv => ncclx::file(rules, ncclx::Form::Csv),
        Format::NcclxJson => ncclx::file(rules, ncclx::Form::Json),
        Format::Ompi => {
            let release = match args.ompi {
                4 => ompi::Release::Four,
                5 => ompi::Release::Five,
                _ => ompi::Release::Six,
            };
            ompi::rules_file(rules, release)
        }
        Format::Ucc => ucc::score(rules),
    }
}
