//! Processes started by an MPI launcher. The library gives rank, size and the little data the harness exchanges; the engine's
//! own traffic never touches it.
//!
//! A panic must not unwind into `MPI_Finalize`, where it would wait for the others for ever: a hook ends the whole job.

use std::sync::Mutex;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use crate::engine::error::{Error, Result};
use crate::rendezvous::Reduction;

/// The job as MPI sees it. One call at a time: the level asked for is not everywhere granted.
#[derive(Debug)]
pub(super) struct MpiWorld {
    universe: Mutex<Held>,
    pub(super) process: usize,
    pub(super) n_processes: usize,
}

/// Keeps `MPI_Finalize` for the end.
struct Held(Universe);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Universe")
    }
}

impl MpiWorld {
    /// Initialises the library. Done once a process.
    pub(super) fn start() -> Result<Self> {
        let (universe, _granted) = mpi::initialize_with_threading(Threading::Multiple)
            .ok_or_else(|| Error::Internal("MPI is initialised already".into()))?;
        end_job_on_panic();
        let world = universe.world();
        let (process, n_processes) = (world.rank() as usize, world.size() as usize);
        Ok(Self { universe: Mutex::new(Held(universe)), process, n_processes })
    }

    fn with<T>(&self, call: impl FnOnce(&SimpleCommunicator) -> T) -> T {
        let held = self.universe.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        call(&held.0.world())
    }

    pub(super) fn barrier(&self) {
        self.with(|world| world.barrier());
    }

    pub(super) fn broadcast(&self, bytes: &mut Vec<u8>) {
        self.with(|world| {
            let root = world.process_at_rank(0);
            let mut length = bytes.len() as u64;
            root.broadcast_into(&mut length);
            bytes.resize(length as usize, 0);
            root.broadcast_into(bytes.as_mut_slice());
        });
    }

    pub(super) fn all_gather(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.with(|world| {
            let mut lengths = vec![0_u64; self.n_processes];
            world.all_gather_into(&(bytes.len() as u64), lengths.as_mut_slice());
            let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
            if longest == 0 {
                return vec![Vec::new(); self.n_processes];
            }
            let mut mine = bytes.to_vec();
            mine.resize(longest, 0);
            let mut all = vec![0_u8; longest * self.n_processes];
            world.all_gather_into(mine.as_slice(), all.as_mut_slice());
            all.chunks_exact(longest)
                .zip(lengths)
                .map(|(part, length)| part[..length as usize].to_vec())
                .collect()
        })
    }

    pub(super) fn reduce_f64(&self, values: &[f64], reduction: Reduction) -> Vec<f64> {
        let mut out = vec![0.0; values.len()];
        let operation = match reduction {
            Reduction::Sum | Reduction::Mean => SystemOperation::sum(),
            Reduction::Min => SystemOperation::min(),
            Reduction::Max => SystemOperation::max(),
        };
        self.with(|world| world.all_reduce_into(values, out.as_mut_slice(), operation));
        if reduction == Reduction::Mean {
            out.iter_mut().for_each(|value| *value /= self.n_processes as f64);
        }
        out
    }

    pub(super) fn sum_u64(&self, value: u64) -> u64 {
        let mut sum = 0;
        self.with(|world| world.all_reduce_into(&value, &mut sum, SystemOperation::sum()));
        sum
    }
}

/// Ends every process of the job.
pub(super) fn abort(status: i32) -> ! {
    if mpi::environment::is_initialized() && !mpi::environment::is_finalized() {
        SimpleCommunicator::world().abort(status)
    }
    std::process::exit(status)
}

/// The library's first line about itself.
pub(super) fn library() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    text.lines().next().unwrap_or_default().split(',').next().unwrap_or_default().to_owned()
}

fn end_job_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        abort(1);
    }));
}
