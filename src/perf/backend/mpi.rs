//! The MPI library's own MPI_Allreduce and MPI_Allgather behind the harness: the peer to compare with on any machine.
//!
//! Calls block, so a lane is never waited for and a captured plan is a list of calls made again. The unsafe code of this file is its
//! calls into the C interface: rsmpi's safe wrappers have no in-place form and ignore return codes.

use std::ffi::{c_int, c_void};
use std::time::Instant;

use mpi::ffi;

use crate::engine::error::{Error, Result};
use crate::engine::types::{Collective, DataType, RedOp};
use crate::perf::backend::{Call, Capture, Lane, Library, Memory, Side, Steering};
use crate::perf::cli::config::Register;
use crate::perf::sweep::Op;

/// A communicator of the C interface, which Open MPI makes a pointer.
#[derive(Clone, Copy, Debug)]
struct Handle(ffi::MPI_Comm);

// SAFETY: the handle only names a communicator that lives as long as the process; the harness calls it from one thread at a time
// (one rank a process, one lane a rank).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// One group of processes as an MPI communicator.
#[derive(Debug)]
pub struct Mpi {
    communicator: Handle,
    in_place: usize,
    user_bytes: std::sync::atomic::AtomicU64,
}

impl Mpi {
    /// Splits the world by `color`; ranks keep the order of `process`.
    ///
    /// # Errors
    /// When MPI does.
    pub fn new(color: u64, process: usize) -> Result<Self> {
        // MPI_IN_PLACE is a pointer constant of the C header, which the bindings lack: 1 in Open MPI, -1 in MPICH and its kin.
        let version = mpi::environment::library_version().unwrap_or_default();
        let in_place = if version.contains("Open MPI") { 1 } else { usize::MAX };
        // SAFETY: MPI is initialised (the world is an MPI world) and the out pointer is a local of the right type.
        let (code, communicator) = unsafe {
            let mut communicator = ffi::RSMPI_COMM_NULL;
            let code = ffi::MPI_Comm_split(
                ffi::RSMPI_COMM_WORLD,
                color as c_int,
                process as c_int,
                &mut communicator,
            );
            ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
            (code, communicator)
        };
        succeeded(code, "MPI_Comm_split")?;
        Ok(Self { communicator: Handle(communicator), in_place, user_bytes: 0.into() })
    }
}

impl Library for Mpi {
    fn connect(&self, _: &[usize]) -> Result<()> {
        // SAFETY: the communicator is valid.
        succeeded(unsafe { ffi::MPI_Barrier(self.communicator.0) }, "MPI_Barrier")
    }

    fn lanes(&self, ranks: &[usize], bytes: usize, _: Register) -> Result<Vec<Box<dyn Lane>>> {
        let lane = |_: &usize| -> Box<dyn Lane> {
            Box::new(MpiLane {
                communicator: self.communicator,
                in_place: self.in_place,
                send: Buffer::new(bytes),
                recv: Buffer::new(bytes),
                stamps: Vec::new(),
                captured: Vec::new(),
                is_capturing: false,
            })
        };
        self.user_bytes.fetch_add(2 * bytes as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(ranks.iter().map(lane).collect())
    }

    fn group(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        calls()
    }

    fn memory(&self) -> Memory {
        let user = self.user_bytes.load(std::sync::atomic::Ordering::Relaxed);
        Memory { library: resident_bytes().saturating_sub(user), user }
    }

    fn reduces(&self, dtype: DataType, op: Op) -> bool {
        data_type(dtype).is_some() && operator(op.of_rank(0)).is_some()
    }

    fn steering(&self) -> Option<&dyn Steering> {
        None
    }
}

/// What of this process lies in memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Page-aligned memory, touched at once.
#[derive(Debug)]
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        const PAGE: usize = 4096;
        let mut memory = vec![0_u8; len + PAGE];
        memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        memory.fill(0);
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[derive(Debug)]
struct MpiLane {
    communicator: Handle,
    in_place: usize,
    send: Buffer,
    recv: Buffer,
    stamps: Vec<Instant>,
    captured: Vec<Call>,
    is_capturing: bool,
}

impl MpiLane {
    fn run(&mut self, call: &Call) -> Result<()> {
        let element = call.dtype.size();
        let input = match call.send {
            (Side::Send, offset) => self.send.bytes()[offset as usize..].as_ptr(),
            (Side::Recv, _) => std::ptr::without_provenance(self.in_place),
        };
        let result = self.recv.bytes()[call.recv as usize..].as_mut_ptr();
        match call.collective {
            Collective::AllReduce => {
                let missing =
                    || Error::Unavailable(format!("MPI has no {} of {}", call.op.name(), call.dtype));
                let (dtype, op) = data_type(call.dtype).zip(operator(call.op)).ok_or_else(missing)?;
                let count = count(call.count)?;
                // SAFETY: input (or MPI_IN_PLACE) and result are at least `count` elements long, which `Job` and
                // `buffer_bytes` see to and the slices above check in part; they do not overlap unless in place.
                let code = unsafe {
                    let (input, result) = (input.cast::<c_void>(), result.cast::<c_void>());
                    ffi::MPI_Allreduce(input, result, count, dtype, op, self.communicator.0)
                };
                succeeded(code, "MPI_Allreduce")
            }
            Collective::AllGather => {
                let bytes = count(call.count * element as u64)?;
                // SAFETY: as above; every rank's part is `bytes` long. A byte is an unsigned 8-bit integer to MPI.
                let code = unsafe {
                    let (input, result) = (input.cast::<c_void>(), result.cast::<c_void>());
                    let byte = ffi::RSMPI_UINT8_T;
                    ffi::MPI_Allgather(input, bytes, byte, result, bytes, byte, self.communicator.0)
                };
                succeeded(code, "MPI_Allgather")
            }
            other => Err(Error::Internal(format!("the harness does not call {other}"))),
        }
    }
}

impl Lane for MpiLane {
    fn launch(&mut self, call: &Call) -> Result<()> {
        if self.is_capturing {
            self.captured.push(*call);
            return Ok(());
        }
        self.run(call)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn stamp(&mut self) -> Result<()> {
        self.stamps.push(Instant::now());
        Ok(())
    }

    fn stamps(&mut self) -> Vec<f64> {
        let stamps = std::mem::take(&mut self.stamps);
        let Some(first) = stamps.first() else { return Vec::new() };
        stamps.iter().map(|stamp| (*stamp - *first).as_secs_f64() * 1e6).collect()
    }

    fn capture(&mut self, step: Capture) -> Result<()> {
        match step {
            Capture::Begin => {
                self.captured.clear();
                self.is_capturing = true;
            }
            Capture::End => self.is_capturing = false,
            Capture::Replay => {
                for call in self.captured.clone() {
                    self.run(&call)?;
                }
            }
        }
        Ok(())
    }

    fn host(&mut self, side: Side, access: &mut dyn FnMut(&mut [u8])) {
        match side {
            Side::Send => access(self.send.bytes()),
            Side::Recv => access(self.recv.bytes()),
        }
    }
}

fn count(count: u64) -> Result<c_int> {
    c_int::try_from(count)
        .map_err(|_| Error::Unavailable(format!("MPI counts end at {}, {count} is more", c_int::MAX)))
}

fn succeeded(code: c_int, call: &str) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::system(call, format!("MPI error {code}"))) }
}

fn data_type(dtype: DataType) -> Option<ffi::MPI_Datatype> {
    // SAFETY: constants of the C library, set before any of our code runs.
    unsafe {
        Some(match dtype {
            DataType::Int8 => ffi::RSMPI_INT8_T,
            DataType::Uint8 => ffi::RSMPI_UINT8_T,
            DataType::Int32 => ffi::RSMPI_INT32_T,
            DataType::Uint32 => ffi::RSMPI_UINT32_T,
            DataType::Int64 => ffi::RSMPI_INT64_T,
            DataType::Uint64 => ffi::RSMPI_UINT64_T,
            DataType::Float => ffi::RSMPI_FLOAT,
            DataType::Double => ffi::RSMPI_DOUBLE,
            DataType::Half | DataType::Bfloat16 | DataType::F8e4m3 | DataType::F8e5m2 => return None,
        })
    }
}

fn operator(op: RedOp) -> Option<ffi::MPI_Op> {
    // SAFETY: as above.
    unsafe {
        Some(match op {
            RedOp::Sum => ffi::RSMPI_SUM,
            RedOp::Prod => ffi::RSMPI_PROD,
            RedOp::Max => ffi::RSMPI_MAX,
            RedOp::Min => ffi::RSMPI_MIN,
            RedOp::Avg | RedOp::PreMulSum(_) => return None,
        })
    }
}
