//! `chorus graph-log`: what a library's debug log says about its rings and trees.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use analysis::dataset::open_text;
use analysis::graph_log::{Communicator, Reader, Shape, describe, draw};

use crate::Failure;

/// Unusable lines that are named.
const SHOWN: usize = 20;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH NCCL_DEBUG_FILE=nccl.%h.%p all_reduce_perf …
  chorus graph-log nccl.*
  chorus graph-log job.log --svg trees.svg --dot trees.dot

Exit status: 1 a ring or tree is broken (rank, channel and edge are named), 3 no graph lines in the files, 0 otherwise.")]
pub(crate) struct Args {
    /// Log files, one for all ranks or one a rank (also .gz)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Draw every distinct ring and tree
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write them as DOT
    #[arg(long)]
    dot: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let mut reader = Reader::default();
    for path in &args.files {
        let mut source = open_text(path).map_err(|error| Failure::Input(error.to_string()))?;
        reader.file(&path.display().to_string());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = source.read_until(b'\n', &mut line);
            if read.map_err(|error| Failure::Input(format!("{}: {error}", path.display())))? == 0 {
                break;
            }
            reader.line(&String::from_utf8_lossy(&line));
        }
    }
    for line in reader.unusable().iter().take(SHOWN) {
        eprintln!("warning: {line}");
    }
    if let Some(more) = reader.unusable().len().checked_sub(SHOWN).filter(|more| *more > 0) {
        eprintln!("warning: {more} more lines about graphs are cut off or mixed with another");
    }
    let all = reader.finish();
    if all.is_empty() {
        return Err(Failure::Input(
            "no ring or tree lines in these files: run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH"
                .into(),
        ));
    }
    let mut shapes = Vec::new();
    let mut broken = false;
    for communicator in &all {
        let own = describe(communicator);
        broken |= print(communicator, &own, out)?;
        shapes.extend(own);
    }
    for (path, text) in [(&args.svg, draw::svg(&shapes)), (&args.dot, draw::dot(&shapes))] {
        if let Some(path) = path {
            std::fs::write(path, text)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        }
    }
    Ok(u8::from(broken))
}

fn print(communicator: &Communicator, shapes: &[Shape], out: &mut dyn Write) -> Result<bool, Failure> {
    let id = if communicator.id.is_empty() { "without an id" } else { &communicator.id };
    writeln!(
        out,
        "communicator {id}: {} ranks, {} rings, {} trees, {} adjacency records",
        communicator.n_ranks,
        communicator.rings.len(),
        communicator.trees.len(),
        communicator.tree_records()
    )?;
    for shape in shapes {
        let more = match shape.kind {
            "tree" => format!(
                " (root {}, depth {}, fan-out {})",
                shape.order.first().map_or("-".into(), ToString::to_string),
                shape.depth,
                shape.fan_out
            ),
            _ => String::new(),
        };
        writeln!(out, "  {} on channels {}: {}{more}", shape.kind, shape.channel_list(), shape.text())?;
    }
    for note in &communicator.notes {
        writeln!(out, "  note: {note}")?;
    }
    let problems = communicator.problems();
    for problem in &problems {
        writeln!(out, "  BROKEN: {problem}")?;
    }
    Ok(!problems.is_empty())
}
