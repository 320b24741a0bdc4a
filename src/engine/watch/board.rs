//! What the watch looks at: what this process does now, whether it moves, how far its ranks are. Writing costs two relaxed
//! stores; a torn reading only makes one line of text odd. The atomics are the standard library's also under loom: nothing
//! depends on their order.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::engine::error::Error;
use crate::engine::types::Collective;
use crate::fault;

/// Parts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing that could be late.
    #[default]
    Idle,
    /// From the first socket to the first operation.
    StartUp,
    /// Untimed iterations.
    Warmup,
    /// Timed iterations.
    Timing,
    /// Comparing results.
    Checking,
    /// Processes meet between rows.
    Barrier,
    /// The orderly end.
    Teardown,
}

impl Phase {
    const ALL: [Self; 7] = [
        Self::Idle,
        Self::StartUp,
        Self::Warmup,
        Self::Timing,
        Self::Checking,
        Self::Barrier,
        Self::Teardown,
    ];

    /// The name under which tests break things here.
    fn point(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::StartUp => "startup",
            Self::Warmup => "warmup",
            Self::Timing => "timing",
            Self::Checking => "checking",
            Self::Barrier => "barrier",
            Self::Teardown => "teardown",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Idle => "idle time",
            Self::StartUp => "start-up",
            Self::Warmup => "warm-up",
            Self::Timing => "timing",
            Self::Checking => "checking",
            Self::Barrier => "barrier",
            Self::Teardown => "teardown",
        }
    }
}

/// What a process does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Part of the run.
    pub phase: Phase,
    /// The collective, once there is one.
    pub collective: Option<Collective>,
    /// Its size as the table prints it.
    pub bytes: u64,
}

const STARTING: Activity = Activity { phase: Phase::StartUp, collective: None, bytes: 0 };

impl Activity {
    fn to_word(self) -> u64 {
        self.phase as u64 | self.collective.map_or(0, |collective| collective as u64 + 1) << 8
    }

    fn from_words(word: u64, bytes: u64) -> Self {
        let phase = Phase::ALL.get((word & 0xff) as usize).copied().unwrap_or_default();
        let collective =
            (word >> 8).checked_sub(1).and_then(|index| Collective::ALL.get(index as usize)).copied();
        Self { phase, collective, bytes }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, collective, bytes } = self;
        match collective {
            Some(collective) => write!(f, "{collective} of {bytes} bytes ({})", phase.words()),
            None => write!(f, "{} ({bytes} bytes)", phase.words()),
        }
    }
}

/// How far one rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProgress {
    /// The rank.
    pub rank: usize,
    /// Operations it has begun.
    pub op_seq: u64,
    /// Steps done in the current one.
    pub step: u64,
    /// Whom it waits for; nothing when it waits for nobody.
    pub waiting_for: Option<usize>,
}

/// A communicator, as the watch sees it.
pub trait ProgressProbe: Send + Sync {
    /// All ranks whose progress this process can see, its own among them.
    fn snapshot(&self) -> Vec<RankProgress>;

    /// Makes every wait of this process end with an error: sets the abort words and wakes all sleepers.
    fn abort(&self, error: &Error);

    /// The name of the thread that works for a rank of this process.
    fn thread_of(&self, rank: usize) -> Option<String> {
        let _ = rank;
        None
    }
}

/// Activity, ticks and probes of one process.
#[derive(Default)]
pub(super) struct Board {
    word: AtomicU64,
    bytes: AtomicU64,
    last_bytes: AtomicU64,
    /// The last activity that was entered, however long ago: an error takes a thread out of its guards before it is told.
    last_word: AtomicU64,
    ticks: AtomicU64,
    probes: Mutex<Vec<Weak<dyn ProgressProbe>>>,
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("activity", &self.activity()).finish_non_exhaustive()
    }
}

static BOARD: LazyLock<Arc<Board>> = LazyLock::new(Arc::default);

/// This process's board.
pub(super) fn board() -> Arc<Board> {
    Arc::clone(&BOARD)
}

/// Says what this process does until the guard is dropped; then what it did before counts again.
pub fn enter(activity: Activity) -> ActivityGuard {
    let guard = ActivityGuard { before: BOARD.exchange(BOARD.with_last_size(activity)) };
    fault::point(activity.phase.point(), activity.bytes);
    guard
}

/// This process moves on. For long work outside operations: filling buffers, checking results.
pub fn tick() {
    BOARD.tick();
}

/// Lets the watch see a communicator's progress, and reach it when everything must end. Ends with the returned value.
pub fn attach(probe: Arc<dyn ProgressProbe>) -> Attachment {
    BOARD.attach(&probe);
    Attachment { probe: Some(probe) }
}

/// What this process does now.
pub fn activity() -> Activity {
    BOARD.activity()
}

/// Restores the previous activity when dropped.
#[derive(Debug)]
#[must_use = "the activity ends when this is dropped"]
pub struct ActivityGuard {
    before: Activity,
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        BOARD.exchange(self.before);
    }
}

/// Detaches its probe when dropped.
#[must_use = "the probe is detached when this is dropped"]
pub struct Attachment {
    probe: Option<Arc<dyn ProgressProbe>>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attachment")
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.probe = None;
        BOARD.forget_dead_probes();
    }
}

impl Board {
    pub(super) fn exchange(&self, activity: Activity) -> Activity {
        let before = self.activity();
        self.word.store(activity.to_word(), Ordering::Relaxed);
        self.bytes.store(activity.bytes, Ordering::Relaxed);
        self.tick();
        before
    }

    /// Processes meet between rows: what they meet for is the size they come from.
    fn with_last_size(&self, mut activity: Activity) -> Activity {
        if activity.phase == Phase::Barrier && activity.bytes == 0 {
            activity.bytes = self.last_bytes.load(Ordering::Relaxed);
        }
        if activity.phase != Phase::Idle {
            self.last_word.store(activity.to_word(), Ordering::Relaxed);
            self.last_bytes.store(activity.bytes, Ordering::Relaxed);
        }
        activity
    }

    pub(super) fn tick(&self) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn activity(&self) -> Activity {
        Activity::from_words(self.word.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// The activity for messages. Between two of them the last one counts, and before the first one a process is starting.
    pub(super) fn activity_in_words(&self) -> String {
        let now = self.activity();
        if now.phase != Phase::Idle {
            return now.to_string();
        }
        let last = Activity::from_words(
            self.last_word.load(Ordering::Relaxed),
            self.last_bytes.load(Ordering::Relaxed),
        );
        if last.phase == Phase::Idle { STARTING.to_string() } else { last.to_string() }
    }

    pub(super) fn attach(&self, probe: &Arc<dyn ProgressProbe>) {
        self.lock().push(Arc::downgrade(probe));
    }

    fn forget_dead_probes(&self) {
        self.lock().retain(|probe| probe.strong_count() > 0);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn ProgressProbe>>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes outside the lock: they may take their time.
    pub(super) fn probes(&self) -> Vec<Arc<dyn ProgressProbe>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// All ranks of all communicators; of a rank in several of them, the one that has begun most.
    pub(super) fn snapshot(&self) -> Vec<RankProgress> {
        let mut all: Vec<RankProgress> = self.probes().iter().flat_map(|probe| probe.snapshot()).collect();
        all.sort_by_key(|progress| (progress.rank, std::cmp::Reverse((progress.op_seq, progress.step))));
        all.dedup_by_key(|progress| progress.rank);
        all
    }

    /// Changes whenever anything visible from here has moved.
    pub(super) fn fingerprint(&self, snapshot: &[RankProgress]) -> u64 {
        let mut hash = self.ticks.load(Ordering::Relaxed);
        for progress in snapshot {
            for word in [progress.rank as u64, progress.op_seq, progress.step] {
                hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            }
        }
        hash
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A probe whose answers a test sets.
    #[derive(Debug, Default)]
    pub(in crate::engine::watch) struct Scripted {
        pub(in crate::engine::watch) progress: Mutex<Vec<RankProgress>>,
        pub(in crate::engine::watch) aborted: Mutex<Option<String>>,
    }

    impl ProgressProbe for Scripted {
        fn snapshot(&self) -> Vec<RankProgress> {
            self.progress.lock().expect("no panic").clone()
        }

        fn abort(&self, error: &Error) {
            *self.aborted.lock().expect("no panic") = Some(error.to_string());
        }
    }

    pub(in crate::engine::watch) fn progress(
        rank: usize,
        step: u64,
        waiting_for: Option<usize>,
    ) -> RankProgress {
        RankProgress { rank, op_seq: 7, step, waiting_for }
    }

    #[test]
    fn activities_survive_their_packing() {
        for phase in Phase::ALL {
            for collective in [None, Some(Collective::AllReduce), Some(Collective::Broadcast)] {
                let activity = Activity { phase, collective, bytes: 1 << 40 };
                assert_eq!(Activity::from_words(activity.to_word(), activity.bytes), activity);
            }
        }
    }

    #[test]
    fn activities_name_operation_and_size() {
        let mut activity =
            Activity { phase: Phase::Checking, collective: Some(Collective::AllReduce), bytes: 1024 };
        assert_eq!(activity.to_string(), "all_reduce of 1024 bytes (checking)");
        activity.collective = None;
        activity.phase = Phase::StartUp;
        activity.bytes = 0;
        assert_eq!(activity.to_string(), "start-up (0 bytes)");
    }

    #[test]
    fn guards_restore_what_was_before() {
        let board = Board::default();
        assert_eq!(board.activity_in_words(), "start-up (0 bytes)");
        let outer = Activity { phase: Phase::StartUp, collective: None, bytes: 1 };
        board.exchange(outer);
        assert_eq!(board.exchange(Activity { phase: Phase::Barrier, ..outer }), outer);
    }

    #[test]
    fn a_barrier_is_named_by_the_size_before_it() {
        let board = Board::default();
        let row = Activity { phase: Phase::Timing, collective: Some(Collective::AllReduce), bytes: 64 };
        board.with_last_size(row);
        let barrier = board.with_last_size(Activity { phase: Phase::Barrier, bytes: 0, ..row });
        assert_eq!(barrier.to_string(), "all_reduce of 64 bytes (barrier)");
        // Nothing runs any more, as after an error: the last words count.
        assert_eq!(board.activity_in_words(), "all_reduce of 64 bytes (barrier)");
    }

    #[test]
    fn anything_that_moves_changes_the_fingerprint() {
        let board = Board::default();
        let probe = Arc::new(Scripted::default());
        *probe.progress.lock().expect("no panic") = vec![progress(0, 1, None), progress(1, 1, Some(0))];
        board.attach(&(Arc::clone(&probe) as Arc<dyn ProgressProbe>));
        let print = |board: &Board| board.fingerprint(&board.snapshot());
        let first = print(&board);
        assert_eq!(print(&board), first);
        probe.progress.lock().expect("no panic")[1].step = 2;
        let second = print(&board);
        assert_ne!(second, first);
        board.tick();
        assert_ne!(print(&board), second);
        drop(probe);
        board.forget_dead_probes();
        assert!(board.snapshot().is_empty());
    }
}
