//! Streams and persistent plans of one rank.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::buffer::Buffer;
use super::{Inner, Request};
use crate::engine::device::host::event::Event;
use crate::engine::device::host::rank::{Label, Task};
use crate::engine::error::{Error, Result};

/// A queue of operations that complete in order on this rank. All streams of a communicator share its order of execution.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) comm: Arc<Inner>,
    /// Ticket of the last operation launched through this stream.
    ticket: AtomicU64,
    /// Whether this is the default stream, which waits for all others.
    is_default: bool,
    capture: Mutex<Option<Vec<Captured>>>,
    /// Whether `capture` is open: a call looks here before it takes the lock.
    is_capturing: AtomicBool,
}

/// A captured operation and the buffers it keeps alive.
#[derive(Clone, Debug)]
pub(super) enum Captured {
    Call { request: Request, _buffers: [Buffer; 2] },
    Mark(Event),
}

impl Stream {
    pub(super) fn new(comm: Arc<Inner>) -> Self {
        Self::of(comm, false)
    }

    pub(super) fn default_of(comm: Arc<Inner>) -> Self {
        Self::of(comm, true)
    }

    fn of(comm: Arc<Inner>, is_default: bool) -> Self {
        Self {
            shared: Arc::new(Shared {
                comm,
                is_default,
                ticket: AtomicU64::new(0),
                capture: Mutex::new(None),
                is_capturing: AtomicBool::new(false),
            }),
        }
    }

    /// Waits until everything launched so far is complete on this rank.
    ///
    /// # Errors
    /// `Timeout` after the communicator's limit, `PeerDied` when a peer ended.
    pub fn synchronize(&self) -> Result<()> {
        let comm = &self.shared.comm;
        comm.core.wait(self.ticket(), comm.limit())
    }

    /// Whether everything launched so far is complete on this rank.
    pub fn query(&self) -> Result<bool> {
        let ticket = self.ticket();
        if !self.shared.comm.core.is_complete(ticket) {
            self.shared.comm.core.drive();
        }
        Ok(self.shared.comm.core.is_complete(ticket))
    }

    /// Ticket of the last operation this stream waits for.
    fn ticket(&self) -> u64 {
        if self.shared.is_default {
            self.shared.comm.core.launched()
        } else {
            self.shared.ticket.load(Ordering::Acquire)
        }
    }

    /// What tells streams apart in the log; 0 is the default stream.
    pub(super) fn id(&self) -> usize {
        if self.shared.is_default { 0 } else { Arc::as_ptr(&self.shared).addr() }
    }

    /// Takes the time when the stream reaches this point.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.reset();
        if !self.capture_with(|| Captured::Mark(event.clone())) {
            self.launch_mark(event.clone())?;
        }
        Ok(())
    }

    fn launch_mark(&self, event: Event) -> Result<()> {
        let core = &self.shared.comm.core;
        core.launch(Label::default(), |_| Ok(Task::Mark(event)))?;
        self.launched();
        Ok(())
    }

    /// Notes that the communicator's newest operation belongs to this stream.
    pub(super) fn launched(&self) {
        self.shared.ticket.fetch_max(self.shared.comm.core.launched(), Ordering::AcqRel);
    }

    /// From here on calls on this stream are noted, not run.
    ///
    /// # Errors
    /// When a capture is already open.
    pub fn begin_capture(&self) -> Result<()> {
        let mut capture = self.shared.capture.lock().unwrap_or_else(PoisonError::into_inner);
        if capture.is_some() {
            return Err(Error::InvalidUsage("a capture is already open on this stream".into()));
        }
        *capture = Some(Vec::new());
        self.shared.is_capturing.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the capture and gives what was noted as one persistent plan.
    ///
    /// # Errors
    /// When no capture is open.
    pub fn end_capture(&self) -> Result<Graph> {
        let mut capture = self.shared.capture.lock().unwrap_or_else(PoisonError::into_inner);
        let calls =
            capture.take().ok_or_else(|| Error::InvalidUsage("no capture is open on this stream".into()))?;
        self.shared.is_capturing.store(false, Ordering::Release);
        Ok(Graph { calls })
    }

    /// Notes a call when a capture is open; whether it did.
    pub(super) fn capture_with(&self, call: impl FnOnce() -> Captured) -> bool {
        if !self.shared.is_capturing.load(Ordering::Acquire) {
            return false;
        }
        let mut capture = self.shared.capture.lock().unwrap_or_else(PoisonError::into_inner);
        match capture.as_mut() {
            Some(calls) => {
                calls.push(call());
                true
            }
            None => false,
        }
    }
}

/// A stream in the form of C's `%p`.
pub(super) fn name(id: usize) -> String {
    if id == 0 { "(nil)".into() } else { format!("{id:#x}") }
}

/// Operations chosen and planned once, to be replayed.
#[derive(Debug)]
pub struct Graph {
    calls: Vec<Captured>,
}

impl Graph {
    /// Operations in the plan.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Queues the whole plan on `stream`.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        for call in &self.calls {
            match call {
                Captured::Call { request, .. } => {
                    stream.shared.comm.submit(request)?;
                    stream.launched();
                }
                Captured::Mark(event) => stream.launch_mark(event.clone())?,
            }
        }
        Ok(())
    }
}
