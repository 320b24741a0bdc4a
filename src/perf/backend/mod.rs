//! The seam between the harness and a library that runs collectives.
//!
//! A [`Library`] belongs to the process and is shared by its threads; a [`Lane`] is one rank with its two buffers and its stream and
//! belongs to one thread. What not every library can do is an `Option`, decided at set-up.

pub mod engine;
#[cfg(feature = "mpi")]
pub mod mpi;

use std::fmt;

use crate::engine::error::Result;
use crate::engine::types::{Collective, DataType, RedOp};
use crate::perf::cli::config::Register;
use crate::perf::sweep::Forcing;

/// One of a rank's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Holds the input of out-of-place calls.
    Send,
    /// Holds results, and the input of in-place calls.
    Recv,
}

/// One call of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// What.
    pub collective: Collective,
    /// Element type.
    pub dtype: DataType,
    /// Operator as this rank passes it.
    pub op: RedOp,
    /// Where the input lies: buffer and byte offset.
    pub send: (Side, u64),
    /// Where the result goes in the receive buffer, byte offset.
    pub recv: u64,
    /// The count passed to the call.
    pub count: u64,
}

/// What a lane does with the calls between the beginning and the end of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// From here on calls are noted, not run.
    Begin,
    /// The noted calls become a plan.
    End,
    /// Runs the plan once.
    Replay,
}

/// One rank: buffers and a stream.
pub trait Lane: Send + fmt::Debug {
    /// Queues one call.
    fn launch(&mut self, call: &Call) -> Result<()>;
    /// Returns when everything queued is done.
    fn wait(&mut self) -> Result<()>;
    /// Queues the taking of a time.
    fn stamp(&mut self) -> Result<()>;
    /// The times taken since the last call of this, microseconds after the first; after [`Lane::wait`] only.
    fn stamps(&mut self) -> Vec<f64>;
    /// Captures and replays.
    fn capture(&mut self, step: Capture) -> Result<()>;
    /// Lets `access` have a buffer; after [`Lane::wait`] only.
    fn host(&mut self, side: Side, access: &mut dyn FnMut(&mut [u8]));
}

/// How a lane is to be made. A library that knows no such thing makes all lanes alike.
#[derive(Clone, Copy, Debug)]
pub struct LaneWishes {
    /// `-R`.
    pub register: Register,
    /// `-y`.
    pub default_stream: bool,
}

/// Memory of one rank, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident memory of the library itself.
    pub library: u64,
    /// Buffers.
    pub user: u64,
}

/// A library in this process.
pub trait Library: Send + Sync + fmt::Debug {
    /// Joins these ranks to the group; blocks until all its ranks have.
    fn connect(&self, ranks: &[usize]) -> Result<()>;
    /// Buffers of `bytes` and a stream for each of these ranks, which are connected.
    fn lanes(&self, ranks: &[usize], bytes: usize, wishes: LaneWishes) -> Result<Vec<Box<dyn Lane>>>;
    /// Runs `calls` so that what they launch is handed over together.
    fn group(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<()>;
    /// Memory of one rank, once connected.
    fn memory(&self) -> Memory;
    /// The choice inside, where the library has one that can be asked and forced; once connected.
    fn steering(&self) -> Option<&dyn Steering>;
}

/// What a library would run, and fixing it.
pub trait Steering {
    /// Hosts the ranks believe to be on.
    fn n_hosts(&self) -> usize;
    /// Fixes a part of every later choice, on every rank of this process.
    fn force(&self, forced: Forcing);
    /// What a call of `count` elements a rank runs: algorithm, protocol, channels.
    fn choice(&self, request: (Collective, DataType, RedOp), count: u64) -> Result<Forcing>;
}
