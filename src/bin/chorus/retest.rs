//! `chorus retest`: unstable groups of a sweep, once more.

use std::io::Write;
use std::path::PathBuf;

use analysis::format::count;
use analysis::sweep::retest;

use crate::Failure;
use crate::gate::stop_flag;
use crate::sweep::{finish, programs};

/// Command line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Measures every group with a CV above 5 % again, in two new launches of 20 cycles, into retest-N.csv beside the
first rows, which stay as they are. chorus report then shows both medians and whether the winner holds."
)]
pub(crate) struct Args {
    /// Folder of a sweep
    folder: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let unusable = |error: std::io::Error| Failure::Input(error.to_string());
    let matrix = retest::matrix_of(&args.folder).map_err(unusable)?;
    let plans = retest::unstable(&args.folder, matrix.sizes.factor).map_err(unusable)?;
    if plans.is_empty() {
        writeln!(out, "no group has a CV above 5 %: nothing to measure again")?;
        return Ok(0);
    }
    let programs = programs(&matrix)?;
    let stop = stop_flag()?;
    let mut show = |text: &str| eprintln!("{text}");
    let (outcome, file) =
        retest::run(&args.folder, &plans, (&matrix, &programs), (&stop, &mut show)).map_err(unusable)?;
    let groups: usize = plans.iter().map(retest::Again::n_groups).sum();
    let done = format!("{} measured again: {}", count(groups, "group"), file.display());
    finish("retest", outcome, &format!("complete launches count, see {}", file.display()), || {
        writeln!(out, "{done}")?;
        Ok(())
    })
}
