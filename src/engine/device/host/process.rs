//! The ranks of this process together: who can be helped, whether to give up, and the background worker.
//!
//! The worker exists for ranks that launch and then block elsewhere: their peers need them to go on. Only the first launch of an idle
//! period wakes it; it then looks every now and then whether anything can be moved, mostly finds a thread that waits and drives, and
//! goes back to sleep for good after [`IDLE`] without work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use super::Progress;
use super::machine;
use super::rank::RankCore;
use crate::engine::error::{Error, Result};

/// How long the worker stays awake without work.
const IDLE: Duration = Duration::from_millis(100);
/// How often an awake worker looks while other threads drive.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Process {
    ranks: RwLock<Vec<Weak<RankCore>>>,
    n_ranks: AtomicUsize,
    abort: OnceLock<Error>,
    is_aborted: AtomicBool,
    /// Threads that wait and so drive everything.
    drivers: AtomicUsize,
    armed: AtomicBool,
    /// CPUs the worker may use: those of all ranks of the machine.
    cpus: Mutex<Vec<usize>>,
    sleep: Mutex<()>,
    wake: Condvar,
}

fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(Process::default)
}

/// Makes a rank known to the other ranks' threads.
pub fn add(rank: &Arc<RankCore>) {
    let process = process();
    let mut ranks = process.ranks.write().unwrap_or_else(PoisonError::into_inner);
    ranks.retain(|r| r.strong_count() > 0);
    ranks.push(Arc::downgrade(rank));
    process.n_ranks.store(ranks.len(), Ordering::Release);
}

/// Lets the worker run on `cpus`. A launcher binds a process to one core, and the worker would only fight for it.
pub fn allow_cpus(cpus: &[usize]) {
    *process().cpus.lock().unwrap_or_else(PoisonError::into_inner) = cpus.to_vec();
}

/// Ranks that were added, those gone since included until the next is added.
pub fn n_ranks() -> usize {
    process().n_ranks.load(Ordering::Relaxed)
}

/// Polls every rank of the process but `me`; whether anything moved.
pub fn drive_others(me: &RankCore) -> bool {
    let ranks = process().ranks.read().unwrap_or_else(PoisonError::into_inner);
    let mut moved = false;
    for rank in ranks.iter().filter_map(Weak::upgrade) {
        if !std::ptr::eq(Arc::as_ptr(&rank), me) && !rank.is_idle() {
            moved |= matches!(rank.drive(), Some(Progress::Advanced));
        }
    }
    moved
}

/// Counts the calling thread as a driver until the guard is dropped.
pub fn drive_here() -> impl Drop {
    struct Driver;
    impl Drop for Driver {
        fn drop(&mut self) {
            process().drivers.fetch_sub(1, Ordering::Relaxed);
        }
    }
    process().drivers.fetch_add(1, Ordering::Relaxed);
    Driver
}

/// Makes every wait of this process end with `why`. The first reason stays.
pub fn abort(why: Error) {
    let process = process();
    let _ = process.abort.set(why);
    process.is_aborted.store(true, Ordering::Release);
}

/// The reason to give up, if there is one.
pub fn check_abort() -> Result<()> {
    let process = process();
    match process.is_aborted.load(Ordering::Acquire) {
        true => Err(process.abort.get().cloned().unwrap_or(Error::Internal("aborted".into()))),
        false => Ok(()),
    }
}

/// Wakes the worker if it sleeps for good. Costs one load when it does not.
#[inline]
pub fn arm_worker() {
    let process = process();
    if !process.armed.load(Ordering::Relaxed) && !process.armed.swap(true, Ordering::AcqRel) {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let name = "chorus progress".to_string();
            // Without a worker everything still works as long as callers wait; so a failure to start one is no error.
            let _ = std::thread::Builder::new().name(name).spawn(work);
        });
        let _guard = process.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        process.wake.notify_one();
    }
}

fn work() {
    let process = process();
    loop {
        let mut guard = process.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while !process.armed.load(Ordering::Acquire) {
            guard = process.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        machine::run_on(&process.cpus.lock().unwrap_or_else(PoisonError::into_inner));
        let mut idle_since = Instant::now();
        while idle_since.elapsed() < IDLE {
            // With several ranks in the process a second pair of hands helps; alone, the waiting thread does it all.
            let needed = process.drivers.load(Ordering::Relaxed) == 0 || n_ranks() > 1;
            std::thread::sleep(if needed { LOOK } else { 10 * LOOK });
            while needed && drive_all() {
                idle_since = Instant::now();
            }
            if !is_idle() {
                idle_since = Instant::now();
            }
        }
        process.armed.store(false, Ordering::Release);
        // A launch between the last look and the store above saw an armed worker: look once more.
        if !is_idle() {
            process.armed.store(true, Ordering::Release);
        }
    }
}

fn drive_all() -> bool {
    let ranks = process().ranks.read().unwrap_or_else(PoisonError::into_inner);
    let mut moved = false;
    for rank in ranks.iter().filter_map(Weak::upgrade).filter(|r| !r.is_idle()) {
        moved |= matches!(rank.drive(), Some(Progress::Advanced));
    }
    moved
}

fn is_idle() -> bool {
    let ranks = process().ranks.read().unwrap_or_else(PoisonError::into_inner);
    ranks.iter().filter_map(Weak::upgrade).all(|r| r.is_idle())
}
