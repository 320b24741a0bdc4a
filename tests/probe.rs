//! The probe on recorded `/sys` trees: the elements it makes, and the graphs found on them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use chorus::engine::device::cuda::{Answers, LinkAnswer, Managed, facts};
use chorus::engine::graph::{GraphId, ModelRequest, model_system, rules};
use chorus::engine::topo::probe::{self, GpuFacts, NvLinks, OwnRank, Ranks, read};
use chorus::engine::topo::xml::{Element, Limits, read_topology};
use chorus::engine::topo::{LinkType, NodeType, Params, PathType, System, fuse, n_ranks};

/// Unpacks a recording: `path = content` with `|` for line ends, `path -> target`.
fn unpack(recording: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sysfs").join(recording);
    for line in fs::read_to_string(file).expect("a recording").lines().filter(|line| !line.starts_with('#')) {
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder");
            path
        };
        if let Some((path, target)) = line.split_once(" -> ") {
            symlink(target, make(path)).expect("a link");
        } else {
            let (path, content) = line.split_once(" = ").expect("path = content");
            fs::write(make(path), content.replace('|', "\n") + "\n").expect("a file");
        }
    }
    root
}

#[test]
fn a_recorded_machine_becomes_these_elements() {
    let root = unpack("two_sockets.txt");
    let system = read(root.path(), &Ranks::Host(3)).expect("a machine");
    let expected = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143" affinity="00000000,0000ffff">
    <pci busid="ffff:00:00.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="0" rank="0" gdr="1"/>
    </pci>
    <pci busid="ffff:00:01.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="0" rank="1" gdr="1"/>
    </pci>
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:03:00.0" class="0x020000" vendor="0x15b3" device="0x1017" link_speed="16.0 GT/s PCIe" link_width="8">
        <nic>
          <net name="eth0" dev="0" speed="100000" port="0" latency="0.000000" guid="0x0c42a1000001" maxconn="65536" gdr="0"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143" affinity="00000000,ffff0000">
    <pci busid="ffff:00:02.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="0" rank="2" gdr="1"/>
    </pci>
    <pci busid="0000:81:00.0" class="0x020700" vendor="0x15b3" link_speed="" link_width="0">
      <nic>
        <net name="ib0" dev="1" speed="200000" port="0" latency="0.000000" maxconn="65536" gdr="0"/>
      </nic>
    </pci>
  </cpu>
</system>
"#;
    assert_eq!(system.to_text(), expected);
    assert_eq!(read_topology(expected, Limits::TOPOLOGY).expect("our own file").to_text(), expected);
}

#[test]
fn host_ranks_get_rings_and_trees_over_both_sockets() {
    let root = unpack("two_sockets.txt");
    let element = read(root.path(), &Ranks::OnNuma(vec![0, 1, 1, 0])).expect("a machine");
    let params = Params::default().for_host_ranks();
    let system = System::from_xml(&element, &params).expect("a system");
    assert_eq!(system.count(NodeType::Cpu), 2);
    for multi_host in [false, true] {
        let request = ModelRequest { multi_host, coll_net: false };
        let variant = model_system(system.clone(), &params, request).expect("a variant");
        assert_eq!(variant.domain_of_local_rank, [0; 4], "host ranks stay together");
        let domain = &variant.domains[0];
        assert_eq!(domain.system.gpu_path(0, 1).kind, PathType::Phb);
        assert_eq!(domain.graphs.len(), 2);
        for graph in &domain.graphs {
            assert!(graph.n_channels() > 0 && graph.bw_intra > 1.0, "{graph:?}");
            rules::check(&domain.system, graph).expect("a sound graph");
        }
        assert_eq!(domain.graph(GraphId::Ring).expect("a ring").channels[0].inter.is_some(), multi_host);
    }
}

/// Views of a host's processes: where each may run decides where its rank lives, and the NICs are there once.
#[test]
fn processes_of_one_host_describe_it_together() {
    let root = unpack("two_sockets.txt");
    let view = |rank, cpus: &[usize]| probe::view(root.path(), OwnRank { rank, n_ranks: 4, cpus });
    let (first, second): (Vec<usize>, Vec<usize>) = ((0..16).collect(), (16..32).collect());
    let both: Vec<usize> = (0..32).collect();
    let own = view(1, &second);
    assert_eq!(n_ranks(&own), 1);
    assert_eq!(own.children[1].children[0].text("busid"), Some("ffff:00:01.0"), "on the second socket");
    let fused = fuse([view(0, &second), view(1, &second), view(2, &first), view(3, &first)]).expect("views");
    let bound: Vec<i32> =
        System::from_xml(&fused, &Params::default().for_host_ranks()).expect("a system").ranks();
    assert_eq!(bound, [2, 3, 0, 1], "ranks stand under the socket they are bound to");
    let free = fuse((0..4).map(|rank| view(rank, &both))).expect("views");
    let whole = read(root.path(), &Ranks::Host(4)).expect("a machine");
    let graphs = |element: &Element| {
        let params = Params::default().for_host_ranks();
        let system = System::from_xml(element, &params).expect("a system");
        let variant = model_system(system, &params, ModelRequest::default()).expect("a variant");
        assert_eq!(variant.domains[0].system.n_nets(), 2, "each NIC once");
        variant.domains[0].graphs.clone()
    };
    assert_eq!(
        graphs(&free),
        graphs(&whole),
        "free ranks spread in blocks, as one probe for all spreads them"
    );
}

#[test]
fn gpus_hang_where_their_pci_device_is() {
    let root = unpack("two_sockets.txt");
    let gpu = GpuFacts {
        bus_id: "0000:04:00.0".to_owned(),
        sm: 90,
        gdr: true,
        nvlinks: vec![NvLinks { target: "fffffff:ff:ff.0".to_owned(), count: 18, class: None }],
        ..GpuFacts::default()
    };
    fs::create_dir_all(root.path().join("sys/bus/pci/devices")).expect("a folder");
    let target = "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:04:00.0";
    symlink(target, root.path().join("sys/bus/pci/devices/0000:04:00.0")).expect("a link");
    let element = read(root.path(), &Ranks::Gpus(vec![gpu])).expect("a machine");
    let switch = &element.children[0].children[0];
    assert_eq!(switch.text("busid"), Some("0000:01:00.0"));
    assert_eq!(switch.children[0].child("gpu").and_then(|gpu| gpu.text("sm")), Some("90"));
    assert_eq!(
        switch.children[1].text("busid"),
        Some("0000:03:00.0"),
        "the card is beside it on the same switch"
    );
    let links = &switch.children[0].child("gpu").expect("a GPU").children;
    assert_eq!(links[0].text("tclass"), Some("0x068000"), "a far end out of sight is a switch");
}

/// What both libraries answered on a machine made up for this test: GPUs 0000:04:00.0 and 0000:05:00.0, four NVLinks between them, a
/// dead one, and one more GPU that `/sys` does not show.
fn answers() -> Vec<Answers> {
    let link = |remote: &str, is_up| LinkAnswer { carries_p2p: true, is_up, remote: Some(remote.to_owned()) };
    let gpu = |ordinal, bus_id: &str, nvlinks, c2c| Answers {
        ordinal,
        bus_id: bus_id.to_owned(),
        capability: (9, 0),
        gdr: true,
        managed: Some(Managed { index: Some(ordinal), nvlinks, c2c }),
    };
    let mut first = vec![link("00000000:05:00.0", true); 4];
    first.push(link("00000000:05:00.0", false));
    vec![
        gpu(0, "00000000:04:00.0", first, vec![44_000; 10]),
        gpu(1, "00000000:05:00.0", vec![link("00000000:04:00.0", true); 4], Vec::new()),
        gpu(2, "00000000:99:00.0", Vec::new(), Vec::new()),
    ]
}

#[test]
fn recorded_answers_and_a_recorded_sys_become_a_machine() {
    let root = unpack("two_sockets.txt");
    fs::create_dir_all(root.path().join("sys/bus/pci/devices")).expect("a folder");
    let below = "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:04:00.0";
    symlink(Path::new("../../..").join(below), root.path().join("sys/bus/pci/devices/0000:04:00.0"))
        .expect("a link");
    let beside = root.path().join("sys/devices/pci0000:00/0000:00:02.0/0000:05:00.0");
    fs::create_dir_all(&beside).expect("a folder");
    for (name, content) in [("class", "0x030200"), ("numa_node", "0"), ("max_link_speed", "8.0 GT/s PCIe")] {
        fs::write(beside.join(name), content).expect("a file");
    }
    symlink(&beside, root.path().join("sys/bus/pci/devices/0000:05:00.0")).expect("a link");
    let gpus: Vec<GpuFacts> = answers().iter().map(facts).collect();
    let element = read(root.path(), &Ranks::Gpus(gpus)).expect("a machine");
    let text = element.to_text();
    for expected in [
        r#"<nvlink target="0000:05:00.0" count="4" tclass="0x030200"/>"#,
        r#"<c2c bw="44000" count="10"/>"#,
        r#"<pci busid="0000:99:00.0" class="0x030200" link_speed="" link_width="0">"#,
        r#"<gpu dev="2" sm="90" rank="2" gdr="1"/>"#,
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let system = System::from_xml(&element, &Params::default()).expect("a system");
    assert_eq!((system.n_gpus(), system.has_nvswitch()), (3, false));
    let linked = system.nodes(NodeType::Dev)[0].links.iter().find(|link| link.kind == LinkType::Nvl);
    assert_eq!(linked.map(|link| link.bw), Some(4.0 * 20.6), "four links of the generation");
    assert!(system.nodes(NodeType::Dev)[0].links.iter().any(|link| link.kind == LinkType::C2c));
}

#[test]
fn every_domain_names_the_caches_of_its_first_processor() {
    let root = unpack("two_sockets.txt");
    for (cpu, l3) in [(0, "32768K"), (16, "98304K")] {
        for (index, level, kind, size) in
            [(0, "1", "Data", "32K"), (1, "1", "Instruction", "48K"), (2, "3", "Unified", l3)]
        {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}"));
            fs::create_dir_all(&folder).expect("a folder");
            for (name, content) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(folder.join(name), content).expect("a file");
            }
        }
    }
    let element = read(root.path(), &Ranks::Host(2)).expect("a machine");
    let caches: Vec<Option<&str>> = element.children.iter().map(|cpu| cpu.text("caches")).collect();
    assert_eq!(caches, [Some("L1d 32K, L1i 48K, L3 32768K"), Some("L1d 32K, L1i 48K, L3 98304K")]);
    let system = System::from_xml(&element, &Params::default()).expect("a system");
    assert_eq!(system.cpu(1).caches.as_deref(), caches[1]);
}

#[test]
fn a_container_has_one_cpu_and_its_virtual_interface() {
    let root = unpack("container.txt");
    let system = read(root.path(), &Ranks::Host(1)).expect("a machine");
    let expected = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
    <pci busid="ffff:00:00.0" class="0x030000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="0" rank="0" gdr="1"/>
    </pci>
    <nic>
      <net name="eth0" dev="0" speed="10000" port="0" latency="0.000000" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"#;
    assert_eq!(system.to_text(), expected);
}

#[test]
fn this_machine_can_be_modelled() {
    let element = chorus::engine::topo::probe::host_xml(4).expect("this machine");
    let params = Params::default().for_host_ranks();
    let system = System::from_xml(&element, &params).expect("a system");
    let variant = model_system(system, &params, ModelRequest::default()).expect("a variant");
    for graph in &variant.domains[0].graphs {
        rules::check(&variant.domains[0].system, graph).expect("a sound graph");
    }
}
