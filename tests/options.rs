//! Options made for GPUs, from outside: each of these tests fails when its option does nothing. What only the order of waits and
//! barriers shows (`-z`, `-C`, `-I`) is tested beside the harness's loop, over a library that remembers what it was asked.

mod program;

use program::{ALL_GATHER, ALL_REDUCE, Outcome, mpirun, run, run_with};

const ONE_ROW: [&str; 7] = ["-b96", "-e96", "-n3", "-w0", "-c0", "-g", "2"];

/// One row over two ranks with the library's lines of a subsystem.
fn logged(program: &str, subsystem: &str, more: &[&str]) -> Outcome {
    let variables = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystem)];
    run_with(program, &[&ONE_ROW[..], more].concat(), &variables).expect(0)
}

/// The lines about calls.
fn calls(program: &str, more: &[&str]) -> Vec<String> {
    let outcome = logged(program, "COLL", more);
    outcome.stderr.lines().filter(|line| line.contains(": opCount ")).map(str::to_owned).collect()
}

/// What stands behind a word of such a line.
fn after<'a>(line: &'a str, word: &str) -> &'a str {
    let mut words = line.split_whitespace().skip_while(|w| *w != word);
    words.nth(1).unwrap_or_else(|| panic!("no {word} in {line}"))
}

fn address(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
}

#[test]
fn aggregation_and_replays_multiply_the_calls() {
    // Two ranks, two placements; one untimed call each.
    assert_eq!(calls(ALL_REDUCE, &[]).len(), 4 * (1 + 3));
    assert_eq!(calls(ALL_REDUCE, &["-m", "4"]).len(), 4 * (1 + 3 * 4));
    assert_eq!(calls(ALL_REDUCE, &["-G", "5"]).len(), 4 * (1 + 3 * 5));
    assert_eq!(calls(ALL_GATHER, &["-G", "2", "-m", "3"]).len(), 4 * (1 + 3 * 3 * 2));
}

#[test]
fn a_shift_leaves_both_buffers_unaligned() {
    for (options, remainder) in [(&[][..], 0), (&["-u", "3"], 12), (&["-u", "5", "-d", "half"], 10)] {
        for line in calls(ALL_REDUCE, options) {
            assert_eq!(address(after(&line, "sendbuff")) % 16, remainder, "{line}");
            assert_eq!(address(after(&line, "recvbuff")) % 16, remainder, "{line}");
        }
    }
}

#[test]
fn calls_go_to_the_default_stream_when_asked_to() {
    let streams = |options: &[&str]| -> Vec<String> {
        let mut all: Vec<String> =
            calls(ALL_REDUCE, options).iter().map(|line| after(line, "stream").to_owned()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(streams(&["-y", "1"]), ["(nil)"]);
    let own = streams(&["-y", "0"]);
    assert_eq!(own.len(), 2, "one stream a rank");
    assert!(own.iter().all(|stream| stream.starts_with("0x")), "{own:?}");
}

#[test]
fn buffers_are_registered_by_each_rank_or_by_all_together() {
    let registered = |options: &[&str]| {
        let outcome = logged(ALL_REDUCE, "REG", options);
        let count = |text: &str| outcome.stderr.matches(text).count();
        (count(" register comm "), count(" register window comm "))
    };
    assert_eq!(registered(&[]), (0, 0));
    assert_eq!(registered(&["-R", "1"]), (4, 0), "two buffers a rank");
    assert_eq!(registered(&["-R", "2"]), (0, 4));
}

/// Algorithm and channels of the one size of a plan.
fn planned(program: &str, args: &[&str], policy: Option<&str>) -> (String, u32) {
    let variables: Vec<(&str, &str)> = policy.iter().map(|text| ("NCCL_CTA_POLICY", *text)).collect();
    let outcome = run_with(program, &[args, &["-g2", "--plan"]].concat(), &variables).expect(0);
    let line = outcome.stdout.lines().last().expect("a line").to_owned();
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[5].to_owned(), words[7].parse().expect("channels"))
}

#[test]
fn the_cta_policy_takes_channels_away_or_makes_gathering_plain_copies() {
    let ring = ["-b", "64M", "-e", "64M", "--algo", "ring"];
    let with = |policy: &'static str| [&ring[..], &["-x", policy]].concat();
    let usual = planned(ALL_REDUCE, &ring, None).1;
    assert!(usual > 1);
    assert_eq!(planned(ALL_REDUCE, &with("0"), None).1, usual);
    assert_eq!(planned(ALL_REDUCE, &with("1"), None).1, 1);
    let tiny = ["-b", "64", "-e", "64"];
    let copies = ["-b", "64", "-e", "64", "-x", "2"];
    assert_eq!(planned(ALL_GATHER, &tiny, None).0, "oneshot");
    assert_eq!(planned(ALL_GATHER, &copies, None).0, "twoshot");
    assert_eq!(planned(ALL_REDUCE, &copies, None).0, "oneshot", "what reduces needs somebody to do it");
    // The environment wins.
    assert_eq!(planned(ALL_GATHER, &copies, Some("DEFAULT")).0, "oneshot");
    assert_eq!(planned(ALL_GATHER, &tiny, Some("ZERO")).0, "twoshot");
    let outcome = run_with(ALL_REDUCE, &ONE_ROW, &[("NCCL_CTA_POLICY", "GREEDY")]).expect(255);
    assert!(outcome.stderr.contains("'GREEDY' is no policy"), "{}", outcome.stderr);
    assert!(
        run(ALL_GATHER, &["-b64", "-e1K", "-n2", "-g3", "-x2"]).expect(0).rows().iter().all(|r| r[8] == "0")
    );
}

#[test]
fn the_mpi_library_reduces_every_type_with_every_operator() {
    let args = ["-b", "1000", "-e", "1000", "-n2", "-c2", "-o", "all", "-d", "all", "--backend", "mpi"];
    for n in [1, 2, 3] {
        let Some(outcome) = mpirun(n, ALL_REDUCE, &args, &[]) else { return };
        let outcome = outcome.expect(0);
        let rows = outcome.rows();
        assert_eq!(rows.len(), 72);
        assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{}", outcome.stdout);
    }
}
