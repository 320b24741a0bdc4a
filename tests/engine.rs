//! The engine through its façade: ranks of one process, against sums computed here.

use std::time::Duration;

use chorus::{
    Algorithm, Buffer, CommInit, Communicator, DataType, Error, Event, Forced, Protocol, RedOp, Registration,
    Settings, Stream, UniqueId, group_end, group_start,
};

struct Rank {
    comm: Communicator,
    send: Buffer,
    recv: Buffer,
    stream: Stream,
}

fn ranks(n: usize, bytes: usize) -> Vec<Rank> {
    ranks_with(n, bytes, false)
}

fn ranks_with(n: usize, bytes: usize, p2p_disable: bool) -> Vec<Rank> {
    let limit = Some(Duration::from_secs(60));
    let settings = Settings { p2p_disable, ..Settings::from_env(limit).unwrap() };
    let id = UniqueId::create(&settings.bootstrap).unwrap();
    let comms =
        Communicator::init(CommInit { id, n_ranks: n, ranks: (0..n).collect(), settings, limit }).unwrap();
    let make = |comm: Communicator| {
        let (send, recv, stream) =
            (comm.alloc(bytes).unwrap(), comm.alloc(bytes * n).unwrap(), comm.stream());
        Rank { comm, send, recv, stream }
    };
    comms.into_iter().map(make).collect()
}

fn value(rank: usize, i: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add((i as u32).wrapping_mul(40_503))
}

fn fill(ranks: &[Rank]) {
    for rank in ranks {
        rank.send.write(|bytes| {
            for (i, word) in bytes.chunks_exact_mut(4).enumerate() {
                word.copy_from_slice(&value(rank.comm.rank(), i).to_ne_bytes());
            }
        });
        rank.recv.write(|bytes| bytes.fill(0xee));
    }
}

fn sum(n: usize, i: usize) -> u32 {
    (0..n).fold(0, |acc, r| acc.wrapping_add(value(r, i)))
}

fn wait(ranks: &[Rank]) {
    for rank in ranks {
        rank.stream.synchronize().unwrap();
    }
}

fn words(buffer: &Buffer) -> Vec<u32> {
    buffer.read(|bytes| bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect())
}

const SUM: (DataType, RedOp) = (DataType::Uint32, RedOp::Sum);

fn all_reduce(rank: &Rank, count: usize) {
    let spans = (rank.send.span(0), rank.recv.span(0));
    rank.comm.all_reduce(spans, count, SUM, &rank.stream).unwrap();
}

#[test]
fn one_shot_and_two_shot_sum_over_all_rank_counts_and_leave_the_rest_alone() {
    for n in [1, 2, 3, 5, 8] {
        let ranks = ranks(n, 1 << 20);
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            for rank in &ranks {
                rank.comm.force(Forced { algorithm: Some(algorithm), ..Forced::default() });
            }
            for count in [1, 2, 14, 15, 1000, 16_384, 262_144] {
                if algorithm == Algorithm::OneShot && count > 16_384 {
                    continue;
                }
                fill(&ranks);
                ranks.iter().for_each(|rank| all_reduce(rank, count));
                wait(&ranks);
                for rank in &ranks {
                    let got = words(&rank.recv);
                    for (i, &word) in got.iter().enumerate().take(count) {
                        assert_eq!(
                            word,
                            sum(n, i),
                            "{algorithm} n={n} count={count} i={i} rank {}",
                            rank.comm.rank()
                        );
                    }
                    assert!(
                        got[count..].iter().all(|&w| w == 0xeeee_eeee),
                        "{algorithm} n={n} count={count}"
                    );
                }
            }
        }
    }
}

#[test]
fn ring_and_tree_sum_with_every_protocol_over_both_transports() {
    for p2p_disable in [false, true] {
        for n in [2, 3, 5] {
            let ranks = ranks_with(n, 1 << 22, p2p_disable);
            for (algorithm, protocol, n_channels) in [Algorithm::Ring, Algorithm::Tree]
                .into_iter()
                .flat_map(|a| [Protocol::LL, Protocol::LL128, Protocol::Simple].map(|p| (a, p)))
                .flat_map(|(a, p)| [1, 2, 5].map(|c| (a, p, c)))
            {
                for rank in &ranks {
                    rank.comm.force(Forced {
                        algorithm: Some(algorithm),
                        protocol: Some(protocol),
                        n_channels: Some(n_channels),
                    });
                }
                for count in [1, 1001, 65_537, 1 << 20] {
                    fill(&ranks);
                    ranks.iter().for_each(|rank| all_reduce(rank, count));
                    ranks.iter().for_each(|rank| all_reduce(rank, count));
                    wait(&ranks);
                    for rank in &ranks {
                        let got = words(&rank.recv);
                        let bad = (0..count).find(|&i| got[i] != sum(n, i));
                        assert_eq!(bad, None, "{algorithm} {protocol} {n_channels} n={n} count={count}");
                        assert!(got[count..].iter().all(|&w| w == 0xeeee_eeee));
                    }
                }
            }
        }
    }
}

#[test]
fn all_gather_out_of_place_and_in_place() {
    for n in [1, 2, 3, 8] {
        let ranks = ranks(n, 1 << 18);
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            for count in [1, 4, 1001, 16_000, 65_536] {
                if algorithm == Algorithm::OneShot && count > 16_000 {
                    continue;
                }
                for in_place in [false, true] {
                    fill(&ranks);
                    for rank in &ranks {
                        rank.comm.force(Forced { algorithm: Some(algorithm), ..Forced::default() });
                        let own = rank.comm.rank() * count * 4;
                        let input = rank.send.read(|b| b[..count * 4].to_vec());
                        rank.recv.write(|b| b[own..own + count * 4].copy_from_slice(&input));
                    }
                    for rank in &ranks {
                        let own = rank.recv.span(rank.comm.rank() * count * 4);
                        let send = if in_place { own } else { rank.send.span(0) };
                        rank.comm
                            .all_gather((send, rank.recv.span(0)), count, DataType::Uint32, &rank.stream)
                            .unwrap();
                    }
                    wait(&ranks);
                    for rank in &ranks {
                        let got = words(&rank.recv);
                        for (i, &word) in got.iter().enumerate().take(n * count) {
                            assert_eq!(
                                word,
                                value(i / count, i % count),
                                "{algorithm} n={n} {count} {in_place}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_persistent_plan_replays_with_new_data() {
    let ranks = ranks(3, 4096);
    let mut graphs = Vec::new();
    for rank in &ranks {
        rank.stream.begin_capture().unwrap();
        all_reduce(rank, 1000);
        all_reduce(rank, 500);
        graphs.push(rank.stream.end_capture().unwrap());
    }
    assert_eq!(graphs[0].len(), 2);
    fill(&ranks);
    assert!(words(&ranks[0].recv)[0] == 0xeeee_eeee, "capturing runs nothing");
    for _ in 0..3 {
        ranks.iter().zip(&graphs).for_each(|(rank, graph)| graph.launch(&rank.stream).unwrap());
        wait(&ranks);
    }
    assert_eq!(words(&ranks[1].recv)[999], sum(3, 999));
    assert!(ranks[0].stream.end_capture().is_err());
}

#[test]
fn groups_hand_over_at_the_outermost_end_and_report_the_first_error() {
    let ranks = ranks(2, 4096);
    fill(&ranks);
    group_start();
    group_start();
    ranks.iter().for_each(|rank| all_reduce(rank, 10));
    group_end().unwrap();
    assert_eq!(words(&ranks[0].recv)[0], 0xeeee_eeee);
    group_end().unwrap();
    wait(&ranks);
    assert_eq!(words(&ranks[0].recv)[9], sum(2, 9));
    group_start();
    let spans = (ranks[0].send.span(0), ranks[0].recv.span(0));
    assert!(ranks[0].comm.all_reduce(spans, 1 << 30, SUM, &ranks[0].stream).is_err());
    assert!(matches!(group_end(), Err(Error::InvalidArgument(_))));
    assert!(matches!(group_end(), Err(Error::InvalidUsage(_))));
}

#[test]
fn events_take_the_time_between_operations() {
    let ranks = ranks(2, 1 << 20);
    let (a, b) = (Event::new(), Event::new());
    ranks[0].stream.record(&a).unwrap();
    ranks.iter().for_each(|rank| all_reduce(rank, 1 << 18));
    ranks[0].stream.record(&b).unwrap();
    wait(&ranks);
    assert!(a.elapsed_us(&b).unwrap() > 1.0);
}

#[test]
fn windows_of_different_sizes_are_refused_on_every_rank() {
    let ranks = ranks(2, 4096);
    let other = ranks[1].comm.alloc(8192).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ranks[0].comm.register(&ranks[0].send, Registration::Window));
        assert!(ranks[1].comm.register(&other, Registration::Window).is_err());
        assert!(first.join().unwrap().is_err());
    });
    assert!(ranks[0].comm.register(&ranks[1].send, Registration::Local).is_err());
}

#[test]
fn a_missing_peer_ends_in_a_timeout_that_names_it() {
    let ranks = ranks(3, 4096);
    ranks[0].comm.set_limit(Some(Duration::from_millis(300)));
    all_reduce(&ranks[0], 1);
    all_reduce(&ranks[1], 1);
    let error = ranks[0].stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("rank 0 waits for rank 2 in all_reduce of 4 bytes"), "{error}");
    all_reduce(&ranks[2], 1);
    wait(&ranks);
}

#[test]
fn a_launch_completes_for_others_while_its_own_thread_does_something_else() {
    let ranks = ranks(2, 1 << 20);
    fill(&ranks);
    let ends: Vec<Event> = ranks.iter().map(|_| Event::new()).collect();
    for (rank, end) in ranks.iter().zip(&ends) {
        all_reduce(rank, 1 << 18);
        rank.stream.record(end).unwrap();
    }
    // Nobody waits: the background worker has to finish both.
    let started = std::time::Instant::now();
    while !ends.iter().all(Event::is_reached) {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing moves");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait(&ranks);
    assert_eq!(words(&ranks[0].recv)[1000], sum(2, 1000));
}

#[test]
fn a_tuner_rule_decides_where_it_matches_and_nowhere_else() {
    let rules = chorus::engine::tuning::tuner::Rules::parse(
        "allreduce,0,4096,ring,simple,1,-1,-1\nallreduce,4097,8192,tree,ll,1,-1,7\n",
    );
    let limit = Some(Duration::from_secs(60));
    let settings = Settings { rules: rules.rules, ..Settings::from_env(limit).unwrap() };
    let id = UniqueId::create(&settings.bootstrap).unwrap();
    let comms = Communicator::init(CommInit { id, n_ranks: 2, ranks: vec![0, 1], settings, limit }).unwrap();
    let choice = |count| comms[0].choice(chorus::Collective::AllReduce, count, SUM.0, SUM.1).unwrap();
    assert_eq!((choice(1024).algorithm, choice(1024).protocol), (Algorithm::Ring, Protocol::Simple));
    assert_ne!(choice(1025).algorithm, Algorithm::Tree, "the second rule is for seven ranks");
    comms[0].force(Forced { algorithm: Some(Algorithm::OneShot), ..Forced::default() });
    assert_eq!(choice(1024).algorithm, Algorithm::OneShot, "what the caller fixes stands above rules");
}

#[test]
fn operations_that_feed_each_other_wait_for_each_other() {
    // Each call reduces the result of the one before, so no input may be taken early; calls in between that touch other memory may.
    let ranks = ranks(3, 4096);
    fill(&ranks);
    let limit = 10;
    for rank in &ranks {
        let (a, b) = (rank.send.span(0), rank.recv.span(0));
        for turn in 0..limit {
            let spans = if turn % 2 == 0 { (a, b) } else { (b, a) };
            rank.comm.all_reduce(spans, 8, SUM, &rank.stream).unwrap();
            let apart = (rank.send.span(1024 + 64 * turn), rank.recv.span(1024 + 64 * turn));
            rank.comm.all_reduce(apart, 16, SUM, &rank.stream).unwrap();
        }
    }
    wait(&ranks);
    for rank in &ranks {
        let (last, other) = (words(&rank.send), words(&rank.recv));
        for (i, &got) in last.iter().enumerate().take(8) {
            let want = (1..limit).fold(sum(3, i), |value, _| value.wrapping_mul(3));
            assert_eq!(got, want, "element {i}");
        }
        for turn in 0..limit {
            let at = (1024 + 64 * turn) / 4;
            assert_eq!(other[at], sum(3, at), "turn {turn}");
        }
    }
}
