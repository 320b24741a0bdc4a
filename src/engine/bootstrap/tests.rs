//! Ranks as threads: the whole way from the id to a ring, with strangers, losses and different ideas of the job.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::bootstrap::handoff::Offered;
use crate::engine::bootstrap::hello::{Hello, Purpose, call};
use crate::engine::bootstrap::link::{Link, flush_briefly};
use crate::engine::bootstrap::root::ADDRESS_TAG;
use crate::engine::bootstrap::{Bootstrap, BootstrapError, BootstrapParams, Handoff, Patience, UniqueId};
use crate::engine::error::Error;

fn params() -> BootstrapParams {
    BootstrapParams::on_this_host(Some(Duration::from_secs(20)))
}

/// Runs `body` as every rank of a fresh communicator and gives what they return.
fn on_ranks<T: Send>(n_ranks: usize, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let id = UniqueId::create(&params()).expect("an id");
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = (0..n_ranks)
            .map(|rank| {
                scope.spawn(move || body(Bootstrap::connect(&id, rank, n_ranks, &params()).expect("joined")))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank that does not panic")).collect()
    })
}

fn part(rank: usize) -> Vec<u8> {
    vec![rank as u8 + 1; rank * 37 % 11]
}

#[test]
fn all_gather_gives_every_rank_all_parts_in_order() {
    for n_ranks in [1, 2, 3, 4, 5, 8, 9] {
        let expected: Vec<Vec<u8>> = (0..n_ranks).map(part).collect();
        let got = on_ranks(n_ranks, |mut bootstrap| {
            let rank = bootstrap.rank();
            let first = bootstrap.all_gather(&part(rank)).expect("gathered");
            bootstrap.barrier().expect("all are there");
            (first, bootstrap.all_gather(&vec![rank as u8; 100_000]).expect("gathered again"))
        });
        for (first, second) in got {
            assert_eq!(first, expected, "{n_ranks} ranks");
            assert!(second.iter().enumerate().all(|(rank, part)| *part == vec![rank as u8; 100_000]));
        }
    }
}

#[test]
fn broadcast_reaches_everybody_from_any_root() {
    for n_ranks in [1, 2, 5] {
        let got = on_ranks(n_ranks, |mut bootstrap| {
            (0..n_ranks)
                .map(|root| {
                    let mut bytes =
                        if bootstrap.rank() == root { vec![root as u8; 70_000] } else { Vec::new() };
                    bootstrap.broadcast(root, &mut bytes).expect("broadcast");
                    bytes
                })
                .collect::<Vec<_>>()
        });
        for rank in got {
            assert!(rank.iter().enumerate().all(|(root, bytes)| *bytes == vec![root as u8; 70_000]));
        }
    }
}

#[test]
fn messages_are_found_by_peer_and_tag_in_whatever_order_they_come() {
    on_ranks(3, |mut bootstrap| {
        let rank = bootstrap.rank();
        for peer in 0..3 {
            for tag in [10, 20] {
                bootstrap.send(peer, tag, &[rank as u8, peer as u8, tag as u8]).expect("sent");
            }
        }
        for peer in (0..3).rev() {
            for tag in [20, 10] {
                assert_eq!(bootstrap.recv(peer, tag).expect("received"), [peer as u8, rank as u8, tag as u8]);
            }
        }
        bootstrap.barrier().expect("all have received");
    });
}

#[test]
fn splits_are_rings_of_their_own_ordered_by_key() {
    on_ranks(5, |mut bootstrap| {
        let rank = bootstrap.rank();
        let color = if rank == 4 { None } else { Some(rank as u32 % 2) };
        let child = bootstrap.split(color, -(rank as i64)).expect("split");
        match child {
            None => assert_eq!(rank, 4),
            Some(mut child) => {
                assert_eq!((child.n_ranks(), child.rank()), (2, 1 - rank / 2));
                let parents = child.all_gather(&[rank as u8]).expect("gathered");
                assert_eq!(parents, [[rank as u8 % 2 + 2], [rank as u8 % 2]]);
            }
        }
        bootstrap.barrier().expect("the parent goes on");
    });
}

#[test]
fn descriptors_are_handed_to_the_peers_that_ask() {
    on_ranks(4, |mut bootstrap| {
        let rank = bootstrap.rank();
        let fd = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::io::write(&fd, &[rank as u8]).expect("written");
        let peers: Vec<usize> = (0..4).filter(|&peer| peer != rank && peer != 2).collect();
        let taken =
            Handoff::share(&mut bootstrap, Offered { fd: fd.as_fd(), path: None }, &peers).expect("shared");
        for (peer, fd) in peers.iter().zip(taken) {
            let mut byte = [0_u8];
            rustix::io::pread(fd.expect("a descriptor"), &mut byte, 0).expect("readable");
            assert_eq!(usize::from(byte[0]), *peer);
        }
    });
}

#[test]
fn strangers_at_the_root_change_nothing() {
    let id = UniqueId::create(&params()).expect("an id");
    let _silent = TcpStream::connect(id.root).expect("connected");
    let mut rude = TcpStream::connect(id.root).expect("connected");
    rude.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc]).expect("sent");
    let mut guessing = TcpStream::connect(id.root).expect("connected");
    guessing.write_all(&[0; 200]).expect("sent");
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let mut bootstrap = Bootstrap::connect(&id, rank, 3, &params()).expect("joined");
                    bootstrap.all_gather(&[rank as u8]).expect("gathered")
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().expect("a rank"), [[0], [1], [2]]);
        }
    });
}

/// Checks in as a rank and does nothing more.
fn check_in(id: &UniqueId, rank: usize, n_ranks: usize, build: Option<u64>) -> Result<Link, BootstrapError> {
    let mut hello = Hello::new(id.magic, Purpose::Root, rank, n_ranks, 0);
    if let Some(build) = build {
        hello.build = hello.build.with_id(build);
    }
    let mut patience = Patience::new(Some(Duration::from_secs(5)));
    let (fd, _) = call(id.root, hello, "the root", &mut patience)?.finish(&mut patience)?;
    let mut link = Link::new(fd, 0);
    link.queue(ADDRESS_TAG, b"127.0.0.1:9");
    flush_briefly(std::iter::once(&mut link), Duration::from_secs(1));
    Ok(link)
}

#[test]
fn a_rank_that_dies_while_others_start_is_named_to_them_at_once() {
    let id = UniqueId::create(&params()).expect("an id");
    let started = Instant::now();
    thread::scope(|scope| {
        let survivors: Vec<_> = [0, 1, 3]
            .map(|rank| scope.spawn(move || Bootstrap::connect(&id, rank, 4, &params()).err()))
            .into();
        thread::sleep(Duration::from_millis(100));
        drop(check_in(&id, 2, 4, None).expect("checked in"));
        let errors: Vec<Error> = survivors
            .into_iter()
            .map(|survivor| Error::from(survivor.join().expect("a rank").expect("the start fails")))
            .collect();
        for error in &errors {
            assert!(matches!(error, Error::PeerDied(text) if text.contains("rank 2")), "{errors:?}");
        }
    });
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_of_another_build_ends_the_start_and_both_builds_are_named() {
    let id = UniqueId::create(&params()).expect("an id");
    thread::scope(|scope| {
        let here = scope.spawn(move || Bootstrap::connect(&id, 0, 2, &params()).err());
        thread::sleep(Duration::from_millis(50));
        let there = check_in(&id, 1, 2, Some(0xdead)).expect_err("another build");
        let here = here.join().expect("a rank").expect("the start fails");
        for text in [here.to_string(), there.to_string()] {
            assert!(text.contains("000000000000dead") && text.contains("different builds"), "{text}");
        }
    });
}

#[test]
fn two_processes_with_one_rank_are_a_usage_error() {
    let id = UniqueId::create(&params()).expect("an id");
    let _first = check_in(&id, 0, 2, None).expect("checked in");
    let error = Error::from(Bootstrap::connect(&id, 0, 2, &params()).expect_err("twice the same rank"));
    assert!(
        matches!(&error, Error::InvalidUsage(text) if text.contains("rank 0 checks in twice")),
        "{error:?}"
    );
}

#[test]
fn missing_ranks_are_named_when_the_limit_passes() {
    let short = BootstrapParams::on_this_host(Some(Duration::from_millis(300)));
    let id = UniqueId::create(&short).expect("an id");
    let error = Error::from(Bootstrap::connect(&id, 0, 3, &short).expect_err("nobody else comes"));
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("rank 1, 2 has not checked in"), "{error}");
}

#[test]
fn a_death_in_the_ring_is_named_alike_by_all_survivors() {
    let id = UniqueId::create(&params()).expect("an id");
    let (started, passed) = (Instant::now(), std::sync::Barrier::new(6));
    thread::scope(|scope| {
        let passed = &passed;
        let ranks: Vec<_> = (0..6)
            .map(|rank| {
                scope.spawn(move || {
                    let mut bootstrap = Bootstrap::connect(&id, rank, 6, &params()).expect("joined");
                    bootstrap.barrier().expect("all are there");
                    passed.wait();
                    if rank == 3 {
                        bootstrap.vanish();
                        return None;
                    }
                    bootstrap.barrier().err()
                })
            })
            .collect();
        for (rank, handle) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != 3) {
            let error = Error::from(handle.join().expect("a rank").expect("the barrier fails"));
            assert!(
                matches!(&error, Error::PeerDied(text) if text.contains("rank 3")),
                "rank {rank}: {error:?}"
            );
        }
    });
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_has_finished_early_is_no_death_for_those_who_do_not_need_it() {
    on_ranks(3, |mut bootstrap| {
        bootstrap.barrier().expect("all are there");
        if bootstrap.rank() == 2 {
            return;
        }
        thread::sleep(Duration::from_millis(50));
        let peer = 1 - bootstrap.rank();
        bootstrap.send(peer, 1, b"still here").expect("sent");
        assert_eq!(bootstrap.recv(peer, 1).expect("received"), b"still here");
    });
}

#[test]
fn ranks_that_call_different_operations_are_told_so() {
    let errors = on_ranks(2, |mut bootstrap| {
        if bootstrap.rank() == 0 {
            let mut bytes = vec![1];
            bootstrap.broadcast(0, &mut bytes).expect("sent into the ring");
        }
        bootstrap.all_gather(b"x").err().map(|error| error.to_string())
    });
    assert!(errors.iter().flatten().any(|text| text.contains("do not call the same sequence")), "{errors:?}");
}

#[test]
fn comm_id_lets_rank_zero_be_the_root_at_a_known_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let params = BootstrapParams { comm_id: Some(free), ..params() };
    let id = UniqueId::create(&params).expect("an id");
    assert_eq!(id, UniqueId::create(&params).expect("the same id"), "everybody can make it");
    thread::scope(|scope| {
        let params = &params;
        let ranks: Vec<_> = [1, 0]
            .map(|rank| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(if rank == 0 { 60 } else { 0 }));
                    let mut bootstrap = Bootstrap::connect(&id, rank, 2, params).expect("joined");
                    bootstrap.all_gather(&[rank as u8]).expect("gathered")
                })
            })
            .into();
        for rank in ranks {
            assert_eq!(rank.join().expect("a rank"), [[0], [1]]);
        }
    });
}
