//! `chorus topo`: a machine as a tree, a path matrix and a drawing, with warnings about what will slow it down.

mod draw;
mod hierarchy;
mod matrix;
mod warnings;

use std::io::Write;

use crate::Failure;
use crate::machine::{Machine, Options, Source};
use crate::trees::ranges;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus topo                       this machine
  chorus topo dgx.xml               a recorded one
  chorus topo dgx.xml --svg > dgx.svg
  chorus topo --xml > here.xml      for NCCL_TOPO_FILE")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// SVG drawing
    #[arg(long, conflicts_with = "xml")]
    svg: bool,
    /// The description itself, as NCCL_TOPO_DUMP_FILE writes it
    #[arg(long)]
    xml: bool,
    #[command(flatten)]
    options: Options,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let machine = Machine::of(&args.source, &args.options)?;
    if args.xml {
        out.write_all(machine.description().to_text().as_bytes())?;
        return Ok(0);
    }
    let (system, groups) = machine.whole()?;
    if args.svg {
        out.write_all(draw::svg(&machine.name, &system).as_bytes())?;
        return Ok(0);
    }
    hierarchy::write(&machine.name, &system, out)?;
    writeln!(out)?;
    matrix::write(&system, out)?;
    if groups.len() > 1 {
        writeln!(out, "\nthe network is faster than the way between some GPUs: these act as separate hosts")?;
        for (index, ranks) in groups.iter().enumerate() {
            writeln!(out, "  group {index}: ranks {}", ranges(ranks))?;
        }
    }
    let warnings = warnings::of(&system);
    if !warnings.is_empty() {
        writeln!(out)?;
    }
    for warning in warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(0)
}
