//! A whole report from banner to blank line, and what closes it early.

use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::types::{Collective, DataType};
use crate::perf::bandwidth::Bandwidth;
use crate::perf::cli::config::Settings;
use crate::perf::cli::{Parsed, parse};
use crate::perf::report::row::{Cell, Ran};

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct ClosedPipe;

impl Write for ClosedPipe {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

fn row(bus: f64) -> Row {
    let cell = Cell {
        time_us: 8.0,
        bandwidth: Bandwidth { algorithm: 1.0, bus },
        wrong: Some(0),
        iterations: 20,
        ..Cell::default()
    };
    Row {
        bytes: 8,
        count: 2,
        dtype: DataType::Float,
        redop: "sum",
        root: -1,
        out_of_place: cell.clone(),
        in_place: cell,
        cycle: 0,
        ran: Ran { algorithm: "oneshot".into(), protocol: "ll".into(), n_channels: 1 },
    }
}

#[test]
fn a_run_prints_banner_devices_header_rows_and_footer() {
    let screen = Screen::default();
    let mut report = Report::open(&config(&["-b8", "-e8"]), Box::new(screen.clone()), &[]);
    report.devices(&[Device {
        rank: 0,
        group: 0,
        pid: 4711,
        host: "node1".into(),
        index: 0,
        name: "Host".into(),
    }]);
    report.table(None);
    report.row(&row(1.0), 0);
    report.row(&row(2.0), 0);
    report.finish(None, "");
    let text = String::from_utf8(screen.0.lock().unwrap().clone()).unwrap();
    let expected = "\
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0000:00:00] Host
#
#                                                              out-of-place                       in-place·
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong·
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)·
           8             2     float     sum      -1     8.00    1.00    1.00       0     8.00    1.00    1.00       0
           8             2     float     sum      -1     8.00    1.00    2.00       0     8.00    1.00    2.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.5·
#
# Collective test concluded: all_reduce_perf
#

";
    let trimmed: String = text.lines().map(|l| format!("{}\n", l.trim_end())).collect();
    assert_eq!(trimmed, expected.replace('·', ""));
}

#[test]
fn a_closed_pipe_is_noticed_and_not_written_to_again() {
    let mut report = Report::open(&config(&[]), Box::new(ClosedPipe), &[]);
    assert!(report.pipe_closed());
    report.row(&row(1.0), 0);
    report.close(Closing::Interrupted("nobody reads the table".into()));
}

#[test]
fn an_interrupted_run_leaves_its_rows_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (json, csv) = (folder.path().join("r.json"), folder.path().join("r.csv"));
    let c = config(&["-J", json.to_str().unwrap()]);
    let mut report = Report::open(&c, Box::new(Screen::default()), &[]);
    report.record(csv.to_str().unwrap(), &c.args, Identity::default(), Details::default()).unwrap();
    report.row(&row(1.0), 0);
    report.close(Closing::Interrupted("interrupted by signal 2".into()));
    report.row(&row(1.0), 0);
    report.close(Closing::Complete);
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(document["errors"][0], "interrupted by signal 2");
    assert_eq!(document["results"].as_array().unwrap().len(), 1);
    let lines = std::fs::read_to_string(csv).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let manifest = std::fs::read_to_string(folder.path().join("manifest.json")).unwrap();
    assert!(manifest.contains("interrupted"), "{manifest}");
}

#[test]
fn a_run_below_the_asked_speed_is_too_slow_without_a_hidden_factor() {
    let mut c = config(&[]);
    c.min_bw = Some(1.6);
    let mut report = Report::open(&c, Box::new(Screen::default()), &[]);
    report.row(&row(1.5), 0);
    assert_eq!(report.fast_enough(), Some(false));
    c.min_bw = Some(1.5);
    let mut report = Report::open(&c, Box::new(Screen::default()), &[]);
    report.row(&row(1.5), 0);
    assert_eq!(report.fast_enough(), Some(true));
}
