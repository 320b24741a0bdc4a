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

use super::control::Bell;
#[cfg(not(loom))]
use crate::engine::sync::spin_hint;
use crate::engine::sync::{Ordering, fence};

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
            Self { spins: 200, yields: 2000, rings: false, sleep: Duration::from_micros(200) }
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
#[cfg(not(loom))]
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
            sleep_until_rung(bell, still_waiting, |rings| sleep(bell, rings, policy.sleep));
        } else {
            std::thread::sleep(policy.sleep);
        }
    }
}

/// Sleeps unless the condition has come true or the bell rings meanwhile. `sleep` gets the ring count read before the last look and must
/// return at once when the bell's count differs, as a futex does.
fn sleep_until_rung(bell: &Bell, still_waiting: impl FnOnce() -> bool, sleep: impl FnOnce(u32)) {
    bell.sleepers.fetch_add(1, Ordering::Relaxed);
    let rings = bell.rings.load(Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if still_waiting() {
        sleep(rings);
    }
    bell.sleepers.fetch_sub(1, Ordering::Relaxed);
}

/// Changes the ring count and calls `wake` when somebody sleeps or is about to.
#[inline]
fn ring_sleepers(bell: &Bell, wake: impl FnOnce()) {
    fence(Ordering::SeqCst);
    if bell.sleepers.load(Ordering::Relaxed) != 0 {
        bell.rings.fetch_add(1, Ordering::Relaxed);
        wake();
    }
}

/// Wakes sleepers after a condition was made true. Costs a fence and a load when ranks exceed CPUs, nothing else.
#[cfg(not(loom))]
#[inline]
pub fn ring(policy: &Policy, bell: &Bell) {
    use rustix::thread::futex;
    if policy.rings {
        ring_sleepers(bell, || {
            // Not private: the word is shared between processes.
            let _ = futex::wake(&bell.rings, futex::Flags::empty(), i32::MAX as u32);
        });
    }
}

/// Sleeps in the kernel while the bell's count is `rings`, at most that long. Any outcome means: look again.
#[cfg(not(loom))]
fn sleep(bell: &Bell, rings: u32, limit: Duration) {
    use rustix::thread::{Timespec, futex};
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let _ = futex::wait(&bell.rings, futex::Flags::empty(), rings, Some(&limit));
}

#[cfg(loom)]
#[cfg(test)]
mod model {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::{Bell, ring_sleepers, sleep_until_rung};
    use crate::engine::sync::{AtomicU64, Ordering};

    /// The kernel's side of a futex: compare and sleep are one step for wakers.
    #[derive(Default)]
    struct Kernel {
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Kernel {
        fn wait(&self, bell: &Bell, rings: u32) {
            let queue = self.queue.lock().unwrap();
            if bell.rings.load(Ordering::Relaxed) == rings {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        fn wake(&self) {
            drop(self.queue.lock().unwrap());
            self.woken.notify_all();
        }
    }

    /// A lost wake-up shows as a deadlock: these sleeps have no time-out.
    #[test]
    fn loom_a_sleeper_is_woken_whenever_the_condition_comes_true() {
        loom::model(|| {
            let shared = Arc::new((Bell::default(), AtomicU64::new(0), Kernel::default()));
            let waker = shared.clone();
            let thread = thread::spawn(move || {
                let (bell, condition, kernel) = &*waker;
                condition.store(1, Ordering::Release);
                ring_sleepers(bell, || kernel.wake());
            });
            let (bell, condition, kernel) = &*shared;
            while condition.load(Ordering::Acquire) == 0 {
                let waits = || condition.load(Ordering::Acquire) == 0;
                sleep_until_rung(bell, waits, |rings| kernel.wait(bell, rings));
            }
            thread.join().unwrap();
        });
    }
}
