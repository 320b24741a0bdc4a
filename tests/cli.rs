//! The two programs from outside: options, messages, streams and exit statuses.

mod program;

use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::process::Stdio;

use program::{ALL_GATHER, ALL_REDUCE, clean, mpirun, run, run_with};

const QUICK: [&str; 4] = ["-b8", "-e8", "-n2", "-g2"];

fn quick(more: &[&'static str]) -> Vec<&'static str> {
    [&QUICK[..], more].concat()
}

#[test]
fn help_is_on_stdout_and_succeeds() {
    for options in [&["-h"][..], &["--help"], &["--hel"], &["-a", "9", "-h", "-q"], &["-hn"]] {
        let outcome = run(ALL_REDUCE, options).expect(0);
        assert!(outcome.stdout.starts_with("USAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] "));
        assert!(outcome.stdout.contains("255  bad option"));
        assert_eq!(outcome.stderr, "");
    }
    assert!(run(ALL_GATHER, &["--version"]).expect(0).stdout.starts_with("all_gather_perf (chorus) "));
    assert!(run(ALL_REDUCE, &["--explain"]).expect(0).stdout.contains("2(n-1)/n"));
}

#[test]
fn an_unknown_option_is_bad_usage_told_on_stderr() {
    let outcome = run(ALL_REDUCE, &["-b8", "-q"]).expect(255);
    assert_eq!(outcome.stdout, "");
    assert!(outcome.stderr.starts_with("all_reduce_perf: invalid option -- 'q'\nUSAGE: "));
}

#[test]
fn bad_sizes_and_settings_end_before_anything_starts() {
    for (args, variables, line) in [
        (&["-b", "8T"][..], &[][..], "invalid size specified for 'minbytes'\n"),
        (&["-b", "2", "-e", "1"], &[], "invalid sizes for 'minbytes' and 'maxbytes': 2 > 1\n"),
        (&["-i", "0", "-e", "1G"], &[], "invalid size specified for 'stepBytes'"),
        (&["-f", "1.5"], &[], "invalid value '1.5' for -f,--stepfactor"),
        (&["--algo", "star"], &[], "invalid value 'star' for --algo"),
        (&["-D", "1"], &[], "a device implementation (-D) requires symmetric memory registration (-R 2)"),
        (&[], &[("NCCL_TESTS_SPLIT", "DIV 0")], "NCCL_TESTS_SPLIT 'DIV 0': division by zero"),
    ] {
        let outcome = run_with(ALL_REDUCE, args, variables).expect(255);
        assert!(outcome.stderr.contains(line), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn a_device_implementation_is_not_available_without_cuda() {
    let outcome = run(ALL_REDUCE, &["-D1", "-R2"]).expect(5);
    assert_eq!(outcome.stderr.lines().count(), 1);
    assert!(outcome.stderr.contains("CUDA"));
}

#[test]
fn getopts_habits_hold() {
    let outcome =
        run(ALL_REDUCE, &["stray", "-b8", "--maxbytes=0x20", "-g", "010", "--ng=2", "-n3", "-r", "-1"])
            .expect(0);
    assert!(
        outcome
            .stdout
            .contains("# nThread 1 nGpus 2 minBytes 8 maxBytes 32 step: 2(factor) warmup iters: 1 iters: 3")
    );
    assert_eq!(outcome.rows().len(), 3);
}

#[test]
fn a_sweep_from_nothing_ends() {
    let outcome = run(ALL_REDUCE, &["-b0", "-e64", "-n1", "-g3"]).expect(0);
    let sizes: Vec<&str> = outcome.rows().iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["0", "4", "8", "16", "32", "64"]);
}

#[test]
fn unknown_operators_and_types_fall_back_and_the_run_goes_on() {
    let outcome = run(ALL_REDUCE, &quick(&["-o", "xor", "-d", "fp4"])).expect(0);
    assert!(
        outcome.stdout.starts_with(
            "invalid op xor, defaulting to sum .. \ninvalid type fp4, defaulting to float .. \n"
        )
    );
    assert_eq!(outcome.rows()[0][2..4], ["float", "sum"]);
}

#[test]
fn every_type_and_operator_is_right() {
    let outcome =
        run(ALL_REDUCE, &["-b", "1000", "-e", "1000", "-n1", "-g3", "-o", "all", "-d", "all"]).expect(0);
    let rows = outcome.rows();
    assert_eq!(rows.len(), 72);
    assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"));
    let outcome = run(ALL_GATHER, &["-b", "1000", "-e", "1000", "-n1", "-g3", "-d", "all"]).expect(0);
    assert_eq!(outcome.rows().len(), 12);
}

#[test]
fn options_made_for_gpus_do_what_they_say_here() {
    for options in [
        &["-G", "3"][..],
        &["-R", "1"],
        &["-R", "2"],
        &["-I", "1", "-K", "1"],
        &["-C", "1"],
        &["-z", "1", "-m", "2"],
        &["-z", "2"],
        &["-z", "3"],
        &["-m", "7"],
        &["-u", "3"],
        &["-x", "1"],
        &["-y", "1"],
        &["-p", "1", "-t", "2"],
        &["-t", "3", "-g", "1"],
        &["-a", "3"],
        &["-c", "3"],
        &["--span", "1K"],
    ] {
        let args = [&["-b", "8", "-e", "4K", "-f", "8", "-n", "4", "-g", "2"], options].concat();
        for program in [ALL_REDUCE, ALL_GATHER] {
            let outcome = run(program, &args).expect(0);
            let rows = outcome.rows();
            assert_eq!(rows.len(), 4, "{options:?}");
            assert!(rows.iter().all(|row| row[8] == "0"), "{options:?}\n{}", outcome.stdout);
            assert_eq!(outcome.stderr, "", "{options:?}");
        }
    }
}

#[test]
fn memory_is_shown_on_one_line_behind_the_end() {
    let outcome = run(ALL_REDUCE, &quick(&["-M", "1"])).expect(0);
    let line = "# Collective test concluded: all_reduce_perf\n# GPU memory usage     : Initialization ";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
    assert!(outcome.stdout.contains(" | User-Allocated ") && outcome.stdout.contains(" | Total  "));
}

#[test]
fn what_does_not_exist_is_status_6_with_a_list_of_what_does() {
    let outcome = run(ALL_REDUCE, &quick(&["--algo", "nvls"])).expect(6);
    assert!(outcome.stderr.contains("ring with ll, ll128, simple"), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1);
    assert!(outcome.stdout.contains(": Test NCCL failure ") && outcome.stdout.contains(": Test failure "));
}

#[test]
fn lists_give_one_table_for_each_pair_that_exists() {
    let outcome = run(ALL_REDUCE, &quick(&["--algo", "ring,tree,nvls", "--proto", "ll,simple"])).expect(0);
    assert_eq!(outcome.stdout.matches("# Forced: algorithm ").count(), 4);
    assert_eq!(outcome.stdout.matches("out-of-place").count(), 4);
    assert_eq!(outcome.rows().len(), 4);
}

#[test]
fn a_plan_is_printed_and_nothing_runs() {
    let outcome = run(ALL_REDUCE, &["-b8", "-e1M", "-g4", "--plan"]).expect(0);
    assert!(outcome.stdout.contains("# Plan: all_reduce over 4 ranks"));
    assert_eq!(outcome.rows().len(), 0);
}

#[test]
fn sizes_beyond_the_memory_are_lowered_with_a_line() {
    let outcome = run(ALL_REDUCE, &["-b", "8", "-e", "1000000G", "-g4", "--plan"]).expect(0);
    let line =
        outcome.stdout.lines().find(|line| line.starts_with("# Reducing maxBytes to ")).expect("a line");
    assert!(line.ends_with(" due to memory limitation"), "{line}");
    assert!(outcome.stdout.contains(" maxBytes 1073741824000000 "));
}

#[test]
fn a_run_below_the_asked_bandwidth_is_status_8() {
    let slow = run_with(ALL_REDUCE, &QUICK, &[("NCCL_TESTS_MIN_BW", "100000")]).expect(8);
    assert!(
        slow.stdout.lines().any(|l| l.starts_with("# Avg bus bandwidth    : ") && l.ends_with(" FAILED"))
    );
    let fast = run_with(ALL_REDUCE, &QUICK, &[("NCCL_TESTS_MIN_BW", "0")]).expect(0);
    assert!(fast.stdout.lines().any(|l| l.starts_with("# Avg bus bandwidth    : ") && l.ends_with(" OK")));
}

#[test]
fn a_launcher_that_announces_more_processes_than_there_are_is_bad_usage() {
    for (variables, text) in [
        (&[("OMPI_COMM_WORLD_SIZE", "4")][..], "OMPI_COMM_WORLD_SIZE=4: expected OMPI_COMM_WORLD_RANK"),
        (&[("WORLD_SIZE", "2")], "WORLD_SIZE=2: expected RANK"),
        (&[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0")], "4 processes"),
    ] {
        let outcome = run_with(ALL_REDUCE, &["-b8", "-e8", "-T", "5"], variables).expect(255);
        assert_eq!(outcome.stdout, "");
        assert_eq!(outcome.stderr.lines().count(), 1);
        assert!(outcome.stderr.contains(text), "{}", outcome.stderr);
    }
}

#[test]
fn misspelt_variables_are_warned_about() {
    let outcome =
        run_with(ALL_REDUCE, &QUICK, &[("NCCL_TEST_SPLIT", "MOD 2"), ("NCCL_TESTS_DEVICE", "5")]).expect(0);
    assert_eq!(outcome.stderr.lines().count(), 1);
    assert!(outcome.stderr.starts_with("NCCL_TEST_SPLIT is set but means nothing here"));
    assert!(outcome.stdout.contains(" device  5 [0000:00:00]") && outcome.stdout.contains(" device  6 "));
}

#[test]
fn a_closed_pipe_ends_the_run_quietly() {
    let mut child = clean(ALL_REDUCE)
        .args(["-b8", "-e4K", "-n2", "-g2", "-N0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut first).expect("a line");
    assert!(first.starts_with("# nccl-tests version"));
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn a_table_that_cannot_be_written_is_no_success() {
    let full =
        std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let mut child = clean(ALL_REDUCE)
        .args(["-b8", "-e4K", "-n2", "-g2", "-N0"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("all_reduce_perf: cannot write to stdout: No space left"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1);
}

#[test]
fn a_record_that_cannot_be_continued_ends_the_run_with_status_1() {
    const LIMIT: u64 = 64 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.csv");
    let name = path.to_str().expect("a path");
    // A record of almost the size that files may have here; its hole takes no room.
    let mut file = std::fs::File::create(&path).expect("a file");
    writeln!(file, "{}", analysis::record::COLUMNS.join(",")).expect("a header");
    file.set_len(LIMIT - 101).expect("a hole");
    file.seek(std::io::SeekFrom::End(0)).expect("the end");
    writeln!(file).expect("an end of line");
    let output = clean("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 131072; exec \"$@\"", "sh", ALL_REDUCE])
        .args(["-b8", "-e16", "-n2", "-g2", "--csv", name])
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot write the record (--csv): File too large"), "{stderr}");
    // The table is whole all the same.
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.lines().filter(|line| line.starts_with("  ")).count(), 2, "{stdout}");
    assert!(stdout.contains("# Collective test concluded"));
    let manifest = analysis::record::Manifest::load(&folder.path().join("manifest.json")).expect("readable");
    assert!(
        manifest
            .expect("a manifest")
            .runs
            .iter()
            .all(|run| run.status != analysis::record::RunStatus::Complete)
    );
}

#[test]
fn a_closed_pipe_behind_the_launcher_ends_the_job_without_a_word_of_ours() {
    let line = "mpirun --oversubscribe -np 2 \"$0\" -b8 -e4K -n2 -N0 | head -n 3";
    if !program::has_launcher() {
        return;
    }
    let output = clean("timeout")
        .args(["-k", "3", "60", "sh", "-c", line, ALL_REDUCE])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "the end of head; {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    for word in ["chorus", "interrupted", "panicked"] {
        assert!(!stderr.contains(&format!("{word}:")) && !stderr.contains(&format!("{word} ")), "{stderr}");
    }
}

/// Runs for ever, waits for a row, sends the signal; gives the status, the rows and the report.
fn interrupted_by(signal: &str, report: &std::path::Path) -> (Option<i32>, String, serde_json::Value) {
    let json = report.to_str().expect("a path");
    let mut child = clean(ALL_REDUCE)
        .args(["-b8", "-e4K", "-n2", "-g2", "-N0", "--stats", "-J", json])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = String::new();
    while !text.lines().last().is_some_and(|line| line.starts_with(' ')) {
        assert!(stdout.read_line(&mut text).expect("a line") > 0, "{text}");
    }
    let sent =
        clean("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
    stdout.read_to_string(&mut text).expect("text");
    let status = child.wait().expect("an end").code();
    let document =
        serde_json::from_str(&std::fs::read_to_string(report).expect("a report")).expect("a document");
    (status, text, document)
}

#[test]
fn signals_end_the_run_with_rows_and_report_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let (status, text, document) = interrupted_by(signal, &folder.path().join(format!("{signal}.json")));
        assert_eq!(status, Some(code));
        assert!(text.ends_with('\n'), "a half row: {text:?}");
        // Statistics of what was measured, as many samples as rows of that size.
        let table = text.split("# Statistics of time over cycles").nth(1).expect("a table");
        let first: Vec<&str> = table.lines().nth(2).expect("a line").split_whitespace().collect();
        let rows = text.lines().filter(|line| line.trim_start().starts_with("8 ")).count();
        assert_eq!(first[1..6], ["8", "float", "sum", "out_of_place", &rows.to_string()]);
        let results = document["results"].as_array().expect("rows");
        assert!(!results.is_empty());
        assert!(document["errors"][0].as_str().expect("text").contains("interrupted"));
        assert!(document["end_time"].is_string());
    }
}

#[test]
fn records_are_appended_and_name_what_ran() {
    let folder = tempfile::tempdir().expect("a folder");
    let csv = folder.path().join("rows.csv");
    let path = csv.to_str().expect("a path");
    for _ in 0..2 {
        run(ALL_REDUCE, &["-b8", "-e32", "-n2", "-g2", "-N2", "--csv", path]).expect(0);
    }
    let mut reader = analysis::record::RowReader::open(&csv).expect("a record");
    let mut rows = Vec::new();
    while let Some(row) = reader.next_row() {
        rows.push(row.expect("a row").to_row());
    }
    assert_eq!(rows.len(), 2 * 2 * 3 * 2);
    let mut runs: Vec<&str> = rows.iter().map(|row| row.run_id.as_str()).collect();
    runs.dedup();
    assert_eq!(runs.len(), 2);
    let manifest = analysis::record::Manifest::load(&folder.path().join("manifest.json")).expect("readable");
    let manifest = manifest.expect("a manifest");
    assert!(runs.iter().all(|run| manifest.is_complete(run)));
    let first = &rows[0];
    assert_eq!((first.backend.as_str(), first.n_ranks, first.wrong), ("engine", 2, Some(0)));
    assert_eq!((first.algorithm.as_str(), first.protocol.as_str(), first.n_channels), ("oneshot", "ll", 1));
}

#[test]
fn a_record_that_cannot_be_written_is_named() {
    let outcome = run(ALL_REDUCE, &quick(&["--csv", "/nonexistent/rows.csv"])).expect(1);
    assert!(outcome.stderr.contains("--csv /nonexistent/rows.csv"), "{}", outcome.stderr);
}

#[test]
fn statistics_follow_the_table_as_comments() {
    let outcome = run(ALL_REDUCE, &quick(&["-N", "3", "--stats"])).expect(0);
    assert_eq!(outcome.rows().len(), 3);
    let table = outcome.stdout.split("# Statistics of time over cycles").nth(1).expect("a table");
    assert_eq!(table.lines().skip(2).filter(|line| line.split_whitespace().nth(5) == Some("3")).count(), 2);
}

#[test]
fn processes_threads_and_devices_make_ranks() {
    let Some(outcome) = mpirun(2, ALL_REDUCE, &["-b8", "-e4K", "-f8", "-n2", "-t2", "-g2"], &[]) else {
        return;
    };
    let outcome = outcome.expect(0);
    assert_eq!(outcome.stdout.lines().filter(|line| line.starts_with("#  Rank ")).count(), 8);
    assert_eq!(outcome.stdout.matches("# nccl-tests version").count(), 1);
    assert!(outcome.rows().iter().all(|row| row.len() == 13 && row[8] == "0" && row[12] == "0"));
}

#[test]
fn a_bad_command_line_is_told_once_for_the_whole_job() {
    let Some(outcome) = mpirun(3, ALL_REDUCE, &["-b", "x"], &[]) else { return };
    assert_eq!(
        outcome.stderr.matches("invalid size specified for 'minbytes'").count(),
        1,
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.status, 255);
}

#[test]
fn a_split_job_shows_its_groups_and_one_table() {
    let split = [("NCCL_TESTS_SPLIT", "MOD 2")];
    let Some(outcome) = mpirun(4, ALL_GATHER, &["-b64", "-e4K", "-f8", "-n2"], &split) else { return };
    let outcome = outcome.expect(0);
    for (rank, group) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        assert!(outcome.stdout.contains(&format!("#  Rank {rank:2} Group {group:2} Pid ")));
    }
    let rows = outcome.rows();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row[8] == "0"));
    // Counts are those of groups of two.
    assert_eq!(rows[0][..2], ["64", "8"]);
}

#[test]
fn the_mpi_library_runs_through_the_same_harness() {
    let args = ["-b", "64", "-e", "4K", "-f8", "-n2", "--backend", "mpi"];
    for program in [ALL_REDUCE, ALL_GATHER] {
        let Some(outcome) = mpirun(2, program, &args, &[]) else { return };
        let outcome = outcome.expect(0);
        assert!(outcome.rows().iter().all(|row| row[8] == "0" && row[12] == "0"));
    }
}

/// Runs only where the hook is built in: `cargo test --features fault-hooks`.
#[cfg(feature = "fault-hooks")]
#[test]
fn a_flipped_byte_on_any_rank_is_exactly_one_wrong_element() {
    for program in [ALL_REDUCE, ALL_GATHER] {
        for rank in 0..3 {
            for byte in [0, 1, 95] {
                let fault = format!("{rank}:{byte}");
                let variables = [("CHORUS_FAULT_FLIP", fault.as_str())];
                let outcome = run_with(program, &["-b96", "-e96", "-n1", "-g3"], &variables).expect(7);
                let rows = outcome.rows();
                assert_eq!((rows[0][8], rows[0][12]), ("1", "1"), "{fault}");
                assert!(outcome.stdout.contains("# Out of bounds values : 2 FAILED\n"));
                assert!(outcome.stderr.contains(&format!("on rank {rank}")), "{}", outcome.stderr);
                assert!(
                    outcome.stdout.trim_end().lines().last().expect("a line").contains(": Test failure ")
                );
            }
        }
    }
}
