//! The samples of section 5 of the contract, whole.

use super::*;
use crate::engine::types::{Collective, DataType};
use crate::perf::bandwidth::Bandwidth;
use crate::perf::cli::config::Settings;
use crate::perf::cli::{Parsed, parse};
use crate::perf::report::row::{PerIteration, Ran};

fn config(args: &[&str]) -> SweepConfig {
    let mut all = vec!["all_reduce_perf".to_owned()];
    all.extend(args.iter().map(|a| a.to_string()));
    match parse(all, Collective::AllReduce, &Settings::default()).unwrap() {
        Parsed::Run(config, _) => *config,
        Parsed::Text(text) => panic!("{text}"),
    }
}

fn sample_row(wrong: Option<u64>) -> Row {
    let cell = |time_us, algorithm, bus| Cell {
        time_us,
        cpu_time_us: 1.5,
        bandwidth: Bandwidth { algorithm, bus },
        wrong,
        iterations: 20,
        per_iteration: Some(PerIteration::of(vec![vec![1.0, 3.0]], 0)),
    };
    Row {
        bytes: 33_554_432,
        count: 8_388_608,
        dtype: DataType::Float,
        redop: "sum",
        root: -1,
        out_of_place: cell(123.45, 271.81, 475.66),
        in_place: cell(120.0, 279.62, 489.34),
        cycle: 0,
        ran: Ran { algorithm: "ring".into(), protocol: "ll".into(), n_channels: 1 },
    }
}

#[test]
fn the_banner_repeats_the_options() {
    assert_eq!(
        banner(&config(&["-b", "8", "-e", "1G", "-g", "4"])),
        "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n\
         # Collective test starting: all_reduce_perf\n\
         # nThread 1 nGpus 4 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 \
         validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n"
    );
    assert!(banner(&config(&["-i", "1M"])).contains(" step: 1048576(bytes) warmup"));
}

#[test]
fn optional_banner_lines_end_in_a_blank() {
    let text = banner(&config(&["-z3", "-I1", "-K2", "-p1"]));
    let lines: Vec<&str> = text.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier ",
            "# Per-Iteration Report: CUDA event timing; i_* uses max over process rows; summary skips first 2 iterations ",
            "# Parallel Init Enabled: threads call into NcclInitRank concurrently ",
            "#",
            "# Using devices",
        ]
    );
    assert!(
        banner(&config(&["-z1"]))
            .contains("\n# Blocking Enabled: wait and barrier after each inner iteration (-m) \n")
    );
    assert!(
        banner(&config(&["-z2"]))
            .contains("\n# Blocking Enabled: wait after each inner iteration (-m), no barrier \n")
    );
}

#[test]
fn device_lines_keep_every_token() {
    let d = Device { rank: 0, group: 0, pid: 4711, host: "node1".into(), index: 0, name: "Host".into() };
    assert_eq!(device(&d), "#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0000:00:00] Host\n");
}

#[test]
fn header_is_the_sample() {
    let sample = "\
#\n\
#                                                              out-of-place                       in-place          \n\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n\
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n";
    assert_eq!(header(Style::default()), sample);
    let cpu = header(Style { cpu_time: true, ..Style::default() });
    assert_eq!(cpu, sample.replace("   time", "cputime"));
}

#[test]
fn header_with_timestamps_has_one_more_label() {
    let text = header(Style { timestamps: true, ..Style::default() });
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].ends_with("  #wrong           timestamp"), "{:?}", lines[2]);
    assert!(lines[3].ends_with("(GB/s)           %Y-%m-%d %H:%M:%S"), "{:?}", lines[3]);
    assert_eq!(lines[2].len(), lines[3].len());
}

#[test]
fn header_with_iterations_is_the_sample() {
    let text = header(Style { per_iteration: true, ..Style::default() });
    let mut lines = text.lines().skip(1);
    assert_eq!(
        lines.next().unwrap(),
        "#                                                                 out-of-place (+ per-iteration)                                in-place (+ per-iteration)"
    );
    assert_eq!(
        lines.next().unwrap(),
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv% "
    );
}

#[test]
fn rows_are_the_samples() {
    assert_eq!(
        row(Style::default(), &sample_row(Some(0)), ""),
        "    33554432       8388608     float     sum      -1   123.45  271.81  475.66       0   120.00  279.62  489.34       0\n"
    );
    assert_eq!(
        row(Style::default(), &sample_row(None), ""),
        "    33554432       8388608     float     sum      -1   123.45  271.81  475.66    N/A   120.00  279.62  489.34    N/A\n"
    );
}

#[test]
fn rows_have_thirteen_tokens_and_more_only_when_asked() {
    let tokens =
        |style, wrong| row(style, &sample_row(wrong), "2026-01-02 03:04:05").split_whitespace().count();
    assert_eq!(tokens(Style::default(), Some(0)), 13);
    assert_eq!(tokens(Style::default(), None), 13);
    assert_eq!(tokens(Style { cpu_time: true, ..Style::default() }, Some(0)), 13);
    assert_eq!(tokens(Style { timestamps: true, ..Style::default() }, Some(0)), 15);
    assert_eq!(tokens(Style { per_iteration: true, ..Style::default() }, Some(0)), 21);
}

#[test]
fn timestamps_come_after_everything_else() {
    let style = Style { timestamps: true, per_iteration: true, ..Style::default() };
    let text = row(style, &sample_row(Some(0)), "2026-01-02 03:04:05");
    assert!(text.ends_with("     3.00     3.00    50.00  2026-01-02 03:04:05\n"), "{text:?}");
}

#[test]
fn footer_is_the_sample() {
    let f = Footer { average_busbw: 4.26966, ..Footer::default() };
    assert_eq!(
        footer("all_reduce_perf", &f) + &last_line(""),
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 4.26966 \n#\n\
         # Collective test concluded: all_reduce_perf\n#\n\n"
    );
}

#[test]
fn footer_tells_failures_and_memory() {
    let memory = MemoryLine { initialization: 64 << 20, user: 3 << 30, collective: -1536, total: 4 << 30 };
    let f =
        Footer { failed_checks: 3, average_busbw: f64::NAN, fast_enough: Some(false), memory: Some(memory) };
    assert_eq!(
        footer("x", &f),
        "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : nan FAILED\n#\n\
         # Collective test concluded: x\n\
         # GPU memory usage     : Initialization 64.0 MB | User-Allocated 3.00 GB | Collective -1.50 KB | Total  4.00 GB\n#\n"
    );
    let fast = Footer { fast_enough: Some(true), ..Footer::default() };
    assert!(footer("x", &fast).contains(" : 0 OK\n#\n"));
    assert_eq!(last_line("no such device"), "# error: no such device\n");
}
