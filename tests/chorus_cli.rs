//! The tool `chorus` as people call it: statuses, messages, tables.

use std::process::{Command, Output, Stdio};

fn chorus(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chorus")).args(args).output().expect("chorus runs")
}

fn stdout(args: &[&str]) -> String {
    let output = chorus(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Two NUMA nodes, two GPUs and a NIC on each, NVLink between GPUs of a node only.
const MACHINE: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:12:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:11:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x10" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:21:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="80" rank="2" gdr="1"><nvlink target="0000:22:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:22:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="3" sm="80" rank="3" gdr="1"><nvlink target="0000:21:00.0" count="4" tclass="0x030200"/></gpu>
    </pci>
  </cpu>
  <cpu numaid="2" affinity="00000f00" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:33:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_1" dev="1" speed="200000" port="1" guid="0x20" maxconn="131072" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"#;

/// The machine as a file, with its path.
fn machine(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), text).expect("written");
    let path = file.path().to_str().expect("text").to_string();
    (file, path)
}

#[test]
fn bad_usage_of_every_verb_is_status_64_and_one_line() {
    let (_file, path) = machine(MACHINE);
    let path = path.as_str();
    for args in [
        &["trees"][..],
        &["trees", "0"],
        &["trees", "4-2"],
        &["trees", "8", "--nonsense"],
        &["trees", "8", "--csv", "--json"],
        &["nonsense"],
        &["model", path, "--nodes", "1"],
        &["model", path, "--json"],
        &["model", path, "--json", "--nodes", "0"],
        &["model", path, "--json", "--nodes", "1", "--release", "2.22.3"],
        &["model", path, "--json", "--nodes", "1", "--env", "NCCL_ALGO"],
        &["model", path, "--json", "--nodes", "1", "--env", "NCCL_ALGO=circle"],
        &["graph", path, "--dot", "--svg"],
        &["graph", path, "--nodes", "200", "--svg"],
        &["topo", path, "--xml", "--svg"],
        &["why", path, "--collective", "alltoall", "--bytes", "8"],
        &["why", path, "--collective", "all_reduce", "--bytes", "8Q"],
        &["why", path, "--collective", "all_reduce"],
    ] {
        let output = chorus(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
        assert!(message.starts_with("chorus") && message.contains("--help"), "{args:?}: {message}");
    }
    assert_eq!(chorus(&[]).status.code(), Some(64));
}

#[test]
fn help_shows_examples() {
    for verb in ["model", "topo", "graph", "trees", "why"] {
        let help = stdout(&[verb, "--help"]);
        assert!(help.contains("Examples:"), "{verb}: {help}");
    }
}

#[test]
fn unusable_files_are_status_3_and_named() {
    let no_gpu = MACHINE.replace("gpu dev", "pci dev");
    for text in ["", "no XML", "<system version=\"2\"/>", "<graphs version=\"1\"/>", &no_gpu, &MACHINE[..700]]
    {
        let (_file, path) = machine(text);
        for verb in [
            &["model", &path, "--nodes", "1", "--json"][..],
            &["graph", &path],
            &["why", &path, "--collective", "all_reduce", "--bytes", "8"],
        ] {
            let output = chorus(verb);
            let message = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{verb:?} of {text:.40}: {message}");
            assert!(message.contains(&path), "{message}");
        }
    }
    let output = chorus(&["topo", "/nonexistent/machine.xml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read /nonexistent/machine.xml"));
}

#[test]
fn damaged_files_never_panic() {
    for step in 0..60 {
        let mut text = MACHINE.to_string();
        let at = step * 41 % text.len();
        match step % 3 {
            0 => text.truncate(at),
            1 => text.replace_range(at..=at, "9"),
            _ => text.replace_range(at..(at + 30).min(text.len()), ""),
        }
        let (_file, path) = machine(&text);
        for verb in [&["topo", &path][..], &["graph", &path, "--nodes", "2"]] {
            let output = chorus(verb);
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 3)), "{verb:?} at {at}: {message}\n{text}");
        }
    }
}

#[test]
fn hosts_without_a_nic_are_not_joined() {
    let (_file, path) = machine(&MACHINE.replace("net name", "pci name"));
    let output = chorus(&["graph", &path, "--nodes", "2"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no NIC"));
}

#[test]
fn the_model_is_one_object_whose_rings_and_trees_keep_their_rules() {
    let (_file, path) = machine(MACHINE);
    let text = stdout(&["model", &path, "--nodes", "1,3", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(
        json["graph"]["variants"]["single"].is_object() && json["graph"]["variants"]["multi"].is_object()
    );
    for n_hosts in ["1", "3"] {
        let connect = &json["connect"]["byNodes"][n_hosts];
        let n_ranks = connect["nRanks"].as_u64().expect("ranks") as usize;
        assert_eq!(n_ranks, 4 * n_hosts.parse::<usize>().expect("number"));
        let channels = connect["channels"].as_array().expect("channels");
        assert_eq!(channels.len() as u64, connect["nChannels"].as_u64().expect("count"));
        for channel in channels {
            let ring: std::collections::BTreeSet<u64> =
                channel["ring"].as_array().expect("ring").iter().map(|r| r.as_u64().expect("rank")).collect();
            assert_eq!(ring.len(), n_ranks);
            let ups: Vec<i64> =
                channel["treeUp"].as_array().expect("up").iter().map(|r| r.as_i64().expect("rank")).collect();
            assert_eq!(ups.iter().filter(|&&up| up == -1).count(), 1);
            for (rank, &up) in ups.iter().enumerate().filter(|(_, up)| **up >= 0) {
                let downs = channel["treeDown"][up as usize].as_array().expect("down");
                assert!(downs.iter().any(|down| down.as_u64() == Some(rank as u64)), "{rank} below {up}");
            }
        }
        let tuning = &json["tuning"]["byNodes"][n_hosts];
        let row = &tuning["choices"][0];
        assert_eq!((row[0].as_str(), row[2].as_u64()), (Some("Broadcast"), Some(8)));
        assert_eq!(row[8].as_array().expect("cost table").len(), 21);
    }
}

#[test]
fn settings_reach_the_model_and_the_environment_does_not() {
    let (_file, path) = machine(MACHINE);
    let n_channels = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_chorus"))
            .args(["model", &path, "--nodes", "1", "--json"])
            .args(args)
            .env("NCCL_MAX_NCHANNELS", "3")
            .output()
            .expect("chorus runs");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["connect"]["byNodes"]["1"]["nChannels"].as_u64().expect("count")
    };
    assert_eq!(n_channels(&["--env", "NCCL_MAX_NCHANNELS=1"]), 1);
    assert_ne!(n_channels(&["--env", "NCCL_MIN_NCHANNELS=4"]), 3);
}

#[test]
fn graphs_come_as_log_lines_dot_and_svg() {
    let (_file, path) = machine(MACHINE);
    let text = stdout(&["graph", &path, "--nodes", "2"]);
    for part in
        ["Pattern 4, crossNic ", "Channel 00/", "Trees [0] ", "ring 0: channels ", "tree 0: channels "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let dot = stdout(&["graph", &path, "--nodes", "2", "--dot"]);
    let first = dot.split("digraph").nth(1).expect("a digraph");
    assert_eq!(first.matches(" -> ").count(), 8, "{first}");
    let svg = stdout(&["graph", &path, "--nodes", "2", "--svg"]);
    let drawing = roxmltree::Document::parse(&svg).expect("well-formed");
    assert!(drawing.descendants().any(|node| node.has_tag_name("circle")));
}

#[test]
fn a_machine_is_drawn_with_its_matrix_and_warnings() {
    let (_file, path) = machine(MACHINE);
    let text = stdout(&["topo", &path]);
    for part in [
        "4 ranks, 2 NIC ports, 3 NUMA nodes",
        "└─[12] GPU2 0000:21:00.0 (sm 80) rank 2",
        "warning: NET1 (25.0 GB/s) is far from every rank",
        "warning: unequal PCI links: 12.0 GB/s at GPU 2, 24.0 GB/s at GPU 0 1 3",
        "warning: 4 of 6 pairs of ranks have no NVLink path",
        "warning: NUMA 2 (x86_64 AMD) has no rank",
    ] {
        assert!(text.contains(part.trim_start_matches("└─")), "{part}: {text}");
    }
    let row = text.lines().find(|line| line.starts_with("RANK0")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["RANK0", "X", "NV4", "SYS", "SYS", "PIX", "SYS", "0"]);
    let svg = stdout(&["topo", &path, "--svg"]);
    assert!(roxmltree::Document::parse(&svg).is_ok());
}

#[test]
fn this_machine_has_rings_and_trees_over_its_ranks() {
    let text = stdout(&["topo", "--ranks", "3"]);
    assert!(text.contains("this machine: 3 ranks") && text.contains("host memory rank 2"), "{text}");
    let text = stdout(&["graph", "--ranks", "3"]);
    assert!(text.contains("Channel 00/") && text.contains(": 0 1 2"), "{text}");
    let (_file, path) = machine(MACHINE);
    let text = stdout(&["graph", &path, "--ranks", "2"]);
    assert!(text.contains("2 ranks on 1 host"), "{text}");
    assert_eq!(chorus(&["graph", &path, "--ranks", "5"]).status.code(), Some(64));
}

#[test]
fn the_dumped_description_describes_the_same_machine() {
    let (_file, path) = machine(MACHINE);
    let (_dump, dumped) = machine(&stdout(&["topo", &path, "--xml"]));
    let answer = |path: &str| stdout(&["model", path, "--nodes", "2", "--json"]);
    assert_eq!(answer(&path), answer(&dumped));
}

#[test]
fn why_names_winner_margin_rules_and_crossovers() {
    let (_file, path) = machine(MACHINE);
    let text = stdout(&[
        "why",
        &path,
        "--nodes",
        "2",
        "--collective",
        "all_reduce",
        "--bytes",
        "1M",
        "--env",
        "NCCL_PROTO=^LL",
    ]);
    for part in [
        "winner: ",
        "  next: ",
        "NCCL_PROTO leaves LL out",
        "in-network reduction (CollNet) is off",
        "from            8 B",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text =
        stdout(&["why", &path, "--collective", "broadcast", "--bytes", "8", "--env", "NCCL_ALGO=tree"]);
    assert!(text.contains("winner: none; no algorithm and protocol available for Broadcast"), "{text}");
}

#[test]
fn a_tuner_file_decides_in_why_and_model() {
    let (_file, path) = machine(MACHINE);
    let (_rules, rules) = machine("allreduce,0,1048576,tree,simple,2,-1,-1\n");
    let text = stdout(&["why", &path, "--collective", "all_reduce", "--bytes", "64K", "--tuner", &rules]);
    assert!(
        text.contains("winner: Tree/Simple with 2 channels") && text.contains("set by the tuner file"),
        "{text}"
    );
    let setting = format!("NCCL_TUNER_CONFIG_FILE={rules}");
    let text = stdout(&["model", &path, "--nodes", "1", "--json", "--env", &setting]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = json["tuning"]["byNodes"]["1"]["choices"].as_array().expect("choices");
    let row = rows.iter().find(|row| row[0] == "AllReduce" && row[2] == 4096).expect("a row of 4 KiB");
    assert_eq!((row[3].as_str(), row[4].as_str(), row[5].as_u64()), (Some("Tree"), Some("Simple"), Some(2)));
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chorus"))
        .args(["trees", "1-2000", "--csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("chorus runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("chorus ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tree_tables_say_which_inner_hosts_are_shared() {
    let table = stdout(&["trees", "1-16"]);
    assert!(
        table.contains("even numbers of hosts (2 4 6 8 10 12 14 16): both trees share no inner host"),
        "{table}"
    );
    assert!(
        table.contains("odd numbers of hosts (3 5 7 9 11 13 15): both trees share inner host 0"),
        "{table}"
    );
    let row = table.lines().find(|line| line.trim_start().starts_with("15 ")).expect("a row for 15");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["15", "shift", "0", "4", "8", "1", "4", "8", "0"]);
}

#[test]
fn trees_as_json_hold_parents_and_children() {
    let text = stdout(&["trees", "3", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["construction"], "shift");
    assert_eq!(json["trees"][1]["parent"], serde_json::json!([1, null, 0]));
    assert_eq!(json["sharedInner"], serde_json::json!([0]));
}
