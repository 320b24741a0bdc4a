//! nccl-tests' JSON report, version 3. The file is a complete document after every write, so a killed run leaves one that parses:
//! each row overwrites the closing part and writes it again behind itself, in one call.
//!
//! Kept as they are for existing readers: key names and order, "true" and "false" as strings, the root as a padded string.
//! Mended: infinities are null, and only an allow-list of environment variables is recorded.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::perf::LIBRARY_CODE;
use crate::perf::cli::config::{Blocking, SweepConfig};
use crate::perf::report::row::{Cell, PerIteration, Row};
use crate::perf::report::text::{Device, HOST_BUS_ID};
use crate::perf::sweep::Step;

/// The closing part.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    /// Failed checks so far.
    pub failed_checks: u64,
    /// Mean bus bandwidth so far.
    pub average_busbw: f64,
    /// Whether it reached the minimum, when one is set and the run is over.
    pub fast_enough: Option<bool>,
    /// What went wrong; empty when nothing did.
    pub error: String,
    /// When the run ended.
    pub end_time: Option<String>,
}

/// A report being written.
#[derive(Debug)]
pub struct Json {
    file: File,
    path: PathBuf,
    config: Value,
    head: serde_json::Map<String, Value>,
    cpu_time: bool,
    n_rows: u64,
    body_end: u64,
}

impl Json {
    /// Opens `path`, or `path.0`, `path.1`, … where it exists already; an existing file is never touched.
    pub fn create(
        config: &SweepConfig,
        path: &str,
        start_time: &str,
        environment: &[String],
    ) -> io::Result<Self> {
        let (file, path) = create_new(Path::new(path))?;
        let mut head = serde_json::Map::new();
        head.insert("version".into(), json!(3));
        head.insert("start_time".into(), json!(start_time));
        head.insert("args".into(), json!(config.args));
        head.insert("env".into(), json!(environment));
        head.insert("nccl_version".into(), json!(LIBRARY_CODE));
        let cpu_time = config.report_cpu_time;
        let mut report =
            Self { file, path, config: config_value(config), head, cpu_time, n_rows: 0, body_end: 0 };
        if let Err(error) = report.devices(&[]) {
            // Half a head is no document; better no file of that name.
            let _ = std::fs::remove_file(&report.path);
            return Err(error);
        }
        Ok(report)
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything before the rows, with the devices now known.
    pub fn devices(&mut self, devices: &[Device]) -> io::Result<()> {
        let mut head = self.head.clone();
        let mut config = self.config.clone();
        config["devices"] = devices.iter().map(device_value).collect();
        head.insert("config".into(), config);
        let mut text = Value::Object(head).to_string();
        text.pop();
        text.push_str(",\"results\":[");
        self.body_end = 0;
        self.put(&text, &Tail { error: UNFINISHED.into(), ..Tail::default() })
    }

    /// Adds a row.
    pub fn row(&mut self, row: &Row, tail: &Tail) -> io::Result<()> {
        let separator = if self.n_rows == 0 { "" } else { "," };
        self.n_rows += 1;
        let text = format!("{separator}{}", row_value(row, self.cpu_time));
        self.put(&text, &Tail { error: UNFINISHED.into(), ..tail.clone() })
    }

    /// Ends the report.
    pub fn finish(&mut self, tail: &Tail) -> io::Result<()> {
        self.put("", tail)
    }

    fn put(&mut self, body: &str, tail: &Tail) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.body_end))?;
        let whole = format!("{body}{}", tail_text(tail));
        self.file.write_all(whole.as_bytes())?;
        self.body_end += body.len() as u64;
        self.file.set_len(self.body_end + (whole.len() - body.len()) as u64)
    }
}

/// The `errors` entry of a report whose run has not ended.
const UNFINISHED: &str = "the run has not ended";

fn create_new(path: &Path) -> io::Result<(File, PathBuf)> {
    let open = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    match open(path) {
        Ok(file) => return Ok((file, path.to_owned())),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    for n in 0..10_000 {
        let next = PathBuf::from(format!("{}.{n}", path.display()));
        match open(&next) {
            Ok(file) => return Ok((file, next)),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "ten thousand reports of that name exist"))
}

fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn config_value(c: &SweepConfig) -> Value {
    let (step_key, step) = match c.sizes.step {
        Step::Factor(factor) => ("step_factor", factor),
        Step::Bytes(bytes) => ("step_bytes", bytes),
    };
    json!({
        "nthreads": c.n_threads,
        "ngpus": c.n_devices,
        "minimum_bytes": c.sizes.min,
        "maximum_bytes": c.sizes.max,
        step_key: step,
        "warmup_iters": c.warmup,
        "iterations": c.iterations.count,
        "aggregated_iterations": c.aggregated,
        "validation": c.check,
        "graph": c.graph_launches,
        "blocking_collectives": truth(c.blocking != Blocking::None),
        "per_iter_timing": truth(c.per_iteration),
        "per_iter_skip": c.skip,
        "parallel_init": truth(c.parallel_init),
        "devices": [],
    })
}

fn device_value(d: &Device) -> Value {
    json!({
        "rank": d.rank, "group": d.group, "pid": d.pid, "hostname": d.host, "device": d.index,
        "device_hex": HOST_BUS_ID, "device_info": d.name,
    })
}

fn row_value(row: &Row, cpu_time: bool) -> Value {
    let mut value = serde_json::Map::new();
    value.insert("size".into(), json!(row.bytes));
    value.insert("count".into(), json!(row.count));
    value.insert("type".into(), json!(row.dtype.name()));
    value.insert("redop".into(), json!(row.redop));
    value.insert("root".into(), json!(format!("{:6}", row.root)));
    for (placement, cell) in row.cells() {
        let name = placement.name();
        value.insert(name.into(), cell_value(cell, cpu_time));
        if let Some(times) = &cell.per_iteration {
            value.insert(format!("{name}_per_iter"), per_iteration_value(times));
        }
    }
    value.insert("actual_iterations".into(), json!(row.out_of_place.iterations));
    value.insert("experiment_name".into(), json!(""));
    Value::Object(value)
}

fn cell_value(cell: &Cell, cpu_time: bool) -> Value {
    let (key, time) = if cpu_time { ("cpu_time", cell.cpu_time_us) } else { ("time", cell.time_us) };
    json!({
        key: time,
        "alg_bw": cell.bandwidth.algorithm,
        "bus_bw": cell.bandwidth.bus,
        "nwrong": cell.wrong.map(|wrong| wrong as f64),
    })
}

fn per_iteration_value(p: &PerIteration) -> Value {
    let s = p.summary;
    let mut value = json!({
        "skipped_iterations": p.skipped,
        "min_us": s.min, "max_us": s.max, "avg_us": s.avg, "p50_us": s.p50, "p95_us": s.p95, "p99_us": s.p99,
        "stdev_us": s.stdev, "cv_pct": s.cv_percent,
        "times_us": p.times_us,
    });
    if p.per_process.len() > 1 {
        value["per_process_max_times_us"] = json!(p.per_process);
    }
    value
}

fn tail_text(tail: &Tail) -> String {
    let speed = tail.fast_enough.map_or("unchecked", truth);
    let mut value = json!({
        "out_of_bounds": { "count": tail.failed_checks, "okay": truth(tail.failed_checks == 0) },
        "average_bus_bandwidth": { "bandwidth": tail.average_busbw, "okay": speed },
        "errors": [tail.error],
    });
    if let Some(end) = &tail.end_time {
        value["end_time"] = json!(end);
    }
    let text = value.to_string();
    format!("],{}", &text[1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::{Collective, DataType};
    use crate::perf::bandwidth::Bandwidth;
    use crate::perf::cli::config::Settings;
    use crate::perf::cli::{Parsed, parse};
    use crate::perf::report::row::Ran;

    fn config() -> SweepConfig {
        let args = ["all_reduce_perf", "-b", "8", "-e", "64", "-I", "1"].map(str::to_owned).to_vec();
        match parse(args, Collective::AllReduce, &Settings::default()).unwrap() {
            Parsed::Run(config, _) => *config,
            Parsed::Text(text) => panic!("{text}"),
        }
    }

    fn row(bytes: u64) -> Row {
        let cell = Cell {
            time_us: 2.5,
            bandwidth: Bandwidth { algorithm: f64::INFINITY, bus: 1.25 },
            wrong: Some(0),
            iterations: 20,
            per_iteration: Some(PerIteration::of(vec![vec![1.0, 2.0], vec![3.0, 1.0]], 0)),
            ..Cell::default()
        };
        Row {
            bytes,
            count: bytes / 4,
            dtype: DataType::Float,
            redop: "sum",
            root: -1,
            in_place: Cell { wrong: None, per_iteration: None, ..cell.clone() },
            out_of_place: cell,
            cycle: 0,
            ran: Ran { algorithm: "ring".into(), protocol: "ll".into(), n_channels: 1 },
        }
    }

    fn read(path: &Path) -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_file_is_a_document_after_every_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let name = path.to_str().unwrap();
        let mut report =
            Json::create(&config(), name, "2026-01-02 03:04:05", &["NCCL_ALGO=Ring".into()]).unwrap();
        assert_eq!(read(&path)["results"], json!([]));
        let device = Device { rank: 0, group: 0, pid: 7, host: "h".into(), index: 0, name: "n".into() };
        report.devices(&[device]).unwrap();
        assert_eq!(read(&path)["config"]["devices"][0]["hostname"], "h");
        for n in 1..=3 {
            report.row(&row(8 * n), &Tail::default()).unwrap();
            assert_eq!(read(&path)["results"].as_array().unwrap().len() as u64, n);
            assert_eq!(read(&path)["errors"], json!([UNFINISHED]));
        }
        let end = Tail { average_busbw: 1.25, end_time: Some("later".into()), ..Tail::default() };
        report.finish(&end).unwrap();
        let document = read(&path);
        assert_eq!(document["errors"], json!([""]));
        assert_eq!(document["end_time"], "later");
        assert_eq!(document["average_bus_bandwidth"], json!({"bandwidth": 1.25, "okay": "unchecked"}));
    }

    #[test]
    fn keys_and_their_order_are_those_of_version_3() {
        let value = row_value(&row(8), false);
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "size",
                "count",
                "type",
                "redop",
                "root",
                "out_of_place",
                "out_of_place_per_iter",
                "in_place",
                "actual_iterations",
                "experiment_name"
            ]
        );
        assert_eq!(value["root"], "    -1");
        assert_eq!(
            value["out_of_place"],
            json!({"time": 2.5, "alg_bw": null, "bus_bw": 1.25, "nwrong": 0.0})
        );
        assert_eq!(value["in_place"]["nwrong"], Value::Null);
        assert_eq!(
            value["out_of_place_per_iter"]["per_process_max_times_us"],
            json!([[1.0, 2.0], [3.0, 1.0]])
        );
        assert!(row_value(&row(8), true)["in_place"].get("cpu_time").is_some());
    }

    #[test]
    fn existing_reports_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        std::fs::write(&path, "mine").unwrap();
        for expected in ["run.json.0", "run.json.1"] {
            let report = Json::create(&config(), path.to_str().unwrap(), "", &[]).unwrap();
            assert_eq!(report.path(), folder.path().join(expected));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
