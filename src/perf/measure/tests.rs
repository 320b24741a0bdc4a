//! The sequence of section 8 of the contract over a library of one rank that copies and remembers what it was asked.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::engine::error::{Error, Result as EngineResult};
use crate::perf::backend::{Capture, LaneWishes, Memory, Steering};
use crate::perf::cli::config::{Register, Settings};
use crate::perf::cli::{Parsed, parse};
use crate::perf::exit::Status;
use crate::rendezvous::World;

/// What the library was asked, in order.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Launch { side: Side, send: u64, recv: u64, count: u64 },
    Wait,
    Group(usize),
    Capture(Capture),
}

#[derive(Debug, Default)]
struct Copying {
    log: Arc<Mutex<Vec<Asked>>>,
    /// Byte of every result to damage.
    damage: Option<u64>,
    /// Number of the call that fails.
    fails_at: Option<usize>,
    /// How long waiting takes.
    wait: Duration,
}

#[derive(Debug)]
struct CopyingLane {
    log: Arc<Mutex<Vec<Asked>>>,
    damage: Option<u64>,
    fails_at: Option<usize>,
    wait: Duration,
    buffers: [Vec<u8>; 2],
    n_stamps: usize,
}

impl Lane for CopyingLane {
    fn launch(&mut self, call: &Call) -> EngineResult<()> {
        let mut log = self.log.lock().unwrap();
        let (side, send) = call.send;
        log.push(Asked::Launch { side, send, recv: call.recv, count: call.count });
        if Some(log.iter().filter(|a| matches!(a, Asked::Launch { .. })).count()) == self.fails_at {
            return Err(Error::PeerDied("rank 1 died".into()));
        }
        let bytes = call.count as usize * call.dtype.size();
        let input = self.buffers[side as usize][send as usize..][..bytes].to_vec();
        let result = &mut self.buffers[Side::Recv as usize][call.recv as usize..];
        result[..bytes].copy_from_slice(&input);
        if let Some(at) = self.damage {
            result[at as usize] ^= 1;
        }
        Ok(())
    }

    fn wait(&mut self) -> EngineResult<()> {
        self.log.lock().unwrap().push(Asked::Wait);
        std::thread::sleep(self.wait);
        Ok(())
    }

    fn stamp(&mut self) -> EngineResult<()> {
        self.n_stamps += 1;
        Ok(())
    }

    fn stamps(&mut self) -> Vec<f64> {
        (0..std::mem::take(&mut self.n_stamps)).map(|i| (i * i) as f64).collect()
    }

    fn capture(&mut self, step: Capture) -> EngineResult<()> {
        self.log.lock().unwrap().push(Asked::Capture(step));
        Ok(())
    }

    fn host(&mut self, side: Side, access: &mut dyn FnMut(&mut [u8])) {
        access(&mut self.buffers[side as usize]);
    }
}

impl Library for Copying {
    fn connect(&self, _: &[usize]) -> EngineResult<()> {
        Ok(())
    }

    fn lanes(&self, ranks: &[usize], bytes: usize, _: LaneWishes) -> EngineResult<Vec<Box<dyn Lane>>> {
        let lane = |_: &usize| -> Box<dyn Lane> {
            Box::new(CopyingLane {
                log: self.log.clone(),
                damage: self.damage,
                fails_at: self.fails_at,
                wait: self.wait,
                buffers: [vec![0; bytes], vec![0; bytes]],
                n_stamps: 0,
            })
        };
        Ok(ranks.iter().map(lane).collect())
    }

    fn group(&self, calls: &mut dyn FnMut() -> EngineResult<()>) -> EngineResult<()> {
        let launches = |log: &[Asked]| log.iter().filter(|a| matches!(a, Asked::Launch { .. })).count();
        let before = launches(&self.log.lock().unwrap());
        calls()?;
        let mut log = self.log.lock().unwrap();
        let n = launches(&log) - before;
        log.push(Asked::Group(n));
        Ok(())
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn steering(&self) -> Option<&dyn Steering> {
        None
    }
}

fn config(args: &[&str]) -> SweepConfig {
    let mut all = vec!["all_reduce_perf".to_owned()];
    all.extend(args.iter().map(|a| a.to_string()));
    match parse(all, Collective::AllReduce, &Settings::default()).unwrap() {
        Parsed::Run(config, _) => *config,
        Parsed::Text(text) => panic!("{text}"),
    }
}

/// Runs a sweep over one rank; gives stdout and what was asked of the library.
fn run_over(library: &Copying, args: &[&str]) -> (Result<()>, String, Vec<Asked>) {
    let crew = Crew::new(Arc::new(World::alone()), 1);
    run_in(&crew, library, args)
}

fn run_in(crew: &Crew, library: &Copying, args: &[&str]) -> (Result<()>, String, Vec<Asked>) {
    let config = config(args);
    let screen = tempfile::NamedTempFile::new().unwrap();
    let report = Mutex::new(Report::open(&config, Box::new(screen.reopen().unwrap()), &[]));
    let span = config.span.unwrap_or(config.sizes.max);
    let bytes = buffer_bytes(config.sizes.max, span, config.unalign) as usize;
    let wishes = LaneWishes { register: Register::None, default_stream: false };
    let lanes = library.lanes(&[0], bytes, wishes).unwrap();
    let seats = lanes.into_iter().map(|lane| Seat { rank: 0, lane }).collect();
    let setting = Setting {
        config: &config,
        sizes: config.sizes,
        span,
        tables: &config.forced,
        n_ranks: 1,
        library,
        crew,
        report: Some(&report),
    };
    let result = Bench::new(setting, 0, seats).run();
    let log = library.log.lock().unwrap().clone();
    (result, std::fs::read_to_string(screen.path()).unwrap(), log)
}

fn run(args: &[&str]) -> (String, Vec<Asked>) {
    let (result, text, log) = run_over(&Copying::default(), args);
    result.unwrap();
    (text, log)
}

fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn launches(log: &[Asked]) -> Vec<(Side, u64)> {
    log.iter()
        .filter_map(|asked| match asked {
            Asked::Launch { side, send, .. } => Some((*side, *send)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_sweep_prints_one_row_per_size_and_counts_no_wrong_element() {
    let (text, _) = run(&["-b", "8", "-e", "64", "-n", "2"]);
    let rows = rows(&text);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!(row.len(), 13);
        assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"));
    }
}

#[test]
fn calls_walk_through_the_buffers_and_checks_use_their_start() {
    let (_, log) = run(&["-b", "16", "-e", "16", "--span", "48", "-n", "4", "-w", "2"]);
    let expected: Vec<u64> = [
        vec![0, 16],        // warm-up
        vec![0],            // untimed
        vec![0, 16, 32, 0], // timed
        vec![0],            // checked
    ]
    .concat();
    let calls = launches(&log);
    let out: Vec<u64> = calls.iter().filter(|c| c.0 == Side::Send).map(|c| c.1).collect();
    assert_eq!(out, expected);
    let inside: Vec<u64> = calls.iter().filter(|c| c.0 == Side::Recv).map(|c| c.1).collect();
    assert_eq!(inside, expected[2..]);
}

#[test]
fn a_shift_of_elements_moves_both_buffers() {
    let (_, log) = run(&["-b16", "-e16", "-n1", "-w0", "-u", "3"]);
    assert!(log.iter().all(|a| !matches!(a, Asked::Launch { send, recv, .. } if *send != 12 || *recv != 12)));
}

#[test]
fn aggregated_calls_form_one_group_an_iteration() {
    let (_, log) = run(&["-b8", "-e8", "-n3", "-m4", "-w0", "-c0"]);
    assert_eq!(log.iter().filter(|a| **a == Asked::Group(4)).count(), 6);
    assert_eq!(launches(&log).len(), 2 * (1 + 12));
}

#[test]
fn blocking_modes_wait_where_they_say() {
    let waits = |z: &str| {
        let (_, log) = run(&["-b8", "-e8", "-n5", "-m2", "-w0", "-c0", "-z", z]);
        log.iter().filter(|a| **a == Asked::Wait).count()
    };
    let base = 1 + 2 + 2; // after the warm-up, after the untimed calls, at the end of the loops
    assert_eq!(waits("0"), base);
    assert_eq!(waits("1"), base + 20);
    assert_eq!(waits("2"), base + 20);
    assert_eq!(waits("3"), base + 10);
}

#[test]
fn blocking_modes_meet_the_others_where_they_say() {
    let meetings = |z: &str| {
        let crew = Crew::new(Arc::new(World::alone()), 1);
        let args = ["-b8", "-e8", "-n5", "-m2", "-w0", "-c0", "-z", z];
        run_in(&crew, &Copying::default(), &args).0.unwrap();
        crew.n_meetings()
    };
    let base = meetings("0");
    assert_eq!(meetings("1"), base + 20, "after every call of both placements");
    assert_eq!(meetings("2"), base);
    assert_eq!(meetings("3"), base + 10, "after every iteration");
}

#[test]
fn the_time_a_call_takes_to_return_leaves_the_waiting_out_and_bandwidths_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    let library = Copying { wait: Duration::from_millis(20), ..Copying::default() };
    let args = ["-b4096", "-e4096", "-n2", "-w0", "-c0", "-C1", "-J", path.to_str().unwrap()];
    let (result, text, _) = run_over(&library, &args);
    result.unwrap();
    assert!(text.contains(" cputime "));
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for placement in ["out_of_place", "in_place"] {
        let cell = &document["results"][0][placement];
        let (issued, bandwidth) = (cell["cpu_time"].as_f64().unwrap(), cell["alg_bw"].as_f64().unwrap());
        let elapsed = 4096.0 / 1e3 / bandwidth;
        assert!(elapsed >= issued + 10_000.0, "issued after {issued} us, over after {elapsed} us");
    }
}

#[test]
fn a_captured_loop_is_captured_once_and_replayed() {
    let (_, log) = run(&["-b8", "-e8", "-n3", "-G", "4", "-w0", "-c0"]);
    let of = |step| log.iter().filter(|a| **a == Asked::Capture(step)).count();
    assert_eq!((of(Capture::Begin), of(Capture::End), of(Capture::Replay)), (2, 2, 8));
}

#[test]
fn iterations_are_the_differences_of_stamps() {
    let (text, _) = run(&["-b8", "-e8", "-n3", "-I1", "-K1"]);
    // Stamps at 0, 1, 4, 9: differences 1, 3, 5, the first left out.
    let row = &rows(&text)[0];
    assert_eq!(row.len(), 21);
    assert_eq!(row[9..13], ["3.00", "5.00", "5.00", "25.00"]);
    let (text, _) = run(&["-b8", "-e8", "-n3", "-I1", "-z3"]);
    // Pairs (0, 1), (4, 9), (16, 25).
    assert_eq!(rows(&text)[0][9..12], ["1.00", "9.00", "9.00"]);
}

#[test]
fn a_damaged_byte_is_one_wrong_element_and_ends_the_rounds() {
    let library = Copying { damage: Some(5), ..Copying::default() };
    let (result, text, log) = run_over(&library, &["-b64", "-e64", "-n1", "-w0", "-c", "5", "-d", "int32"]);
    result.unwrap();
    let row = &rows(&text)[0];
    assert_eq!((row[8].as_str(), row[12].as_str()), ("1", "1"));
    assert_eq!(launches(&log).len(), 2 * 3);
}

#[test]
fn a_byte_changed_behind_the_result_does_not_go_unnoticed() {
    let library = Copying { damage: Some(64), ..Copying::default() };
    let (result, text, _) = run_over(&library, &["-b64", "-e64", "-n1", "-w0"]);
    result.unwrap();
    assert_eq!(rows(&text)[0][8], "1");
}

#[test]
fn unchecked_rows_say_so() {
    let (text, _) = run(&["-b8", "-e8", "-n1", "-c0"]);
    assert!(text.lines().any(|line| line.contains("    N/A") && line.ends_with("    N/A")));
}

#[test]
fn no_iterations_give_rows_of_zeros() {
    let (text, _) = run(&["-b8", "-e8", "-n0", "-I1"]);
    let row = &rows(&text)[0];
    assert_eq!(row[5..8], ["0.00", "0.00", "0.00"]);
    assert_eq!(row[9..13], ["0.00", "0.00", "0.00", "0.00"]);
}

#[test]
fn cycles_repeat_the_rows_under_one_header() {
    let (text, _) = run(&["-b8", "-e16", "-n1", "-N3"]);
    assert_eq!(rows(&text).len(), 6);
    assert_eq!(text.matches("out-of-place").count(), 1);
}

#[test]
fn sizes_of_zero_are_rows() {
    let (text, _) = run(&["-b0", "-e8", "-n1"]);
    let sizes: Vec<String> = rows(&text).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(sizes, ["0", "4", "8"]);
}

#[test]
fn a_failing_call_ends_the_run_with_its_status() {
    let library = Copying { fails_at: Some(5), ..Copying::default() };
    let (result, _, log) = run_over(&library, &["-b8", "-e64", "-n20"]);
    assert_eq!(result.unwrap_err().status, Status::PeerDied);
    assert_eq!(launches(&log).len(), 5);
}

#[test]
fn slow_rows_take_fewer_iterations_but_three() {
    assert_eq!(fitting(20, 0.001), 20);
    assert_eq!(fitting(20, 0.5), 10);
    assert_eq!(fitting(20, 60.0), 3);
    assert_eq!(fitting(20, 0.0), 20);
}
