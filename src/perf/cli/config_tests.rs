//! The messages, statuses and defaults of section 2.1 of the contract.

use super::*;
use crate::engine::types::{Algorithm, Protocol};
use crate::perf::cli::{Parsed, parse};

fn config_of(args: &[&str], settings: &Settings) -> Result<(SweepConfig, Notices)> {
    let mut all = vec!["/usr/bin/all_reduce_perf".to_owned()];
    all.extend(args.iter().map(|a| a.to_string()));
    match parse(all, Collective::AllReduce, settings)? {
        Parsed::Run(config, notices) => Ok((*config, notices)),
        Parsed::Text(text) => panic!("text instead of a run: {text}"),
    }
}

fn config(args: &[&str]) -> SweepConfig {
    config_of(args, &Settings::default()).unwrap().0
}

fn failure(args: &[&str]) -> Failure {
    config_of(args, &Settings::default()).unwrap_err()
}

fn stderr(args: &[&str]) -> Vec<String> {
    config_of(args, &Settings::default()).unwrap().1.stderr
}

#[test]
fn defaults_are_those_of_nccl_tests_but_sizes_double() {
    let c = config(&[]);
    assert_eq!((c.n_threads, c.n_devices), (1, 1));
    assert_eq!(c.sizes, Sizes { min: 32 << 20, max: 32 << 20, step: Step::Factor(2) });
    assert_eq!(c.iterations, Iterations { count: 20, shrinks: true });
    assert_eq!((c.aggregated, c.warmup, c.cycles, c.check), (1, 1, 1, 1));
    assert_eq!(c.average, Average::Mean);
    assert_eq!((c.ops.clone(), c.dtypes.clone()), (vec![Some(Op::Sum)], vec![DataType::Float]));
    assert_eq!(c.forced, [Forcing::default()]);
    assert_eq!(c.program, "all_reduce_perf");
}

#[test]
fn either_step_option_gives_nccl_tests_steps() {
    assert_eq!(config(&["-b", "8", "-e", "64", "-f3"]).sizes.step, Step::Factor(3));
    assert_eq!(config(&["-b8", "-e64", "-i", "8"]).sizes.step, Step::Bytes(8));
    assert_eq!(config(&["-b8", "-e64", "-i", "8", "-f", "2"]).sizes.step, Step::Factor(2));
    assert_eq!(config(&["-b8", "-e64", "-f", "1"]).sizes.step, Step::Bytes(1 << 20));
}

#[test]
fn bad_sizes_have_nccl_tests_words_and_status_255() {
    for (args, line) in [
        (["-b", "x"], "invalid size specified for 'minbytes'"),
        (["-e", "-1"], "invalid size specified for 'maxbytes'"),
        (["-i", "8T"], "invalid size specified for 'stepBytes'"),
        (["-b", "1G"], "invalid sizes for 'minbytes' and 'maxbytes': 1073741824 > 33554432"),
    ] {
        let failure = failure(&args);
        assert_eq!((failure.status.code(), failure.message.as_str()), (255, line));
    }
    assert!(failure(&["-i", "0"]).message.contains("never ends"));
}

#[test]
fn numbers_that_are_none_are_refused() {
    for args in
        [["-f", "1.5"], ["-n", "abc"], ["-g", "0"], ["-t", "0"], ["-m", "0"], ["-z", "4"], ["-n", "12x"]]
    {
        let failure = failure(&args);
        assert_eq!(failure.status, Status::Usage, "{args:?}");
        assert!(failure.message.contains(args[0]), "{}", failure.message);
    }
}

#[test]
fn unknown_operators_and_types_fall_back_with_a_line() {
    let (c, notices) = config_of(&["-o", "xor", "-d", "fp4"], &Settings::default()).unwrap();
    assert_eq!((c.ops, c.dtypes), (vec![Some(Op::Sum)], vec![DataType::Float]));
    assert_eq!(
        notices.stdout,
        ["invalid op xor, defaulting to sum .. ", "invalid type fp4, defaulting to float .. "]
    );
}

#[test]
fn all_means_every_operator_and_type() {
    let c = config(&["-o", "all", "-d", "all", "-r", "all"]);
    assert_eq!((c.ops.len(), c.dtypes.len()), (6, 12));
}

#[test]
fn last_option_wins() {
    assert_eq!(config(&["-n", "5", "--iters=7", "-n9"]).iterations, Iterations { count: 9, shrinks: false });
    assert_eq!(config(&["-n", "0x10"]).iterations.count, 16);
    assert_eq!(config(&["-n", "010"]).iterations.count, 8);
}

#[test]
fn per_iteration_options_that_clash_are_turned_off_with_a_line() {
    assert_eq!(stderr(&["-I", "2"]), ["per-iteration timing (-I) only supports 0=off or 1=on. Disabling."]);
    assert_eq!(
        stderr(&["-I1", "-G1", "-z3"]),
        [
            "per-iteration timing (-I) is incompatible with CUDA graph mode (-G). Disabling.",
            "blocking mode (-z 3) is incompatible with CUDA graph mode (-G). Disabling.",
        ]
    );
    assert_eq!(
        stderr(&["-I1", "-K", "20"]),
        ["per-iteration skip (-K) must be between 0 and 19. Disabling."]
    );
    assert_eq!(
        stderr(&["-K", "2"]),
        ["per-iteration skip (-K) requires per-iteration timing (-I 1). Disabling."]
    );
    assert_eq!(stderr(&["-n", "0"]), Vec::<String>::new());
    let c = config(&["-I1", "-K3"]);
    assert_eq!((c.per_iteration, c.skip), (true, 3));
}

#[test]
fn device_implementations_need_windows_and_then_cuda() {
    assert_eq!(failure(&["-D", "1"]).status, Status::Usage);
    assert_eq!(failure(&["-D", "1", "-R", "2"]).status, Status::Unavailable);
    assert!(stderr(&["-V", "200"])[0].contains("200") && stderr(&["-V", "200"])[0].contains("16"));
    assert!(stderr(&["-V", "32"])[0].contains("CUDA"));
}

#[test]
fn only_a_json_suffix_activates_the_report() {
    assert_eq!(config(&["-J", "a/b.JSON"]).json.as_deref(), Some("a/b.JSON"));
    assert_eq!(config(&["-J", "a.json/b"]).json, None);
    assert_eq!(config(&["-J", "a.txt"]).json, None);
}

#[test]
fn a_record_without_a_name_is_bad_usage() {
    assert_eq!(failure(&["--csv="]).status, Status::Usage);
    assert_eq!(config(&["--csv", "rows.csv"]).csv.as_deref(), Some("rows.csv"));
}

#[test]
fn lists_of_forced_choices_are_multiplied() {
    let c = config(&["--algo", "ring,Tree", "--proto=ll,auto", "--channels", "1,2,auto"]);
    assert_eq!(c.forced.len(), 12);
    assert_eq!(
        c.forced[0],
        Forcing {
            algorithm: Some(Algorithm::Ring),
            protocol: Some(Protocol::LL),
            n_channels: Some(1),
            library: None
        }
    );
    assert!(failure(&["--algo", "star"]).message.contains("oneshot"));
    assert!(failure(&["--channels", "33"]).message.contains("1 to 32"));
}

#[test]
fn an_alternation_names_one_choice_beside_the_automatic_one() {
    let c = config(&["--alternate", "ring/ll/2"]);
    assert!(c.alternate && c.forced[0].is_automatic());
    assert_eq!(c.forced[1].to_string(), "algorithm ring, protocol ll, channels 2");
    for (args, word) in [
        (vec!["--alternate", "auto"], "other than the automatic"),
        (vec!["--alternate", "ring/ll/2/1"], "ALGO/PROTO/CHANNELS"),
        (vec!["--alternate", "ring/xx"], "simple"),
        (vec!["--alternate", "ring", "--algo", "tree"], "leave --algo"),
        (vec!["--algo", "ompi:ring"], "--backend mpi"),
        (vec!["--algo", "ompi:star"], "ompi:rabenseifner"),
    ] {
        let failure = failure(&args);
        assert_eq!(failure.status, Status::Usage);
        assert!(failure.message.contains(word), "{}", failure.message);
    }
}

#[cfg(feature = "mpi")]
#[test]
fn algorithms_of_the_mpi_library_go_with_its_back_end_only() {
    let c = config(&["--backend", "mpi", "--algo", "auto,ompi:segmented_ring"]);
    assert_eq!(
        c.forced.iter().map(|table| table.library.map(|l| l.number)).collect::<Vec<_>>(),
        [None, Some(5)]
    );
    assert!(failure(&["--backend", "mpi", "--algo", "ring"]).message.contains("ompi:ring"));
    assert!(failure(&["--backend", "mpi", "--channels", "2"]).message.contains("our engine"));
}

#[test]
fn settings_of_the_environment_are_read_as_nccl_tests_reads_them() {
    let settings = Settings {
        min_bw: Some("-1".into()),
        device: Some("-1".into()),
        split: Some("MOD 2".into()),
        ..Settings::default()
    };
    let (c, _) = config_of(&[], &settings).unwrap();
    assert_eq!((c.min_bw, c.first_device, c.split), (None, None, Split::Modulo(2)));
    let settings = Settings { min_bw: Some("fast".into()), device: Some("3".into()), ..Settings::default() };
    let (c, _) = config_of(&[], &settings).unwrap();
    assert_eq!((c.min_bw, c.first_device), (Some(0.0), Some(3)));
    for (text, least) in [("5.5GB/s", 5.5), (" 1e2", 100.0), ("-3", -3.0), ("", 0.0)] {
        let settings = Settings { min_bw: Some(text.into()), ..Settings::default() };
        assert_eq!(config_of(&[], &settings).unwrap().0.min_bw, Some(least), "{text:?}");
    }
    let settings = Settings { split: Some("MOD 0".into()), ..Settings::default() };
    assert_eq!(config_of(&[], &settings).unwrap_err().status, Status::Usage);
}

#[test]
fn all_gather_has_no_operator() {
    let args = vec!["all_gather_perf".to_owned(), "-o".into(), "max".into()];
    match parse(args, Collective::AllGather, &Settings::default()).unwrap() {
        Parsed::Run(config, _) => assert_eq!(config.ops, [None]),
        Parsed::Text(text) => panic!("{text}"),
    }
}
