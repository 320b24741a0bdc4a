//! The command line, in two stages: [`options`] only validates one by one, [`config`] makes one finished plan.
//! Spellings of the outside world end here.

pub mod config;
mod forced;
mod getopt;
pub mod help;
mod number;
pub mod options;

use clap::{CommandFactory, FromArgMatches};

pub use number::parse_size;

use crate::engine::types::Collective;
use crate::perf::exit::{Failure, Result};
use config::{Invocation, Notices, Settings, SweepConfig, resolve};
use options::RawOptions;

/// What the command line asks for.
#[derive(Debug)]
pub enum Parsed {
    /// A run, and lines to show before it.
    Run(Box<SweepConfig>, Notices),
    /// A text for stdout.
    Text(String),
}

/// Reads the arguments (the program's path first).
pub fn parse(args: Vec<String>, collective: Collective, settings: &Settings) -> Result<Parsed> {
    let program = basename(args.first().map_or("", String::as_str), collective);
    let command = RawOptions::command();
    let typed = args.get(1..).unwrap_or_default();
    let canonical = getopt::canonical(&command, &program, typed)
        .map_err(|line| Failure::usage(format!("{line}\n{}", help::usage(&program))))?;
    let matches = command.try_get_matches_from(canonical).map_err(|error| Failure::usage(reason(&error)))?;
    let raw = RawOptions::from_arg_matches(&matches).map_err(|error| Failure::usage(reason(&error)))?;
    if raw.help {
        return Ok(Parsed::Text(help::usage(&program)));
    }
    if raw.version {
        return Ok(Parsed::Text(help::version(&program) + "\n"));
    }
    if raw.explain {
        return Ok(Parsed::Text(help::EXPLAIN.to_owned()));
    }
    let invocation = Invocation { program, args, collective };
    let (config, notices) = resolve(invocation, &raw, settings)?;
    Ok(Parsed::Run(Box::new(config), notices))
}

/// The option's own message, without clap's decoration.
fn reason(error: &clap::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string().trim_end().to_owned(), ToString::to_string)
}

fn basename(path: &str, collective: Collective) -> String {
    match path.rsplit(['/', '\\']).next() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("{collective}_perf"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_called_by_its_own_name() {
        assert_eq!(basename("/opt/bin/ar_mpi", Collective::AllReduce), "ar_mpi");
        assert_eq!(basename("C:\\x\\y", Collective::AllReduce), "y");
        assert_eq!(basename("", Collective::AllGather), "all_gather_perf");
    }

    #[test]
    fn help_goes_to_stdout_and_an_unknown_option_is_bad_usage_with_the_usage_text() {
        let settings = Settings::default();
        let run = |arg: &str| parse(vec!["p".into(), arg.into()], Collective::AllReduce, &settings);
        assert!(matches!(run("-h").unwrap(), Parsed::Text(text) if text.starts_with("USAGE: p ")));
        assert!(matches!(run("--explain").unwrap(), Parsed::Text(text) if text.contains("busbw")));
        let failure = run("-q").unwrap_err();
        assert_eq!(failure.status.code(), 255);
        assert!(failure.message.starts_with("p: invalid option -- 'q'\nUSAGE: p "));
    }
}
