//! A machine put through topology, search, connection and cost model: what the model verbs share.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chorus::engine::device::cuda;
use chorus::engine::graph::connect::{Connection, Member, connect};
use chorus::engine::graph::p2p::P2pChannels;
use chorus::engine::graph::{ModelRequest, Variant, channels, model_system};
use chorus::engine::topo::xml::{self, Element};
use chorus::engine::topo::{self, System, probe};
use chorus::engine::tuning::tuner::Rules;
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
    /// Options with these settings alone.
    pub(crate) fn with(env: Vec<(String, String)>) -> Self {
        Self { env, collnet: false }
    }

    /// A setting's value; of repeated ones the last.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        self.env.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.clone())
    }
}

/// Where the machine's description comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct Source {
    /// Topology file (NCCL's XML); this machine when left out
    file: Option<PathBuf>,
    /// Ranks of the host. When left out: all GPUs of a file; on this machine one for each GPU that the driver shows, or where there
    /// is none one in host memory for each CPU. With a number they live in host memory on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    ranks: Option<u16>,
}

impl Source {
    /// That many ranks of a file's machine.
    pub(crate) fn ranks_of(file: PathBuf, ranks: u16) -> Self {
        Self { file: Some(file), ranks: Some(ranks) }
    }
}

/// One machine, alone and among equals.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// What messages call it.
    pub(crate) name: String,
    root: Element,
    options: &'a Options,
    topo: topo::Params,
    channels: channels::Params,
    tuning: tuning::Params,
    /// Rules of the tuner file that NCCL_TUNER_CONFIG_FILE names.
    pub(crate) rules: Option<Rules>,
    single: OnceCell<Variant>,
    several: OnceCell<Variant>,
}

/// Several equal hosts joined.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Rings, trees and heads.
    pub(crate) connection: Connection,
    /// Channels of point-to-point calls.
    pub(crate) p2p: P2pChannels,
    /// Latencies, bandwidths and choices.
    pub(crate) model: Model,
}

impl<'a> Machine<'a> {
    /// Reads a topology file. GPUs get the file's ranks where those count up from 0, else their order.
    pub(crate) fn open(file: &Path, options: &'a Options) -> Result<Self, Failure> {
        let (name, mut root) = read(file)?;
        topo::number_ranks(&mut root);
        Self::new(name, root, options)
    }

    /// The machine a verb was asked about.
    pub(crate) fn of(source: &Source, options: &'a Options) -> Result<Self, Failure> {
        let here = |e: topo::Error| Failure::Input(format!("this machine: {e}"));
        match (&source.file, source.ranks) {
            (Some(file), None) => Self::open(file, options),
            (Some(file), Some(n)) => {
                let (name, mut root) = read(file)?;
                topo::select_ranks(&mut root, usize::from(n))
                    .map_err(|e| Failure::Usage(format!("--ranks {n} of {name}: {e}")))?;
                Self::new(name, root, options)
            }
            (None, None) if let Some(gpus) = cuda::gpus() => {
                let root = probe::read(Path::new("/"), &probe::Ranks::Gpus(gpus)).map_err(here)?;
                Self::new("this machine".to_string(), root, options)
            }
            (None, ranks) => {
                let n_cpus = std::thread::available_parallelism().map_or(1, usize::from);
                let root = probe::host_xml(ranks.map_or(n_cpus, usize::from)).map_err(here)?;
                let mut machine = Self::new("this machine".to_string(), root, options)?;
                machine.topo = machine.topo.for_host_ranks();
                Ok(machine)
            }
        }
    }

    fn new(name: String, root: Element, options: &'a Options) -> Result<Self, Failure> {
        let lookup = |setting: &str| options.setting(setting);
        let wrong = |what: String| Failure::Usage(format!("--env {what}"));
        let mut channels = channels::Params::from_lookup(&lookup);
        channels.collnet |= options.collnet;
        let mut topo = topo::Params::from_lookup(&lookup).map_err(|e| wrong(e.to_string()))?;
        if let Some(file) = options.setting("NCCL_GRAPH_FILE").filter(|file| !file.is_empty()) {
            let text = std::fs::read_to_string(&file)
                .map_err(|e| Failure::Input(format!("cannot read the graph file {file}: {e}")))?;
            topo.graph_xml = Some(text);
        }
        Ok(Self {
            name,
            root,
            options,
            topo,
            channels,
            tuning: tuning::Params::from_lookup(&lookup).map_err(wrong)?,
            rules: options
                .setting("NCCL_TUNER_CONFIG_FILE")
                .map(|file| read_rules(Path::new(&file)))
                .transpose()?,
            single: OnceCell::new(),
            several: OnceCell::new(),
        })
    }

    fn unusable(&self, error: impl std::fmt::Display) -> Failure {
        Failure::Input(format!("{}: {error}", self.name))
    }

    /// The host in its situation: alone, or among equals.
    pub(crate) fn variant(&self, n_hosts: usize) -> Result<&Variant, Failure> {
        let several = n_hosts > 1;
        let cell = if several { &self.several } else { &self.single };
        if let Some(variant) = cell.get() {
            return Ok(variant);
        }
        let request = ModelRequest { multi_host: several, coll_net: self.options.collnet };
        let system = System::from_xml(&self.root, &self.topo).map_err(|e| self.unusable(e))?;
        let variant = model_system(system, &self.topo, request).map_err(|e| self.unusable(e))?;
        if several && variant.domains.iter().all(|domain| domain.system.n_nets() == 0) {
            return Err(self.unusable(format!("no NIC (element net): {n_hosts} hosts cannot be joined")));
        }
        Ok(cell.get_or_init(|| variant))
    }

    /// The whole machine with its paths, nothing trimmed, and the groups of ranks that act as hosts of their own.
    pub(crate) fn whole(&self) -> Result<(System, Vec<Vec<usize>>), Failure> {
        let mut system = System::from_xml(&self.root, &self.topo).map_err(|e| self.unusable(e))?;
        let part_of = system.domains(&self.topo).map_err(|e| self.unusable(e))?;
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (gpu, part) in part_of.into_iter().enumerate() {
            groups.entry(part).or_default().extend(usize::try_from(system.gpu(gpu).rank));
        }
        let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
        groups.iter_mut().for_each(|ranks| ranks.sort_unstable());
        Ok((system, groups))
    }

    /// The description, with ranks.
    pub(crate) fn description(&self) -> &Element {
        &self.root
    }

    /// That many equal hosts, joined and modelled.
    pub(crate) fn joined(&self, n_hosts: usize) -> Result<Joined, Failure> {
        let variant = self.variant(n_hosts)?;
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
                let bw = topo::min_net_bw(system, rank, &self.topo).map_err(|e| self.unusable(e))?;
                min_net_bw = min_net_bw.min(bw);
            }
        }
        let caps = systems.iter().filter_map(|system| system.compute_caps()).map(|caps| caps.0);
        let facts = channels::Facts { min_compute_cap: caps.min().unwrap_or(0), min_net_bw };
        let connection = connect(&members, &facts, &self.channels).map_err(|e| self.unusable(e))?;
        let n_channels = connection.channels.len();
        let p2p = P2pChannels::of(&systems, connection.n_ranks, connection.n_hosts(), n_channels, &self.topo)
            .map_err(|e| self.unusable(e))?;
        let model = Model::new(Facts::new(&connection, &systems), self.tuning.clone());
        Ok(Joined { connection, p2p, model })
    }
}

/// Reads a tuner file and says on stderr what is odd about it.
pub(crate) fn read_rules(file: &Path) -> Result<Rules, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::Input(format!("cannot read the tuner file {name}: {e}")))?;
    let rules = Rules::parse(&text);
    for warning in &rules.warnings {
        eprintln!("chorus: {name}: {warning}");
    }
    Ok(rules)
}

fn read(file: &Path) -> Result<(String, Element), Failure> {
    let name = file.display().to_string();
    let text =
        std::fs::read_to_string(file).map_err(|e| Failure::Input(format!("cannot read {name}: {e}")))?;
    let root = xml::read_topology(&text, xml::Limits::TOPOLOGY)
        .map_err(|e| Failure::Input(format!("{name}: {e}")))?;
    Ok((name, root))
}
