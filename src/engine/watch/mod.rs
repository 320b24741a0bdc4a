//! Watching the other processes: dead ones, stuck ones, and orders from outside. One [`Watch`] a process.
//!
//! | seen | by | end |
//! | --- | --- | --- |
//! | a process is gone | its control socket ends without a good-bye | one line, status 3 |
//! | a process is stopped or stuck | nothing moves anywhere and the limit (`-T`) has passed | one line with the step, status 4 |
//! | the same without a limit | | a line after 10 s, then every minute; no end |
//! | Ctrl-C, SIGTERM | a signal handler that writes one byte | rows flushed, 128 + signal |
//! | another thread failed | [`Watch::fail`] | told to all, its own status |
//!
//! Movement is whatever changes one of: the activity ([`enter`]), ticks ([`tick`]), the ranks' progress words
//! ([`ProgressProbe`]). While a process sees none of it, it asks the others whether *they* move, so that a process which waits
//! for one that checks its results is not taken for stuck, and one that does not answer is known by name.

mod board;
mod mesh;
mod sentry;
mod verdict;

pub use board::{
    Activity, ActivityGuard, Attachment, Phase, ProgressProbe, RankProgress, activity, attach, enter, tick,
};
pub use mesh::Exchange;

use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::engine::bootstrap::Patience;
use crate::engine::error::{Error, Result};
use crate::engine::log;
use crate::engine::watch::mesh::Mesh;
use crate::engine::watch::sentry::{Orders, Pace, Sentry, SignalPipe};
use crate::engine::watch::verdict::Identity;

/// Flushes what is half-written and gives the exit status. Runs on a thread of its own, for a moment only.
pub type OnFatal = dyn Fn(&Error) -> i32 + Send + Sync;

/// What a watch needs to know.
pub struct WatchParams {
    /// This process.
    pub process: usize,
    /// All processes.
    pub n_processes: usize,
    /// Which ranks live in this process.
    pub ranks: Range<usize>,
    /// `-T`.
    pub limit: Option<Duration>,
    /// Called before the process ends on an error.
    pub on_fatal: Arc<OnFatal>,
}

impl fmt::Debug for WatchParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchParams")
            .field("process", &self.process)
            .field("ranks", &self.ranks)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The running watch of this process. [`Watch::finish`] says good-bye; dropping it without is what a death looks like.
#[derive(Debug)]
pub struct Watch {
    handle: WatchHandle,
    thread: Option<JoinHandle<()>>,
}

/// A way to reach the watch from any thread.
#[derive(Clone, Debug)]
pub struct WatchHandle {
    orders: Arc<Mutex<Orders>>,
    wake: Arc<UnixStream>,
}

impl Watch {
    /// Connects the control sockets with all other processes and starts watching; all processes call it together. `exchange`
    /// gives everybody's bytes to everybody.
    pub fn start(params: WatchParams, exchange: &mut Exchange<'_>) -> Result<Self> {
        let signals = [SIGINT, SIGTERM].into_iter().map(signal_pipe).collect::<Result<Vec<_>>>()?;
        // `_exit`: other threads may sit in calls that exit handlers would wait for.
        let exit = Box::new(|status| signal_hook::low_level::exit(status));
        let watch = Self::start_with(params, exchange, signals, board::board(), exit)?;
        Patience::leave_reports_to_the_watch();
        watch.handle.end_on_panic();
        Ok(watch)
    }

    fn start_with(
        params: WatchParams,
        exchange: &mut Exchange<'_>,
        signals: Vec<SignalPipe>,
        board: Arc<board::Board>,
        exit: Box<dyn Fn(i32) + Send>,
    ) -> Result<Self> {
        let own = Identity {
            process: params.process,
            pid: std::process::id(),
            host: log::host().to_owned(),
            ranks: params.ranks.clone(),
        };
        let mesh = if params.n_processes > 1 {
            Mesh::connect(&own, exchange, params.limit)?
        } else {
            Mesh::default()
        };
        let (wake, woken) = socket_pair()?;
        let orders = Arc::new(Mutex::new(Orders { limit: params.limit, ..Orders::default() }));
        let sentry = Sentry {
            own,
            board,
            mesh,
            orders: Arc::clone(&orders),
            wake: woken,
            signals,
            on_fatal: params.on_fatal,
            exit,
            pace: Pace::new(),
        };
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn(move || sentry.run())
            .map_err(|error| Error::system("starting the watch", error))?;
        Ok(Self { handle: WatchHandle { orders, wake: Arc::new(wake) }, thread: Some(thread) })
    }

    /// A way to reach this watch from other threads.
    pub fn handle(&self) -> WatchHandle {
        self.handle.clone()
    }

    /// Changes the limit (`-T`).
    pub fn set_limit(&self, limit: Option<Duration>) {
        self.handle.order(|orders| orders.limit = limit);
    }

    /// SIGTERM is how the launcher ends a job it has spoken about itself (Ctrl-C, a closed pipe behind its standard output): no
    /// line of ours beside its own.
    pub fn leave_word_of_sigterm_to_the_launcher(&self) {
        self.handle.order(|orders| orders.launcher_speaks = true);
    }

    /// Ends the process on an error: the others are told, one line is printed, rows are flushed. If the watch is already
    /// ending the process, that goes first.
    pub fn fail(&self, error: Error) -> ! {
        self.handle.fail(error)
    }

    /// Says good-bye to the other processes: what follows is no death.
    pub fn finish(mut self) {
        self.handle.order(|orders| orders.finish = true);
        if let Some(thread) = self.thread.take() {
            // A watch that panicked has nothing to say good-bye with.
            let _ = thread.join();
        }
    }
}

const THREAD_NAME: &str = "chorus-watch";

impl WatchHandle {
    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.lock());
        // A full socket is a watch that has been woken already.
        let _ = (&*self.wake).write(&[1]);
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Watch::fail`].
    pub fn fail(&self, error: Error) -> ! {
        self.order(|orders| orders.failure = orders.failure.take().or(Some(error)));
        loop {
            std::thread::park();
        }
    }

    /// A thread that panics takes its ranks out of every collective: the whole job must end, and say why.
    fn end_on_panic(&self) {
        let (handle, print) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            print(info);
            if std::thread::current().name() != Some(THREAD_NAME) {
                let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
                handle.fail(Error::Internal(format!("a thread of this process panicked{place}")));
            }
        }));
    }
}

fn signal_pipe(signal: i32) -> Result<SignalPipe> {
    let (write, pipe) = socket_pair()?;
    signal_hook::low_level::pipe::register(signal, write)
        .map_err(|error| Error::system("installing a signal handler", error))?;
    Ok(SignalPipe { signal, pipe })
}

fn socket_pair() -> Result<(UnixStream, UnixStream)> {
    let failed = |error| Error::system("making a pair of sockets", error);
    let (a, b) = UnixStream::pair().map_err(failed)?;
    a.set_nonblocking(true).map_err(failed)?;
    b.set_nonblocking(true).map_err(failed)?;
    Ok((a, b))
}

#[cfg(test)]
mod tests;
