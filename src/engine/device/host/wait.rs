//! How a rank waits: spin a little, then yield, then sleep.
//!
//! The mix depends on how many ranks share how many CPUs. With a CPU for every rank, waiting means spinning: the answer is one
//! cache-line transfer away, and only a wait that has become long goes to sleep, with a time-out instead of a wake-up. With more ranks
//! than CPUs the rank that must act next may need this very CPU: give it away after a short look, and after many fruitless turns
//! sleep until somebody rings the [`Bell`].
//!
//! **Ring and sleep.** A sleeper counts itself in, reads the ring count, looks at its condition once more, and sleeps unless the count
//! changed. Whoever makes a condition true stores it first and then looks at the number of sleepers. Both pairs are store-then-load and
//! need a sequentially consistent fence between; it is paid only when ranks exceed CPUs.

use std::time::Duration;

#[cfg(not(loom))]
use super::control::Bell;
#[cfg(not(loom))]
use crate::engine::sync::{Ordering, fence, spin_hint};

/// Ranks and CPUs of one machine, which decide how to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Looks before the CPU is given away.
    spins: u32,
    /// Times the CPU is given away before sleeping.
    yields: u32,
    /// Whether others ring for sleepers; without it a sleep is short.
    rings: bool,
    /// Longest sleep.
    sleep: Duration,
}

impl Policy {
    /// The policy for `n_ranks` ranks that share `n_cpus` CPUs (the union of what they may use, cut by the cgroup quota).
    pub fn new(n_ranks: usize, n_cpus: usize) -> Self {
        if n_ranks <= n_cpus {
            Self { spins: 4000, yields: 400, rings: false, sleep: Duration::from_micros(200) }
        } else {
            Self { spins: 0, yields: 300, rings: true, sleep: Duration::from_millis(20) }
        }
    }

    /// Whether more ranks than CPUs wait here.
    pub fn is_oversubscribed(&self) -> bool {
        self.rings
    }
}

/// One wait: how often it looked in vain.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
}

#[cfg(not(loom))]
impl Patience {
    /// Forgets the vain looks: something moved.
    #[inline]
    pub fn reset(&mut self) {
        self.looks = 0;
    }

    /// Whether the wait has gone beyond spinning (time to look at clocks and abort words).
    #[inline]
    pub fn is_long(&self, policy: &Policy) -> bool {
        self.looks > policy.spins
    }

    /// Lets some time pass. `still_waiting` looks at the condition once more before a sleep.
    #[inline]
    pub fn pause(&mut self, policy: &Policy, bell: &Bell, still_waiting: impl FnOnce() -> bool) {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= policy.spins {
            spin_hint();
        } else if self.looks <= policy.spins + policy.yields {
            std::thread::yield_now();
        } else if policy.rings {
            sleep_until_rung(policy, bell, still_waiting);
        } else {
            std::thread::sleep(policy.sleep);
        }
    }
}

#[cfg(not(loom))]
fn sleep_until_rung(policy: &Policy, bell: &Bell, still_waiting: impl FnOnce() -> bool) {
    use rustix::thread::futex;
    bell.sleepers.fetch_add(1, Ordering::Relaxed);
    let rings = bell.rings.load(Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if still_waiting() {
        let limit = rustix::thread::Timespec {
            tv_sec: policy.sleep.as_secs() as i64,
            tv_nsec: policy.sleep.subsec_nanos().into(),
        };
        // Not private: the word is shared between processes. Any outcome means: look again.
        let _ = futex::wait(&bell.rings, futex::Flags::empty(), rings, Some(&limit));
    }
    bell.sleepers.fetch_sub(1, Ordering::Relaxed);
}

/// Wakes sleepers after a condition was made true. Costs a fence and a load when ranks exceed CPUs, nothing else.
#[cfg(not(loom))]
#[inline]
pub fn ring(policy: &Policy, bell: &Bell) {
    if policy.rings {
        fence(Ordering::SeqCst);
        if bell.sleepers.load(Ordering::Relaxed) != 0 {
            bell.rings.fetch_add(1, Ordering::Relaxed);
            let _ = rustix::thread::futex::wake(
                &bell.rings,
                rustix::thread::futex::Flags::empty(),
                i32::MAX as u32,
            );
        }
    }
}
