//! The probe on recorded `/sys` trees: the elements it makes, and the graphs found on them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use chorus::engine::graph::{GraphId, ModelRequest, model_system, rules};
use chorus::engine::topo::probe::{GpuFacts, NvLinks, Ranks, read};
use chorus::engine::topo::xml::{Limits, read_topology};
use chorus::engine::topo::{NodeType, Params, PathType, System};

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

#[test]
fn gpus_hang_where_their_pci_device_is() {
    let root = unpack("two_sockets.txt");
    let gpu = GpuFacts {
        bus_id: "0000:04:00.0".to_owned(),
        sm: 90,
        gdr: true,
        nvlinks: vec![NvLinks {
            target: "fffffff:ff:ff.0".to_owned(),
            count: 18,
            class: "0x068000".to_owned(),
        }],
        ..GpuFacts::default()
    };
    fs::create_dir_all(root.path().join("sys/bus/pci/devices")).expect("a folder");
    let target = "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:04:00.0";
    symlink(target, root.path().join("sys/bus/pci/devices/0000:04:00.0")).expect("a link");
    let element = read(root.path(), &Ranks::Gpus(vec![gpu.clone()])).expect("a machine");
    let switch = &element.children[0].children[0];
    assert_eq!(switch.text("busid"), Some("0000:01:00.0"));
    assert_eq!(switch.children[0].child("gpu").and_then(|gpu| gpu.text("sm")), Some("90"));
    assert_eq!(
        switch.children[1].text("busid"),
        Some("0000:03:00.0"),
        "the card is beside it on the same switch"
    );
    let lost = Ranks::Gpus(vec![GpuFacts { bus_id: "0000:99:00.0".to_owned(), ..gpu }]);
    let message = read(root.path(), &lost).expect_err("no such device").to_string();
    assert_eq!(message, "GPU 0 has no PCI device 0000:99:00.0");
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
