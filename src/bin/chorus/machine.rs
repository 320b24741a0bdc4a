//! A machine file put through topology, search, connection and cost model: what the model verbs share.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use chorus::engine::graph::channels;
use chorus::engine::graph::connect::{Connection, Member, connect};
use chorus::engine::graph::model::{ModelRequest, Variant, model};
use chorus::engine::topo::xml::{self, Element};
use chorus::engine::topo::{self, System};
use chorus::engine::tuning::{self, Facts, Model};

use crate::Failure;

/// Hosts a model may have.
pub(crate) const MAX_HOSTS: usize = 65_536;

/// Options of every verb that models a machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Setting for the model, NAME=VALUE; may be repeated. The environment itself is not read
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    env: Vec<(String, String)>,
    /// In-network reduction (CollNet) on every NIC
    #[arg(long)]
    collnet: bool,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err("want NAME=VALUE, such as NCCL_ALGO=Ring".to_string()),
    }
}

impl Options {
    /// A setting's value; of repeated ones the last.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        self.env.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.clone())
    }
}

/// Where the machine's description comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// Topology file (NCCL's XML)
    pub(crate) file: PathBuf,
}

/// One machine, alone and among equals.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// What messages call it.
    pub(crate) name: String,
    xml: String,
    options: &'a Options,
    topo: topo::Params,
    channels: channels::Params,
    tuning: tuning::Params,
    single: OnceCell<Variant>,
    several: OnceCell<Variant>,
}

/// Several equal hosts joined.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Rings, trees and heads.
    pub(crate) connection: Connection,
    /// Latencies, bandwidths and choices.
    pub(crate) model: Model,
}

impl<'a> Machine<'a> {
    /// Reads a topology file.
    pub(crate) fn open(file: &PathBuf, options: &'a Options) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let xml =
            std::fs::read_to_string(file).map_err(|e| Failure::Input(format!("cannot read {name}: {e}")))?;
        Self::new(name, xml, options)
    }

    /// The machine a verb was asked about.
    pub(crate) fn of(source: &Source, options: &'a Options) -> Result<Self, Failure> {
        Self::open(&source.file, options)
    }

    /// Takes a topology's text.
    pub(crate) fn new(name: String, xml: String, options: &'a Options) -> Result<Self, Failure> {
        let lookup = |setting: &str| options.setting(setting);
        let wrong = |what: String| Failure::Usage(format!("--env {what}"));
        let mut channels = channels::Params::from_lookup(&lookup);
        channels.collnet |= options.collnet;
        Ok(Self {
            name,
            xml,
            options,
            topo: topo::Params::from_lookup(&lookup).map_err(|e| wrong(e.to_string()))?,
            channels,
            tuning: tuning::Params::from_lookup(&lookup).map_err(wrong)?,
            single: OnceCell::new(),
            several: OnceCell::new(),
        })
    }

    /// The host in its situation: alone, or among equals.
    pub(crate) fn variant(&self, n_hosts: usize) -> Result<&Variant, Failure> {
        let several = n_hosts > 1;
        let cell = if several { &self.several } else { &self.single };
        if let Some(variant) = cell.get() {
            return Ok(variant);
        }
        let request = ModelRequest { multi_host: several, coll_net: self.options.collnet };
        let variant = model(&self.xml, &self.topo, request)
            .map_err(|e| Failure::Input(format!("{}: {e}", self.name)))?;
        if several && variant.domains.iter().all(|domain| domain.system.n_nets() == 0) {
            return Err(Failure::Input(format!(
                "{} has no NIC (element net): {n_hosts} hosts cannot be joined",
                self.name
            )));
        }
        Ok(cell.get_or_init(|| variant))
    }

    /// The whole machine with its paths, nothing trimmed, and the groups of ranks that act as hosts of their own.
    pub(crate) fn whole(&self) -> Result<(System, Vec<Vec<usize>>), Failure> {
        let input = |e: topo::Error| Failure::Input(format!("{}: {e}", self.name));
        let mut system = System::from_xml(&self.description()?, &self.topo).map_err(input)?;
        let part_of = system.domains(&self.topo).map_err(input)?;
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (gpu, part) in part_of.into_iter().enumerate() {
            groups.entry(part).or_default().extend(usize::try_from(system.gpu(gpu).rank));
        }
        let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
        groups.iter_mut().for_each(|ranks| ranks.sort_unstable());
        Ok((system, groups))
    }

    /// The description, with ranks.
    pub(crate) fn description(&self) -> Result<Element, Failure> {
        let mut root = xml::read_topology(&self.xml, xml::Limits::TOPOLOGY)
            .map_err(|e| Failure::Input(format!("{}: {e}", self.name)))?;
        topo::number_ranks(&mut root);
        Ok(root)
    }

    /// That many equal hosts, joined and modelled.
    pub(crate) fn joined(&self, n_hosts: usize) -> Result<Joined, Failure> {
        let variant = self.variant(n_hosts)?;
        let input = |what: String| Failure::Input(format!("{}: {what}", self.name));
        let members: Vec<Member<'_>> = (0..n_hosts)
            .flat_map(|host| {
                let first_rank = host * variant.n_gpus;
                variant.domains.iter().map(move |domain| Member { graphs: &domain.graphs, first_rank })
            })
            .collect();
        let systems: Vec<&System> = variant.domains.iter().map(|domain| &domain.system).collect();
        let mut min_net_bw = f32::MAX;
        for system in &systems {
            for rank in system.ranks() {
                let bw = topo::min_net_bw(system, rank, &self.topo).map_err(|e| input(e.to_string()))?;
                min_net_bw = min_net_bw.min(bw);
            }
        }
        let caps = systems.iter().filter_map(|system| system.compute_caps()).map(|caps| caps.0);
        let facts = channels::Facts { min_compute_cap: caps.min().unwrap_or(0), min_net_bw };
        let connection = connect(&members, &facts, &self.channels).map_err(|e| input(e.to_string()))?;
        let model = Model::new(Facts::new(&connection, &systems), self.tuning.clone());
        Ok(Joined { connection, model })
    }
}
