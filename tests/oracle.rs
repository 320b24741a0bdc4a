//! The pure half of the engine against recorded outputs of the real library.
//!
//! `CHORUS_ORACLE` names the folder that holds them; without it the machines under `tests/topologies` are used. Graphs come from the
//! recordings, not from our search, so that a difference points at connecting or at the cost model.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;

use chorus::engine::graph::connect::{Connection, Member, connect};
use chorus::engine::graph::p2p::P2pChannels;
use chorus::engine::graph::{Channel, GraphId, ModelRequest, Pattern, SearchGraph, channels, model, trees};
use chorus::engine::topo::{CpuArch, CpuVendor, PathType, System};
use chorus::engine::tuning::model::CollNet;
use chorus::engine::tuning::{self, Facts, Model, Request};
use chorus::engine::types::{Algorithm, Collective, Protocol};

const RELEASE: &str = "v2.30.7";
const FUNCTIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
/// In-switch columns rest on a stand-in where they are usable.
const NVLS: [usize; 2] = [4, 5];

/// The folder named, or our own machines.
fn oracle(test: &str) -> PathBuf {
    chorus::env::raw("CHORUS_ORACLE").map(PathBuf::from).unwrap_or_else(|| {
        println!(
            "{test} skipped for all machines but those of tests/topologies: CHORUS_ORACLE names no folder"
        );
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies")
    })
}

fn load(path: &Path) -> Value {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_reader(flate2::read::GzDecoder::new(file))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("folder of recorded outputs")
        .filter_map(|entry| {
            entry.expect("entry").file_name().to_str()?.strip_suffix(".json.gz").map(String::from)
        })
        .collect();
    names.sort();
    names
}

fn int(v: &Value) -> i64 {
    v.as_i64().unwrap_or_else(|| panic!("not an integer: {v}"))
}

fn float(v: &Value) -> f32 {
    v.as_f64().unwrap_or_else(|| panic!("not a number: {v}")) as f32
}

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("not a list: {v}"))
}

fn graph(v: &Value) -> SearchGraph {
    let id = [GraphId::Ring, GraphId::Tree, GraphId::CollNetChain, GraphId::Nvls, GraphId::CollNetDirect]
        [int(&v["id"]) as usize];
    let path =
        |key: &str| PathType::from_name(v[key].as_str().expect("a path type")).expect("a known path type");
    SearchGraph {
        id,
        pattern: Pattern::from_number(int(&v["pattern"]) as i32).expect("a known pattern"),
        cross_nic: int(&v["crossNic"]) as i32,
        coll_net: int(&v["collNet"]) != 0,
        min_channels: int(&v["minChannels"]) as usize,
        max_channels: int(&v["maxChannels"]) as usize,
        bw_intra: float(&v["bwIntra"]),
        bw_inter: float(&v["bwInter"]),
        latency_inter: float(&v["latencyInter"]),
        type_intra: path("typeIntra"),
        type_inter: path("typeInter"),
        same_channels: int(&v["sameChannels"]) != 0,
        n_hops: int(&v["nHops"]) as i32,
        channels: list(&v["channels"])
            .iter()
            .map(|c| Channel {
                intra: list(&c["intra"]).iter().map(|r| int(r) as i32).collect(),
                inter: None,
            })
            .collect(),
    }
}

/// One recorded communicator: the graphs of its domains, what was connected, what was tuned.
struct Case<'a> {
    name: String,
    variant: &'a Value,
    connect: &'a Value,
    tuning: Option<&'a Value>,
    collnet: bool,
    env: Option<&'a Value>,
}

impl Case<'_> {
    fn setting(&self, name: &str) -> Option<String> {
        self.env?.get(name)?.as_str().map(String::from)
    }

    fn connection(&self) -> Connection {
        let domains: Vec<Vec<SearchGraph>> = list(&self.variant["domains"])
            .iter()
            .map(|d| list(&d["graphs"]).iter().map(graph).collect())
            .collect();
        let n_gpus = int(&self.variant["ngpus"]) as usize;
        let n_hosts = int(&self.connect["nRanks"]) as usize / n_gpus;
        let members: Vec<Member<'_>> = (0..n_hosts)
            .flat_map(|host| domains.iter().map(move |graphs| Member { graphs, first_rank: host * n_gpus }))
            .collect();
        let mut params = channels::Params::from_lookup(&|name| self.setting(name));
        params.collnet |= self.collnet;
        let min_compute_cap = self.tuning.map_or(80, |t| int(&t["minCompCap"]) as i32);
        let facts = channels::Facts { min_compute_cap, min_net_bw: 50.0 };
        connect(&members, &facts, &params).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn model(&self, tuning: &Value, connection: &Connection) -> Model {
        let nvswitch = list(&self.variant["domains"]).iter().any(|d| {
            d["system"].get("nodes").is_none_or(|nodes| nodes.get("NVS").is_some_and(|n| !list(n).is_empty()))
        });
        let facts = Facts {
            n_ranks: connection.n_ranks,
            n_hosts: connection.n_hosts(),
            max_local_ranks: connection.max_local_ranks(),
            local_ranks: connection.hosts[0].len(),
            n_channels: connection.channels.len(),
            nvls_channels: connection.nvls.as_ref().map_or(0, |nvls| nvls.shape.n_channels),
            collnet: connection.collnet.as_ref().map(|c| CollNet {
                n_heads: c.n_heads,
                chain: true,
                all_gather: false,
                reduce_scatter: false,
            }),
            min_compute_cap: int(&tuning["minCompCap"]) as i32,
            max_compute_cap: int(&tuning["maxCompCap"]) as i32,
            cpu_arch: [CpuArch::X86, CpuArch::Power, CpuArch::Arm]
                .into_iter()
                .find(|a| *a as i64 == int(&tuning["cpuArch"])),
            cpu_vendor: [CpuVendor::Intel, CpuVendor::Amd, CpuVendor::Zhaoxin]
                .into_iter()
                .find(|v| *v as i64 == int(&tuning["cpuVendor"])),
            mixed_vendors: false,
            nvswitch,
            graphs: connection.graphs,
            max_tree_pattern: connection.max_tree_pattern,
        };
        let params = tuning::Params::from_lookup(&|name| self.setting(name))
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        Model::new(facts, params)
    }
}

fn slot(rank: Option<usize>) -> i64 {
    rank.map_or(-1, |r| r as i64)
}

fn check_connection(case: &Case<'_>) {
    let (want, got) = (case.connect, case.connection());
    let name = &case.name;
    assert_eq!(got.n_ranks as i64, int(&want["nRanks"]), "{name}: ranks");
    assert_eq!(got.n_hosts() as i64, int(&want["nNodes"]), "{name}: hosts");
    assert_eq!(got.channels.len() as i64, int(&want["nChannels"]), "{name}: channels");
    for (rank, host) in list(&want["rankToNode"]).iter().enumerate() {
        assert_eq!(got.rank_to_host[rank] as i64, int(host), "{name}: host of rank {rank}");
    }
    for (c, (channel, want)) in got.channels.iter().zip(list(&want["channels"])).enumerate() {
        let at = format!("{name} channel {c}");
        let ring: Vec<i64> = channel.ring.order(0).into_iter().map(|r| r as i64).collect();
        assert_eq!(ring, list(&want["ring"]).iter().map(int).collect::<Vec<_>>(), "{at}: ring");
        assert_eq!(got.tree_depth as i64, int(&want["treeDepth"]), "{at}: depth");
        for rank in 0..got.n_ranks {
            assert_eq!(channel.ring.prev[rank] as i64, int(&want["ringPrev"][rank]), "{at}: prev of {rank}");
            assert_eq!(channel.ring.next[rank] as i64, int(&want["ringNext"][rank]), "{at}: next of {rank}");
            assert_eq!(slot(channel.tree.up[rank]), int(&want["treeUp"][rank]), "{at}: parent of {rank}");
            let down: Vec<i64> = channel.tree.down[rank].into_iter().map(slot).collect();
            let want_down: Vec<i64> = list(&want["treeDown"][rank]).iter().map(int).collect();
            assert_eq!(down, want_down, "{at}: children of {rank}");
            if let Some(chain) = want.get("collnetChain") {
                let (up, down) = channel.chain[rank];
                assert_eq!(
                    [slot(up), slot(down)],
                    [int(&chain[rank][0]), int(&chain[rank][1])],
                    "{at}: chain of {rank}"
                );
            }
            check_heads(&at, &got, c, rank, want);
        }
    }
}

fn check_heads(at: &str, got: &Connection, channel: usize, rank: usize, want: &Value) {
    let ranks = |v: &Value| list(v).iter().filter_map(|r| usize::try_from(int(r)).ok()).collect::<Vec<_>>();
    if let Some(want) = want.get("collnetDirect").map(|d| &d[rank]) {
        let links = &got.collnet.as_ref().expect("collnet").direct[rank];
        let figures = [slot(links.head), links.heads.len() as i64, slot(links.out), links.shift as i64];
        let wanted = ["headRank", "nHeads", "out", "shift"].map(|key| int(&want[key]));
        assert_eq!(figures, wanted, "{at}: heads of {rank}");
        assert_eq!(
            (&links.up, &links.down),
            (&ranks(&want["up"]), &ranks(&want["down"])),
            "{at}: links of {rank}"
        );
    }
    if let Some(want) = want.get("nvls").map(|d| &d[rank]) {
        let nvls = got.nvls.as_ref().expect("nvls");
        if channel >= nvls.shape.n_channels {
            return;
        }
        let links = &nvls.links[rank];
        let figures =
            [slot(links.head), links.n_heads as i64, links.down as i64, slot(links.tree_up[channel % 2])];
        let wanted = ["headRank", "nHeads", "down", "treeUp"].map(|key| int(&want[key]));
        assert_eq!(figures, wanted, "{at}: in-switch links of {rank}");
        let mut down: Vec<i64> = links.tree_down[channel % 2].iter().map(|&r| r as i64).collect();
        down.resize(3, -1);
        assert_eq!(
            down,
            list(&want["treeDown"]).iter().map(int).collect::<Vec<_>>(),
            "{at}: in-switch tree of {rank}"
        );
    }
}

fn check_tables(case: &Case<'_>, tuning: &Value) {
    let model = case.model(tuning, &case.connection());
    let name = &case.name;
    for a in (0..7).filter(|a| !NVLS.contains(a)) {
        for p in 0..3 {
            let cell = format!("{name}: {}/{}", Algorithm::ALL[a], Protocol::ALL[p]);
            assert_eq!(
                i64::from(model.max_threads[a][p]),
                int(&tuning["maxThreads"][a][p]),
                "{cell} threads"
            );
            assert_eq!(
                model.thread_thresholds[a][p],
                int(&tuning["threadThresholds"][a][p]),
                "{cell} thresholds"
            );
            for (f, function) in FUNCTIONS.iter().enumerate() {
                let want = float(&tuning["latencies"][function][a][p]);
                assert_eq!(model.latencies[f][a][p], want, "{cell} {function} latency");
                let want = float(&tuning["bandwidths"][function][a][p]);
                assert_eq!(model.bandwidths[f][a][p], want, "{cell} {function} bandwidth");
                let excluded = model.exclusions[f][a][p].is_some();
                assert_eq!(
                    excluded,
                    want == 0.0 && model.facts.n_ranks > 1 || model.facts.n_ranks == 1 && (a, p) != (1, 2),
                    "{cell} {function}: exclusion"
                );
            }
        }
    }
    let mut n_rows = 0;
    for row in list(&tuning["choices"]) {
        check_choice(name, &model, row);
        n_rows += 1;
    }
    assert!(n_rows > 0, "{name}: no choices recorded");
}

fn check_choice(name: &str, model: &Model, row: &Value) {
    let function = FUNCTIONS.iter().position(|f| Some(*f) == row[0].as_str()).expect("a known function");
    let request = Request::plain(Collective::ALL[function], int(&row[2]) as u64);
    let at = format!("{name}: {} of {} bytes", FUNCTIONS[function], request.bytes);
    let usable = NVLS.iter().any(|a| float(&row[8][3 * a + 2]) >= 0.0);
    let table = model.cost_table(&request);
    for (index, want) in list(&row[8]).iter().enumerate() {
        if usable && NVLS.contains(&(index / 3)) {
            continue;
        }
        assert_eq!(table[index / 3][index % 3], float(want), "{at}: cost of {}/{}", index / 3, index % 3);
    }
    if usable {
        return;
    }
    let choice = model.choose(&request, None).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert_eq!(choice.algorithm.name(), row[3].as_str().expect("algorithm").to_ascii_lowercase(), "{at}");
    assert_eq!(choice.protocol.name(), row[4].as_str().expect("protocol").to_ascii_lowercase(), "{at}");
    assert_eq!(choice.n_channels as i64, int(&row[5]), "{at}: channels");
    assert_eq!(i64::from(choice.n_threads), int(&row[6]), "{at}: threads");
    assert_eq!(choice.time_us, float(&row[7]), "{at}: time");
}

/// Runs `check` on every recorded communicator with the default environment.
fn each_case(folder: &Path, check: &dyn Fn(&Case<'_>)) {
    let base = folder.join(RELEASE);
    for topology in names(&base.join("connect")) {
        let file = format!("{topology}.json.gz");
        let graphs = load(&base.join("graph").join(&file));
        let connects = load(&base.join("connect").join(&file));
        let tunings = load(&base.join("tuning").join(&file));
        for (key, connected) in connects["byNodes"].as_object().expect("byNodes") {
            let collnet = key.ends_with("_collnet");
            let hosts = key.trim_end_matches("_collnet");
            let variant = format!(
                "{}{}",
                if hosts == "1" { "single" } else { "multi" },
                if collnet { "_collnet" } else { "" }
            );
            check(&Case {
                name: format!("{topology} N={key}"),
                variant: &graphs["variants"][&variant],
                connect: connected,
                tuning: tunings["byNodes"].get(key),
                collnet,
                env: None,
            });
        }
    }
}

#[test]
fn double_trees_equal_the_recorded_ones() {
    let folder = oracle("double_trees_equal_the_recorded_ones");
    if !folder.join("dtree").is_dir() {
        println!("double_trees_equal_the_recorded_ones skipped: {} has no folder dtree", folder.display());
        return;
    }
    let file = File::open(folder.join("dtree/dtree.csv.gz")).expect("dtree.csv.gz");
    let mut rows = csv::Reader::from_reader(flate2::read::GzDecoder::new(file));
    let mut n_rows = 0;
    for row in rows.records() {
        let row: Vec<i64> = row.expect("row").iter().map(|cell| cell.parse().expect("integer")).collect();
        for (place, want) in
            trees::double(row[0] as usize, row[1] as usize).iter().zip([&row[2..6], &row[6..10]])
        {
            let [first, second] = place.children.map(slot);
            let got = [slot(place.parent), first, second, slot(place.slot)];
            assert_eq!(got, want, "{} hosts, host {}", row[0], row[1]);
        }
        n_rows += 1;
    }
    assert!(n_rows > 10_000, "only {n_rows} rows");
}

#[test]
fn connections_equal_the_recorded_ones() {
    let folder = oracle("connections_equal_the_recorded_ones");
    each_case(&folder, &check_connection);
}

#[test]
fn tables_and_choices_equal_the_recorded_ones() {
    let folder = oracle("tables_and_choices_equal_the_recorded_ones");
    each_case(&folder, &|case| {
        if let Some(tuning) = case.tuning {
            check_tables(case, tuning);
        }
    });
}

#[test]
fn settings_change_connections_and_choices_as_recorded() {
    let folder = oracle("settings_change_connections_and_choices_as_recorded");
    let base = folder.join(RELEASE).join("env");
    for topology in names(&base) {
        let runs = load(&base.join(format!("{topology}.json.gz")));
        // System vertices are left out of these runs; the plain recording tells whether there is a switch.
        let plain = load(&folder.join(RELEASE).join("graph").join(format!("{topology}.json.gz")));
        let nvs = plain["variants"]["single"]["domains"][0]["system"]["nodes"].clone();
        for run in list(&runs["runs"]) {
            let mut run = run.clone();
            for domain in run["domains"].as_array_mut().expect("domains") {
                domain["system"]["nodes"] = nvs.clone();
            }
            let case = Case {
                name: format!("{topology} N={} {}", run["nodes"], run["env"]),
                variant: &run,
                connect: &run["connect"],
                tuning: Some(&run["tuning"]),
                collnet: false,
                env: Some(&run["env"]),
            };
            check_connection(&case);
            check_tables(&case, &run["tuning"]);
        }
    }
}

/// The counts rest on the driver's device limits, which the recordings lack; everything else is a function of the machine.
#[test]
fn point_to_point_channels_equal_the_recorded_ones() {
    let folder = oracle("point_to_point_channels_equal_the_recorded_ones");
    let connects = folder.join(RELEASE).join("connect");
    // Each machine is searched anew here: every fourth is enough.
    for topology in names(&connects).iter().step_by(4) {
        let recorded = load(&connects.join(format!("{topology}.json.gz")));
        let xml = std::fs::read_to_string(folder.join("topologies").join(format!("{topology}.xml")))
            .expect("topology");
        let params = chorus::engine::topo::Params::default();
        for several in [false, true] {
            let request = ModelRequest { multi_host: several, coll_net: false };
            let variant = model(&xml, &params, request).expect("a model");
            let systems: Vec<&System> = variant.domains.iter().map(|domain| &domain.system).collect();
            for (key, want) in recorded["byNodes"].as_object().expect("byNodes") {
                if (key == "1") == several || key.ends_with("_collnet") {
                    continue;
                }
                let figure = |name: &str| int(&want[name]) as usize;
                let got = P2pChannels::of(
                    &systems,
                    figure("nRanks"),
                    figure("nNodes"),
                    figure("nChannels"),
                    &params,
                )
                .expect("channels");
                let wanted = (figure("p2pnChannels"), figure("p2pnChannelsPerPeer"));
                assert_eq!((got.n_channels, got.per_peer), wanted, "{topology} N={key}");
            }
        }
    }
}
