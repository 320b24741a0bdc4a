//! Topology and graph files through real runs: what a run dumps, another takes and dumps again; bad files are named.

mod program;

use std::fs;
use std::path::Path;

use flate2::read::GzDecoder;
use program::{ALL_REDUCE, Outcome, run_with};
use serde_json::Value;

/// A machine of `tests/topologies`.
fn machine(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies/topologies");
    folder.join(format!("{name}.xml")).to_str().expect("text").to_owned()
}

/// `all_reduce_perf` on so many ranks of this process, with settings.
fn all_reduce(n_ranks: usize, algorithm: &str, settings: &[(&str, &str)]) -> Outcome {
    let n_ranks = n_ranks.to_string();
    let args =
        ["-g", &n_ranks, "-b", "4", "-e", "64K", "-f", "128", "-n", "2", "-c", "1", "--algo", algorithm];
    run_with(ALL_REDUCE, &args, settings)
}

/// A channel: its ring from rank 0 on, and every rank's parent and children.
struct Channel {
    ring: Vec<i64>,
    tree: Vec<(i64, Vec<i64>)>,
}

/// Rings and trees of one host as the real library's code gave them.
fn recorded(name: &str) -> Vec<Channel> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies/v2.30.7/connect");
    let file = fs::File::open(folder.join(format!("{name}.json.gz"))).expect("a recording");
    let recording: Value = serde_json::from_reader(GzDecoder::new(file)).expect("JSON");
    let numbers = |list: &Value| -> Vec<i64> {
        list.as_array().expect("a list").iter().map(|number| number.as_i64().expect("a number")).collect()
    };
    let channels = recording["byNodes"]["1"]["channels"].as_array().expect("channels");
    let channel = |channel: &Value| {
        let downs = channel["treeDown"].as_array().expect("children").iter().map(&numbers);
        let tree = numbers(&channel["treeUp"]).into_iter().zip(downs).collect();
        Channel { ring: numbers(&channel["ring"]), tree }
    };
    channels.iter().map(channel).collect()
}

#[test]
fn a_recorded_machine_s_rings_and_trees_run_and_are_logged() {
    for (name, n_ranks) in [("v100x4_nv2_1cpu_nonic", 4), ("dgx1v", 8), ("hgxa100_nonic", 8)] {
        let file = machine(name);
        let settings =
            [("NCCL_TOPO_FILE", file.as_str()), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH")];
        let outcome = all_reduce(n_ranks, "tree", &settings).expect(0);
        assert!(outcome.stdout.contains("# Out of bounds values : 0 OK"), "{name}:\n{}", outcome.stdout);
        let said: Vec<&str> =
            outcome.stderr.lines().filter_map(|line| line.split("NCCL INFO ").nth(1)).collect();
        let wanted = recorded(name);
        for (c, Channel { ring, tree }) in wanted.iter().enumerate() {
            let words = |numbers: &[i64], mark: &str| {
                numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(mark)
            };
            let line = format!("Channel {c:02}/{:02} : {}", wanted.len(), words(ring, " "));
            assert!(said.contains(&line.as_str()), "{name}: {line}");
            for (rank, (up, down)) in tree.iter().enumerate() {
                let line = format!("Tree {c} : {up} -> {rank} -> {}", words(down, "/"));
                assert!(said.contains(&line.as_str()), "{name}: {line}");
            }
        }
    }
}

#[test]
fn dumps_of_one_run_serve_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    for (round, (name, n_ranks)) in
        [(None, 3), (Some("dgx1v"), 4), (Some("hgxh100_4nic"), 8), (Some("l40sx4_4nic_sw"), 4)]
            .into_iter()
            .enumerate()
    {
        let files = ["topo", "graph", "topo2", "graph2"].map(|kind| path(&format!("{round}.{kind}")));
        let recorded = name.map(machine);
        let mut settings =
            vec![("NCCL_TOPO_DUMP_FILE", files[0].as_str()), ("NCCL_GRAPH_DUMP_FILE", files[1].as_str())];
        settings.extend(recorded.as_deref().map(|file| ("NCCL_TOPO_FILE", file)));
        let first = all_reduce(n_ranks, "ring", &settings).expect(0);
        let again = [
            ("NCCL_TOPO_FILE", files[0].as_str()),
            ("NCCL_GRAPH_FILE", files[1].as_str()),
            ("NCCL_TOPO_DUMP_FILE", files[2].as_str()),
            ("NCCL_GRAPH_DUMP_FILE", files[3].as_str()),
        ];
        let second = all_reduce(n_ranks, "tree", &again).expect(0);
        for outcome in [first, second] {
            assert!(
                outcome.stdout.contains("# Out of bounds values : 0 OK"),
                "{name:?}:\n{}",
                outcome.stdout
            );
        }
        let read = |file: &str| fs::read_to_string(file).expect("a dump");
        assert!(read(&files[0]).contains(&format!("rank=\"{}\"", n_ranks - 1)), "every rank is in the dump");
        assert_eq!(read(&files[0]), read(&files[2]), "{name:?}");
        assert_eq!(read(&files[1]), read(&files[3]), "{name:?}");
    }
}

#[test]
fn bad_files_are_one_line_that_names_setting_and_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.xml").to_str().expect("text").to_owned();
    fs::write(&bad, "<system version=\"1\">\n<cpu numaid=\"x\" arch=\"arm64\"/>\n</system>")
        .expect("written");
    let few = machine("dgx1v");
    for (settings, part) in [
        (&[("NCCL_TOPO_FILE", bad.as_str())][..], "the topology describes 0"),
        (&[("NCCL_TOPO_FILE", "no/such.xml")], "NCCL_TOPO_FILE no/such.xml: "),
        (&[("NCCL_GRAPH_FILE", bad.as_str())], "NCCL_GRAPH_FILE: line 1: "),
        (&[("NCCL_TOPO_FILE", few.as_str())], "9 ranks need a GPU each, but the topology describes 8"),
        (&[("NCCL_NET_MERGE_LEVEL", "NEAR")], "NCCL_NET_MERGE_LEVEL is \"NEAR\", want one of"),
    ] {
        let outcome = all_reduce(9, "ring", settings).expect(255);
        let first = outcome.stderr.lines().next().unwrap_or_default();
        assert!(first.contains(part), "{settings:?}: {}", outcome.stderr);
    }
}
