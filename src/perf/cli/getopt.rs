//! GNU getopt's habits, as a pass over the arguments before clap reads them.
//!
//! Options may be glued (`-b8`), bundled, abbreviated to a unique prefix, written `--name=value`; values may begin with a dash;
//! positional arguments may stand anywhere and mean nothing. Every option leaves here as `--name` or `--name=value`. An option
//! that only prints a text (`-h`) ends the pass where it stands: what follows is not looked at, what came before means nothing.
//! A prefix is looked for among nccl-tests' own names first (those with a letter), so that what worked there means the same here.

use clap::Command;

/// Rewrites `args` (without the program's name), or says what getopt would have said.
pub(super) fn canonical(command: &Command, program: &str, args: &[String]) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            break;
        } else if let Some(long) = arg.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let option = find_long(command, name).map_err(|why| format!("{program}: {why}"))?;
            let value = match (option.takes_value, value) {
                (true, None) => {
                    Some(rest.next().cloned().ok_or_else(|| {
                        format!("{program}: option '--{}' requires an argument", option.long)
                    })?)
                }
                (false, Some(_)) => {
                    return Err(format!("{program}: option '--{}' doesn't allow an argument", option.long));
                }
                (_, value) => value,
            };
            out.push(option.render(value));
        } else if arg.len() > 1 && arg.starts_with('-') {
            bundle(command, program, &arg[1..], &mut rest, &mut out)?;
        }
        if let Some(text) = out.iter().find(|option| TEXTS.contains(&option.as_str())) {
            return Ok(vec![text.clone()]);
        }
    }
    Ok(out)
}

/// Options that print a text and stop.
const TEXTS: [&str; 3] = ["--help", "--version", "--explain"];

/// One `-abc` argument: letters, the last of which may take a value from the same argument or the next.
fn bundle<'a>(
    command: &Command,
    program: &str,
    letters: &str,
    rest: &mut impl Iterator<Item = &'a String>,
    out: &mut Vec<String>,
) -> Result<(), String> {
    let mut chars = letters.chars();
    while let Some(letter) = chars.next() {
        let option = options(command)
            .find(|o| o.short == Some(letter))
            .ok_or_else(|| format!("{program}: invalid option -- '{letter}'"))?;
        if !option.takes_value {
            out.push(option.render(None));
            if out.last().is_some_and(|option| TEXTS.contains(&option.as_str())) {
                break;
            }
            continue;
        }
        let value = match chars.as_str() {
            "" => rest.next().cloned(),
            glued => Some(glued.to_owned()),
        };
        let value = value.ok_or_else(|| format!("{program}: option requires an argument -- '{letter}'"))?;
        out.push(option.render(Some(value)));
        break;
    }
    Ok(())
}

struct Known {
    short: Option<char>,
    long: String,
    takes_value: bool,
}

impl Known {
    fn render(&self, value: Option<String>) -> String {
        match value {
            Some(value) => format!("--{}={value}", self.long),
            None => format!("--{}", self.long),
        }
    }
}

fn options(command: &Command) -> impl Iterator<Item = Known> {
    command.get_arguments().filter_map(|arg| {
        Some(Known {
            short: arg.get_short(),
            long: arg.get_long()?.to_owned(),
            takes_value: arg.get_action().takes_values(),
        })
    })
}

fn find_long(command: &Command, name: &str) -> Result<Known, String> {
    if let Some(exact) = options(command).find(|o| o.long == name) {
        return Ok(exact);
    }
    for theirs in [true, false] {
        let mut matching: Vec<Known> =
            options(command).filter(|o| o.short.is_some() == theirs && o.long.starts_with(name)).collect();
        match matching.len() {
            0 => {}
            1 => return Ok(matching.remove(0)),
            _ => {
                let names: Vec<String> = matching.iter().map(|o| format!("'--{}'", o.long)).collect();
                return Err(format!("option '--{name}' is ambiguous; possibilities: {}", names.join(" ")));
            }
        }
    }
    Err(format!("unrecognized option '--{name}'"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::perf::cli::options::RawOptions;

    fn pass(args: &[&str]) -> Result<Vec<String>, String> {
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        canonical(&RawOptions::command(), "all_reduce_perf", &args)
    }

    #[test]
    fn glued_separate_and_long_forms_are_the_same() {
        let expected = vec!["--minbytes=8".to_owned(), "--stepfactor=2".to_owned()];
        for args in [&["-b8", "-f2"][..], &["-b", "8", "-f", "2"], &["--minbytes=8", "--stepfactor", "2"]] {
            assert_eq!(pass(args).unwrap(), expected);
        }
    }

    #[test]
    fn values_may_begin_with_a_dash_and_strays_mean_nothing() {
        assert_eq!(pass(&["stray", "-r", "-1", "-", "x", "--", "-q"]).unwrap(), ["--root=-1"]);
        assert_eq!(pass(&["-b", "-e"]).unwrap(), ["--minbytes=-e"]);
    }

    #[test]
    fn a_request_for_help_is_answered_where_it_stands() {
        assert_eq!(pass(&["-a", "9", "-h", "-q"]).unwrap(), ["--help"]);
        assert_eq!(pass(&["-hn"]).unwrap(), ["--help"]);
        assert_eq!(pass(&["--vers", "--help=1"]).unwrap(), ["--version"]);
        assert!(pass(&["-q", "-h"]).is_err());
    }

    #[test]
    fn prefixes_look_at_the_names_of_nccl_tests_first() {
        assert_eq!(pass(&["--par", "1"]).unwrap(), ["--parallel_init=1"]);
        assert_eq!(pass(&["--pr", "ll"]).unwrap(), ["--proto=ll"]);
        assert_eq!(pass(&["--ch", "1"]).unwrap(), ["--check=1"]);
        assert_eq!(pass(&["--alg", "ring"]).unwrap(), ["--algo=ring"]);
        assert!(pass(&["--st", "1"]).unwrap_err().contains("ambiguous; possibilities: '--stepbytes'"));
    }

    #[test]
    fn mistakes_are_told_in_getopts_words() {
        assert_eq!(pass(&["-q"]).unwrap_err(), "all_reduce_perf: invalid option -- 'q'");
        assert_eq!(pass(&["-b"]).unwrap_err(), "all_reduce_perf: option requires an argument -- 'b'");
        assert_eq!(pass(&["--iters"]).unwrap_err(), "all_reduce_perf: option '--iters' requires an argument");
        assert_eq!(pass(&["--frob"]).unwrap_err(), "all_reduce_perf: unrecognized option '--frob'");
        assert_eq!(
            pass(&["--help=1"]).unwrap_err(),
            "all_reduce_perf: option '--help' doesn't allow an argument"
        );
    }
}
