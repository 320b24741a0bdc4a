//! The table as programs in the field read it: their rules, rewritten, over our own output; and one table pinned whole.

mod program;

use program::{ALL_GATHER, ALL_REDUCE, Outcome, mpirun, run, run_with};

const SWEEP: [&str; 5] = ["-b8", "-e4K", "-f4", "-n2", "-g2"];

fn sweep(more: &[&'static str]) -> Outcome {
    run(ALL_REDUCE, &[&SWEEP[..], more].concat()).expect(0)
}

/// Health checks that take lines without a hash mark and exactly 13 tokens, by position.
fn thirteen_tokens(text: &str) -> Vec<[f64; 6]> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let tokens: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(tokens.len(), 13, "{line:?}");
            let wrong = |token: &str| {
                if token == "N/A" { 0.0 } else { f64::from(token.parse::<i32>().expect("int")) }
            };
            let number = |token: &str| token.parse::<f64>().expect("a number");
            [
                number(tokens[6]),
                number(tokens[7]),
                wrong(tokens[8]),
                number(tokens[10]),
                number(tokens[11]),
                wrong(tokens[12]),
            ]
        })
        .collect()
}

/// Readers that find columns from the end of the header's tokens.
fn from_the_end(text: &str, column: &str) -> Vec<(f64, f64)> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().position(|line| line.contains("out-of-place")).expect("a start");
    let end = lines.iter().position(|line| line.contains("Out of bounds values")).expect("an end");
    let body = &lines[start..end];
    let is_header = |line: &&&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.contains(&"time") && words.contains(&"busbw")
    };
    let header: Vec<&str> = body.iter().find(is_header).expect("a header")[1..].split_whitespace().collect();
    let first = header.len() - header.iter().position(|word| *word == column).expect("the column");
    let last = header.len() - header.iter().rposition(|word| *word == column).expect("the column");
    body.iter()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|tokens| tokens.first().is_some_and(|t| t.chars().all(|c| c.is_ascii_digit())))
        .map(|tokens| {
            let value = |from_end: usize| tokens[tokens.len() - from_end].parse::<f64>().expect("a number");
            (value(first), value(last))
        })
        .collect()
}

/// Node checks that take the sixth word of the first line with "bandwidth", and any FAILED as a failure.
fn average_by_position(text: &str) -> f64 {
    assert!(!text.contains("FAILED"), "a good run mentions a failure");
    let line = text.lines().find(|line| line.contains("bandwidth")).expect("a line");
    let word = line.split_whitespace().nth(5).expect("a sixth word");
    assert!(!word.contains(['e', 'E']), "exponent in {word}");
    word.parse().expect("a number")
}

/// `^#\s+Rank\s+\d+\s+Group\s+\d+\s+Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)`.
fn devices(text: &str) -> Vec<(String, usize)> {
    let lines = text.lines().filter(|line| line.starts_with('#') && line.contains("Rank"));
    lines
        .map(|line| {
            let t: Vec<&str> = line.split_whitespace().collect();
            assert_eq!((t[1], t[3], t[5], t[7], t[9]), ("Rank", "Group", "Pid", "on", "device"), "{line}");
            for number in [t[2], t[4], t[6], t[10]] {
                assert!(number.chars().all(|c| c.is_ascii_digit()), "{line}");
            }
            assert_eq!(t[11], "[0000:00:00]");
            assert!(!t[12..].join(" ").contains(['[', ']']));
            (t[8].to_owned(), t[10].parse().expect("an index"))
        })
        .collect()
}

#[test]
fn checked_and_unchecked_tables_pass_every_reader() {
    for options in [&["-c", "1"][..], &["-c", "0"], &["-N", "2"], &["-C", "0", "-m", "2"]] {
        let outcome = sweep(options);
        let text = &outcome.stdout;
        let rows = thirteen_tokens(text).len();
        assert_eq!(rows, if options[0] == "-N" { 10 } else { 5 });
        assert_eq!(from_the_end(text, "busbw").len(), rows);
        for ((_, b), row) in from_the_end(text, "busbw").iter().zip(thirteen_tokens(text)) {
            assert_eq!(*b, row[4]);
        }
        average_by_position(text);
        assert_eq!(devices(text).len(), 2);
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            assert!(line.ends_with(|c: char| c.is_ascii_digit()) || line.ends_with("N/A"), "{line:?}");
        }
    }
}

#[test]
fn unchecked_cells_are_one_character_shorter() {
    let checked = sweep(&[]);
    let unchecked = sweep(&["-c0"]);
    let length =
        |outcome: &Outcome| outcome.stdout.lines().find(|l| l.starts_with(' ')).expect("a row").len();
    assert_eq!(length(&checked), length(&unchecked) + 2);
}

#[test]
fn one_rank_has_zero_bus_bandwidth_and_a_readable_footer() {
    let outcome = run(ALL_REDUCE, &["-b8", "-e64", "-n2"]).expect(0);
    assert_eq!(average_by_position(&outcome.stdout), 0.0);
    assert!(thirteen_tokens(&outcome.stdout).iter().all(|row| row[1] == 0.0 && row[4] == 0.0));
}

#[test]
fn all_gather_rows_have_thirteen_tokens_and_rounded_sizes() {
    let outcome = run(ALL_GATHER, &["-b", "1000", "-e", "1000", "-n1", "-g3"]).expect(0);
    assert_eq!(thirteen_tokens(&outcome.stdout).len(), 1);
    assert_eq!(outcome.rows()[0][..5], ["960", "80", "float", "none", "-1"]);
}

#[test]
fn optional_columns_are_where_they_are_expected() {
    let stamped = sweep(&["-S1"]);
    for row in stamped.rows() {
        assert_eq!(row.len(), 15);
        assert_eq!((row[13].len(), row[14].len()), (10, 8));
    }
    let timed = sweep(&["-I1"]);
    assert!(timed.rows().iter().all(|row| row.len() == 21));
    let both = sweep(&["-I1", "-S1"]);
    assert!(both.rows().iter().all(|row| row.len() == 23));
    let cpu = sweep(&["-C1"]);
    assert!(cpu.stdout.contains("    root  cputime   algbw   busbw  #wrong  cputime   algbw"));
}

#[test]
fn substrings_that_checkers_pin_are_there() {
    let outcome = run(ALL_REDUCE, &["-b8", "-e64", "-n20", "-w5", "-g2"]).expect(0);
    for text in [
        "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : ",
        "# Collective test starting: all_reduce_perf\n",
        "#\n# Collective test concluded: all_reduce_perf\n#\n\n",
    ] {
        assert!(outcome.stdout.contains(text), "{text:?} is missing in\n{}", outcome.stdout);
    }
    for word in ["Test failure", "NCCL ERROR", "No such file or directory"] {
        assert!(!outcome.stdout.contains(word));
    }
}

#[test]
fn tools_that_count_devices_by_vendor_can_be_given_a_name() {
    let variables = [("CHORUS_DEVICE_NAME", "NVIDIA-style name [x]")];
    let outcome = run_with(ALL_REDUCE, &SWEEP, &variables).expect(0);
    let is_rank = |line: &&str| line.contains("Rank") && line.contains("device") && line.contains("NVIDIA");
    assert_eq!(outcome.stdout.lines().filter(is_rank).count(), 2);
    assert_eq!(devices(&outcome.stdout).len(), 2);
}

#[test]
fn a_split_job_passes_the_readers_too() {
    let split = [("NCCL_TESTS_SPLIT_MASK", "0x1")];
    let Some(outcome) = mpirun(4, ALL_REDUCE, &["-b8", "-e4K", "-f4", "-n2"], &split) else { return };
    let outcome = outcome.expect(0);
    assert_eq!(thirteen_tokens(&outcome.stdout).len(), 5);
    assert_eq!(devices(&outcome.stdout).len(), 4);
    average_by_position(&outcome.stdout);
}

#[test]
fn the_json_report_has_what_its_readers_need() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.json");
    let name = path.to_str().expect("a path");
    let outcome = run_with(
        ALL_REDUCE,
        &[&SWEEP[..], &["-I1", "-K1", "-J", name]].concat(),
        &[("NCCL_ALGO", "Ring"), ("MY_PASSWORD", "secret"), ("NCCL_MADE_UP", "secret")],
    )
    .expect(0);
    assert!(outcome.stdout.starts_with(&format!("# Writing JSON output to {name}\n# nccl-tests version")));
    let text = std::fs::read_to_string(&path).expect("a report");
    assert!(!text.contains("secret"));
    let document: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(document["version"], 3);
    assert_eq!(document["env"], serde_json::json!(["NCCL_ALGO=Ring"]));
    assert_eq!(document["config"]["step_factor"], 4);
    assert_eq!(document["config"]["devices"].as_array().expect("devices").len(), 1);
    let results = document["results"].as_array().expect("results");
    assert_eq!(results.len(), 5);
    for result in results {
        assert_eq!(result["root"], "    -1");
        assert_eq!(result["actual_iterations"], 2);
        let times = result["out_of_place_per_iter"]["times_us"].as_array().expect("times");
        assert_eq!(times.len(), 2);
        assert_eq!(result["in_place_per_iter"]["skipped_iterations"], 1);
    }
    assert!(document["average_bus_bandwidth"]["bandwidth"].is_f64());
    assert_eq!(document["out_of_bounds"], serde_json::json!({"count": 0, "okay": "true"}));
    assert_eq!(document["errors"], serde_json::json!([""]));
}

/// Replaces what differs from run to run by marks of the same width.
fn masked(text: &str) -> String {
    let mask_row = |line: &str| {
        let cells = [(52, 61), (61, 69), (69, 77), (85, 94), (94, 102), (102, 110)];
        let mut row: Vec<u8> = line.bytes().collect();
        for (start, end) in cells {
            let is_number = line[start..end].trim().parse::<f64>().is_ok();
            row[start..end].fill(if is_number { b'x' } else { b'?' });
        }
        String::from_utf8(row).expect("ASCII")
    };
    text.lines()
        .map(|line| match line {
            _ if line.starts_with(' ') => mask_row(line),
            _ if line.starts_with("#  Rank") => {
                let words: Vec<&str> = line.split_whitespace().collect();
                format!(
                    "#  Rank {:>2} Group  0 Pid PID on HOST device {:>2} [0000:00:00] NAME",
                    words[2], words[10]
                )
            }
            _ if line.starts_with("# Avg bus bandwidth") => "# Avg bus bandwidth    : NUMBER ".into(),
            _ => line.into(),
        })
        .map(|line: String| line + "\n")
        .collect()
}

#[test]
fn the_whole_output_is_the_golden_file() {
    let outcome = run(ALL_REDUCE, &["-b", "8", "-e", "64", "-f", "2", "-g", "2", "-n", "5"]).expect(0);
    assert_eq!(masked(&outcome.stdout), include_str!("golden/all_reduce.txt"));
    let outcome =
        run(ALL_GATHER, &["-b", "64", "-e", "256", "-f", "2", "-g", "2", "-n", "5", "-d", "half"]).expect(0);
    assert_eq!(masked(&outcome.stdout), include_str!("golden/all_gather.txt"));
}
