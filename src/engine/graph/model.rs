//! From a machine's description to its graphs, as one process would find them: the entry to everything pure below.

use crate::engine::graph::dump;
use crate::engine::graph::search::{Attempt, search};
use crate::engine::graph::search_draft::SearchRequest;
use crate::engine::graph::search_fabric::Fabric;
use crate::engine::graph::{GraphId, Pattern, SearchGraph};
use crate::engine::topo::{Error, Params, System, xml};

/// Most channels of a ring or tree before they are joined across hosts.
const MAX_SEARCH_CHANNELS: usize = 32;
/// Most channels of any graph.
const MAX_CHANNELS: usize = 64;

/// Which situation to model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelRequest {
    /// Several equal hosts; one otherwise.
    pub multi_host: bool,
    /// In-network reduction is available on every NIC, whatever the file says.
    pub coll_net: bool,
}

/// GPUs of a host that stay together, and their graphs.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The machine as these GPUs see it, before anything was reserved on it.
    pub system: System,
    /// In search order: ring, tree, then chain and direct with in-network reduction, then in-switch reduction where it is assumed.
    pub graphs: Vec<SearchGraph>,
    /// Whether in-switch reduction is assumed to work.
    pub nvls: bool,
    /// How the search went, attempt by attempt.
    pub trace: Vec<Attempt>,
}

impl Domain {
    /// The graph for a purpose, where it was searched.
    pub fn graph(&self, id: GraphId) -> Option<&SearchGraph> {
        self.graphs.iter().find(|graph| graph.id == id)
    }
}

/// A host in one situation.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Ranks of the host.
    pub n_gpus: usize,
    /// For every local rank the position of its domain.
    pub domain_of_local_rank: Vec<usize>,
    /// Usually one.
    pub domains: Vec<Domain>,
}

/// Models a host described by a topology file. Local ranks are the file's where those are exactly 0, 1, …, else the file's order.
pub fn model(text: &str, params: &Params, request: ModelRequest) -> Result<Variant, Error> {
    let mut root = xml::read_topology(text, xml::Limits::TOPOLOGY)?;
    crate::engine::topo::number_ranks(&mut root);
    let system = System::from_xml(&root, params)?;
    model_system(system, params, request)
}

/// Models a host whose vertices, links and ranks are known.
pub fn model_system(mut system: System, params: &Params, request: ModelRequest) -> Result<Variant, Error> {
    let n_gpus = system.n_gpus();
    if n_gpus == 0 {
        return Err(Error::Machine("the machine has no GPU with a rank".to_owned()));
    }
    for n in 0..system.n_nets() {
        system.net_mut(n).coll |= request.coll_net;
    }
    let n_ranks = if request.multi_host { 2 * n_gpus } else { n_gpus };
    let parts = system.domains(params)?;
    let mut roots: Vec<usize> = parts.clone();
    roots.sort_unstable();
    roots.dedup();
    // Domains are numbered by the first local rank that is in them.
    let by_rank: Vec<usize> = local_ranks(&system).into_iter().map(|g| parts[g]).collect();
    let first_rank = |root: &usize| by_rank.iter().position(|part| part == root);
    roots.sort_by_key(first_rank);
    let mut domains = Vec::new();
    for &root in &roots {
        let part = system.domain(&parts, root, n_ranks, params)?;
        domains.push(search_domain(part, params, request.coll_net)?);
    }
    let place = |part: &usize| roots.iter().position(|root| root == part).unwrap_or_default();
    Ok(Variant { n_gpus, domain_of_local_rank: by_rank.iter().map(place).collect(), domains })
}

/// GPU positions in the order of their ranks.
fn local_ranks(system: &System) -> Vec<usize> {
    let mut order: Vec<usize> = (0..system.n_gpus()).collect();
    order.sort_by_key(|&g| system.gpu(g).rank);
    order
}

/// Searches all graphs of a domain, one after the other on the same fabric. Graphs of a given graph file are used as they stand.
pub fn search_domain(system: System, params: &Params, coll_net: bool) -> Result<Domain, Error> {
    let mut run = Run {
        file: params.graph_xml.as_deref().map(xml::read_graphs).transpose().map_err(Error::of_graph_file)?,
        fabric: Fabric::new(&system),
        system: &system,
        params,
        graphs: Vec::new(),
        trace: Vec::new(),
    };
    let n = run.find(GraphId::Ring, Pattern::Ring, (1, MAX_SEARCH_CHANNELS))?;
    run.find(GraphId::Tree, Pattern::BalancedTree, (n, n))?;
    if coll_net {
        run.find(GraphId::CollNetChain, Pattern::Tree, (n, n))?;
        run.find(GraphId::CollNetDirect, Pattern::CollNetDirect, (1, MAX_CHANNELS))?;
    }
    let modern = (0..system.n_gpus()).all(|g| system.gpu(g).sm >= 90);
    let nvls = modern && system.has_nvswitch() && system.n_gpus() >= 2;
    if nvls {
        run.find(GraphId::Nvls, Pattern::Nvls, (1, MAX_CHANNELS))?;
    }
    let (graphs, trace) = (run.graphs, run.trace);
    Ok(Domain { system, graphs, nvls, trace })
}

/// The searches of one domain.
struct Run<'a> {
    system: &'a System,
    params: &'a Params,
    file: Option<xml::Element>,
    fabric: Fabric,
    graphs: Vec<SearchGraph>,
    trace: Vec<Attempt>,
}

impl Run<'_> {
    /// Takes a graph from the file or searches it; answers with its number of channels.
    fn find(&mut self, id: GraphId, pattern: Pattern, channels: (usize, usize)) -> Result<usize, Error> {
        let given = match &self.file {
            Some(file) => dump::load(file, self.system, id, self.params).map_err(Error::of_graph_file)?,
            None => None,
        };
        let graph = given.unwrap_or_else(|| {
            let coll_net = matches!(id, GraphId::CollNetChain | GraphId::CollNetDirect);
            let (min_channels, max_channels) = channels;
            let request = SearchRequest { id, pattern, coll_net, min_channels, max_channels };
            search(&mut self.fabric, self.system, request, self.params, &mut self.trace)
        });
        let n = graph.n_channels();
        self.graphs.push(graph);
        Ok(n)
    }
}
