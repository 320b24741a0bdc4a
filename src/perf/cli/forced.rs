//! `--algo`, `--proto`, `--channels` and `--alternate`: the tables of a sweep.

use analysis::record::{Tuned, tuned};

use super::config::BackendKind;
use super::options::RawOptions;
use crate::engine::types::{Algorithm, Collective, Protocol};
use crate::perf::exit::{Failure, Result};
use crate::perf::sweep::Forcing;

/// The tables that are asked for; of an alternation the automatic choice and the other one.
pub(super) fn tables(raw: &RawOptions, collective: Collective, backend: BackendKind) -> Result<Vec<Forcing>> {
    let forced = match &raw.alternate {
        None => product(raw, collective)?,
        Some(_) if raw.algo.is_some() || raw.proto.is_some() || raw.channels.is_some() => {
            return Err(Failure::usage(
                "--alternate names its choice itself; leave --algo, --proto and --channels out",
            ));
        }
        Some(choice) => vec![Forcing::default(), one(choice, collective)?],
    };
    let inside_engine =
        |table: &Forcing| table.algorithm.is_some() || table.protocol.is_some() || table.n_channels.is_some();
    if backend == BackendKind::Mpi && forced.iter().any(inside_engine) {
        return Err(Failure::usage(format!(
            "--algo, --proto and --channels choose inside our engine; with --backend mpi --algo takes auto, {}",
            Tuned::words(collective.name(), None)
        )));
    }
    if let Some(table) = forced.iter().find(|table| table.library.is_some() && backend != BackendKind::Mpi) {
        return Err(Failure::usage(format!("{table} is Open MPI's: it goes with --backend mpi")));
    }
    Ok(forced)
}

/// Every combination, in the order of the lists.
fn product(raw: &RawOptions, collective: Collective) -> Result<Vec<Forcing>> {
    let parts = |list: &Option<String>| -> Vec<String> {
        list.as_deref().unwrap_or("auto").split(',').map(str::to_owned).collect()
    };
    let algorithms: Vec<_> =
        parts(&raw.algo).iter().map(|word| algorithm(word, collective, "--algo")).collect::<Result<_>>()?;
    let protocols: Vec<_> =
        parts(&raw.proto).iter().map(|word| protocol(word, "--proto")).collect::<Result<_>>()?;
    let counts: Vec<_> =
        parts(&raw.channels).iter().map(|word| channels(word, "--channels")).collect::<Result<_>>()?;
    let mut forced = Vec::new();
    for &algorithm in &algorithms {
        for &protocol in &protocols {
            forced.extend(counts.iter().map(|&n_channels| Forcing { protocol, n_channels, ..algorithm }));
        }
    }
    Ok(forced)
}

/// `ring`, `ring/ll`, `ring/ll/2`, `ompi:ring`.
fn one(choice: &str, collective: Collective) -> Result<Forcing> {
    const OPTION: &str = "--alternate";
    let words: Vec<&str> = choice.split('/').collect();
    if words.len() > 3 {
        return Err(Failure::usage(format!(
            "invalid value '{choice}' for {OPTION}: ALGO, ALGO/PROTO or ALGO/PROTO/CHANNELS"
        )));
    }
    let forced = Forcing {
        protocol: words.get(1).map_or(Ok(None), |word| protocol(word, OPTION))?,
        n_channels: words.get(2).map_or(Ok(None), |word| channels(word, OPTION))?,
        ..algorithm(words[0], collective, OPTION)?
    };
    if forced.is_automatic() {
        return Err(Failure::usage(format!(
            "{OPTION} {choice}: name something other than the automatic choice"
        )));
    }
    Ok(forced)
}

fn algorithm(word: &str, collective: Collective, option: &str) -> Result<Forcing> {
    let word = word.trim();
    if word.starts_with(tuned::PREFIX) {
        let library = Tuned::named(collective.name(), word).ok_or_else(|| {
            let words = Tuned::words(collective.name(), None);
            Failure::usage(format!(
                "invalid value '{word}' for {option}: Open MPI's algorithms of {collective} are {words}"
            ))
        })?;
        return Ok(Forcing { library: Some(library), ..Forcing::default() });
    }
    let algorithm = choice(word, option, Algorithm::ALL, Algorithm::from_name)?;
    Ok(Forcing { algorithm, ..Forcing::default() })
}

fn protocol(word: &str, option: &str) -> Result<Option<Protocol>> {
    choice(word, option, Protocol::ALL, Protocol::from_name)
}

fn channels(word: &str, option: &str) -> Result<Option<u32>> {
    match crate::env::parse_integer(word) {
        _ if word.trim().eq_ignore_ascii_case("auto") => Ok(None),
        Some(n @ 1..=32) => Ok(Some(n as u32)),
        _ => Err(Failure::usage(format!("invalid value '{word}' for {option}: auto or 1 to 32"))),
    }
}

fn choice<T: Copy + std::fmt::Display>(
    word: &str,
    option: &str,
    all: &[T],
    from_name: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    match from_name(word.trim()) {
        Some(member) => Ok(Some(member)),
        None if word.trim().eq_ignore_ascii_case("auto") => Ok(None),
        None => {
            let words: Vec<String> = all.iter().map(ToString::to_string).collect();
            let words = words.join(", ");
            Err(Failure::usage(format!(
                "invalid value '{word}' for {option}: auto, {words}, or a list of them"
            )))
        }
    }
}
