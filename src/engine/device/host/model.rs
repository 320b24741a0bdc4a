//! Loom models of the words that ranks share: every interleaving (up to a bound on preemptions) and every value a weaker memory could show
//! of the shipped types. Payload is loom's cell, which reports any access that is not ordered with a write.
//!
//! `scripts/loom-mutations` weakens each ordering of these files in turn and expects a model to fail.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::control::{Claims, PostLine, Reads};
use super::fifo::{Flag, RecvEnd, RecvLines, SendEnd, SendLines, Target};
use crate::engine::types::Protocol;

/// Runs a model with at most three preemptions, unless LOOM_MAX_PREEMPTIONS says otherwise: more find no further pair of accesses.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(model);
}

#[derive(Default)]
struct Connection {
    recv: RecvLines,
    send: SendLines,
    /// Payload of slots 0 and 4.
    slots: [UnsafeCell<u64>; 2],
}

// SAFETY: the cells are what the models are about: loom reports accesses that are not ordered.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    fn ends(&self) -> (SendEnd, RecvEnd) {
        let (recv, send) = (NonNull::from(&self.recv), NonNull::from(&self.send));
        // SAFETY: both threads hold the connection until they end; each end is made once.
        unsafe { (SendEnd::new(send, recv), RecvEnd::new(recv, send)) }
    }

    fn write(&self, slot: usize, value: u64) {
        // SAFETY: loom checks that nobody else accesses the cell.
        self.slots[slot].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, slot: usize) -> u64 {
        // SAFETY: loom checks that nobody writes the cell.
        self.slots[slot].with(|cell| unsafe { *cell })
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// Runs both sides on their threads.
fn play(
    sender: impl FnOnce(&Connection, SendEnd) + 'static,
    receiver: impl FnOnce(&Connection, RecvEnd) + 'static,
) {
    let connection = Arc::new(Connection::default());
    let (send, recv) = connection.ends();
    let theirs = connection.clone();
    let thread = thread::spawn(move || receiver(&theirs, recv));
    sender(&connection, send);
    thread.join().unwrap();
}

#[test]
fn loom_slots_are_read_filled_and_refilled_in_order() {
    check(|| {
        play(
            |connection, mut end| {
                for chunk in 0..3 {
                    wait_until(|| end.has_room(4));
                    connection.write(chunk % 2, 10 + chunk as u64);
                    end.post(4);
                }
            },
            |connection, mut end| {
                for chunk in 0..3 {
                    wait_until(|| end.has_data(4));
                    assert_eq!(connection.read(chunk % 2), 10 + chunk as u64);
                    end.release(4);
                }
            },
        );
    });
}

#[test]
fn loom_rounding_up_frees_no_slot_that_is_still_read() {
    check(|| {
        play(
            |connection, mut end| {
                connection.write(0, 1);
                end.post(1);
                end.begin(4);
                // All eight, slot 0 among them.
                wait_until(|| end.has_room(8));
                connection.write(0, 2);
                end.post(8);
            },
            |connection, mut end| {
                wait_until(|| end.has_data(1));
                assert_eq!(connection.read(0), 1);
                end.release(1);
                end.begin(4);
                wait_until(|| end.has_data(8));
                assert_eq!(connection.read(0), 2);
            },
        );
    });
}

#[test]
fn loom_announced_slots_are_zero_and_owned_by_the_sender() {
    check(|| {
        play(
            |connection, end| {
                wait_until(|| end.announced(Protocol::LL).is_some());
                assert_eq!((end.announced(Protocol::LL), connection.read(0)), (Some(4096), 7));
                connection.write(0, 1);
            },
            |connection, mut end| {
                connection.write(0, 7);
                end.announce(Protocol::LL, 4096, NonNull::dangling().as_ptr());
            },
        );
    });
}

#[test]
fn loom_an_offer_is_seen_whole_and_settled_before_data() {
    check(|| {
        play(
            |_, mut end| {
                for target in [640, 1280] {
                    end.begin(1);
                    wait_until(|| end.target() != Target::Unknown);
                    assert_eq!(end.target(), Target::Arena(target));
                    end.settle(true);
                    end.post(1);
                }
            },
            |_, mut end| {
                for target in [640, 1280] {
                    end.begin(1);
                    end.offer(Some(target));
                    wait_until(|| end.has_data(1));
                    assert!(end.is_direct());
                    end.release(1);
                }
            },
        );
    });
}

#[test]
fn loom_a_raised_flag_shows_the_line_before_it() {
    check(|| {
        let shared = Arc::new((Flag::default(), UnsafeCell::new(0u64)));
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            // SAFETY: loom checks that nobody else accesses the cell.
            theirs.1.with_mut(|cell| unsafe { *cell = 5 });
            theirs.0.raise(9);
        });
        wait_until(|| shared.0.is_raised(9));
        // SAFETY: loom checks that nobody writes the cell.
        assert_eq!(shared.1.with(|cell| unsafe { *cell }), 5);
        thread.join().unwrap();
    });
}

#[test]
fn loom_a_post_shows_its_arguments() {
    check(|| {
        let line = Arc::new(PostLine::new());
        let theirs = line.clone();
        let thread = thread::spawn(move || theirs.post(1, &[11, 12]));
        wait_until(|| line.is_posted(1));
        assert_eq!((line.arg(0), line.arg(1)), (11, 12));
        thread.join().unwrap();
    });
}

/// A rank lends its input by a post and changes it for the next one as soon as the reader says that it is done.
#[test]
fn loom_a_lent_input_is_unchanged_while_it_is_read() {
    check(|| {
        let shared = Arc::new((PostLine::new(), Reads::new(), UnsafeCell::new(0u64)));
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            let (line, reads, input) = &*theirs;
            for seq in 1..=2 {
                wait_until(|| line.is_posted(seq));
                // SAFETY: loom checks that nobody writes the cell.
                assert_eq!(input.with(|cell| unsafe { *cell }), seq);
                reads.finish(seq);
            }
        });
        let (line, reads, input) = &*shared;
        for seq in 1..=2 {
            // SAFETY: loom checks that nobody else accesses the cell.
            input.with_mut(|cell| unsafe { *cell = seq });
            line.post(seq, &[]);
            wait_until(|| reads.has_read(seq));
        }
        thread.join().unwrap();
    });
}

/// Two workers share two chunks; whoever sees them finished, by count or by looking, sees what both wrote.
#[test]
fn loom_finished_claims_show_their_results() {
    check(|| {
        let shared = Arc::new((Claims::new(), [UnsafeCell::new(0u64), UnsafeCell::new(0u64)]));
        // SAFETY: loom checks that nobody writes the cells.
        let sum = |results: &[UnsafeCell<u64>; 2]| {
            results.iter().map(|r| r.with(|cell| unsafe { *cell })).sum::<u64>()
        };
        let work = move |claims: &Claims, results: &[UnsafeCell<u64>; 2]| {
            while let Some(chunk) = claims.claim(2) {
                // SAFETY: loom checks that nobody else accesses the cell.
                results[chunk as usize].with_mut(|cell| unsafe { *cell = chunk + 1 });
                if claims.finish(1) == 2 {
                    assert_eq!(sum(results), 3);
                }
            }
        };
        let theirs = shared.clone();
        let thread = thread::spawn(move || work(&theirs.0, &theirs.1));
        work(&shared.0, &shared.1);
        wait_until(|| shared.0.is_done(2));
        assert_eq!(sum(&shared.1), 3);
        thread.join().unwrap();
    });
}
