//! How processes come to be a job: over MPI, over environment variables, or alone.
//!
//! `Auto` asks the environment: an MPI launcher's variables mean MPI where this build has it, any launcher's variables mean
//! `env`, none mean `local`. `MPI_Init` is not called unless a launcher is there: as a lone process it costs half a second.
//!
//! Imports `engine::bootstrap` beside the base: processes meet exactly as ranks do, and one implementation of hello, strangers,
//! deaths and limits is enough.

mod env;
mod launcher;
#[cfg(feature = "mpi")]
mod mpi;
mod vigil;

pub use launcher::{Announced, BadVariable, Kind};

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use crate::engine::bootstrap::Bootstrap;
use crate::engine::bootstrap::build::{BUILD_BYTES, Build};
use crate::engine::error::{Error, Result};
use crate::engine::log::{self, Subsys};

/// How long a process that must stay silent leaves the word to process 0 before it ends.
const SILENCE: Duration = Duration::from_millis(700);

/// How processes are to find each other (`--launch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchMode {
    /// As the environment says.
    #[default]
    Auto,
    /// MPI.
    Mpi,
    /// Environment variables.
    Env,
    /// One process.
    Local,
}

impl LaunchMode {
    /// Every mode, in the order of the help text.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Mpi, Self::Env, Self::Local];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mpi => "mpi",
            Self::Env => "env",
            Self::Local => "local",
        }
    }
}

/// How values of all processes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum over the number of processes.
    Mean,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Sum.
    Sum,
}

impl Reduction {
    fn fold(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum | Self::Mean => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

/// Why there is no world. What concerns all processes alike is said by one.
#[derive(Debug)]
pub struct RendezvousError {
    /// What went wrong.
    pub error: Error,
    /// Whether this process is the one to print it.
    pub speaks: bool,
}

impl fmt::Display for RendezvousError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RendezvousError {}

/// The processes of the job.
#[derive(Debug)]
pub struct World {
    /// How they found each other; never `Auto`.
    pub mode: LaunchMode,
    /// This process.
    pub process: usize,
    /// All processes.
    pub n_processes: usize,
    /// This host's name.
    pub host: String,
    /// This process among those of its host.
    pub local_process: usize,
    /// Processes of this host.
    pub n_local_processes: usize,
    /// Hosts.
    pub n_hosts: usize,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    #[cfg(feature = "mpi")]
    Mpi(mpi::MpiWorld),
    Env(Box<Mutex<Bootstrap>>),
    Local,
}

/// Finds the other processes. `limit` is `-T`: it covers the start, too.
pub fn find(mode: LaunchMode, limit: Option<Duration>) -> std::result::Result<World, RendezvousError> {
    let announced = launcher::detect(&crate::env::text)
        .map_err(|bad| RendezvousError { error: Error::InvalidUsage(bad.to_string()), speaks: true })?;
    let result = start(mode, announced.as_ref(), limit);
    result.map_err(|(error, speaks)| {
        if !speaks {
            std::thread::sleep(SILENCE);
        }
        RendezvousError { error, speaks }
    })
}

type Failure = (Error, bool);

fn start(
    mode: LaunchMode,
    announced: Option<&Announced>,
    limit: Option<Duration>,
) -> std::result::Result<World, Failure> {
    let usage = |text: String, process: usize| (Error::InvalidUsage(text), process == 0);
    let (process, n_announced) = announced.map_or((0, 1), |a| (a.process, a.n_processes));
    let (mode, backend) = match resolve(mode, announced) {
        LaunchMode::Mpi => {
            let backend = start_mpi().map_err(|error| (error, process == 0))?;
            (LaunchMode::Mpi, backend)
        }
        LaunchMode::Env => match announced {
            None => {
                let text = "--launch env: no launcher's variables are set; expected RANK, WORLD_SIZE, MASTER_ADDR and \
                            MASTER_PORT (torchrun), or those of srun, mpiexec or mpirun";
                return Err(usage(text.into(), 0));
            }
            Some(one) if one.n_processes == 1 => (LaunchMode::Env, Backend::Local),
            Some(announced) => {
                let joined = env::connect(announced, limit).map_err(|error| {
                    let error = Error::from(error);
                    let speaks = env::speaks(&error, process);
                    (error, speaks)
                })?;
                (LaunchMode::Env, Backend::Env(Box::new(Mutex::new(joined))))
            }
        },
        LaunchMode::Local | LaunchMode::Auto => (LaunchMode::Local, Backend::Local),
    };
    let (mine, n_processes) = backend.place(process, n_announced, mode);
    if let Some(announced) = announced.filter(|announced| announced.n_processes != n_processes) {
        return Err(usage(mismatch(announced, mode, n_processes), announced.process));
    }
    World::assemble(mode, backend, mine, n_processes).map_err(|error| {
        let speaks = mine == 0 || !matches!(error, Error::InvalidUsage(_));
        (error, speaks)
    })
}

fn resolve(mode: LaunchMode, announced: Option<&Announced>) -> LaunchMode {
    match (mode, announced) {
        (LaunchMode::Auto, Some(announced)) if announced.kind.can_start_mpi() && cfg!(feature = "mpi") => {
            LaunchMode::Mpi
        }
        (LaunchMode::Auto, Some(_)) => LaunchMode::Env,
        (LaunchMode::Auto, None) => LaunchMode::Local,
        (forced, _) => forced,
    }
}

#[cfg(feature = "mpi")]
fn start_mpi() -> Result<Backend> {
    mpi::MpiWorld::start().map(Backend::Mpi)
}

#[cfg(not(feature = "mpi"))]
fn start_mpi() -> Result<Backend> {
    Err(Error::Unavailable("--launch mpi: this program was built without MPI (cargo feature `mpi`)".into()))
}

/// The most reported confusion: N processes that each believe to be alone.
fn mismatch(announced: &Announced, mode: LaunchMode, n_processes: usize) -> String {
    let start = format!("{} started {} processes, but ", announced.kind.name(), announced.n_processes);
    match mode {
        LaunchMode::Local => {
            start + "--launch local makes each of them a job of its own: leave it out, or start one process"
        }
        #[cfg(feature = "mpi")]
        LaunchMode::Mpi => format!(
            "{start}for MPI the world has {n_processes}: this program is linked to {}, start it with that library's launcher, \
             or use --launch env",
            mpi::library()
        ),
        _ => format!("{start}the world has {n_processes}"),
    }
}

impl Backend {
    /// This process and all processes, as this way of launching sees them.
    fn place(&self, process: usize, n_announced: usize, mode: LaunchMode) -> (usize, usize) {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpi(world) => (world.process, world.n_processes),
            Self::Env(_) => (process, n_announced),
            Self::Local if mode == LaunchMode::Env => (process, n_announced),
            Self::Local => (0, 1),
        }
    }
}

impl World {
    /// One process alone, whatever the environment says: for programs that embed the engine, and for tests.
    pub fn alone() -> Self {
        Self {
            mode: LaunchMode::Local,
            process: 0,
            n_processes: 1,
            host: log::host().to_owned(),
            local_process: 0,
            n_local_processes: 1,
            n_hosts: 1,
            backend: Backend::Local,
        }
    }

    /// Compares builds and finds out who shares a host.
    fn assemble(mode: LaunchMode, backend: Backend, process: usize, n_processes: usize) -> Result<Self> {
        let mut world = Self { mode, process, n_processes, backend, ..Self::alone() };
        let mut mine = Build::of_this_process().to_bytes().to_vec();
        mine.extend_from_slice(host_identity().as_bytes());
        let all = world.all_gather(&mine)?;
        let mut hosts: Vec<&[u8]> = Vec::new();
        for (other, bytes) in all.iter().enumerate() {
            let (build, host) = bytes
                .split_first_chunk::<BUILD_BYTES>()
                .ok_or_else(|| Error::Internal(format!("process {other} did not say what build it is")))?;
            compare_builds(&all[0], &Build::from_bytes(build), other)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        let same = |other: &&Vec<u8>| other[BUILD_BYTES..] == mine[BUILD_BYTES..];
        world.n_local_processes = all.iter().filter(same).count();
        world.local_process = all[..process].iter().filter(same).count();
        world.n_hosts = hosts.len();
        if let Backend::Env(bootstrap) = &world.backend {
            // From here on processes wait for each other as long as a row takes; what is late is the watch's business.
            lock(bootstrap).set_limit(None);
        }
        log::info(
            Subsys::INIT,
            format_args!(
                "Launch {}: process {process} of {n_processes}, {} of {} on this host, {} hosts",
                mode.name(),
                world.local_process,
                world.n_local_processes,
                world.n_hosts
            ),
        );
        Ok(world)
    }

    /// Everybody's bytes, in order of processes.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        match &self.backend {
            #[cfg(feature = "mpi")]
            Backend::Mpi(world) => Ok(world.all_gather(bytes)),
            Backend::Env(bootstrap) => Ok(lock(bootstrap).all_gather(bytes)?),
            Backend::Local => Ok(vec![bytes.to_vec()]),
        }
    }

    /// Replaces everybody's bytes with those of process 0.
    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
        match &self.backend {
            #[cfg(feature = "mpi")]
            Backend::Mpi(world) => world.broadcast(bytes),
            Backend::Env(bootstrap) => lock(bootstrap).broadcast(0, bytes)?,
            Backend::Local => {}
        }
        Ok(())
    }

    /// Returns when every process has called it.
    pub fn barrier(&self) -> Result<()> {
        match &self.backend {
            #[cfg(feature = "mpi")]
            Backend::Mpi(world) => world.barrier(),
            Backend::Env(bootstrap) => lock(bootstrap).barrier()?,
            Backend::Local => {}
        }
        Ok(())
    }

    /// Element by element over all processes; the same bits everywhere.
    pub fn reduce_f64(&self, values: &[f64], reduction: Reduction) -> Result<Vec<f64>> {
        match &self.backend {
            #[cfg(feature = "mpi")]
            Backend::Mpi(world) => Ok(world.reduce_f64(values, reduction)),
            Backend::Env(_) => {
                let mine: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                fold_f64(&self.all_gather(&mine)?, values.len(), reduction)
            }
            Backend::Local => Ok(values.to_vec()),
        }
    }

    /// The sum over all processes.
    pub fn sum_u64(&self, value: u64) -> Result<u64> {
        match &self.backend {
            #[cfg(feature = "mpi")]
            Backend::Mpi(world) => Ok(world.sum_u64(value)),
            Backend::Env(_) => {
                let parts = self.all_gather(&value.to_le_bytes())?;
                parts.iter().try_fold(0_u64, |sum, part| {
                    let part: [u8; 8] = part.as_slice().try_into().map_err(|_| uneven())?;
                    Ok(sum.wrapping_add(u64::from_le_bytes(part)))
                })
            }
            Backend::Local => Ok(value),
        }
    }

    /// The orderly end: all processes come here together.
    pub fn finalize(self) -> Result<()> {
        self.barrier()
    }

    /// Ends the whole job at once, as far as this way of launching can; this process in any case.
    pub fn abort(&self, status: i32) -> ! {
        #[cfg(feature = "mpi")]
        if let Backend::Mpi(_) = self.backend {
            mpi::abort(status);
        }
        std::process::exit(status)
    }
}

fn lock(bootstrap: &Mutex<Bootstrap>) -> std::sync::MutexGuard<'_, Bootstrap> {
    bootstrap.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn uneven() -> Error {
    Error::Internal("processes reduce different numbers of values".into())
}

fn fold_f64(parts: &[Vec<u8>], n_values: usize, reduction: Reduction) -> Result<Vec<f64>> {
    let mut out: Option<Vec<f64>> = None;
    for part in parts {
        let (values, rest) = part.as_chunks::<8>();
        if values.len() != n_values || !rest.is_empty() {
            return Err(uneven());
        }
        let values = values.iter().map(|bytes| f64::from_le_bytes(*bytes));
        out = Some(match out {
            None => values.collect(),
            Some(sum) => sum.into_iter().zip(values).map(|(a, b)| reduction.fold(a, b)).collect(),
        });
    }
    let mut out = out.unwrap_or_default();
    if reduction == Reduction::Mean {
        out.iter_mut().for_each(|value| *value /= parts.len() as f64);
    }
    Ok(out)
}

fn compare_builds(first: &[u8], theirs: &Build, process: usize) -> Result<()> {
    let first = first.first_chunk::<BUILD_BYTES>().map(Build::from_bytes);
    match first {
        Some(first) if first != *theirs => Err(Error::InvalidUsage(format!(
            "different builds: process 0 runs {first}, process {process} runs {theirs}; all processes must run the same file"
        ))),
        _ => Ok(()),
    }
}

/// Two processes with the same text share a kernel, and so its memory.
fn host_identity() -> String {
    let uname = rustix::system::uname();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", uname.nodename().to_string_lossy(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn reductions_go_element_by_element() {
        let parts = [bytes(&[1.0, 8.0]), bytes(&[3.0, -2.0])];
        assert_eq!(fold_f64(&parts, 2, Reduction::Sum).expect("even"), [4.0, 6.0]);
        assert_eq!(fold_f64(&parts, 2, Reduction::Mean).expect("even"), [2.0, 3.0]);
        assert_eq!(fold_f64(&parts, 2, Reduction::Min).expect("even"), [1.0, -2.0]);
        assert_eq!(fold_f64(&parts, 2, Reduction::Max).expect("even"), [3.0, 8.0]);
        assert!(fold_f64(&parts, 3, Reduction::Sum).is_err());
    }

    #[test]
    fn the_environment_decides_unless_a_mode_is_forced() {
        let torch = launcher::detect(&|name| match name {
            "RANK" => Some("0".into()),
            "WORLD_SIZE" => Some("2".into()),
            _ => None,
        });
        let torch = torch.expect("valid").expect("a launcher");
        assert_eq!(resolve(LaunchMode::Auto, None), LaunchMode::Local);
        assert_eq!(resolve(LaunchMode::Auto, Some(&torch)), LaunchMode::Env);
        assert_eq!(resolve(LaunchMode::Local, Some(&torch)), LaunchMode::Local);
        let mpi = Announced { kind: Kind::OpenMpi, ..torch };
        let expected = if cfg!(feature = "mpi") { LaunchMode::Mpi } else { LaunchMode::Env };
        assert_eq!(resolve(LaunchMode::Auto, Some(&mpi)), expected);
    }

    #[test]
    fn a_launcher_of_many_and_a_world_of_one_is_a_usage_error_said_once() {
        let announced = |process| Announced {
            kind: Kind::OpenMpi,
            process,
            n_processes: 8,
            n_local_processes: None,
            address: None,
            port: None,
            job: String::new(),
        };
        let (error, speaks) =
            start(LaunchMode::Local, Some(&announced(0)), None).expect_err("eight jobs of one");
        assert!(matches!(&error, Error::InvalidUsage(text) if text.contains("8 processes")), "{error:?}");
        assert!(speaks);
        assert!(!start(LaunchMode::Local, Some(&announced(3)), None).expect_err("the same").1);
    }

    #[test]
    fn env_mode_without_variables_says_which_are_expected() {
        let (error, _) = start(LaunchMode::Env, None, None).expect_err("no variables");
        assert!(error.to_string().contains("WORLD_SIZE"), "{error}");
    }

    #[test]
    fn a_process_alone_is_a_whole_world() {
        let world = World::alone();
        assert_eq!(world.all_gather(b"x").expect("alone"), [b"x"]);
        assert_eq!(world.reduce_f64(&[2.0], Reduction::Mean).expect("alone"), [2.0]);
        assert_eq!(world.sum_u64(7).expect("alone"), 7);
        world.finalize().expect("alone");
    }
}
