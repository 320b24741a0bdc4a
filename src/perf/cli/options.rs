//! Stage one: every option with its letter, default, unit and help text, in nccl-tests' order, then ours.
//! The values here are only valid one by one; `config` makes them a plan.

use clap::Parser;

use super::number::{integer, size};

const MANY: i64 = i32::MAX as i64;
const MIB: u64 = 1 << 20;

/// Options as typed. Doc comments are the help texts.
#[derive(Clone, Debug, Parser)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    no_binary_name = true
)]
pub struct RawOptions {
    /// threads per process, each with -g devices (default 1)
    #[arg(short = 't', long = "nthreads", value_name = "num threads", default_value = "1",
          value_parser = integer("-t,--nthreads", 1, 4096))]
    pub n_threads: i64,
    /// devices (ranks) per thread (default 1)
    #[arg(short = 'g', long = "ngpus", value_name = "gpus per thread", default_value = "1",
          value_parser = integer("-g,--ngpus", 1, 4096))]
    pub n_devices: i64,
    /// first size of the sweep; K, M, G are binary (default 32M)
    #[arg(short = 'b', long = "minbytes", value_name = "min size in bytes", value_parser = size("minbytes"))]
    pub min_bytes: Option<u64>,
    /// last size of the sweep, also the size of the buffers (default 32M)
    #[arg(short = 'e', long = "maxbytes", value_name = "max size in bytes", value_parser = size("maxbytes"))]
    pub max_bytes: Option<u64>,
    /// additive step; without -i and -f sizes double
    #[arg(short = 'i', long = "stepbytes", value_name = "increment size", value_parser = size("stepBytes"))]
    pub step_bytes: Option<u64>,
    /// multiplicative step, a whole number; 1 or less: steps of -i (1M unless given)
    #[arg(short = 'f', long = "stepfactor", value_name = "increment factor",
          value_parser = integer("-f,--stepfactor", -MANY, MANY))]
    pub step_factor: Option<i64>,
    /// timed iterations (default 20, fewer on rows that would take more than about 5 s, never under 3; -n fixes the number)
    #[arg(short = 'n', long = "iters", value_name = "iteration count", value_parser = integer("-n,--iters", 0, MANY))]
    pub iterations: Option<i64>,
    /// operations issued in one group per iteration (default 1)
    #[arg(short = 'm', long = "agg_iters", value_name = "aggregated iteration count", default_value = "1",
          value_parser = integer("-m,--agg_iters", 1, MANY))]
    pub aggregated: i64,
    /// untimed calls per warm-up size (default 1)
    #[arg(short = 'w', long = "warmup_iters", value_name = "warmup iteration count", default_value = "1",
          value_parser = integer("-w,--warmup_iters", 0, MANY))]
    pub warmup: i64,
    /// times the whole sweep is run; 0: until stopped (default 1)
    #[arg(short = 'N', long = "run_cycles", value_name = "run & print each cycle", default_value = "1",
          value_parser = integer("-N,--run_cycles", 0, MANY))]
    pub cycles: i64,
    /// each thread sets up its own communicators and buffers (default 0)
    #[arg(short = 'p', long = "parallel_init", value_name = "0/1", default_value = "0",
          value_parser = integer("-p,--parallel_init", 0, MANY))]
    pub parallel_init: i64,
    /// checks of the data per row; 0: none (default 1)
    #[arg(short = 'c', long = "check", value_name = "check iteration count", default_value = "1",
          value_parser = integer("-c,--check", 0, MANY))]
    pub check: i64,
    /// operator of reductions (default sum)
    #[arg(short = 'o', long = "op", value_name = "sum/prod/min/max/avg/mulsum/all", default_value = "sum")]
    pub op: String,
    /// element type (default float): int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 or all
    #[arg(short = 'd', long = "datatype", value_name = "nccltype/all", default_value = "float")]
    pub data_type: String,
    /// root of rooted operations; -1 or all: every rank in turn (default 0)
    #[arg(short = 'r', long = "root", value_name = "root/all", default_value = "0", value_parser = root)]
    pub root: i64,
    /// 0: issue all, wait once; 1: wait and barrier after each call; 2: wait after each call; 3: wait and barrier after each iteration, barrier not timed (default 0)
    #[arg(short = 'z', long = "blocking", value_name = "0/1/2/3", default_value = "0",
          value_parser = integer("-z,--blocking", 0, 3))]
    pub blocking: i64,
    /// launch on the default stream instead of a stream of its own (default 0)
    #[arg(short = 'y', long = "stream_null", value_name = "0/1", default_value = "0",
          value_parser = integer("-y,--stream_null", 0, MANY))]
    pub stream_null: i64,
    /// end with status 4 when start-up, a call or a check waits longer than this (default 0: never)
    #[arg(short = 'T', long = "timeout", value_name = "time in seconds", default_value = "0",
          value_parser = integer("-T,--timeout", 0, MANY))]
    pub timeout_s: i64,
    /// capture the timed loop as a persistent plan and replay it this many times (default 0: no capture)
    #[arg(short = 'G', long = "cudagraph", value_name = "num graph launches", default_value = "0",
          value_parser = integer("-G,--cudagraph", 0, MANY))]
    pub graph_launches: i64,
    /// show the time a call takes to return instead of the time of the operation (default 0)
    #[arg(short = 'C', long = "report_cputime", value_name = "0/1", default_value = "0",
          value_parser = integer("-C,--report_cputime", 0, MANY))]
    pub report_cpu_time: i64,
    /// end each row with the wall-clock time (default 0)
    #[arg(short = 'S', long = "report_timestamps", value_name = "0/1", default_value = "0",
          value_parser = integer("-S,--report_timestamps", 0, MANY))]
    pub report_timestamps: i64,
    /// write a JSON report; only a name ending in .json does
    #[arg(short = 'J', long = "output_file", value_name = "file")]
    pub json: Option<String>,
    /// how ranks' times become one: 0 rank 0, 1 mean, 2 min, 3 max (default 1)
    #[arg(short = 'a', long = "average", value_name = "0/1/2/3", default_value = "1",
          value_parser = integer("-a,--average", 0, 3))]
    pub average: i64,
    /// 1: each rank registers its buffers; 2: all ranks register them together as windows (default 0)
    #[arg(short = 'R', long = "local_register", value_name = "0/1/2", default_value = "0",
          value_parser = integer("-R,--local_register", 0, 2))]
    pub register: i64,
    /// CTA policy: 0 the cost model decides; 1 no more channels than needed; 2 all_gather is plain copies without channels (default: NCCL_CTA_POLICY, else 0)
    #[arg(short = 'x', long = "cta_policy", value_name = "0/1/2", value_parser = integer("-x,--cta_policy", 0, 2))]
    pub cta_policy: Option<i64>,
    /// implementation inside a kernel; needs CUDA and -R 2 (default 0: none)
    #[arg(short = 'D', long = "device_implementation", value_name = "implementation number", default_value = "0",
          value_parser = integer("-D,--device_implementation", 0, MANY))]
    pub device_implementation: i64,
    /// CTAs of -D, 1 to 128; needs CUDA (default 16)
    #[arg(short = 'V', long = "device_cta_count", value_name = "number",
          value_parser = integer("-V,--device_cta_count", -MANY, MANY))]
    pub device_ctas: Option<i64>,
    /// print a memory line at the end (default 0)
    #[arg(short = 'M', long = "memory", value_name = "0/1", default_value = "0",
          value_parser = integer("-M,--memory", 0, MANY))]
    pub memory: i64,
    /// shift both buffers by this many elements (default 0)
    #[arg(short = 'u', long = "unalign", value_name = "elements", default_value = "0",
          value_parser = integer("-u,--unalign", 0, MANY))]
    pub unalign: i64,
    /// per-iteration statistics columns (default 0)
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0/1", default_value = "0",
          value_parser = integer("-I,--per_iter_timing", -MANY, MANY))]
    pub per_iteration: i64,
    /// leading iterations left out of the -I summary (default 0)
    #[arg(short = 'K', long = "per_iter_skip", value_name = "count", default_value = "0",
          value_parser = integer("-K,--per_iter_skip", -MANY, MANY))]
    pub per_iteration_skip: i64,
    /// this text
    #[arg(short = 'h', long = "help")]
    pub help: bool,

    /// algorithms to force, in turn: auto, NCCL_ALGO's words, oneshot, twoshot; with --backend mpi ompi:ring and so on (default auto)
    #[arg(long = "algo", value_name = "list")]
    pub algo: Option<String>,
    /// protocols to force, in turn: auto, ll, ll128, simple (default auto)
    #[arg(long = "proto", value_name = "list")]
    pub proto: Option<String>,
    /// channel counts to force, in turn: auto or 1 to 32 (default auto)
    #[arg(long = "channels", value_name = "list")]
    pub channels: Option<String>,
    /// -N pairs of cycles that take turns between the automatic choice and this one
    #[arg(long = "alternate", value_name = "algo[/proto[/channels]]")]
    pub alternate: Option<String>,
    /// at the end, a table of median, P95, CV, min and max per size and placement over -N cycles
    #[arg(long = "stats")]
    pub stats: bool,
    /// append every measurement as a row to this file, with a manifest beside it
    #[arg(long = "csv", value_name = "file")]
    pub csv: Option<String>,
    /// bytes of buffer that consecutive calls walk through (default -e)
    #[arg(long = "span", value_name = "bytes", value_parser = size("span"))]
    pub span: Option<u64>,
    /// engine: ours; mpi: MPI_Allreduce and MPI_Allgather of the MPI library, in the same harness (default engine)
    #[arg(long = "backend", value_name = "engine/mpi", default_value = "engine")]
    pub backend: String,
    /// how ranks come to be: mpi (mpirun, srun), env (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), local (one process) (default auto)
    #[arg(long = "launch", value_name = "auto/mpi/env/local", default_value = "auto")]
    pub launch: String,
    /// print what would run and the memory it needs, and stop
    #[arg(long = "plan")]
    pub plan: bool,
    /// explain every column and stop
    #[arg(long = "explain")]
    pub explain: bool,
    /// print the version and stop
    #[arg(long = "version")]
    pub version: bool,
}

/// nccl-tests' default of -b and -e.
pub(super) const DEFAULT_BYTES: u64 = 32 * MIB;
/// nccl-tests' default of -i.
pub(super) const DEFAULT_STEP: u64 = MIB;
/// nccl-tests' default of -n.
pub(super) const DEFAULT_ITERATIONS: u32 = 20;

fn root(text: &str) -> Result<i64, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(-1);
    }
    integer("-r,--root", -1, MANY)(text).map_err(|why| format!("{why}, or all"))
}
