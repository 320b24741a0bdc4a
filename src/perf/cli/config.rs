//! Stage two: raw options become one finished plan of the run, with nccl-tests' messages for what does not fit together.
//! Pure: the environment comes in as values, messages go out as values.

use std::time::Duration;

use super::forced;
use super::number::leading_double;
use super::options::{DEFAULT_BYTES, DEFAULT_ITERATIONS, DEFAULT_STEP, RawOptions};
use crate::engine::types::{Collective, DataType};
use crate::perf::exit::{Failure, Result, Status};
use crate::perf::split::Split;
use crate::perf::sweep::{Forcing, Op, Sizes, Step};

/// Where calls are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocking {
    /// Issue all, wait once.
    #[default]
    None,
    /// Wait and job-wide barrier after every call, both timed.
    WaitAndBarrier,
    /// Wait after every call.
    Wait,
    /// Wait after every outer iteration; a barrier follows outside the measured time.
    PerIteration,
}

/// How the ranks' times become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Rank 0's.
    RankZero,
    /// The mean.
    Mean,
    /// The shortest.
    Min,
    /// The longest.
    Max,
}

/// Registration of the buffers (`-R`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Left to the engine.
    None,
    /// Each rank for itself.
    Local,
    /// As windows of all ranks together.
    Window,
}

/// Which library runs the collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Ours.
    Engine,
    /// The MPI library's own collectives.
    Mpi,
}

impl BackendKind {
    /// The word of `--backend` and of records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Mpi => "mpi",
        }
    }
}

/// How ranks come to be (`--launch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Whatever the environment says.
    Auto,
    /// The MPI library.
    Mpi,
    /// RANK, WORLD_SIZE and their like.
    Env,
    /// One process.
    Local,
}

/// Timed iterations of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iterations {
    /// At most.
    pub count: u32,
    /// Whether slow rows take fewer (`-n` was not given).
    pub shrinks: bool,
}

/// Settings from the environment, as texts.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// NCCL_TESTS_DEVICE.
    pub device: Option<String>,
    /// NCCL_TESTS_MIN_BW.
    pub min_bw: Option<String>,
    /// NCCL_TESTS_SPLIT.
    pub split: Option<String>,
    /// NCCL_TESTS_SPLIT_MASK.
    pub split_mask: Option<String>,
    /// CHORUS_DEVICE_NAME.
    pub device_name: Option<String>,
}

/// Everything a run does.
#[derive(Clone, Debug)]
pub struct SweepConfig {
    /// Basename of the program.
    pub program: String,
    /// The command line as typed.
    pub args: Vec<String>,
    /// What is measured.
    pub collective: Collective,
    /// Threads per process.
    pub n_threads: usize,
    /// Ranks per thread.
    pub n_devices: usize,
    /// Sizes as asked for, before any memory cap.
    pub sizes: Sizes,
    /// Bytes consecutive calls walk through; the largest size unless `--span` says more.
    pub span: Option<u64>,
    /// Timed iterations.
    pub iterations: Iterations,
    /// Operations per iteration.
    pub aggregated: u32,
    /// Untimed calls per warm-up size.
    pub warmup: u32,
    /// Times the sweep is run, 0 for ever.
    pub cycles: u32,
    /// Whether threads set up communicators and buffers by themselves.
    pub parallel_init: bool,
    /// Checks per row and placement.
    pub check: u32,
    /// Operators; `None` where the collective has none.
    pub ops: Vec<Option<Op>>,
    /// Element types.
    pub dtypes: Vec<DataType>,
    /// Where to wait.
    pub blocking: Blocking,
    /// `-T`.
    pub limit: Option<Duration>,
    /// Replays of a captured plan, 0 for none.
    pub graph_launches: u32,
    /// `-C`.
    pub report_cpu_time: bool,
    /// `-S`.
    pub report_timestamps: bool,
    /// `-J`, when its suffix activates it.
    pub json: Option<String>,
    /// `--csv`.
    pub csv: Option<String>,
    /// `-a`.
    pub average: Average,
    /// `-R`.
    pub register: Register,
    /// `-y`.
    pub default_stream: bool,
    /// `-x`.
    pub cta_policy: Option<u32>,
    /// `-M`.
    pub report_memory: bool,
    /// `-u`, elements.
    pub unalign: u64,
    /// `-I`.
    pub per_iteration: bool,
    /// `-K`.
    pub skip: u32,
    /// `--algo`, `--proto`, `--channels`: one table each.
    pub forced: Vec<Forcing>,
    /// `--alternate`: cycles take turns between the two tables.
    pub alternate: bool,
    /// `--stats`.
    pub stats: bool,
    /// `--backend`.
    pub backend: BackendKind,
    /// `--launch`.
    pub launch: Launch,
    /// `--plan`.
    pub plan_only: bool,
    /// NCCL_TESTS_SPLIT and _MASK.
    pub split: Split,
    /// NCCL_TESTS_MIN_BW, GB/s.
    pub min_bw: Option<f64>,
    /// NCCL_TESTS_DEVICE.
    pub first_device: Option<usize>,
    /// CHORUS_DEVICE_NAME.
    pub device_name: Option<String>,
}

impl SweepConfig {
    /// Ranks of one process.
    pub fn ranks_per_process(&self) -> usize {
        self.n_threads * self.n_devices
    }
}

/// Lines for the user that do not stop the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// For stdout.
    pub stdout: Vec<String>,
    /// For stderr.
    pub stderr: Vec<String>,
}

/// Name and arguments of this program, and what it measures.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Basename of `argv[0]`.
    pub program: String,
    /// All arguments, the program's path first.
    pub args: Vec<String>,
    /// What is measured.
    pub collective: Collective,
}

/// Makes a plan of raw options and settings.
pub fn resolve(
    invocation: Invocation,
    raw: &RawOptions,
    settings: &Settings,
) -> Result<(SweepConfig, Notices)> {
    let mut notices = Notices::default();
    let has_operator = matches!(
        invocation.collective,
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
    );
    let ops = if has_operator { operators(&raw.op, &mut notices) } else { vec![None] };
    let dtypes = data_types(&raw.data_type, &mut notices);
    let sizes = sizes(raw)?;
    device_implementation(raw, &mut notices)?;
    let iterations = Iterations {
        count: raw.iterations.map_or(DEFAULT_ITERATIONS, |n| n as u32),
        shrinks: raw.iterations.is_none(),
    };
    let timing = per_iteration(raw, iterations.count, &mut notices);
    let config = SweepConfig {
        program: invocation.program,
        args: invocation.args,
        collective: invocation.collective,
        n_threads: raw.n_threads as usize,
        n_devices: raw.n_devices as usize,
        sizes,
        span: raw.span,
        iterations,
        aggregated: raw.aggregated as u32,
        warmup: raw.warmup as u32,
        cycles: raw.cycles as u32,
        parallel_init: raw.parallel_init != 0,
        check: raw.check as u32,
        ops,
        dtypes,
        blocking: timing.blocking,
        limit: (raw.timeout_s > 0).then(|| Duration::from_secs(raw.timeout_s as u64)),
        graph_launches: raw.graph_launches as u32,
        report_cpu_time: raw.report_cpu_time != 0,
        report_timestamps: raw.report_timestamps != 0,
        json: raw.json.clone().filter(|path| is_json(path)),
        csv: csv(raw)?,
        average: [Average::RankZero, Average::Mean, Average::Min, Average::Max][raw.average as usize],
        register: [Register::None, Register::Local, Register::Window][raw.register as usize],
        default_stream: raw.stream_null != 0,
        cta_policy: raw.cta_policy.map(|policy| policy as u32),
        report_memory: raw.memory != 0,
        unalign: raw.unalign as u64,
        per_iteration: timing.per_iteration,
        skip: timing.skip,
        forced: forced::tables(raw, invocation.collective, backend(&raw.backend)?)?,
        alternate: raw.alternate.is_some(),
        stats: raw.stats,
        backend: backend(&raw.backend)?,
        launch: launch(&raw.launch)?,
        plan_only: raw.plan,
        split: Split::parse(settings.split_mask.as_deref(), settings.split.as_deref())
            .map_err(Failure::usage)?,
        min_bw: settings.min_bw.as_deref().and_then(min_bandwidth),
        first_device: settings.device.as_deref().and_then(device_index),
        device_name: settings.device_name.clone(),
    };
    Ok((config, notices))
}

fn sizes(raw: &RawOptions) -> Result<Sizes> {
    let (min, max) = (raw.min_bytes.unwrap_or(DEFAULT_BYTES), raw.max_bytes.unwrap_or(DEFAULT_BYTES));
    if min > max {
        return Err(Failure::usage(format!("invalid sizes for 'minbytes' and 'maxbytes': {min} > {max}")));
    }
    let step = match (raw.step_factor, raw.step_bytes) {
        (None, None) => Step::Factor(2),
        (Some(factor), _) if factor > 1 => Step::Factor(factor as u64),
        (_, bytes) => Step::Bytes(bytes.unwrap_or(DEFAULT_STEP)),
    };
    if step == Step::Bytes(0) {
        return Err(Failure::usage(
            "invalid size specified for 'stepBytes': a step of 0 never ends; leave -i out to double sizes",
        ));
    }
    Ok(Sizes { min, max, step })
}

fn operators(word: &str, notices: &mut Notices) -> Vec<Option<Op>> {
    if word == "all" {
        return Op::ALL.iter().copied().map(Some).collect();
    }
    vec![Some(Op::from_name(word).unwrap_or_else(|| {
        notices.stdout.push(format!("invalid op {word}, defaulting to sum .. "));
        Op::Sum
    }))]
}

fn data_types(word: &str, notices: &mut Notices) -> Vec<DataType> {
    if word == "all" {
        return DataType::ALL.to_vec();
    }
    let exact = DataType::ALL.iter().copied().find(|d| d.name() == word);
    vec![exact.unwrap_or_else(|| {
        notices.stdout.push(format!("invalid type {word}, defaulting to float .. "));
        DataType::Float
    })]
}

fn device_implementation(raw: &RawOptions, notices: &mut Notices) -> Result<()> {
    if let Some(n) = raw.device_ctas {
        if !(1..=128).contains(&n) {
            notices.stderr.push(format!(
                "invalid device CTA count (-V) {n}: it must lie in 1..128. Using the default 16."
            ));
        } else {
            notices
                .stderr
                .push("the device CTA count (-V) needs CUDA and -D; it changes nothing here".into());
        }
    }
    if raw.device_implementation > 0 {
        if raw.register != 2 {
            return Err(Failure::usage(
                "a device implementation (-D) requires symmetric memory registration (-R 2)",
            ));
        }
        return Err(Failure::new(Status::Unavailable, "device implementations (-D) need CUDA devices"));
    }
    Ok(())
}

struct Timing {
    per_iteration: bool,
    blocking: Blocking,
    skip: u32,
}

/// The checks of -I, -G, -z and -K, in nccl-tests' order.
fn per_iteration(raw: &RawOptions, iterations: u32, notices: &mut Notices) -> Timing {
    let mut warn = |line: String| notices.stderr.push(line);
    let mut per_iteration = raw.per_iteration == 1;
    if !(0..=1).contains(&raw.per_iteration) {
        warn("per-iteration timing (-I) only supports 0=off or 1=on. Disabling.".into());
    }
    if per_iteration && raw.graph_launches >= 1 {
        warn("per-iteration timing (-I) is incompatible with CUDA graph mode (-G). Disabling.".into());
        per_iteration = false;
    }
    let mut blocking = [Blocking::None, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::PerIteration]
        [raw.blocking as usize];
    if blocking == Blocking::PerIteration && raw.graph_launches >= 1 {
        warn("blocking mode (-z 3) is incompatible with CUDA graph mode (-G). Disabling.".into());
        blocking = Blocking::None;
    }
    let mut skip = raw.per_iteration_skip;
    if skip != 0 && !(0..i64::from(iterations)).contains(&skip) {
        let last = i64::from(iterations) - 1;
        warn(format!("per-iteration skip (-K) must be between 0 and {last}. Disabling."));
        skip = 0;
    }
    if skip > 0 && !per_iteration {
        warn("per-iteration skip (-K) requires per-iteration timing (-I 1). Disabling.".into());
        skip = 0;
    }
    Timing { per_iteration, blocking, skip: skip as u32 }
}

/// Whether the text after the last dot of the file name is `json`.
fn is_json(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case("json"))
}

fn csv(raw: &RawOptions) -> Result<Option<String>> {
    match raw.csv.as_deref() {
        Some("") => Err(Failure::usage("invalid value '' for --csv: the name of a file, such as rows.csv")),
        path => Ok(path.map(str::to_owned)),
    }
}

fn backend(word: &str) -> Result<BackendKind> {
    match word {
        "engine" => Ok(BackendKind::Engine),
        "mpi" if cfg!(feature = "mpi") => Ok(BackendKind::Mpi),
        "mpi" => {
            Err(Failure::new(Status::Unavailable, "--backend mpi: this build has no MPI (cargo feature mpi)"))
        }
        "nccl" => {
            Err(Failure::new(Status::Unavailable, "--backend nccl: this build drives no GPU; engine or mpi"))
        }
        _ => Err(Failure::usage(format!("invalid value '{word}' for --backend: engine or mpi"))),
    }
}

fn launch(word: &str) -> Result<Launch> {
    match word {
        "auto" => Ok(Launch::Auto),
        "mpi" => Ok(Launch::Mpi),
        "env" => Ok(Launch::Env),
        "local" => Ok(Launch::Local),
        _ => Err(Failure::usage(format!("invalid value '{word}' for --launch: auto, mpi, env or local"))),
    }
}

/// -1 is the same as unset; what follows the number is ignored; text that begins with no number is 0, which always passes.
fn min_bandwidth(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let value = sign * leading_double(digits).map_or(0.0, |(value, _)| value);
    (value != -1.0).then_some(value)
}

fn device_index(text: &str) -> Option<usize> {
    crate::env::parse_integer(text).and_then(|index| usize::try_from(index).ok())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
