//! `chorus model`: everything the pure engine computes for a machine, as one JSON object.

mod connect_json;
mod tuning_json;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use serde::ser::{Serialize, SerializeMap, Serializer};

use chorus::engine::graph::model::Variant;
use chorus::engine::tuning::tuner::Rules;

use crate::Failure;
use crate::machine::{Joined, MAX_HOSTS, Machine, Options};

/// The release whose rules are implemented.
const RELEASE: &str = "2.30.7";

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus model dgx.xml --nodes 1,2,4 --json
  chorus model dgx.xml --nodes 16 --env NCCL_ALGO=Ring --env NCCL_MAX_NCHANNELS=4 --json | jq .tuning")]
pub(crate) struct Args {
    /// Topology file (NCCL's XML)
    file: PathBuf,
    /// Numbers of equal hosts
    #[arg(long, value_delimiter = ',', required = true, value_name = "N,N,…", value_parser = clap::value_parser!(u32).range(1..=MAX_HOSTS as i64))]
    nodes: Vec<u32>,
    /// Release of NCCL whose rules apply
    #[arg(long, default_value = RELEASE)]
    release: String,
    /// One object {"graph", "connect", "tuning"}; the only form there is
    #[arg(long, required = true)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    if args.release != RELEASE {
        return Err(Failure::Usage(format!("--release {}: only {RELEASE} is implemented", args.release)));
    }
    let machine = Machine::open(&args.file, &args.options)?;
    let mut variants: Vec<(&'static str, &Variant)> = Vec::new();
    let numbers: BTreeSet<usize> = args.nodes.iter().map(|&n| n as usize).collect();
    if numbers.contains(&1) {
        variants.push(("single", machine.variant(1)?));
    }
    if let Some(&n_hosts) = numbers.iter().find(|&&n| n > 1) {
        variants.push(("multi", machine.variant(n_hosts)?));
    }
    let mut joined = Vec::new();
    for n_hosts in numbers {
        joined.push((n_hosts, machine.joined(n_hosts)?));
    }
    let answer = Answer { variants, joined, rules: machine.rules.as_ref() };
    serde_json::to_writer(&mut *out, &answer).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(0)
}

/// The whole answer.
struct Answer<'a> {
    variants: Vec<(&'static str, &'a Variant)>,
    joined: Vec<(usize, Joined)>,
    rules: Option<&'a Rules>,
}

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let connects = self.joined.iter().map(|(n, j)| (*n, connect_json::Connected(&j.connection, j.p2p)));
        let tunings = self.joined.iter().map(|(n, j)| (*n, tuning_json::Tuned(&j.model, self.rules)));
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("graph", &Named("variants", Entries(self.variants.clone())))?;
        map.serialize_entry("connect", &Named("byNodes", Entries(connects.collect())))?;
        map.serialize_entry("tuning", &Named("byNodes", Entries(tunings.collect())))?;
        map.end()
    }
}

/// An object with one field.
struct Named<T>(&'static str, T);

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, &self.1)])
    }
}

/// An object with these fields.
struct Entries<K, V>(Vec<(K, V)>);

impl<K: ToString, V: Serialize> Serialize for Entries<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key.to_string(), value)))
    }
}
