//! Rules that connections, choices and readers keep on random inputs.

use proptest::prelude::*;

use chorus::engine::graph::channels::{Facts as ChannelFacts, Params as ChannelParams};
use chorus::engine::graph::connect::{Connection, Member, connect};
use chorus::engine::graph::{Channel, GraphId, Pattern, SearchGraph};
use chorus::engine::topo::PathType;
use chorus::engine::tuning::model::algorithms;
use chorus::engine::tuning::tuner::Rules;
use chorus::engine::tuning::{Facts, Filter, Model, Params, Request};
use chorus::engine::types::{Collective, Protocol};

/// Hosts with random sizes, chain orders and patterns.
#[derive(Clone, Debug)]
struct World {
    hosts: Vec<Vec<SearchGraph>>,
    sizes: Vec<usize>,
}

fn graph(id: GraphId, pattern: Pattern, cross_nic: i32, orders: Vec<Vec<i32>>) -> SearchGraph {
    SearchGraph {
        id,
        pattern,
        cross_nic,
        coll_net: false,
        min_channels: 1,
        max_channels: 32,
        bw_intra: 20.0,
        bw_inter: 10.0,
        latency_inter: 0.0,
        type_intra: PathType::Nvl,
        type_inter: PathType::Pix,
        same_channels: false,
        n_hops: 0,
        channels: orders.into_iter().map(|intra| Channel { intra, inter: None }).collect(),
    }
}

fn orders(n_ranks: usize, n_channels: usize) -> impl Strategy<Value = Vec<Vec<i32>>> {
    let one = Just((0..n_ranks as i32).collect::<Vec<i32>>()).prop_shuffle();
    prop::collection::vec(one, n_channels)
}

fn host() -> impl Strategy<Value = (usize, Vec<SearchGraph>)> {
    let pattern = prop::sample::select(vec![Pattern::BalancedTree, Pattern::SplitTree, Pattern::Tree]);
    (1..9_usize, 1..9_usize, 1..9_usize, prop::sample::select(vec![0, 1, 2]), pattern).prop_flat_map(
        |(n_ranks, n_rings, n_trees, cross_nic, pattern)| {
            // A host with one rank has nothing to split.
            let pattern = if n_ranks == 1 { Pattern::Tree } else { pattern };
            (orders(n_ranks, n_rings), orders(n_ranks, n_trees)).prop_map(move |(rings, trees)| {
                let ring = graph(GraphId::Ring, Pattern::Ring, cross_nic, rings);
                (n_ranks, vec![ring, graph(GraphId::Tree, pattern, 0, trees)])
            })
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    prop::collection::vec(host(), 1..12).prop_map(|hosts| {
        let (sizes, hosts) = hosts.into_iter().unzip();
        World { hosts, sizes }
    })
}

fn joined(world: &World, params: &ChannelParams) -> Connection {
    let mut first_rank = 0;
    let mut members = Vec::new();
    for (graphs, size) in world.hosts.iter().zip(&world.sizes) {
        members.push(Member { graphs, first_rank });
        first_rank += size;
    }
    let facts = ChannelFacts { min_compute_cap: 80, min_net_bw: 10.0 };
    connect(&members, &facts, params).expect("complete hosts connect")
}

fn facts(connection: &Connection) -> Facts {
    Facts {
        n_ranks: connection.n_ranks,
        n_hosts: connection.n_hosts(),
        max_local_ranks: connection.max_local_ranks(),
        local_ranks: connection.hosts[0].len(),
        n_channels: connection.channels.len(),
        nvls_channels: 0,
        collnet: None,
        min_compute_cap: 80,
        max_compute_cap: 80,
        cpu_arch: None,
        cpu_vendor: None,
        mixed_vendors: false,
        nvswitch: false,
        graphs: connection.graphs,
        max_tree_pattern: connection.max_tree_pattern,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rings_visit_everybody_once_and_trees_have_one_root(world in world()) {
        let connection = joined(&world, &ChannelParams::default());
        let n_preset = world.hosts.iter().map(|g| g[0].n_channels().min(g[1].n_channels())).min().unwrap_or(0);
        prop_assert_eq!(connection.channels.len(), 2 * n_preset);
        prop_assert!(connection.check().is_ok());
        for (first, second) in connection.channels.iter().zip(&connection.channels[n_preset..]) {
            prop_assert_eq!(&first.ring, &second.ring);
        }
        // Ranks of a host stay together on every ring.
        for channel in &connection.channels {
            let hosts: Vec<usize> = channel.ring.order(0).into_iter().map(|rank| connection.rank_to_host[rank]).collect();
            let n_changes = (0..hosts.len()).filter(|&i| hosts[i] != hosts[(i + 1) % hosts.len()]).count();
            let n_hosts = connection.n_hosts();
            prop_assert_eq!(n_changes, if n_hosts == 1 { 0 } else { n_hosts });
        }
    }

    #[test]
    fn channel_limits_hold(world in world(), least in 0..70_usize, most in 1..70_usize) {
        let params = ChannelParams { min_channels: least.min(64), max_channels: most.min(64), ..ChannelParams::default() };
        let n_channels = joined(&world, &params).channels.len();
        prop_assert!(n_channels >= params.min_channels && n_channels <= params.max_channels.max(params.min_channels));
    }

    #[test]
    fn choices_are_the_cheapest_that_may_run(world in world(), bytes in 1..(1_u64 << 36), index in 0..5_usize) {
        let connection = joined(&world, &ChannelParams::default());
        let model = Model::new(facts(&connection), Params::default());
        let request = Request::plain(Collective::ALL[index], bytes);
        let choice = model.choose(&request, None).expect("nothing is switched off");
        let table = model.cost_table(&request);
        prop_assert!((1..=connection.channels.len()).contains(&choice.n_channels));
        prop_assert!(choice.n_threads % 32 == 0 && (96..=640).contains(&choice.n_threads));
        for algorithm in algorithms() {
            for &protocol in Protocol::ALL {
                let time = table[algorithm as usize][protocol as usize];
                let excluded = model.exclusion(algorithm, protocol, &request).is_some();
                prop_assert_eq!(excluded, time < 0.0, "{} {}", algorithm, protocol);
                prop_assert!(time < 0.0 || time >= choice.time_us);
            }
        }
    }

    #[test]
    fn a_filter_either_explains_itself_or_switches_as_it_says(text in "[a-zA-Z0-9^:;, ]{0,40}") {
        match Filter::parse(Some(&text), None) {
            Ok(filter) => prop_assert!(filter.is_restricted()),
            Err(why) => prop_assert!(why.starts_with("NCCL_ALGO=")),
        }
    }

    #[test]
    fn any_text_is_a_tuner_file(text in "(?s).{0,400}") {
        let rules = Rules::parse(&text);
        prop_assert!(rules.rules.len() <= text.lines().count());
    }
}
