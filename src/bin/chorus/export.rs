//! `chorus export`: rules from a recording, as files that libraries read.

use std::io::Write;
use std::path::PathBuf;

use analysis::export::{self, ExportError, ompi, ucc};
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
the last has no end. Where a simpler setting ties, it is taken and a comment says so. The file is read back before it is printed.")]
pub(crate) struct Args {
    /// Record folder or CSV file
    record: PathBuf,
    /// What reads the file
    #[arg(long, value_enum)]
    format: Format,
    /// Open MPI release: 4 and 5 read text, 6 reads JSON
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
    let ompi = matches!(args.format, Format::Ompi | Format::Ucc);
    let rules = export::derive(&data, args.max_penalty, args.tie, |config| {
        ompi || export::nccl::knows(&config.algorithm)
    });
    if rules.is_empty() {
        return Err(Failure::Input(format!(
            "{}: no configuration with an algorithm that this format knows and a channel count",
            args.record.display()
        )));
    }
    let text = match args.format {
        Format::Nccl | Format::Rccl => export::nccl::csv(&rules),
        Format::NcclxCsv => export::nccl::ncclx(&rules, false),
        Format::NcclxJson => export::nccl::ncclx(&rules, true),
        Format::Ompi => ompi::rules_file(
            &rules,
            [ompi::Release::Four, ompi::Release::Five, ompi::Release::Six][usize::from(args.ompi - 4)],
        ),
        Format::Ucc => ucc::score(&rules).map(|worlds| {
            worlds
                .iter()
                .map(|(ranks, score)| format!("[team_size={ranks}]\nUCC_TL_UCP_TUNE={score}\n"))
                .collect()
        }),
    };
    let text = text.map_err(|error| match error {
        ExportError::NoWord(_) => Failure::Input(error.to_string()),
        ExportError::Mismatch(_) => Failure::Internal(error.to_string()),
    })?;
    for note in rules.iter().filter_map(|rule| rule.note.as_ref()) {
        eprintln!("note: {note}");
    }
    if matches!(args.format, Format::Rccl) {
        eprintln!(
            "note: this file replaces RCCL's shipped table as a whole; collectives and worlds it lacks fall back to the cost model"
        );
    }
    write!(out, "{text}")?;
    Ok(0)
}
