//! Set-up of a communicator. [`set_up`] is the list of phases; every rank of the process runs it in a thread of its own.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::Inner;
use super::cta_policy::CtaPolicy;
use super::layout;
use super::planner::Planner;
use super::reach::reach_all;
use super::registry;
use super::topology::{Arrangement, TopologySettings, arrange, own_text};
use super::tuning_table;
use crate::engine::bootstrap::{Bootstrap, BootstrapParams, UniqueId};
use crate::engine::device::host::classic::Classic;
use crate::engine::device::host::collectives::{Peer, Team};
use crate::engine::device::host::control::{CONTROL_BYTES, Control};
use crate::engine::device::host::machine;
use crate::engine::device::host::process;
use crate::engine::device::host::rank::RankCore;
use crate::engine::device::host::reachable::Reachable;
use crate::engine::device::host::region::Region;
use crate::engine::device::host::wait::Policy;
use crate::engine::device::host::{cta, fifo};
use crate::engine::error::{Error, Result};
use crate::engine::log::{self, Subsys};
use crate::engine::plan;
use crate::engine::transport::{PeerInfo, Reach};
use crate::engine::tuning::filter::Filter;
use crate::engine::tuning::host::{Cut, HostModel};
use crate::engine::tuning::tuner::{Rule, Rules};
use crate::engine::types::Protocol;
use crate::env;

/// Address space of a segment, bytes: 64 channels of FIFOs in every direction fit.
pub(super) const SEGMENT_RESERVE: usize = 16 << 30;
/// Most channels.
const MAX_CHANNELS: usize = 32;

/// What a communicator is made from.
#[derive(Clone, Debug)]
pub struct CommInit {
    /// Names the communicator.
    pub id: UniqueId,
    /// All ranks.
    pub n_ranks: usize,
    /// The ranks of this call.
    pub ranks: Vec<usize>,
    /// The engine's settings.
    pub settings: Settings,
    /// Limit of every wait, start-up included.
    pub limit: Option<Duration>,
}

/// The engine's settings, read once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How ranks meet.
    pub bootstrap: BootstrapParams,
    /// `NCCL_ALGO` and `NCCL_PROTO`.
    pub filter: Filter,
    /// `NCCL_SYM_KERNEL`: one-shot and two-shot stay in the choice although `NCCL_ALGO` is set.
    pub symmetric_anyway: bool,
    /// `NCCL_P2P_DISABLE`.
    pub p2p_disable: bool,
    /// `NCCL_SHM_DISABLE`.
    pub shm_disable: bool,
    /// Where rings and trees come from.
    pub topology: TopologySettings,
    /// `NCCL_HOSTID`.
    pub host_id: Option<String>,
    /// `NCCL_CTA_POLICY`, or what the caller asks for where that is unset.
    pub cta_policy: Option<CtaPolicy>,
    /// Lines of `NCCL_TUNER_CONFIG_FILE`.
    pub rules: Vec<Rule>,
    /// FIFO sizes.
    pub plan: plan::Params,
    /// How two-shot work is cut (`CHORUS_TWOSHOT_CHUNK`, `CHORUS_NON_TEMPORAL_FACTOR`).
    pub cut: Cut,
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// `InvalidUsage` names the variable and the piece that is wrong.
    pub fn from_env(limit: Option<Duration>) -> Result<Self> {
        let flag = |name: &str| env::integer(name).is_some_and(|v| v != 0);
        let text = |name: &str| env::text(name).filter(|t| !t.is_empty());
        let filter = Filter::parse(text("NCCL_ALGO").as_deref(), text("NCCL_PROTO").as_deref())
            .map_err(Error::NoSuchCombination)?;
        let bytes = |name: &str| env::integer(name).filter(|&v| v > 0).map(|v| v as usize);
        let buffers = [bytes("NCCL_LL_BUFFSIZE"), bytes("NCCL_LL128_BUFFSIZE"), bytes("NCCL_BUFFSIZE")];
        let plan = plan::Params::default().with_buffers(buffers);
        let settings = Self {
            bootstrap: BootstrapParams::from_env(limit)?,
            filter,
            symmetric_anyway: text("NCCL_SYM_KERNEL").is_some(),
            p2p_disable: flag("NCCL_P2P_DISABLE"),
            shm_disable: flag("NCCL_SHM_DISABLE"),
            topology: TopologySettings::from_lookup(&text)?,
            host_id: text("NCCL_HOSTID"),
            cta_policy: text("NCCL_CTA_POLICY").map(|text| CtaPolicy::parse(&text)).transpose()?,
            rules: tuner_rules(text("NCCL_TUNER_CONFIG_FILE"))?,
            plan,
            cut: Cut::from_lookup(&text).map_err(Error::InvalidUsage)?,
        };
        for name in [
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS",
            "NCCL_P2P_DISABLE",
            "NCCL_HOSTID",
            "NCCL_CTA_POLICY",
            "NCCL_TOPO_FILE",
            "NCCL_GRAPH_FILE",
            "NCCL_TUNER_CONFIG_FILE",
            "NCCL_NET_MERGE_LEVEL",
            "NCCL_NET_MERGE_POLICY",
            "NCCL_NET_FORCE_MERGE",
            "CHORUS_TWOSHOT_CHUNK",
            "CHORUS_NON_TEMPORAL_FACTOR",
        ] {
            if let Some(value) = text(name) {
                log::setting(name, value);
            }
        }
        Ok(settings)
    }
}

/// The rules of a tuner file; what is odd about it goes to the log, as in the library's plugin.
fn tuner_rules(path: Option<String>) -> Result<Vec<Rule>> {
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Error::InvalidUsage(format!("NCCL_TUNER_CONFIG_FILE {path}: {e}")))?;
    let rules = Rules::parse(&text);
    for warning in &rules.warnings {
        log::warn(format_args!("NCCL_TUNER_CONFIG_FILE {path}: {warning}"));
    }
    Ok(rules.rules)
}

/// Sets up all ranks of this call, each in a thread of its own because they wait for each other.
pub(super) fn init(init: CommInit) -> Result<Vec<Inner>> {
    if init.ranks.is_empty() || init.ranks.iter().any(|&r| r >= init.n_ranks) {
        return Err(Error::InvalidArgument(format!(
            "invalid rank requested : {:?} of {} ranks",
            init.ranks, init.n_ranks
        )));
    }
    if let [rank] = init.ranks[..] {
        return Ok(vec![set_up(&init, rank)?]);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = init
            .ranks
            .iter()
            .map(|&rank| {
                scope.spawn({
                    let init = &init;
                    move || set_up(init, rank)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().map_err(|_| Error::Internal("a set-up thread panicked".into()))?)
            .collect()
    })
}

fn set_up(init: &CommInit, rank: usize) -> Result<Inner> {
    let started = Instant::now();
    let settings = &init.settings;
    let mut bootstrap = Bootstrap::connect(&init.id, rank, init.n_ranks, &settings.bootstrap)?;
    let bootstrapped = started.elapsed();
    let hash = bootstrap.magic();
    if rank == 0 {
        log::version();
    }
    log::info(
        Subsys::INIT,
        format_args!(
            "[Rank {rank}] ncclCommInitRank rank {rank} nranks {} cudaDev {rank} nvmlDev {rank} busId 0 commId 0x{hash:x} - Init START",
            init.n_ranks
        ),
    );
    let mut memory = OwnMemory::create(settings, init.n_ranks)?;
    let peers = exchange_info(&mut bootstrap, settings, rank)?;
    let reach = reach_all(&mut bootstrap, &mut memory, &peers, rank)?;
    let is_peer_mapped = agree(&mut bootstrap, reach.iter().all(|r| r.arena.is_some()))?;
    registry::withdraw(hash, rank);

    let hosts = layout::hosts(&peers);
    let n_hosts = hosts.iter().max().map_or(1, |&h| h + 1);
    let texts = exchange_views(&mut bootstrap, settings, &hosts, &peers[rank])?;
    let arrangement = arrange(&settings.topology, &hosts, &texts, rank, MAX_CHANNELS)?;
    let model = HostModel { is_peer_mapped, ..host_model(settings, &peers, n_hosts, arrangement.n_channels) };
    log_graph(rank, &arrangement, &reach);
    if rank == 0 && log::is_on(Subsys::TUNING) {
        tuning_table::lines(&model).iter().for_each(|line| log::info(Subsys::TUNING, format_args!("{line}")));
    }
    let core = Arc::new(make_core(init, rank, &memory, &reach, &model));
    process::add(&core);
    let controls = reach.iter().map(|reach| Control::of(reach.segment.clone())).collect();
    let watched = super::watched::attach(&core, controls);
    process::allow_cpus(&union_of_cpus(&peers));
    bootstrap.barrier()?;
    log::info(
        Subsys::INIT,
        format_args!(
            "ncclCommInitRank rank {rank} nranks {} cudaDev {rank} nvmlDev {rank} busId 0 commId 0x{hash:x} - Init COMPLETE",
            init.n_ranks
        ),
    );
    log::info(
        Subsys::INIT | Subsys::PROFILE,
        format_args!(
            "Init timings - ncclCommInitRank: rank {rank} nranks {} total {:.2} (bootstrap {:.2}, rest {:.2})",
            init.n_ranks,
            started.elapsed().as_secs_f64(),
            bootstrapped.as_secs_f64(),
            (started.elapsed() - bootstrapped).as_secs_f64()
        ),
    );
    let mut planner = Planner::new(rank, model, arrangement.layout, settings.plan);
    planner.rules = settings.rules.clone();
    planner.policy = settings.cta_policy.unwrap_or_default();
    Ok(Inner {
        rank,
        n_ranks: init.n_ranks,
        n_hosts,
        core,
        segment: memory.segment,
        arena: memory.arena,
        planner: Mutex::new(planner),
        limit: Mutex::new(init.limit),
        bootstrap: Mutex::new(bootstrap),
        _watched: watched,
    })
}

/// What choices depend on, from what all ranks said about themselves.
fn host_model(settings: &Settings, peers: &[PeerInfo], n_hosts: usize, n_channels: usize) -> HostModel {
    HostModel {
        n_ranks: peers.len(),
        n_hosts,
        n_cpus: shared_cpus(peers),
        cache_bytes: peers.iter().map(|p| p.cache_bytes).min().unwrap_or(8 << 20),
        shares_control: true,
        is_peer_mapped: false,
        filter: settings.filter.clone(),
        symmetric_anyway: settings.symmetric_anyway,
        n_channels: n_channels.min(MAX_CHANNELS) as u32,
        cut: settings.cut,
    }
}

/// This rank's segment and arena.
pub(super) struct OwnMemory {
    pub(super) segment: Arc<Region>,
    pub(super) arena: Arc<Region>,
    buffer_bytes: [usize; 3],
}

impl OwnMemory {
    fn create(settings: &Settings, n_ranks: usize) -> Result<Self> {
        let segment = Region::create("chorus-segment", SEGMENT_RESERVE)?;
        Ok(Self {
            segment: with_control_pages(segment, n_ranks)?,
            arena: Arc::new(Region::create("chorus-arena", arena_reserve())?),
            buffer_bytes: [Protocol::LL, Protocol::LL128, Protocol::Simple]
                .map(|p| settings.plan.buffer_bytes(p)),
        })
    }
}

/// A segment begins with the rank's control pages and its table of connections, all zero.
pub(super) fn with_control_pages(segment: Region, n_ranks: usize) -> Result<Arc<Region>> {
    let at = segment.alloc(CONTROL_BYTES + fifo::table_bytes(MAX_CHANNELS, n_ranks))?;
    debug_assert_eq!(at, 0);
    Ok(Arc::new(segment))
}

/// Address space of an arena, bytes: twice the machine's memory is more than can be allocated, and the range costs nothing.
fn arena_reserve() -> usize {
    (2 * machine::total_memory() as usize).next_power_of_two().max(64 << 30)
}

/// A random number that says which process a rank lives in.
fn process_number() -> Result<u64> {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    if let Some(&number) = NUMBER.get() {
        return Ok(number);
    }
    let fresh = getrandom::u64().map_err(|e| Error::system("asking for random bytes", e))?;
    Ok(*NUMBER.get_or_init(|| fresh))
}

fn exchange_info(bootstrap: &mut Bootstrap, settings: &Settings, rank: usize) -> Result<Vec<PeerInfo>> {
    let (boot_id, host_name) = (machine::boot_id(), machine::host_name());
    let mine = PeerInfo {
        rank,
        host: settings.host_id.clone().unwrap_or_else(|| format!("{host_name}/{boot_id}")),
        boot_id,
        host_name,
        pid: std::process::id(),
        process: process_number()?,
        user: rustix::process::geteuid().as_raw(),
        cpus: machine::allowed_cpus(),
        quota: machine::cpu_quota(),
        cache_bytes: machine::last_level_cache(),
        reserve: (SEGMENT_RESERVE, arena_reserve()),
        p2p: !settings.p2p_disable,
        shm: !settings.shm_disable,
    };
    let bytes = serde_json::to_vec(&mine).map_err(|e| Error::Internal(e.to_string()))?;
    let all = bootstrap.all_gather(&bytes)?;
    let parse = |bytes: &Vec<u8>| {
        serde_json::from_slice(bytes)
            .map_err(|e| Error::Internal(format!("a peer's description is no description: {e}")))
    };
    all.iter().map(parse).collect()
}

/// What every rank sees of its host.
fn exchange_views(
    bootstrap: &mut Bootstrap,
    settings: &Settings,
    hosts: &[usize],
    me: &PeerInfo,
) -> Result<Vec<String>> {
    let mine = own_text(&settings.topology, hosts, me.rank, &me.cpus)?;
    let all = bootstrap.all_gather(mine.as_bytes())?;
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes)
            .map_err(|e| Error::Internal(format!("a peer's view of its host is no text: {e}")))
    };
    all.into_iter().map(text).collect()
}

/// Whether the statement holds on every rank.
pub(super) fn agree(bootstrap: &mut Bootstrap, here: bool) -> Result<bool> {
    Ok(bootstrap.all_gather(&[u8::from(here)])?.iter().all(|answer| answer == &[1]))
}

fn union_of_cpus(peers: &[PeerInfo]) -> Vec<usize> {
    let mut cpus: Vec<usize> = peers.iter().flat_map(|p| p.cpus.iter().copied()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// CPUs all ranks of this machine may use together, cut by the cgroup quota. Launchers bind each rank to a core: a rank alone would
/// believe that it shares one core with everybody.
fn shared_cpus(peers: &[PeerInfo]) -> usize {
    let union = union_of_cpus(peers).len();
    let quota = peers.iter().filter_map(|p| p.quota).fold(f64::INFINITY, f64::min);
    (union as f64).min(quota.ceil()).max(1.0) as usize
}

fn make_core(init: &CommInit, rank: usize, own: &OwnMemory, reach: &[Reach], model: &HostModel) -> RankCore {
    let peers = reach
        .iter()
        .enumerate()
        .map(|(r, reach)| Peer {
            control: Control::of(reach.segment.clone()),
            arena: reach.arena.clone(),
            // Own pages are populated when they are allocated.
            populated: if r == rank { usize::MAX } else { 0 },
        })
        .collect();
    let team = Team::new(rank, peers, Policy::new(init.n_ranks, model.n_cpus));
    let ranks = reach.iter().map(|r| (r.segment.clone(), r.arena.clone())).collect();
    let memory = Reachable::new(own.segment.clone(), ranks, CONTROL_BYTES);
    let place = cta::Place {
        rank,
        n_ranks: init.n_ranks,
        channel: 0,
        n_channels: MAX_CHANNELS,
        buffer_bytes: own.buffer_bytes,
    };
    RankCore::new(rank, team, Classic::new(Arc::new(memory), place))
}

/// Rings, trees and connections in the library's own form.
fn log_graph(rank: usize, arrangement: &Arrangement, reach: &[Reach]) {
    if !log::is_on(Subsys::INIT) && !log::is_on(Subsys::GRAPH) {
        return;
    }
    let (n_ranks, n_channels) = (reach.len(), arrangement.n_channels.min(MAX_CHANNELS));
    let width = (n_ranks.max(2) - 1).to_string().len();
    let at = |r: Option<usize>| r.map_or(-1, |r| r as i64);
    let mut trees = String::from("Trees");
    for c in 0..n_channels {
        let (ring, tree) = (&arrangement.layout.rings[c], &arrangement.layout.trees[c]);
        if rank == 0 {
            let order: Vec<String> = arrangement.orders[c].iter().map(|r| format!("{r:>width$}")).collect();
            log::info(Subsys::INIT, format_args!("Channel {c:02}/{n_channels:02} : {}", order.join(" ")));
        }
        let downs = arrangement.slots[c].map(|d| at(d).to_string()).join("/");
        let up = at(tree.up);
        trees.push_str(&format!(" [{c}] {downs}->{rank}->{up}"));
        log::info(Subsys::GRAPH, format_args!("Ring {c:02} : {} -> {rank} -> {}", ring.prev(), ring.next()));
        log::info(Subsys::GRAPH, format_args!("Tree {c} : {up} -> {rank} -> {downs}"));
        if n_ranks > 1 {
            let next = ring.next();
            let kind = reach[next].kind;
            log::info(
                Subsys::INIT | Subsys::P2P | Subsys::SHM,
                format_args!("Channel {c:02}/0 : {rank}[{rank}] -> {next}[{next}] via {kind}"),
            );
        }
    }
    log::info(Subsys::INIT, format_args!("{trees}"));
}
