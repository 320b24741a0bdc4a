//! A communicator: one rank's view of all ranks, and the calls on it. [`init`] reads as the list of set-up phases.

pub mod buffer;
mod cta_policy;
pub mod group;
mod init;
mod layout;
mod planner;
mod reach;
mod registry;
pub mod stream;
pub mod topology;
mod tuning_table;
mod watched;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::buffer::{Buffer, Span};
use self::planner::{Key, Planned, Planner, Run};
use self::stream::{Captured, Stream};
use crate::engine::bootstrap::Bootstrap;
use crate::engine::device::host::classic::ClassicRun;
use crate::engine::device::host::collectives::{Operands, Symmetric};
use crate::engine::device::host::cta;
use crate::engine::device::host::machine;
use crate::engine::device::host::rank::{Label, LocalCopy, RankCore, Task};
use crate::engine::device::host::reduce::Source;
use crate::engine::device::host::region::Region;
use crate::engine::error::{Error, Result};
use crate::engine::log::{self, Subsys};
use crate::engine::tuning::host::{Choice, Forced};
use crate::engine::types::{Collective, DataType, RedOp};
use crate::engine::watch::Attachment;

pub use self::cta_policy::CtaPolicy;
pub use self::init::{CommInit, Settings};

/// One rank of a communicator. Cloning gives another handle.
#[derive(Clone, Debug)]
pub struct Communicator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rank: usize,
    n_ranks: usize,
    n_hosts: usize,
    core: Arc<RankCore>,
    segment: Arc<Region>,
    arena: Arc<Region>,
    planner: Mutex<Planner>,
    limit: Mutex<Option<Duration>>,
    /// Locked while all ranks do something out of band together.
    bootstrap: Mutex<Bootstrap>,
    /// Lets the watch see this rank.
    _watched: Attachment,
}

/// How a buffer is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// This rank alone says that the buffer will be used again and again (`ncclCommRegister`).
    Local,
    /// All ranks register a buffer of the same size together (`ncclCommWindowRegister`).
    Window,
}

/// Keeps a registration; dropping it ends it.
#[derive(Clone, Debug)]
pub struct RegHandle {
    _buffer: Buffer,
    /// How.
    pub kind: Registration,
}

/// Memory of one rank, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Engine memory that exists: control pages and FIFO buffers of this rank.
    pub engine_bytes: u64,
    /// Proportional share of all engine mappings of this process that is resident.
    pub engine_pss_bytes: u64,
    /// Buffers allocated through [`Communicator::alloc`] at their peak.
    pub user_bytes: u64,
}

/// One call, as it is queued, grouped and captured.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    key: Key,
    op: RedOp,
    send: *const u8,
    recv: *mut u8,
    send_offset: usize,
    recv_offset: usize,
    bytes: u64,
    /// What the log calls the stream.
    stream: usize,
}

// SAFETY: the pointers lead into arenas that outlive every queued call; who runs the call does not matter.
unsafe impl Send for Request {}
// SAFETY: as above; a request is only read.
unsafe impl Sync for Request {}

/// What executes the ranks of this process: the processor's name, without brackets.
pub fn device_name() -> String {
    machine::cpu_name().replace(['[', ']'], "")
}

impl Communicator {
    /// Joins `init.ranks` of this process to the communicator named by `init.id`; blocks until all ranks have. One handle per rank, in order.
    ///
    /// # Errors
    /// Names the rank and phase that failed.
    pub fn init(init: CommInit) -> Result<Vec<Self>> {
        Ok(init::init(init)?.into_iter().map(|inner| Self { inner: Arc::new(inner) }).collect())
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// All ranks.
    pub fn n_ranks(&self) -> usize {
        self.inner.n_ranks
    }

    /// Hosts the ranks believe they are on.
    pub fn n_hosts(&self) -> usize {
        self.inner.n_hosts
    }

    /// Sets or lifts the limit of every later wait (`-T`).
    pub fn set_limit(&self, limit: Option<Duration>) {
        *self.inner.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// Allocates `bytes` that every rank can reach; the pages are there when this returns.
    ///
    /// # Errors
    /// When the machine has no more.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(self.inner.arena.clone(), self.inner.core.clone(), bytes)
    }

    /// Registers a buffer. Memory from [`Self::alloc`] is reachable by peers from birth, so this checks what the caller promises:
    /// for a window, that every rank registers the same size.
    ///
    /// # Errors
    /// `InvalidArgument` for a foreign buffer or windows of different sizes.
    pub fn register(&self, buffer: &Buffer, kind: Registration) -> Result<RegHandle> {
        buffer.span(0).check("registered", buffer.len(), &self.inner.core)?;
        if kind == Registration::Window {
            let sizes = {
                let mut bootstrap = self.inner.bootstrap.lock().unwrap_or_else(PoisonError::into_inner);
                bootstrap.all_gather(&(buffer.len() as u64).to_ne_bytes())?
            };
            let mine = (buffer.len() as u64).to_ne_bytes();
            if let Some(rank) = sizes.iter().position(|size| *size != mine) {
                return Err(Error::InvalidArgument(format!(
                    "window sizes differ: rank {} registers {} bytes, rank {rank} does not",
                    self.inner.rank,
                    buffer.len()
                )));
            }
        }
        let (base, len) = (buffer.base(), buffer.len());
        let what = match kind {
            Registration::Local => "register comm",
            Registration::Window => "register window comm",
        };
        log::info(
            Subsys::REG,
            format_args!("{what} {:p} buffer {base:p} size {len}", Arc::as_ptr(&self.inner)),
        );
        Ok(RegHandle { _buffer: buffer.clone(), kind })
    }

    /// A stream of this rank.
    pub fn stream(&self) -> Stream {
        Stream::new(self.inner.clone())
    }

    /// The default stream of this rank: waiting for it waits for what was launched through any stream.
    pub fn default_stream(&self) -> Stream {
        Stream::default_of(self.inner.clone())
    }

    /// Fixes a part of every later choice (`--algo --proto --channels`). Same call on all ranks, with nothing in flight.
    pub fn force(&self, forced: Forced) {
        self.inner.planner().force(forced);
    }

    /// What a call of `count` elements a rank would run, or ran.
    ///
    /// # Errors
    /// `NoSuchCombination` lists what exists.
    pub fn choice(&self, collective: Collective, count: usize, dtype: DataType, op: RedOp) -> Result<Choice> {
        self.inner.planner().choose(&Key::new(collective, count, dtype, op))
    }

    /// Memory in use.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            engine_bytes: self.inner.segment.len() as u64,
            engine_pss_bytes: machine::pss_of(&["chorus-segment"]),
            user_bytes: self.inner.arena.len() as u64,
        }
    }

    /// Reduces `count` elements of all ranks' `send` into everybody's `recv`. Queues and returns.
    ///
    /// # Errors
    /// `InvalidArgument` for spans outside their buffers, `NoSuchCombination` when what was forced does not exist.
    pub fn all_reduce(
        &self,
        (send, recv): (Span<'_>, Span<'_>),
        count: usize,
        (dtype, op): (DataType, RedOp),
        stream: &Stream,
    ) -> Result<()> {
        let bytes = count * dtype.size();
        let key = Key::new(Collective::AllReduce, count, dtype, op);
        self.call((send, bytes), (recv, bytes), (key, op), stream)
    }

    /// Gathers `send_count` elements of every rank's `send` into everybody's `recv`, in rank order. Queues and returns.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    pub fn all_gather(
        &self,
        (send, recv): (Span<'_>, Span<'_>),
        send_count: usize,
        dtype: DataType,
        stream: &Stream,
    ) -> Result<()> {
        let bytes = send_count * dtype.size();
        let key = Key::new(Collective::AllGather, send_count, dtype, RedOp::Sum);
        self.call((send, bytes), (recv, bytes * self.inner.n_ranks), (key, RedOp::Sum), stream)
    }

    fn call(
        &self,
        (send, send_bytes): (Span<'_>, usize),
        (recv, recv_bytes): (Span<'_>, usize),
        (key, op): (Key, RedOp),
        stream: &Stream,
    ) -> Result<()> {
        let run = || {
            send.check("send", send_bytes, &self.inner.core)?;
            recv.check("receive", recv_bytes, &self.inner.core)?;
            if key.count == 0 {
                return Ok(());
            }
            let request = Request {
                key,
                op,
                send: send.pointer(),
                recv: recv.pointer(),
                send_offset: send.arena_offset(),
                recv_offset: recv.arena_offset(),
                bytes: send_bytes.max(recv_bytes) as u64,
                stream: stream.id(),
            };
            // A captured call runs when its plan is launched, also when a group is open around the capture.
            if stream.capture_with(|| Captured::Call {
                request: request.clone(),
                _buffers: [send.buffer.clone(), recv.buffer.clone()],
            }) || group::defer(&self.inner, &request, stream)
            {
                return Ok(());
            }
            self.inner.submit(&request)?;
            stream.launched();
            Ok(())
        };
        run().inspect_err(group::fail)
    }
}

impl Inner {
    fn planner(&self) -> std::sync::MutexGuard<'_, Planner> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> Option<Duration> {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans and queues one call.
    #[inline]
    fn submit(&self, request: &Request) -> Result<()> {
        let planned = self.planner().plan(request.key, request.op)?;
        let label = Label { collective: Some(request.key.collective), bytes: request.bytes };
        if log::is_on(Subsys::COLL) {
            self.log_call(request);
        }
        self.core.launch(label, |_| Ok(self.task(request, planned)))
    }

    fn task(&self, request: &Request, planned: Planned) -> Task {
        let scale = planned.reducer.own_scale();
        match planned.run {
            Run::Local => Task::Local(LocalCopy {
                reducer: planned.reducer,
                source: Source { ptr: request.send, scale },
                recv: request.recv,
                n_elem: request.elements(),
            }),
            Run::Symmetric(shape) => Task::Symmetric(Symmetric::new(
                shape,
                Operands {
                    send: request.send,
                    recv: request.recv,
                    send_offset: request.send_offset,
                    recv_offset: request.recv_offset,
                    arena_len: self.arena.len(),
                    scale,
                },
            )),
            Run::Classic { plan, non_temporal } => Task::Classic(ClassicRun::new(
                plan,
                cta::Operands {
                    send: request.send,
                    recv: request.recv,
                    recv_in_arena: Some(request.recv_offset),
                    reducer: planned.reducer,
                    non_temporal,
                },
            )),
        }
    }

    fn log_call(&self, request: &Request) {
        let key = &request.key;
        let name = match key.collective {
            Collective::AllReduce => "AllReduce",
            Collective::AllGather => "AllGather",
            other => other.name(),
        };
        log::info(
            Subsys::COLL,
            format_args!(
                "{name}: opCount {:x} sendbuff {:p} recvbuff {:p} count {} datatype {} op {} root 0 comm {:p} [nranks={}] stream {}",
                self.core.launched(),
                request.send,
                request.recv,
                key.count,
                key.dtype as usize,
                request.op.code(),
                self,
                self.n_ranks,
                stream::name(request.stream)
            ),
        );
    }
}

impl Request {
    /// Elements as the reducer counts them: bytes when data only move.
    fn elements(&self) -> usize {
        if self.key.collective == Collective::AllGather {
            self.key.count * self.key.dtype.size()
        } else {
            self.key.count
        }
    }
}
