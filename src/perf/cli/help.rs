//! The texts of `--help`, `--explain` and `--version`.

use clap::{Arg, CommandFactory};

use super::options::RawOptions;
use crate::perf::exit::Status;

/// Usage: nccl-tests' options in its bracket form (scripts grep it to find out what a build can do), ours, examples, statuses.
pub fn usage(program: &str) -> String {
    let command = RawOptions::command();
    let (theirs, ours): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().partition(|a| a.get_short().is_some());
    let mut text = format!("USAGE: {program} \n\t");
    for arg in theirs {
        text.push_str(&format!("{} {} \n\t", bracket(arg), note(arg)));
    }
    text.push_str("\nOptions beyond those of nccl-tests:\n\t");
    for arg in ours {
        text.push_str(&format!("{} {} \n\t", bracket(arg), note(arg)));
    }
    text.push_str(&format!("\nExamples:\n{}", examples(program)));
    text.push_str(&format!("\nExit statuses:\n{}", Status::table()));
    text.push_str(ENVIRONMENT);
    text
}

fn bracket(arg: &Arg) -> String {
    let long = arg.get_long().unwrap_or_default();
    let name = arg.get_short().map_or_else(|| format!("--{long}"), |short| format!("-{short},--{long}"));
    if !arg.get_action().takes_values() {
        return format!("[{name}]");
    }
    let value = arg.get_value_names().and_then(|names| names.first()).map_or("value", |name| name.as_str());
    format!("[{name} <{value}>]")
}

fn note(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default()
}

fn examples(program: &str) -> String {
    [
        ("-g 8 -b 8 -e 64M", "8 ranks in this process, sizes doubling from 8 bytes to 64 MiB"),
        ("-b 8 -e 1G", "under mpirun -np 8: 8 ranks, one a process"),
        ("-g 8 -e 64M -b 1K -N 10 --stats", "ten cycles, then median, P95 and CV of each size"),
        ("-g 8 -b 8 -e 4M --algo ring,tree --proto ll,simple", "one table for each pair that exists"),
        (
            "-g 8 -e 64M -b 8 --csv rows.csv -J run.json",
            "records for the analysis tool, and nccl-tests' JSON",
        ),
    ]
    .iter()
    .map(|(options, what)| format!("\t{program} {options}\n\t\t{what}\n"))
    .collect()
}

const ENVIRONMENT: &str = "
Environment:
\tNCCL_TESTS_DEVICE        index of this process's first device
\tNCCL_TESTS_MIN_BW        end with status 8 when the average bus bandwidth (GB/s) is below this
\tNCCL_TESTS_SPLIT         AND, OR, MOD or DIV and a number: ranks of a group share the result (process rank MOD 2, ...)
\tNCCL_TESTS_SPLIT_MASK    hexadecimal mask, the same as AND
\tCHORUS_DEVICE_NAME       name shown in the device lines
\tNCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_P2P_DISABLE NCCL_SOCKET_IFNAME NCCL_HOSTID
\tNCCL_CTA_POLICY NCCL_TUNER_CONFIG_FILE NCCL_TOPO_FILE NCCL_GRAPH_FILE
\tNCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE    as in NCCL
\tCHORUS_TWOSHOT_CHUNK     least,most,per-CPU: bytes of a two-shot chunk and chunks a CPU gets (16384,262144,4)
\tCHORUS_NON_TEMPORAL_FACTOR  stores pass the caches from this multiple of the last-level cache on (0.25)
";

/// What every column means.
pub const EXPLAIN: &str = "\
A row is one size. Its first five columns say what was done, then come four columns for the out-of-place form (separate
send and receive buffers) and four for the in-place form (the input lies where the result goes).

  size    bytes of the larger of the send and the receive buffer. An operation that cuts its buffer by rank rounds each
          rank's part down to 16 bytes, so this can be less than what -b, -e, -i and -f say.
  count   elements passed to the call: all of the buffer for all_reduce, one rank's part for all_gather.
  type    element type (-d).
  redop   operator (-o), none where nothing is reduced.
  root    root rank, -1 where there is none.
  time    microseconds of one operation: the time of all timed iterations divided by their number, then combined over
          ranks (-a, the mean unless told otherwise). With -C this column is cputime, the time the call takes to return.
  algbw   size / time, in 10^9 bytes a second. It depends on the number of ranks: more ranks do more work for the same size.
  busbw   algbw times a factor that makes it comparable with the speed of the links whatever the number of ranks:
          2(n-1)/n for all_reduce, (n-1)/n for all_gather. With one rank nothing is sent and it is 0.
  #wrong  wrong elements found by the check, summed over all ranks; N/A when nothing was checked (-c 0).

With -I each placement has four more: i_min, i_max, i_p99 (us) and i_cv% (standard deviation over mean, in percent), over
the iterations of this row, each iteration taken as its slowest rank.
With -S the row ends with the time it was printed.

The footer counts failed checks (not elements) and averages busbw over all rows and both placements, small sizes included.
It is one number to watch for change, not the speed of large messages: read that from the last rows.
";

/// The line of `--version`.
pub fn version(program: &str) -> String {
    format!(
        "{program} (chorus) {} in the form of nccl-tests {}{}",
        env!("CARGO_PKG_VERSION"),
        crate::perf::NCCL_TESTS_VERSION,
        if cfg!(feature = "mpi") { ", with MPI" } else { ", without MPI" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_in_brackets_that_scripts_can_grep() {
        let text = usage("all_reduce_perf");
        assert!(text.starts_with("USAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] "));
        for option in ["[-g,--ngpus <", "[-J,--output_file <", "[-h,--help]", "[--algo <list>]", "[--stats]"]
        {
            assert!(text.contains(option), "{option} is missing");
        }
        for line in text.lines().filter(|l| l.starts_with("\t[")) {
            assert!(line.ends_with(' '), "{line:?}");
        }
    }

    #[test]
    fn options_keep_the_order_of_nccl_tests() {
        let text = usage("x");
        let order = "tgbeifnmwNpcodrzyTGCSJaRxDVMuIKh";
        let seen: String = text
            .lines()
            .filter_map(|l| l.trim_start_matches("USAGE: x ").strip_prefix("\t[-"))
            .filter(|l| l.as_bytes()[1] == b',')
            .map(|l| l.chars().next().unwrap())
            .collect();
        assert_eq!(seen, order);
    }
}
