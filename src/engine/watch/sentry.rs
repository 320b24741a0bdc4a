//! The watch's thread: sleeps on control sockets, signals and orders; looks now and then whether anything moves; ends the
//! process when it must, whatever the other threads are blocked in.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;

use crate::engine::bootstrap::{FIRST_REPORT, NEXT_REPORTS, readable};
use crate::engine::error::Error;
use crate::engine::log::{self, Subsys};
use crate::engine::watch::OnFatal;
use crate::engine::watch::board::{Board, Phase, RankProgress};
use crate::engine::watch::mesh::{Event, Mesh};
use crate::engine::watch::verdict::{self, Identity};

/// How often to look when nothing wakes the thread.
const LOOK: Duration = Duration::from_millis(500);
/// After how long without movement the others are asked.
const SUSPICION: Duration = Duration::from_secs(2);
/// How long a process may owe an answer before it counts as silent.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a failure that was met elsewhere waits for its cause to show up here.
const CAUSE: Duration = Duration::from_millis(400);
/// How long flushing rows may take.
const FLUSH: Duration = Duration::from_millis(1500);
/// Exit status when flushing takes longer.
const STATUS_IF_STUCK: i32 = 1;

/// What the process's other threads ask of the watch.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) limit: Option<Duration>,
    pub(super) failure: Option<Error>,
    pub(super) finish: bool,
    /// Whether the launcher says itself why it sends SIGTERM.
    pub(super) launcher_speaks: bool,
    /// For tests: end without a word.
    #[cfg(test)]
    pub(super) vanish: bool,
    /// For tests: be as deaf as a stopped process.
    #[cfg(test)]
    pub(super) sleep: Option<Duration>,
}

/// A signal and the socket that becomes readable when it comes.
#[derive(Debug)]
pub(super) struct SignalPipe {
    pub(super) signal: i32,
    pub(super) pipe: UnixStream,
}

/// State of the watch's thread.
pub(super) struct Sentry {
    pub(super) own: Identity,
    pub(super) board: Arc<Board>,
    pub(super) mesh: Mesh,
    pub(super) orders: Arc<Mutex<Orders>>,
    pub(super) wake: UnixStream,
    pub(super) signals: Vec<SignalPipe>,
    pub(super) on_fatal: Arc<OnFatal>,
    pub(super) exit: Box<dyn Fn(i32) + Send>,
    pub(super) pace: Pace,
}

/// When things were last seen to move, and when to speak about it.
#[derive(Debug)]
pub(super) struct Pace {
    fingerprint: u64,
    moved: Instant,
    looked: Instant,
    next_report: Duration,
    failure: Option<(Error, Instant)>,
}

impl Pace {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { fingerprint: 0, moved: now, looked: now, next_report: FIRST_REPORT, failure: None }
    }

    fn moves(&mut self) {
        self.moved = Instant::now();
        self.next_report = FIRST_REPORT;
    }
}

impl Sentry {
    /// Runs until told to finish, or until the process has to end.
    pub(super) fn run(mut self) {
        loop {
            let limit = self.lock_orders(|orders| orders.limit);
            let nap = limit.map_or(LOOK, |limit| (limit / 10).clamp(Duration::from_millis(20), LOOK));
            self.sleep(if self.pace.failure.is_some() { Duration::from_millis(20) } else { nap });
            #[cfg(test)]
            if let Some(nap) = self.lock_orders(|orders| orders.sleep.take()) {
                std::thread::sleep(nap);
            }
            #[cfg(test)]
            if self.lock_orders(|orders| orders.vanish) {
                return;
            }
            let snapshot = self.board.snapshot();
            let fingerprint = self.board.fingerprint(&snapshot);
            if let Some(error) = self.event(fingerprint) {
                return self.end(&error);
            }
            if self.lock_orders(|orders| orders.finish) {
                self.mesh.say_bye();
                return;
            }
            if let Some(error) = self.failure() {
                return self.end(&error);
            }
            if let Some(error) = self.look(&snapshot, fingerprint, limit) {
                return self.end(&error);
            }
        }
    }

    fn lock_orders<T>(&self, read: impl FnOnce(&mut Orders) -> T) -> T {
        read(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sleep(&mut self, nap: Duration) {
        let signals = self.signals.iter().map(|signal| signal.pipe.as_fd());
        let fds: Vec<BorrowedFd<'_>> = signals.chain([self.wake.as_fd()]).chain(self.mesh.fds()).collect();
        // An error here leaves a slower watch, not a blind one.
        if readable(&fds, nap).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut orders = [0; 64];
        while matches!(self.wake.read(&mut orders), Ok(n) if n > 0) {}
    }

    /// A signal, a death, or news of one.
    fn event(&mut self, fingerprint: u64) -> Option<Error> {
        for signal in &mut self.signals {
            if matches!(signal.pipe.read(&mut [0; 8]), Ok(n) if n > 0) {
                return Some(Error::Interrupted(signal.signal));
            }
        }
        match self.mesh.advance(fingerprint)? {
            Event::Moved => {
                self.pace.moves();
                None
            }
            Event::Told(error) => Some(error),
            Event::Died(identity) => Some(self.death(&identity)),
        }
    }

    fn death(&self, identity: &Identity) -> Error {
        Error::PeerDied(format!("{} died in {}", identity.describe(), self.board.activity_in_words()))
    }

    /// A failure that another thread met. When it may be the echo of a death, the death gets a moment to show itself.
    fn failure(&mut self) -> Option<Error> {
        if let Some(error) = self.lock_orders(|orders| orders.failure.take()) {
            let pause = if matches!(error, Error::PeerDied(_)) { CAUSE } else { Duration::ZERO };
            self.pace.failure = Some((error, Instant::now() + pause));
        }
        let is_due = self.pace.failure.as_ref().is_some_and(|(_, due)| Instant::now() >= *due);
        if is_due { self.pace.failure.take().map(|(error, _)| error) } else { None }
    }

    /// Whether anything moves; when not, asks the others, reports, and in the end gives up.
    fn look(
        &mut self,
        snapshot: &[RankProgress],
        fingerprint: u64,
        limit: Option<Duration>,
    ) -> Option<Error> {
        let gap = self.pace.looked.elapsed();
        self.pace.looked = Instant::now();
        let was_stopped_itself = gap > LOOK * 3 + Duration::from_secs(1);
        let is_idle = self.board.activity().phase == Phase::Idle;
        if fingerprint != self.pace.fingerprint || is_idle || was_stopped_itself {
            self.pace.fingerprint = fingerprint;
            self.pace.moves();
            self.mesh.forget_answers();
            return None;
        }
        let quiet = self.pace.moved.elapsed();
        if quiet >= limit.map_or(SUSPICION, |limit| SUSPICION.min(limit / 4)) {
            self.mesh.ask();
        }
        match limit {
            Some(limit) if quiet >= limit => {
                Some(Error::Timeout { what: self.verdict(snapshot, limit / 4), limit })
            }
            Some(_) => None,
            None => {
                if quiet >= self.pace.next_report {
                    self.pace.next_report += NEXT_REPORTS;
                    self.report(snapshot, quiet);
                }
                None
            }
        }
    }

    fn verdict(&self, snapshot: &[RankProgress], patience: Duration) -> String {
        let silent: Vec<&Identity> = self
            .mesh
            .peers
            .iter()
            .filter(|peer| peer.is_silent(SILENCE.min(patience)))
            .map(|peer| &peer.identity)
            .collect();
        let probes = self.board.probes();
        let name_of = |rank: usize| probes.iter().find_map(|probe| probe.thread_of(rank));
        verdict::describe(self.board.activity(), snapshot, &silent, &name_of)
    }

    /// Of those that can speak the first one does.
    fn report(&self, snapshot: &[RankProgress], quiet: Duration) {
        let others = self.mesh.peers.iter().filter(|peer| peer.is_present() && !peer.is_silent(SILENCE));
        if others.map(|peer| peer.identity.process).all(|process| process > self.own.process) {
            let verdict = self.verdict(snapshot, SILENCE);
            log::notice(format_args!("no progress for {} s: {verdict}", quiet.as_secs()));
        }
    }

    /// Tells the others, frees this process's waits, says why, flushes what was printed, exits.
    fn end(mut self, error: &Error) {
        self.mesh.tell(error);
        for probe in self.board.probes() {
            probe.abort(error);
        }
        // Everybody hears a Ctrl-C; one line about it is enough, and none where the launcher has told of it.
        let speaks = match error {
            Error::Interrupted(SIGTERM) if self.lock_orders(|orders| orders.launcher_speaks) => false,
            Error::Interrupted(_) => self.own.process == 0,
            _ => true,
        };
        if speaks {
            log::notice(format_args!("{error}"));
        }
        log::info(Subsys::RAS, format_args!("watch of process {} ends it: {error}", self.own.process));
        let (sender, receiver) = mpsc::channel();
        let (on_fatal, error) = (Arc::clone(&self.on_fatal), error.clone());
        let flusher = std::thread::Builder::new().name("chorus-flush".into()).spawn(move || {
            let _ = sender.send(on_fatal(&error));
        });
        let status = flusher.ok().and_then(|_| receiver.recv_timeout(FLUSH).ok()).unwrap_or(STATUS_IF_STUCK);
        (self.exit)(status);
    }
}
