//! System graphs, paths, searches and graph files against recorded outputs of NCCL 2.30.7's host code.
//!
//! The variable CHORUS_ORACLE names a folder of recordings; without it the machines under `tests/topologies` are used.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use chorus::engine::graph::{Attempt, ModelRequest, Variant, dump, model, model_system, rules};
use chorus::engine::topo::xml::{Element, Limits, read_topology};
use chorus::engine::topo::{NodeType, Params, System, fuse, n_ranks, number_ranks, own_view};
use flate2::read::GzDecoder;
use serde_json::Value;

/// Left-overs of the winning attempt, and results of merging the views of several processes.
const NOT_COMPARED: [&str; 5] = ["graphXml", "fusedSame", "fusedGraphs", "fusedGpuOrder", "fusedNetOrder"];

fn oracle() -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        chorus::env::text("CHORUS_ORACLE").map(PathBuf::from).unwrap_or_else(|| {
            println!(
                "skipped: all machines but those of tests/topologies, because CHORUS_ORACLE names no folder"
            );
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies")
        })
    });
    FOLDER.clone()
}

type Modelled = Arc<OnceLock<Result<Variant, String>>>;

/// A machine of the folder in one situation, modelled once for all tests.
fn modelled(name: &str, variant: &str) -> Modelled {
    static KNOWN: LazyLock<Mutex<HashMap<(String, String), Modelled>>> = LazyLock::new(Mutex::default);
    let key = (name.to_owned(), variant.to_owned());
    let cell = Arc::clone(KNOWN.lock().expect("no test died here").entry(key).or_default());
    cell.get_or_init(|| {
        let text = topology(name);
        model(&text, &Params::default(), request(variant)).map_err(|e| e.to_string())
    });
    cell
}

fn topology(name: &str) -> String {
    fs::read_to_string(oracle().join("topologies").join(format!("{name}.xml"))).expect("a topology")
}

fn load(path: &Path) -> Value {
    serde_json::from_reader(GzDecoder::new(File::open(path).expect("a recorded output")))
        .expect("recorded JSON")
}

fn recorded(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut files: Vec<(String, PathBuf)> = fs::read_dir(folder)
        .expect("a folder of recorded outputs")
        .map(|entry| entry.expect("a file").path())
        .filter_map(|path| {
            Some((path.file_name()?.to_str()?.strip_suffix(".json.gz")?.to_owned(), path.clone()))
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no recorded outputs", folder.display());
    files
}

/// The first place where `got` contradicts `want`. Floats are single precision.
fn differ(want: &Value, got: &Value, at: &str) -> Option<String> {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            let compared = want.iter().filter(|(key, _)| !NOT_COMPARED.contains(&key.as_str()));
            compared.into_iter().find_map(|(key, value)| {
                let at = format!("{at}.{key}");
                match got.get(key) {
                    Some(got) => differ(value, got, &at),
                    None if key == "nodes" || value.as_array().is_some_and(Vec::is_empty) => None,
                    None => Some(format!("{at}: missing")),
                }
            })
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => want
            .iter()
            .zip(got)
            .enumerate()
            .find_map(|(i, (want, got))| differ(want, got, &format!("{at}[{i}]"))),
        (Value::Number(want), Value::Number(got)) => {
            let (a, b) = (want.as_f64().expect("a number") as f32, got.as_f64().expect("a number") as f32);
            (a != b).then(|| format!("{at}: expected {a}, got {b}"))
        }
        _ => (want != got).then(|| format!("{at}: expected {want}, got {got}")),
    }
}

/// What a variant looks like after a trip through its JSON text.
fn as_json(variant: &Variant) -> Value {
    let text = serde_json::to_string(variant).expect("a variant is JSON");
    serde_json::from_str(&text).expect("its text parses")
}

fn request(name: &str) -> ModelRequest {
    ModelRequest { multi_host: name.starts_with("multi"), coll_net: name.ends_with("_collnet") }
}

#[derive(Default)]
struct Tally {
    good: BTreeMap<String, usize>,
    bad: BTreeMap<String, Vec<String>>,
}

impl Tally {
    fn count(&mut self, what: &str, name: &str, difference: Option<String>) {
        match difference {
            None => *self.good.entry(what.to_owned()).or_default() += 1,
            Some(text) => self.bad.entry(what.to_owned()).or_default().push(format!("{name}: {text}")),
        }
    }

    fn finish(self) {
        for (what, n) in &self.good {
            println!("{what}: {n} agree, {} differ", self.bad.get(what).map_or(0, Vec::len));
        }
        let mut lines = Vec::new();
        for (what, texts) in &self.bad {
            lines.extend(texts.iter().map(|text| format!("{what} {text}")));
        }
        assert!(lines.is_empty(), "{} differ:\n{}", lines.len(), lines.join("\n"));
        assert!(!self.good.is_empty(), "nothing was compared");
    }
}

fn compare_domains(tally: &mut Tally, name: &str, want: &Value, got: &Value) {
    tally.count(
        "domains",
        name,
        differ(&want["domainOfLocalRank"], &got["domainOfLocalRank"], "domainOfLocalRank"),
    );
    let wanted = want["domains"].as_array().expect("domains");
    for (d, want) in wanted.iter().enumerate() {
        let got = &got["domains"][d];
        let name = format!("{name}/{d}");
        if let Some(system) = want["system"].as_object() {
            let nodes = system.get("nodes").map_or(&Value::Null, |nodes| nodes);
            if !nodes.is_null() {
                tally.count("nodes", &name, differ(nodes, &got["system"]["nodes"], "nodes"));
            }
            tally.count("paths", &name, differ(&want["system"]["paths"], &got["system"]["paths"], "paths"));
            for bound in ["maxBw", "totalBw"] {
                tally.count("bounds", &name, differ(&want["system"][bound], &got["system"][bound], bound));
            }
        }
        for (g, graph) in want["graphs"].as_array().expect("graphs").iter().enumerate() {
            let word = graph["name"].as_str().expect("a name");
            tally.count(&format!("{word} graphs"), &name, differ(graph, &got["graphs"][g], word));
        }
    }
}

#[test]
fn systems_and_graphs_equal_the_recorded_ones() {
    let oracle = oracle();
    let mut tally = Tally::default();
    for (name, path) in recorded(&oracle.join("v2.30.7/graph")) {
        for (variant, want) in load(&path)["variants"].as_object().expect("variants") {
            let got = modelled(&name, variant);
            let name = format!("{name}/{variant}");
            match got.get().expect("it is modelled") {
                Ok(got) => compare_domains(&mut tally, &name, want, &as_json(got)),
                Err(text) => tally.count("models", &name, Some(text.clone())),
            }
        }
    }
    tally.finish();
}

/// A machine as its processes see it, one rank each, laid together.
fn fused(name: &str) -> Element {
    let mut root = read_topology(&topology(name), Limits::TOPOLOGY).expect("a topology");
    number_ranks(&mut root);
    fuse((0..n_ranks(&root)).map(|rank| own_view(&root, rank))).expect("ranks")
}

#[test]
fn views_of_single_processes_laid_together_give_the_recorded_order_and_graphs() {
    let mut tally = Tally::default();
    for (name, path) in recorded(&oracle().join("v2.30.7/graph")) {
        let root = fused(&name);
        for (variant, want) in load(&path)["variants"].as_object().expect("variants") {
            let system = System::from_xml(&root, &Params::default()).expect("a machine");
            let got = model_system(system, &Params::default(), request(variant)).expect("a model");
            let wanted = want["domains"].as_array().expect("domains");
            for (d, (want, domain)) in wanted.iter().zip(&got.domains).enumerate() {
                let name = format!("{name}/{variant}/{d}");
                if let Some(order) = want.get("fusedGpuOrder") {
                    let ranks = serde_json::json!(domain.system.ranks());
                    tally.count("fused GPU orders", &name, differ(order, &ranks, "ranks"));
                    let ids = domain.system.nodes(NodeType::Net).iter().map(|net| format!("{:#x}", net.id));
                    let ids = serde_json::json!(ids.collect::<Vec<_>>());
                    tally.count("fused NIC orders", &name, differ(&want["fusedNetOrder"], &ids, "NICs"));
                }
                let graphs = want.get("fusedGraphs").unwrap_or(&want["graphs"]).as_array().expect("graphs");
                let text = serde_json::to_string(&domain.graphs).expect("graphs are JSON");
                let got: Value = serde_json::from_str(&text).expect("its text parses");
                for (g, graph) in graphs.iter().enumerate() {
                    tally.count("fused graphs", &name, differ(graph, &got[g], "graph"));
                }
            }
        }
    }
    tally.finish();
}

#[test]
fn searches_take_the_recorded_way() {
    let oracle = oracle();
    let mut tally = Tally::default();
    for (name, path) in recorded(&oracle.join("v2.30.7/search_trace")) {
        for (variant, want) in load(&path)["domains"].as_object().expect("domains") {
            let got = modelled(&name, variant);
            let name = format!("{name}/{variant}");
            match got.get().expect("it is modelled") {
                Ok(got) => {
                    for (d, (want, got)) in
                        want.as_array().expect("domains").iter().zip(&got.domains).enumerate()
                    {
                        let rows: Vec<Value> = got.trace.iter().map(row).collect();
                        tally.count("traces", &format!("{name}/{d}"), differ_rows(want, &rows));
                    }
                }
                Err(e) => tally.count("models", &name, Some(e.to_string())),
            }
        }
    }
    tally.finish();
}

#[test]
fn graph_files_are_written_as_recorded_and_read_back() {
    let oracle = oracle();
    let mut tally = Tally::default();
    for (name, path) in recorded(&oracle.join("v2.30.7/graph")) {
        for (variant, want) in load(&path)["variants"].as_object().expect("variants") {
            let got = modelled(&name, variant);
            let got = got.get().expect("it is modelled").as_ref().expect("a machine");
            for (d, domain) in got.domains.iter().enumerate() {
                let name = format!("{name}/{variant}/{d}");
                let written = dump::to_text(&domain.system, &domain.graphs);
                let text = want["domains"][d]["graphXml"].as_str().expect("a graph file");
                tally.count("graph files", &name, differ_lines(text, &written));
                let root = chorus::engine::topo::xml::read_graphs(&written).expect("our own file");
                for graph in &domain.graphs {
                    let read = dump::load(&root, &domain.system, graph.id, &Params::default())
                        .expect("our own graph");
                    let channels = read.map_or_else(Vec::new, |read| read.channels);
                    let same = channels == graph.channels;
                    tally.count("graphs read back", &name, (!same).then(|| "other channels".to_owned()));
                }
            }
        }
    }
    tally.finish();
}

fn differ_lines(want: &str, got: &str) -> Option<String> {
    let pairs = want.lines().zip(got.lines()).enumerate();
    let first = pairs.into_iter().find(|(_, (want, got))| want != got);
    first.map(|(i, (want, got))| format!("line {}:\n    want {want}\n    got  {got}", i + 1)).or_else(|| {
        (want.lines().count() != got.lines().count()).then(|| "another number of lines".to_owned())
    })
}

#[test]
fn graphs_of_every_machine_keep_the_rules() {
    let oracle = oracle();
    let mut tally = Tally::default();
    for entry in fs::read_dir(oracle.join("topologies")).expect("a folder of topologies") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a file name");
        for situation in ["single", "multi"] {
            let got = modelled(name, situation);
            let name = format!("{name}/{situation}");
            let variant = match got.get().expect("it is modelled") {
                Ok(variant) => variant,
                Err(text) => {
                    tally.count("machines", &name, Some(text.clone()));
                    continue;
                }
            };
            for domain in &variant.domains {
                for graph in &domain.graphs {
                    tally.count("rules", &name, rules::check(&domain.system, graph).err());
                }
            }
        }
    }
    tally.finish();
}

/// An attempt in the order of the recorded fields.
fn row(attempt: &Attempt) -> Value {
    let tried = &attempt.tried;
    serde_json::json!([
        tried.id as i32,
        attempt.pass,
        tried.pattern as i32,
        tried.bw_intra,
        tried.bw_inter,
        tried.type_intra as i32,
        tried.type_inter as i32,
        tried.min_channels,
        tried.max_channels,
        u8::from(tried.same_channels),
        tried.cross_nic,
        attempt.speed_index,
        attempt.time_left,
        attempt.global_time_left,
        attempt.best_channels,
        attempt.best_bw_intra,
        attempt.best_bw_inter,
        attempt.best_hops
    ])
}

fn differ_rows(want: &Value, got: &[Value]) -> Option<String> {
    let want = want.as_array().expect("rows");
    for (i, (want, got)) in want.iter().zip(got).enumerate() {
        if let Some(text) = differ(want, got, &format!("attempt {i}")) {
            return Some(format!("{text}\n    want {want}\n    got  {got}"));
        }
    }
    (want.len() != got.len()).then(|| format!("expected {} attempts, got {}", want.len(), got.len()))
}

#[test]
fn settings_change_graphs_as_recorded() {
    let oracle = oracle();
    let mut tally = Tally::default();
    for (name, path) in recorded(&oracle.join("v2.30.7/env")) {
        let text = topology(&name);
        for run in load(&path)["runs"].as_array().expect("runs") {
            let settings = run["env"].as_object().expect("settings");
            let name = format!("{name} N={} {}", run["nodes"], run["env"]);
            let lookup = |key: &str| settings.get(key).and_then(Value::as_str).map(str::to_owned);
            let params = Params::from_lookup(&lookup).expect("recorded settings are valid");
            let request = ModelRequest { multi_host: run["nodes"] != 1, coll_net: false };
            match model(&text, &params, request) {
                Ok(got) => compare_domains(&mut tally, &name, run, &as_json(&got)),
                Err(e) => tally.count("models", &name, Some(e.to_string())),
            }
        }
    }
    tally.finish();
}
