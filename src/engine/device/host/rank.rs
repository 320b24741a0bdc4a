//! The queue of one rank and how it is advanced.
//!
//! A rank's operations run in launch order, one at a time. **Launching only queues** (a full queue is drained by the launching thread
//! first) and looks once at the head, so that peers see this rank arrive even if it goes elsewhere next. Whoever waits
//! lends its thread: [`RankCore::wait`] polls this rank, and the other ranks of the process when this one cannot go on. A lock that is
//! held means that somebody is doing just that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::Progress;
use super::classic::{Classic, ClassicRun};
use super::collectives::{Symmetric, Team};
use super::control::{Control, RUN_AHEAD};
use super::event::Event;
use super::process;
use super::reduce::{Job, Reducer, Source};
use super::wait::{Patience, Policy, ring};
use crate::engine::error::{Error, Result};
use crate::engine::types::Collective;

/// Operations a queue holds before launching runs them inline.
const QUEUE_LEN: usize = 1024;

/// How often the watch tries to look into a queue that others hold.
const LOCK_TRIES: usize = 50;

/// What a rank runs next.
#[derive(Debug)]
pub enum Task {
    /// One-shot or two-shot.
    Symmetric(Symmetric),
    /// Ring or tree through FIFOs.
    Classic(ClassicRun),
    /// A single rank: its input, with scale and final division, to its result.
    Local(LocalCopy),
    /// Takes the time.
    Mark(Event),
}

/// The collective of a communicator of one rank.
#[derive(Debug)]
pub struct LocalCopy {
    /// The arithmetic.
    pub reducer: Reducer,
    /// The input and its pre-multiplier.
    pub source: Source,
    /// The result.
    pub recv: *mut u8,
    /// Elements.
    pub n_elem: usize,
}

// SAFETY: the pointers lead into shared memory that outlives the operation.
unsafe impl Send for LocalCopy {}

/// A task and what to call it in messages.
#[derive(Debug)]
struct Queued {
    task: Task,
    label: Label,
}

/// Names an operation in messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Label {
    /// The collective, or nothing for a mark.
    pub collective: Option<Collective>,
    /// nccl-tests' size of the call.
    pub bytes: u64,
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.collective {
            Some(collective) => write!(f, "{collective} of {} bytes", self.bytes),
            None => f.write_str("an event"),
        }
    }
}

/// What is behind the lock.
#[derive(Debug)]
pub struct Queue {
    tasks: VecDeque<Queued>,
    /// Tasks behind the head that are posted already.
    n_ahead: usize,
    /// The ranks of this machine.
    pub team: Team,
    /// FIFO connections and the tasks that run on them.
    pub classic: Classic,
}

impl Queue {
    /// Posts the next one-shot operations although the head is not complete, as far as every task before them is posted and their inputs
    /// are final. Order of posts is order of launch on every rank, so operation numbers agree.
    #[inline]
    fn run_ahead(&mut self) {
        while self.n_ahead + 1 < RUN_AHEAD && self.n_ahead + 1 < self.tasks.len() {
            let Task::Symmetric(next) = &self.tasks[self.n_ahead + 1].task else { return };
            let mut before = self.tasks.iter().take(self.n_ahead + 1).map(|queued| match &queued.task {
                Task::Symmetric(op) if op.is_posted() => Some(op),
                _ => None,
            });
            if !before.all(|op| op.is_some_and(|op| next.can_follow(op, self.team.n_ranks()))) {
                return;
            }
            let Task::Symmetric(next) = &mut self.tasks[self.n_ahead + 1].task else { return };
            next.post(&mut self.team);
            self.n_ahead += 1;
        }
    }

    /// Combines posted one-shot operations behind a head that only waits for peers to read its input, as far as none of them writes what
    /// is still read. They stay in the queue until it is their turn. Whether anything moved.
    #[inline]
    fn combine_ahead(&mut self) -> bool {
        let mut moved = false;
        for i in 1..=self.n_ahead {
            let Task::Symmetric(next) = &self.tasks[i].task else { break };
            let is_free = self.tasks.iter().take(i).all(|queued| match &queued.task {
                Task::Symmetric(op) => next.can_overtake(op, self.team.n_ranks()),
                _ => false,
            });
            let Task::Symmetric(next) = &mut self.tasks[i].task else { break };
            if next.is_combined() {
                continue;
            }
            if !is_free || !next.combine_early(&mut self.team) {
                break;
            }
            moved = true;
        }
        moved
    }
}

/// One rank of this process.
#[derive(Debug)]
pub struct RankCore {
    /// Rank in the communicator.
    pub rank: usize,
    /// The thread that launched this rank's first operation, by name and number.
    launcher: OnceLock<String>,
    queue: Mutex<Queue>,
    launched: AtomicU64,
    completed: AtomicU64,
    control: Control,
    bell: Control,
    policy: Policy,
}

impl RankCore {
    /// A rank with an empty queue.
    pub fn new(rank: usize, team: Team, classic: Classic) -> Self {
        Self {
            rank,
            control: team.peers[team.me].control.clone(),
            bell: team.peers[0].control.clone(),
            policy: team.policy,
            launcher: OnceLock::new(),
            launched: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            queue: Mutex::new(Queue { tasks: VecDeque::with_capacity(QUEUE_LEN), n_ahead: 0, team, classic }),
        }
    }

    /// The thread that launches this rank's operations, once it has launched one.
    pub fn launcher(&self) -> Option<&str> {
        self.launcher.get().map(String::as_str)
    }

    /// Whether nothing is queued or running.
    pub fn is_idle(&self) -> bool {
        self.completed.load(Ordering::Acquire) == self.launched.load(Ordering::Acquire)
    }

    /// Tasks launched so far: the ticket to [`Self::wait`] for.
    pub fn launched(&self) -> u64 {
        self.launched.load(Ordering::Acquire)
    }

    /// Whether all tasks up to `ticket` are complete on this rank.
    pub fn is_complete(&self, ticket: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// This rank's control pages.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Looks at the queue's team and connections while nothing moves.
    pub fn with_queue<R>(&self, look: impl FnOnce(&mut Queue) -> R) -> R {
        look(&mut self.queue.lock().expect("invariant: no panic while the queue is locked"))
    }

    /// Queues a task; `make` builds it with the queue's state at hand.
    pub fn launch(&self, label: Label, make: impl FnOnce(&mut Queue) -> Result<Task>) -> Result<()> {
        let mut queue = self.queue.lock().expect("invariant: no panic while the queue is locked");
        while queue.tasks.len() >= QUEUE_LEN {
            // Read under the lock: once it is open, another thread may drain the whole queue, and the operation after the last one
            // launched is one that nobody completes.
            let next = self.completed.load(Ordering::Acquire) + 1;
            drop(queue);
            self.wait(next, None)?;
            queue = self.queue.lock().expect("invariant: no panic while the queue is locked");
        }
        self.launcher.get_or_init(this_thread);
        let task = make(&mut queue)?;
        let launched = self.launched.load(Ordering::Relaxed) + 1;
        self.launched.store(launched, Ordering::Release);
        self.control.progress().launched.store(launched, Ordering::Relaxed);
        queue.tasks.push_back(Queued { task, label });
        self.advance(&mut queue);
        let idle = queue.tasks.is_empty();
        drop(queue);
        if !idle {
            process::arm_worker();
        }
        Ok(())
    }

    /// Polls the head of the queue once.
    fn advance(&self, queue: &mut Queue) -> Progress {
        let Queue { tasks, team, classic, .. } = queue;
        let Some(head) = tasks.front_mut() else { return Progress::Done };
        let progress = match &mut head.task {
            Task::Symmetric(op) => op.poll(team),
            Task::Classic(run) => run.poll(classic, team).unwrap_or_else(|error| {
                process::abort(error);
                Progress::Blocked { peer: None }
            }),
            Task::Local(copy) => copy.run(),
            Task::Mark(event) => {
                event.take_time();
                Progress::Done
            }
        };
        if progress == Progress::Done {
            tasks.pop_front();
            queue.n_ahead = queue.n_ahead.saturating_sub(1);
            let completed = self.completed.load(Ordering::Relaxed) + 1;
            self.control.progress().completed.store(completed, Ordering::Relaxed);
            self.completed.store(completed, Ordering::Release);
            return Progress::Advanced;
        }
        queue.run_ahead();
        if queue.n_ahead > 0 && queue.combine_ahead() { Progress::Advanced } else { progress }
    }

    /// Polls this rank unless somebody else is doing so. `None`: somebody else is.
    pub fn drive(&self) -> Option<Progress> {
        let mut queue = self.queue.try_lock().ok()?;
        Some(self.advance(&mut queue))
    }

    /// Waits until all tasks up to `ticket` are complete on this rank; gives up after `limit`.
    pub fn wait(&self, ticket: u64, limit: Option<Duration>) -> Result<()> {
        let mut patience = Patience::default();
        let mut since = None;
        let alone = process::n_ranks() <= 1;
        let _driver = process::drive_here();
        while !self.is_complete(ticket) {
            let own = self.drive();
            if matches!(own, Some(Progress::Advanced)) || (!alone && process::drive_others(self)) {
                patience.reset();
                continue;
            }
            if patience.is_long(&self.policy) {
                process::check_abort()?;
                let since = *since.get_or_insert_with(Instant::now);
                if let Some(limit) = limit
                    && since.elapsed() >= limit
                {
                    return Err(Error::Timeout { what: self.describe_wait(), limit });
                }
                if let Some(Progress::Blocked { peer }) = own {
                    let waiting = peer.map_or(0, |p| p as u64 + 1);
                    self.control.progress().waiting_for.store(waiting, Ordering::Relaxed);
                }
            }
            let moved = || matches!(self.drive(), Some(Progress::Advanced));
            patience.pause(&self.policy, self.bell.bell(), || !self.is_complete(ticket) && !moved());
        }
        Ok(())
    }

    /// Wakes who sleeps on this machine.
    pub fn ring(&self) {
        ring(&self.policy, self.bell.bell());
    }

    /// Writes down how far the head of the queue is, for the watches of all processes. Waits a moment for the lock, which threads
    /// that drive take and release all the time.
    pub fn publish_progress(&self) {
        for _ in 0..LOCK_TRIES {
            let Ok(mut queue) = self.queue.try_lock() else {
                std::thread::yield_now();
                continue;
            };
            let Queue { tasks, team, classic, .. } = &mut *queue;
            let (peer, step) = match tasks.front().map(|head| &head.task) {
                Some(Task::Symmetric(op)) => op.waits_for(team),
                Some(Task::Classic(run)) => run.waits_for(classic),
                _ => (None, 0),
            };
            let line = self.control.progress();
            line.step.store(step, Ordering::Relaxed);
            line.waiting_for.store(peer.map_or(0, |peer| peer as u64 + 1), Ordering::Relaxed);
            return;
        }
    }

    /// Whom this rank waits for, in what.
    pub fn describe_wait(&self) -> String {
        let Ok(mut queue) = self.queue.try_lock() else {
            return format!(
                "rank {} is busy in its operation {}",
                self.rank,
                self.completed.load(Ordering::Acquire) + 1
            );
        };
        let Queue { tasks, team, classic, .. } = &mut *queue;
        let Some(head) = tasks.front() else { return format!("rank {} waits for nothing", self.rank) };
        let (peer, step) = match &head.task {
            Task::Symmetric(op) => op.waits_for(team),
            Task::Classic(run) => run.waits_for(classic),
            Task::Local(_) | Task::Mark(_) => (None, 0),
        };
        let whom = peer.map_or("a rank that holds a piece of the work".to_string(), |p| format!("rank {p}"));
        let operation = self.completed.load(Ordering::Acquire) + 1;
        format!("rank {} waits for {whom} in {} (operation {operation}, step {step})", self.rank, head.label)
    }
}

/// The calling thread as people find it in a debugger or in `/proc`.
fn this_thread() -> String {
    let thread = std::thread::current();
    format!("{} ({})", thread.name().unwrap_or("unnamed"), rustix::thread::gettid())
}

impl LocalCopy {
    fn run(&self) -> Progress {
        // SAFETY: input and result are `n_elem` elements of this rank's own memory, equal or apart.
        unsafe {
            self.reducer.run(&Job {
                sources: &[self.source],
                destinations: &[self.recv],
                n_elem: self.n_elem,
                post: true,
                non_temporal: false,
            });
        }
        Progress::Done
    }
}
