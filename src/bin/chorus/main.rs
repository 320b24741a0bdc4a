//! `chorus`: the tool beside the benchmark programs. A verb is one arm of [`Verb`] and one file with `Args` and `run`.
//!
//! Exit status: 0 ok, 64 bad usage (every verb), 3 unusable input, 1 internal error; verbs that judge add their own.

mod compare;
mod export;
mod gate;
mod graph;
mod graph_log;
mod history;
mod import;
mod machine;
mod model;
mod report;
mod retest;
mod svg;
mod sweep;
mod topo;
mod trees;
mod verify;
mod why;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// Status for bad usage.
const USAGE: u8 = 64;

#[derive(Debug, Parser)]
#[command(
    name = "chorus",
    version,
    about = "Looks into machines, graphs and records of collective communication",
    after_help = "Exit status: 0 ok, 64 bad usage, 3 unusable input, 1 internal error; verbs that judge say theirs in their help."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Paths, graphs, rings, trees and cost tables of a machine as one JSON object
    Model(model::Args),
    /// A machine as tree, path matrix, drawing, with warnings
    Topo(topo::Args),
    /// Every channel's ring and tree: log lines, DOT or SVG
    Graph(graph::Args),
    /// Double binary tree of N hosts: both trees, roots, depths, inner hosts and which they share
    Trees(trees::Args),
    /// Where which algorithm wins: tables, sentences, charts and a page from recordings
    Report(report::Args),
    /// Measures whether each rule of a tuning file is worth it
    Verify(verify::Args),
    /// Change points over many recordings
    History(history::Args),
    /// Rules from a recording, as files that libraries read
    Export(export::Args),
    /// Logs and tables of other benchmarks become records
    Import(import::Args),
    /// Measures the unstable groups of a sweep again
    Retest(retest::Args),
    /// Runs an experiment matrix, resumable
    Sweep(sweep::Args),
    /// Rings and trees of a library's debug log, rebuilt, checked and drawn
    GraphLog(graph_log::Args),
    /// Fails on a real regression: two programs alternated on this machine, or two recordings
    Gate(Box<gate::Args>),
    /// Two recordings side by side
    Compare(compare::Args),
    /// Why a call runs as it does: cost table, exclusions, winner, margin, crossovers
    Why(why::Args),
}

/// How a verb ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is wrong (64).
    Usage(String),
    /// A file cannot be used (3).
    Input(String),
    /// A bug of ours (1).
    Internal(String),
    /// Writing the answer failed. A closed pipe ends quietly: its reader has seen enough.
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let (name, result) = match &cli.verb {
        Verb::Model(args) => ("model", model::run(args, &mut out)),
        Verb::Topo(args) => ("topo", topo::run(args, &mut out)),
        Verb::Graph(args) => ("graph", graph::run(args, &mut out)),
        Verb::Why(args) => ("why", why::run(args, &mut out)),
        Verb::Trees(args) => ("trees", trees::run(args, &mut out)),
        Verb::Compare(args) => ("compare", compare::run(args, &mut out)),
        Verb::Gate(args) => ("gate", gate::run(args, &mut out)),
        Verb::GraphLog(args) => ("graph-log", graph_log::run(args, &mut out)),
        Verb::Sweep(args) => ("sweep", sweep::run(args, &mut out)),
        Verb::Retest(args) => ("retest", retest::run(args, &mut out)),
        Verb::Import(args) => ("import", import::run(args, &mut out)),
        Verb::Export(args) => ("export", export::run(args, &mut out)),
        Verb::History(args) => ("history", history::run(args, &mut out)),
        Verb::Verify(args) => ("verify", verify::run(args, &mut out)),
        Verb::Report(args) => ("report", report::run(args, &mut out)),
    };
    let result = result.and_then(|status| out.flush().map(|()| status).map_err(Failure::from));
    let (status, message) = match result {
        Ok(status) => return ExitCode::from(status),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(Failure::Output(error)) => (1, format!("cannot write the answer: {error}")),
        Err(Failure::Usage(what)) => (USAGE, format!("{what} (see chorus {name} --help)")),
        Err(Failure::Input(what)) => (3, what),
        Err(Failure::Internal(what)) => (1, format!("internal error: {what}")),
    };
    // What was written before the failure stands above its message.
    let _ = out.flush();
    eprintln!("chorus {name}: {message}");
    ExitCode::from(status)
}

/// Prints help where it was asked for, and otherwise one line that says what is wrong.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe behind `--help` is nobody's concern.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            eprint!("{}", error.render());
        }
        _ => {
            let text = error.render().to_string();
            let message: Vec<&str> = text
                .lines()
                .map(str::trim)
                .take_while(|line| !line.is_empty() && !line.starts_with("Usage:"))
                .collect();
            let first = std::env::args().nth(1).filter(|word| Cli::command().find_subcommand(word).is_some());
            let verb = first.map(|word| format!(" {word}")).unwrap_or_default();
            let message = message.join(" ");
            eprintln!("chorus{verb}: {} (see chorus{verb} --help)", message.trim_start_matches("error: "));
        }
    }
    ExitCode::from(USAGE)
}
