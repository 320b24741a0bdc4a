//! Our own engine behind the harness.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Buffer;
use crate::CommInit;
use crate::Communicator;
use crate::Event;
use crate::Forced;
use crate::Graph;
use crate::RegHandle;
use crate::Registration;
use crate::Settings;
use crate::Stream;
use crate::UniqueId;
use crate::engine::error::{Error, Result};
use crate::engine::types::{Collective, DataType, RedOp};
use crate::group_end;
use crate::group_start;
use crate::perf::backend::{Call, Capture, Lane, LaneWishes, Library, Memory, Side, Steering};
use crate::perf::cli::config::Register;
use crate::perf::sweep::Forcing;

/// The engine in this process: one communicator handle per rank.
#[derive(Debug)]
pub struct Engine {
    id: UniqueId,
    n_ranks: usize,
    settings: Settings,
    limit: Option<Duration>,
    ranks: Mutex<BTreeMap<usize, Communicator>>,
}

impl Engine {
    /// A group of `n_ranks` named by `id`, not yet joined.
    pub fn new(id: UniqueId, n_ranks: usize, settings: Settings, limit: Option<Duration>) -> Self {
        Self { id, n_ranks, settings, limit, ranks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Communicator>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rank(&self, rank: usize) -> Result<Communicator> {
        self.lock()
            .get(&rank)
            .cloned()
            .ok_or_else(|| Error::Internal(format!("rank {rank} is not connected")))
    }
}

impl Library for Engine {
    fn connect(&self, ranks: &[usize]) -> Result<()> {
        let communicators = Communicator::init(CommInit {
            id: self.id,
            n_ranks: self.n_ranks,
            ranks: ranks.to_vec(),
            settings: self.settings.clone(),
            limit: self.limit,
        })?;
        self.lock().extend(ranks.iter().copied().zip(communicators));
        Ok(())
    }

    fn lanes(&self, ranks: &[usize], bytes: usize, wishes: LaneWishes) -> Result<Vec<Box<dyn Lane>>> {
        let communicators = ranks.iter().map(|&rank| self.rank(rank)).collect::<Result<Vec<_>>>()?;
        let buffers = std::thread::scope(|scope| {
            // Pages are touched at allocation and windows are registered by all ranks together: every rank in its own thread.
            let threads: Vec<_> = communicators
                .iter()
                .map(|c| scope.spawn(move || EngineLane::new(c, bytes, wishes)))
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("invariant: no panic in allocation"))
                .collect::<Vec<_>>()
        });
        buffers.into_iter().map(|lane| Ok(Box::new(lane?) as Box<dyn Lane>)).collect()
    }

    fn group(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        group_start();
        let called = calls();
        called.and(group_end())
    }

    fn memory(&self) -> Memory {
        let ranks = self.lock();
        let Some(first) = ranks.values().next() else { return Memory::default() };
        let used = first.memory();
        // The resident share covers every rank of this process.
        Memory { library: used.engine_pss_bytes / ranks.len() as u64, user: used.user_bytes }
    }

    fn steering(&self) -> Option<&dyn Steering> {
        Some(self)
    }
}

impl Steering for Engine {
    fn n_hosts(&self) -> usize {
        self.lock().values().next().map_or(1, Communicator::n_hosts)
    }

    fn force(&self, forced: Forcing) {
        let Forcing { algorithm, protocol, n_channels, .. } = forced;
        for communicator in self.lock().values() {
            communicator.force(Forced { algorithm, protocol, n_channels });
        }
    }

    fn choice(&self, (collective, dtype, op): (Collective, DataType, RedOp), count: u64) -> Result<Forcing> {
        let communicator = self.lock().values().next().cloned();
        let communicator = communicator.ok_or_else(|| Error::Internal("no rank is connected".into()))?;
        let choice = communicator.choice(collective, count as usize, dtype, op)?;
        Ok(Forcing {
            algorithm: Some(choice.algorithm),
            protocol: Some(choice.protocol),
            n_channels: Some(choice.n_channels),
            library: None,
        })
    }
}

#[derive(Debug)]
struct EngineLane {
    communicator: Communicator,
    send: Buffer,
    recv: Buffer,
    stream: Stream,
    events: Vec<Event>,
    graph: Option<Graph>,
    /// Calls since the capture began.
    n_captured: Option<usize>,
    _registered: Vec<RegHandle>,
}

impl EngineLane {
    fn new(communicator: &Communicator, bytes: usize, wishes: LaneWishes) -> Result<Self> {
        let (send, recv) = (communicator.alloc(bytes)?, communicator.alloc(bytes)?);
        let kind = match wishes.register {
            Register::None => None,
            Register::Local => Some(Registration::Local),
            Register::Window => Some(Registration::Window),
        };
        let mut registered = Vec::new();
        if let Some(kind) = kind {
            for buffer in [&send, &recv] {
                registered.push(communicator.register(buffer, kind)?);
            }
        }
        Ok(Self {
            communicator: communicator.clone(),
            send,
            recv,
            stream: if wishes.default_stream { communicator.default_stream() } else { communicator.stream() },
            events: Vec::new(),
            graph: None,
            n_captured: None,
            _registered: registered,
        })
    }
}

impl Lane for EngineLane {
    fn launch(&mut self, call: &Call) -> Result<()> {
        let send = match call.send {
            (Side::Send, offset) => self.send.span(offset as usize),
            (Side::Recv, offset) => self.recv.span(offset as usize),
        };
        let spans = (send, self.recv.span(call.recv as usize));
        let count = call.count as usize;
        if let Some(n) = self.n_captured.as_mut() {
            *n += usize::from(count > 0);
        }
        match call.collective {
            Collective::AllReduce => {
                self.communicator.all_reduce(spans, count, (call.dtype, call.op), &self.stream)
            }
            Collective::AllGather => self.communicator.all_gather(spans, count, call.dtype, &self.stream),
            other => Err(Error::Internal(format!("the harness does not call {other}"))),
        }
    }

    fn wait(&mut self) -> Result<()> {
        self.stream.synchronize()
    }

    fn stamp(&mut self) -> Result<()> {
        let event = Event::new();
        self.stream.record(&event)?;
        self.events.push(event);
        Ok(())
    }

    fn stamps(&mut self) -> Vec<f64> {
        let events = std::mem::take(&mut self.events);
        let Some(first) = events.first() else { return Vec::new() };
        events.iter().map(|event| first.elapsed_us(event).unwrap_or(f64::NAN)).collect()
    }

    fn capture(&mut self, step: Capture) -> Result<()> {
        match step {
            Capture::Begin => {
                self.n_captured = Some(0);
                self.stream.begin_capture()
            }
            Capture::End => {
                let graph = self.stream.end_capture()?;
                let n = self.n_captured.take().unwrap_or(0);
                if graph.len() != n {
                    return Err(Error::Internal(format!(
                        "{n} calls were captured, the plan has {}",
                        graph.len()
                    )));
                }
                self.graph = Some(graph);
                Ok(())
            }
            Capture::Replay => match &self.graph {
                Some(graph) => graph.launch(&self.stream),
                None => Err(Error::Internal("nothing was captured".into())),
            },
        }
    }

    fn host(&mut self, side: Side, access: &mut dyn FnMut(&mut [u8])) {
        match side {
            Side::Send => self.send.write(access),
            Side::Recv => self.recv.write(access),
        }
    }
}
