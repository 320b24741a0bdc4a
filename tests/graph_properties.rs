//! Random machines and broken files: the reader never panics, the search ends within its budget, and what it finds keeps the rules.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use chorus::engine::graph::{GraphId, ModelRequest, Variant, dump, model, rules};
use chorus::engine::topo::xml::{Element, Limits, read_graphs, read_topology};
use chorus::engine::topo::{NetDevsPolicy, Params, PathType, System, number_ranks, select_ranks};
use proptest::prelude::*;

/// Ports and devices behind one PCI switch, or straight on a CPU.
#[derive(Clone, Debug)]
struct Group {
    switch: bool,
    gpus: usize,
    nics: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Machine {
    cpus: Vec<Vec<Group>>,
    maker: usize,
    sm: usize,
    pci: usize,
    /// 0 none, 1 NVLink switch, 2 NVLink between the pairs drawn, 3 the same and chip-to-chip links.
    nvlink: u8,
    pairs: u64,
    links: usize,
    gdr: bool,
}

const MAX_GPUS: usize = 8;
const SMS: [i32; 6] = [60, 70, 80, 86, 90, 100];
const SPEEDS: [&str; 5] = ["8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "2.5 GT/s", "Unknown"];
const MAKERS: [&str; 5] = [
    "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\"",
    "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"207\"",
    "arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"25\" modelid=\"1\"",
    "arch=\"arm64\"",
    "arch=\"ppc64\"",
];
const NET_MBPS: [i32; 5] = [100_000, 400_000, 25_000, 10_000, -1];

fn machine() -> impl Strategy<Value = Machine> {
    let group = (any::<bool>(), 0..4usize, prop::collection::vec(any::<u8>(), 0..3))
        .prop_map(|(switch, gpus, nics)| Group { switch, gpus, nics });
    let cpus = prop::collection::vec(prop::collection::vec(group, 0..3), 1..4);
    let rates = (0..MAKERS.len(), 0..SMS.len(), 0..SPEEDS.len());
    (cpus, rates, 0..4u8, any::<u64>(), 1..5usize, any::<bool>()).prop_map(
        |(cpus, (maker, sm, pci), nvlink, pairs, links, gdr)| Machine {
            cpus,
            maker,
            sm,
            pci,
            nvlink,
            pairs,
            links,
            gdr,
        },
    )
}

impl Machine {
    fn n_gpus(&self) -> usize {
        let drawn: usize = self.cpus.iter().flatten().map(|group| group.gpus).sum();
        drawn.clamp(1, MAX_GPUS)
    }

    fn to_xml(&self) -> String {
        let mut text = "<system version=\"1\">".to_owned();
        let (mut gpu, mut net, mut bus) = (0, 0, 0);
        for (numa, groups) in self.cpus.iter().enumerate() {
            let _ = write!(text, "<cpu numaid=\"{numa}\" {}>", MAKERS[self.maker]);
            for group in groups {
                if group.switch {
                    bus += 1;
                    text += &self.pci(0xe000 + bus, "0x060400");
                }
                for _ in 0..group.gpus.min(self.n_gpus() - gpu) {
                    text += &self.gpu(gpu);
                    gpu += 1;
                }
                for &kind in &group.nics {
                    text += &self.nic(net, kind);
                    net += 1;
                }
                if group.switch {
                    text += "</pci>";
                }
            }
            if numa == 0 && gpu == 0 && self.cpus.iter().flatten().all(|group| group.gpus == 0) {
                text += &self.gpu(0);
            }
            text += "</cpu>";
        }
        text + "</system>"
    }

    fn pci(&self, bus: usize, class: &str) -> String {
        let address = format!("{bus:04x}:00:00.0");
        format!(
            "<pci busid=\"{address}\" class=\"{class}\" link_speed=\"{}\" link_width=\"16\">",
            SPEEDS[self.pci]
        )
    }

    fn gpu(&self, gpu: usize) -> String {
        let sm = SMS[self.sm];
        let mut text = self.pci(0x1000 + gpu, "0x030200");
        let _ = write!(text, "<gpu dev=\"{gpu}\" sm=\"{sm}\" rank=\"{gpu}\" gdr=\"{}\">", u8::from(self.gdr));
        let joined = |peer: usize| {
            let (a, b) = (gpu.min(peer), gpu.max(peer));
            peer != gpu && self.pairs >> ((a * MAX_GPUS + b) % 64) & 1 == 1
        };
        match self.nvlink {
            1 => {
                let _ = write!(
                    text,
                    "<nvlink target=\"fffffff:ff:ff.0\" count=\"{}\" tclass=\"0x068000\"/>",
                    self.links * 4
                );
            }
            2 | 3 => {
                for peer in (0..self.n_gpus()).filter(|&peer| joined(peer)) {
                    let target = format!("{:04x}:00:00.0", 0x1000 + peer);
                    let _ = write!(
                        text,
                        "<nvlink target=\"{target}\" count=\"{}\" tclass=\"0x030200\"/>",
                        self.links
                    );
                }
            }
            _ => {}
        }
        if self.nvlink == 3 {
            text += "<c2c bw=\"44712\" count=\"10\"/>";
        }
        text + "</gpu></pci>"
    }

    fn nic(&self, net: usize, kind: u8) -> String {
        let mbps = NET_MBPS[usize::from(kind) % NET_MBPS.len()];
        // A quarter of the ports are second ports of the chip before.
        let guid = 0x1000 + net - usize::from(kind >= 192 && net > 0);
        let gdr = kind / 5 % 2;
        format!(
            "{}<nic><net name=\"n{net}\" dev=\"{net}\" speed=\"{mbps}\" port=\"{}\" guid=\"{guid:#x}\" maxconn=\"64\" gdr=\"{gdr}\"/></nic></pci>",
            self.pci(0x2000 + net, "0x020000"),
            1 + kind / 64 % 2
        )
    }
}

fn params() -> impl Strategy<Value = Params> {
    let level =
        || prop::option::of((0..=PathType::Sys as i32).prop_filter_map("a level", PathType::from_number));
    let policy = prop_oneof![
        Just(NetDevsPolicy::Auto),
        Just(NetDevsPolicy::All),
        (1..3usize).prop_map(NetDevsPolicy::Max)
    ];
    (level(), level(), 0..3i64, any::<[bool; 6]>(), policy).prop_map(
        |(p2p, gdr, cross_nic, switches, policy)| Params {
            p2p_level: p2p,
            net_gdr_level: gdr,
            cross_nic,
            net_disable_intra: switches[0],
            nvb_disable: switches[1],
            pxn_disable: switches[2],
            pxn_c2c: switches[3],
            net_gdr_c2c: switches[4],
            shm_disable: switches[5],
            net_devs_policy: policy,
            ..Params::default()
        },
    )
}

/// Everything a model promises.
fn check(variant: &Variant) -> Result<(), TestCaseError> {
    const GLOBAL_BUDGET: i64 = 1 << 19;
    const BUDGET: i32 = 1 << 14;
    let n: usize = variant.domains.iter().map(|domain| domain.system.n_gpus()).sum();
    prop_assert_eq!(n, variant.n_gpus, "every GPU is in one domain");
    for domain in &variant.domains {
        for graph in &domain.graphs {
            prop_assert_eq!(rules::check(&domain.system, graph), Ok(()));
            if matches!(graph.id, GraphId::Ring | GraphId::Tree) {
                prop_assert!(graph.n_channels() > 0, "there is always a ring and a tree");
            }
        }
        for attempt in &domain.trace {
            prop_assert!((-1..=BUDGET).contains(&attempt.time_left));
            prop_assert!(attempt.global_time_left < GLOBAL_BUDGET);
        }
        // Per graph: speeds, NICs kept or changed, path types outside and inside, two patterns, equal channels or not.
        let most = domain.graphs.len() * 20 * 2 * 8 * 9 * 2 * 2;
        prop_assert!(domain.trace.len() < most, "{} attempts", domain.trace.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_machines_get_sound_graphs(machine in machine(), params in params(), multi_host: bool, coll_net: bool) {
        let text = machine.to_xml();
        match model(&text, &params, ModelRequest { multi_host, coll_net }) {
            Ok(variant) => check(&variant)?,
            // Where domains split a GPU off, the way between two others may still lead through it; NCCL gives up there as well.
            Err(e) => prop_assert!(e.to_string().starts_with("an NVLink path leads through GPU"), "{e}\n{text}"),
        }
    }

    #[test]
    fn machines_written_and_read_again_are_the_same(machine in machine()) {
        let mut root = read_topology(&machine.to_xml(), Limits::TOPOLOGY).expect("a good file");
        let written = root.to_text();
        let read = read_topology(&written, Limits::TOPOLOGY).expect("our own file");
        prop_assert_eq!(read.to_text(), written);
        number_ranks(&mut root);
        let params = Params::default();
        prop_assert_eq!(System::from_xml(&root, &params).expect("a system"), System::from_xml(&read, &params).expect("a system"));
    }

    #[test]
    fn fewer_ranks_than_gpus_make_a_smaller_machine(machine in machine(), n in 1..=MAX_GPUS) {
        let mut root = read_topology(&machine.to_xml(), Limits::TOPOLOGY).expect("a good file");
        match select_ranks(&mut root, n) {
            Ok(()) => {
                prop_assert!(n <= machine.n_gpus());
                let system = System::from_xml(&root, &Params::default()).expect("a system");
                let mut ranks = system.ranks();
                ranks.sort_unstable();
                prop_assert_eq!(ranks, (0..i32::try_from(n).expect("few")).collect::<Vec<_>>());
            }
            Err(e) => prop_assert!(n > machine.n_gpus(), "{e}"),
        }
    }
}

/// A file of the fixtures.
fn fixture(pick: usize) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies/topologies");
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    fs::read_to_string(&files[pick % files.len()]).expect("a fixture")
}

/// Changes one attribute of one element.
fn spoil(element: &mut Element, countdown: &mut usize, change: &Option<String>) {
    for i in 0..element.attributes.len() {
        if *countdown == 0 {
            match change {
                Some(value) => element.attributes[i].1.clone_from(value),
                None => drop(element.attributes.remove(i)),
            }
            *countdown = usize::MAX;
            return;
        }
        *countdown -= 1;
    }
    for child in &mut element.children {
        spoil(child, countdown, change);
    }
}

fn junk() -> impl Strategy<Value = Option<String>> {
    let words = [
        "",
        "-1",
        "0",
        "1",
        "x",
        "0x",
        "99999999999999999999",
        "-2147483648",
        "2147483647",
        "1e39",
        "0000:00:00.1",
    ];
    prop::option::of(prop_oneof![
        prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        "[ -~]{0,300}"
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_reader_takes_any_text(text in "(<|>|/|=|\"|'|&|!--|-->|\\]\\]|system|cpu|pci|gpu|version| |\n|1|a|é)*") {
        let _ = read_topology(&text, Limits::TOPOLOGY);
        let _ = read_graphs(&text);
    }

    #[test]
    fn cut_and_overwritten_files_give_errors_or_machines(pick: usize, at: prop::sample::Index, len in 0..40usize, put in "[ -~]{0,10}") {
        let mut text = fixture(pick);
        let start = at.index(text.len());
        let end = (start + len).min(text.len());
        text.replace_range(start..end, &put);
        if let Ok(mut root) = read_topology(&text, Limits::TOPOLOGY) {
            number_ranks(&mut root);
            if let Ok(mut system) = System::from_xml(&root, &Params::default()) {
                let _ = system.domains(&Params::default());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spoilt_attributes_give_errors_or_sound_graphs(pick: usize, place in 0..400usize, change in junk(), multi_host: bool) {
        let mut root = read_topology(&fixture(pick), Limits::TOPOLOGY).expect("a fixture");
        spoil(&mut root, &mut place.clone(), &change);
        if let Ok(variant) = model(&root.to_text(), &Params::default(), ModelRequest { multi_host, coll_net: false }) {
            check(&variant)?;
        }
    }

    #[test]
    fn spoilt_graph_files_give_errors_or_sound_channels(multi_host: bool, place in 0..200usize, change in junk()) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies/topologies");
        let text = fs::read_to_string(folder.join("v100x4_nv2_2cpu_2nic.xml")).expect("a fixture");
        let request = ModelRequest { multi_host, coll_net: false };
        let domain = model(&text, &Params::default(), request).expect("a machine").domains.remove(0);
        let mut root = read_graphs(&dump::to_text(&domain.system, &domain.graphs)).expect("our own file");
        spoil(&mut root, &mut place.clone(), &change);
        let params = Params { graph_xml: Some(root.to_text()), ..Params::default() };
        if let Ok(variant) = model(&text, &params, request) {
            for channel in variant.domains[0].graphs.iter().flat_map(|graph| &graph.channels) {
                let mut ranks = channel.intra.clone();
                ranks.sort_unstable();
                prop_assert_eq!(ranks, [0, 1, 2, 3]);
                prop_assert_eq!(channel.inter.is_some(), multi_host);
            }
        }
    }
}
