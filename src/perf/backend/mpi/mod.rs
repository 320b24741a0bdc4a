//! The MPI library's own MPI_Allreduce and MPI_Allgather behind the harness: the peer to compare with on any machine.
//!
//! Calls block, so a lane is never waited for and a captured plan is a list of calls made again. What MPI has no name for is done
//! as an MPI program does it: element types it lacks (half, bfloat16, the 8-bit floats) have operators of our own, over integers
//! of their size ([`OWN`]); inputs of a pre-multiplied sum and of an average of floats are multiplied first, and the sum of an average of
//! integers is divided afterwards, all inside the timed call.
//!
//! The unsafe code of this file is its calls into the C interface and its calls from there: rsmpi's safe wrappers have no
//! in-place form and ignore return codes.
//!
//! Each algorithm of Open MPI that is to be run gets a communicator of its own ([`tuned`]): the library looks at its parameters when
//! it makes one. Forcing a choice is taking its communicator.

mod tuned;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use analysis::record::Tuned;
use mpi::ffi;

use crate::SliceReducer;
use crate::engine::error::{Error, Result};
use crate::engine::types::{Collective, DataType, RedOp};
use crate::perf::backend::{Call, Capture, Lane, LaneWishes, Library, Memory, Side, Steering};
use crate::perf::sweep::Forcing;

/// A communicator of the C interface and the operators of ours, which Open MPI makes pointers.
#[derive(Clone, Copy, Debug)]
struct Handle {
    communicator: ffi::MPI_Comm,
    n_ranks: usize,
    /// By type of [`OWN`] and operator of [`OPERATORS`].
    operators: [[ffi::MPI_Op; OPERATORS.len()]; OWN.len()],
}

// SAFETY: the handles only name what lives as long as the process; the harness uses them from one thread at a time (one rank a
// process, one lane a rank).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The processes that call together.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Which group this process is in.
    pub color: u64,
    /// This process in the world.
    pub process: usize,
    /// Hosts of the world.
    pub n_hosts: usize,
}

/// Communicators of the same ranks, one for each choice, and which is taken.
#[derive(Debug)]
struct Choices {
    made: Vec<(Option<&'static Tuned>, Handle)>,
    taken: AtomicUsize,
}

impl Choices {
    fn taken(&self) -> (Option<&'static Tuned>, Handle) {
        self.made[self.taken.load(Ordering::Relaxed)]
    }

    fn handle(&self) -> &Handle {
        &self.made[self.taken.load(Ordering::Relaxed)].1
    }
}

/// One group of processes as MPI communicators.
#[derive(Debug)]
pub struct Mpi {
    choices: Arc<Choices>,
    collective: Collective,
    n_hosts: usize,
    in_place: usize,
    user_bytes: AtomicU64,
}

impl Mpi {
    /// Splits the world by colour, once for every choice in `forced`; ranks keep their order.
    ///
    /// # Errors
    /// When MPI gives one, or when the library cannot be locked to a choice.
    pub fn new(group: &Group, collective: Collective, forced: &[Forcing]) -> Result<Self> {
        // MPI_IN_PLACE is a pointer constant of the C header, which the bindings lack: 1 in Open MPI, -1 in MPICH and its kin.
        let version = mpi::environment::library_version().unwrap_or_default();
        let in_place = if version.contains("Open MPI") { 1 } else { usize::MAX };
        let operators = own_operators()?;
        let tools = tuned::Tools::start(collective);
        let mut made = vec![(tools.as_ref().and_then(|tools| tools.now()), split(group, operators)?)];
        for library in forced.iter().filter_map(|table| table.library) {
            if made[1..].iter().any(|(known, _)| *known == Some(library)) {
                continue;
            }
            let tools = tools.as_ref().ok_or_else(|| {
                Error::Unavailable(format!("--algo {}: {version} is not Open MPI", library.word()))
            })?;
            tools.lock(library)?;
            made.push((Some(library), split(group, operators)?));
            tools.unlock()?;
        }
        let choices = Arc::new(Choices { made, taken: 0.into() });
        Ok(Self { choices, collective, n_hosts: group.n_hosts, in_place, user_bytes: 0.into() })
    }
}

type Operators = [[ffi::MPI_Op; OPERATORS.len()]; OWN.len()];

fn split(group: &Group, operators: Operators) -> Result<Handle> {
    // SAFETY: MPI is initialised (the world is an MPI world) and the out pointers are locals of the right type.
    let (code, communicator, n_ranks) = unsafe {
        let (mut communicator, mut n_ranks) = (ffi::RSMPI_COMM_NULL, 0);
        let code = ffi::MPI_Comm_split(
            ffi::RSMPI_COMM_WORLD,
            group.color as c_int,
            group.process as c_int,
            &mut communicator,
        );
        ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
        ffi::MPI_Comm_size(communicator, &mut n_ranks);
        (code, communicator, n_ranks as usize)
    };
    succeeded(code, "MPI_Comm_split")?;
    Ok(Handle { communicator, n_ranks, operators })
}

impl Steering for Mpi {
    fn n_hosts(&self) -> usize {
        self.n_hosts
    }

    fn force(&self, forced: Forcing) {
        let place = |made: &(Option<&Tuned>, Handle)| made.0 == forced.library;
        let taken = if forced.is_automatic() {
            Some(0)
        } else {
            self.choices.made[1..].iter().position(place).map(|at| at + 1)
        };
        self.choices.taken.store(taken.unwrap_or(0), Ordering::Relaxed);
    }

    fn choice(&self, _: (Collective, DataType, RedOp), _: u64) -> Result<Forcing> {
        let (library, handle) = self.choices.taken();
        if let Some(refused) = library.filter(|library| !library.runs_with(handle.n_ranks)) {
            return Err(Error::NoSuchCombination(format!(
                "Open MPI runs another algorithm in place of {} with {} ranks; those it runs: {}",
                refused.word(),
                handle.n_ranks,
                Tuned::words(self.collective.name(), Some(handle.n_ranks))
            )));
        }
        Ok(Forcing { library, ..Forcing::default() })
    }
}

/// Element types that are folded by functions of ours: those MPI has no name for, and 8-bit integers, whose sums wrap in NCCL
/// and saturate in Open MPI 4 (MPI says nothing about overflow).
const OWN: [DataType; 6] =
    [DataType::Half, DataType::Bfloat16, DataType::F8e4m3, DataType::F8e5m2, DataType::Int8, DataType::Uint8];
/// Operators that fold.
const OPERATORS: [RedOp; 4] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min];

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype);

/// What MPI calls to fold `*count` elements of `input` into `result`.
///
/// # Safety
/// MPI's promise: both are that many elements of the type the collective named, of the size of one of [`OWN`], and apart.
unsafe extern "C" fn fold<const DTYPE: usize, const OP: usize>(
    input: *mut c_void,
    result: *mut c_void,
    count: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    let dtype = OWN[DTYPE];
    // SAFETY: the caller's promise; bytes need no alignment.
    let (result, input) = unsafe {
        let bytes = *count as usize * dtype.size();
        (
            std::slice::from_raw_parts_mut(result.cast::<u8>(), bytes),
            std::slice::from_raw_parts(input.cast::<u8>(), bytes),
        )
    };
    SliceReducer::new(dtype, OPERATORS[OP], 1).fold(result, input);
}

/// The functions of one type.
fn functions<const DTYPE: usize>() -> [Function; OPERATORS.len()] {
    [fold::<DTYPE, 0>, fold::<DTYPE, 1>, fold::<DTYPE, 2>, fold::<DTYPE, 3>]
}

fn own_operators() -> Result<[[ffi::MPI_Op; OPERATORS.len()]; OWN.len()]> {
    let mut made = Vec::new();
    let all = [
        functions::<0>(),
        functions::<1>(),
        functions::<2>(),
        functions::<3>(),
        functions::<4>(),
        functions::<5>(),
    ];
    for function in all.as_flattened() {
        // SAFETY: the out pointer is a local of the right type, the function has the form MPI asks for and lives as long as the program.
        let (code, operator) = unsafe {
            let mut operator = ffi::RSMPI_SUM;
            let is_commutative = 1;
            (ffi::MPI_Op_create(Some(*function), is_commutative, &mut operator), operator)
        };
        succeeded(code, "MPI_Op_create")?;
        made.push(operator);
    }
    let rows = made.as_chunks().0;
    Ok(std::array::from_fn(|dtype| rows[dtype]))
}

impl Library for Mpi {
    fn connect(&self, _: &[usize]) -> Result<()> {
        // SAFETY: the communicator is valid.
        succeeded(unsafe { ffi::MPI_Barrier(self.choices.handle().communicator) }, "MPI_Barrier")
    }

    fn lanes(&self, ranks: &[usize], bytes: usize, _: LaneWishes) -> Result<Vec<Box<dyn Lane>>> {
        let lane = |_: &usize| -> Box<dyn Lane> {
            Box::new(MpiLane {
                choices: self.choices.clone(),
                in_place: self.in_place,
                send: Buffer::new(bytes),
                recv: Buffer::new(bytes),
                stamps: Vec::new(),
                captured: Vec::new(),
                is_capturing: false,
            })
        };
        self.user_bytes.fetch_add(2 * bytes as u64, Ordering::Relaxed);
        Ok(ranks.iter().map(lane).collect())
    }

    fn group(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        calls()
    }

    fn memory(&self) -> Memory {
        let user = self.user_bytes.load(Ordering::Relaxed);
        Memory { library: resident_bytes().saturating_sub(user), user }
    }

    fn steering(&self) -> Option<&dyn Steering> {
        Some(self)
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
    choices: Arc<Choices>,
    in_place: usize,
    send: Buffer,
    recv: Buffer,
    stamps: Vec<Instant>,
    captured: Vec<Call>,
    is_capturing: bool,
}

impl MpiLane {
    fn run(&mut self, call: &Call) -> Result<()> {
        match call.collective {
            Collective::AllReduce => self.all_reduce(call),
            Collective::AllGather => self.all_gather(call),
            other => Err(Error::Internal(format!("the harness does not call {other}"))),
        }
    }

    /// Where a call's input is, as MPI is told.
    fn input(&mut self, call: &Call) -> *const u8 {
        match call.send {
            (Side::Send, offset) => self.send.bytes()[offset as usize..].as_ptr(),
            (Side::Recv, _) => std::ptr::without_provenance(self.in_place),
        }
    }

    fn all_reduce(&mut self, call: &Call) -> Result<()> {
        let arithmetic = SliceReducer::new(call.dtype, call.op, self.choices.handle().n_ranks);
        let bytes = call.count as usize * call.dtype.size();
        let mut input = self.input(call);
        if arithmetic.prepares() {
            // Multiplied where the result goes, so that the send buffer stays as it is.
            let result = &mut self.recv.bytes()[call.recv as usize..][..bytes];
            if let (Side::Send, offset) = call.send {
                result.copy_from_slice(&self.send.bytes()[offset as usize..][..bytes]);
            }
            arithmetic.prepare(result);
            input = std::ptr::without_provenance(self.in_place);
        }
        let (dtype, operator) = (data_type(call.dtype), self.operator(call));
        let count = count(call.count)?;
        let result = self.recv.bytes()[call.recv as usize..][..bytes].as_mut_ptr();
        // SAFETY: input (or MPI_IN_PLACE) and result are at least `count` elements long, which `Job` and `buffer_bytes` see to and
        // the slices above check in part; they do not overlap unless in place.
        let code = unsafe {
            let (input, result) = (input.cast::<c_void>(), result.cast::<c_void>());
            ffi::MPI_Allreduce(input, result, count, dtype, operator, self.choices.handle().communicator)
        };
        succeeded(code, "MPI_Allreduce")?;
        arithmetic.finish(&mut self.recv.bytes()[call.recv as usize..][..bytes]);
        Ok(())
    }

    fn all_gather(&mut self, call: &Call) -> Result<()> {
        let bytes = count(call.count * call.dtype.size() as u64)?;
        let input = self.input(call);
        let result = self.recv.bytes()[call.recv as usize..].as_mut_ptr();
        // SAFETY: as above; every rank's part is `bytes` long. A byte is an unsigned 8-bit integer to MPI.
        let code = unsafe {
            let (input, result) = (input.cast::<c_void>(), result.cast::<c_void>());
            let byte = ffi::RSMPI_UINT8_T;
            ffi::MPI_Allgather(input, bytes, byte, result, bytes, byte, self.choices.handle().communicator)
        };
        succeeded(code, "MPI_Allgather")
    }

    /// What folds: MPI's own operator unless the type is one of [`OWN`].
    fn operator(&self, call: &Call) -> ffi::MPI_Op {
        let op = match call.op {
            RedOp::Sum | RedOp::Avg | RedOp::PreMulSum(_) => 0,
            RedOp::Prod => 1,
            RedOp::Max => 2,
            RedOp::Min => 3,
        };
        match OWN.iter().position(|dtype| *dtype == call.dtype) {
            Some(dtype) => self.choices.handle().operators[dtype][op],
            // SAFETY: constants of the C library, set before any of our code runs.
            None => unsafe { [ffi::RSMPI_SUM, ffi::RSMPI_PROD, ffi::RSMPI_MAX, ffi::RSMPI_MIN][op] },
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

/// MPI's type, or unsigned integers of that size where our own operators know what they mean.
fn data_type(dtype: DataType) -> ffi::MPI_Datatype {
    // SAFETY: constants of the C library, set before any of our code runs.
    unsafe {
        match dtype {
            DataType::Int8 => ffi::RSMPI_INT8_T,
            DataType::Uint8 | DataType::F8e4m3 | DataType::F8e5m2 => ffi::RSMPI_UINT8_T,
            DataType::Int32 => ffi::RSMPI_INT32_T,
            DataType::Uint32 => ffi::RSMPI_UINT32_T,
            DataType::Int64 => ffi::RSMPI_INT64_T,
            DataType::Uint64 => ffi::RSMPI_UINT64_T,
            DataType::Float => ffi::RSMPI_FLOAT,
            DataType::Double => ffi::RSMPI_DOUBLE,
            DataType::Half | DataType::Bfloat16 => ffi::RSMPI_UINT16_T,
        }
    }
}
