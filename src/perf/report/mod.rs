//! Everything a run shows: the table on stdout, the JSON report, records, the statistics table, the bar on stderr.
//!
//! One [`Report`] belongs to the process of rank 0; it stands behind a lock because the watch and signal threads close it when
//! the run cannot. Lines go to stdout in one write each, so nothing is ever half printed.

pub mod csv;
mod fit;
pub mod json;
pub mod progress;
pub mod row;
mod spread;
pub mod text;

use std::io::{self, Write};

use analysis::record::RunStatus;

use crate::perf::cli::config::SweepConfig;
use crate::perf::report::csv::{Csv, Details, Identity};
use crate::perf::report::json::{Json, Tail};
use crate::perf::report::progress::Progress;
use crate::perf::report::row::Row;
use crate::perf::report::spread::Spreads;
use crate::perf::report::text::{Device, Footer, MemoryLine, Style};

/// Why a report ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// All rows are there.
    Complete,
    /// Something failed; the text goes into the JSON report.
    Failed(String),
    /// A signal or a closed pipe ended the run.
    Interrupted(String),
}

/// Where lines go.
pub trait Sink: Write + Send {}
impl<T: Write + Send> Sink for T {}

/// The report of a run.
pub struct Report {
    program: String,
    style: Style,
    min_bw: Option<f64>,
    stats: bool,
    out: Box<dyn Sink>,
    pipe_closed: bool,
    /// Whether something asked for could not be written.
    incomplete: bool,
    json: Option<Json>,
    csv: Option<Csv>,
    spreads: Spreads,
    progress: Progress,
    failed_checks: u64,
    busbw_sum: f64,
    n_cells: u64,
    closed: bool,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Report")
            .field("program", &self.program)
            .field("rows", &(self.n_cells / 2))
            .finish_non_exhaustive()
    }
}

impl Report {
    /// A report that prints to `out`; the JSON file is opened and the banner printed at once.
    pub fn open(config: &SweepConfig, out: Box<dyn Sink>, environment: &[String]) -> Self {
        let mut report = Self {
            program: config.program.clone(),
            style: Style::of(config),
            min_bw: config.min_bw,
            stats: config.stats,
            out,
            pipe_closed: false,
            incomplete: false,
            json: None,
            csv: None,
            spreads: Spreads::default(),
            progress: Progress::none(),
            failed_checks: 0,
            busbw_sum: 0.0,
            n_cells: 0,
            closed: false,
        };
        if let Some(path) = &config.json {
            match Json::create(config, path, &local_time(), environment) {
                Ok(json) => {
                    report.print(&format!("# Writing JSON output to {}\n", json.path().display()));
                    report.json = Some(json);
                }
                Err(error) => {
                    report.print(&format!("# skipping json output; {path} not accessible\n"));
                    eprintln!("cannot write the JSON report (-J) {path}: {error}");
                }
            }
        }
        report.print(&text::banner(config));
        report
    }

    /// Device lines; the JSON report takes the first of each process.
    pub fn devices(&mut self, devices: &[Device]) {
        let lines: String = devices.iter().map(text::device).collect();
        self.print(&lines);
        let mut firsts: Vec<Device> = Vec::new();
        for device in devices {
            if !firsts.iter().any(|d| d.pid == device.pid && d.host == device.host) {
                firsts.push(device.clone());
            }
        }
        self.with_json(|json| json.devices(&firsts));
    }

    /// Starts the record of `--csv`.
    pub fn record(
        &mut self,
        path: &str,
        args: &[String],
        identity: Identity,
        details: Details,
    ) -> io::Result<()> {
        self.csv = Some(Csv::open(path, args, identity, details)?);
        Ok(())
    }

    /// Tells of a lowered maximum.
    pub fn memory_cap(&mut self, max_bytes: u64) {
        self.print(&text::memory_cap(max_bytes));
    }

    /// Starts the bar over that many rows.
    pub fn expect_rows(&mut self, n_rows: u64) {
        self.progress = Progress::new(n_rows);
    }

    /// Header of a table, after a comment where there are several.
    pub fn table(&mut self, title: Option<&str>) {
        if let Some(title) = title {
            self.print(&format!("#\n# {title}\n"));
        }
        self.print(&text::header(self.style));
    }

    /// A line of ours, such as a plan's.
    pub fn line(&mut self, line: &str) {
        self.print(&format!("{line}\n"));
    }

    /// Shows what is measured now, on the bar.
    pub fn measuring(&self, what: String) {
        self.progress.show(what);
    }

    /// A finished row; `failed_checks` is how many (thread, process, round) checks of it found something.
    pub fn row(&mut self, row: &Row, failed_checks: u64) {
        if self.closed {
            return;
        }
        self.failed_checks += failed_checks;
        for (_, cell) in row.cells() {
            self.busbw_sum += cell.bandwidth.bus;
            self.n_cells += 1;
        }
        let line = text::row(self.style, row, &local_time());
        self.print(&line);
        let tail = self.tail(String::new(), None);
        self.with_json(|json| json.row(row, &tail));
        let written = self.csv.as_mut().map_or(Ok(()), |csv| csv.row(row));
        if let Err(error) = written {
            eprintln!(
                "cannot write the record (--csv): {error}; this row and those that follow are missing in it"
            );
            self.incomplete = true;
            if let Some(mut csv) = self.csv.take() {
                // The manifest may lie on the same full disk; that the run has no end there says enough.
                let _ = csv.finish(RunStatus::Failed);
            }
        }
        if self.stats {
            self.spreads.add(row);
        }
        self.progress.advance();
    }

    /// Footer of a complete run.
    pub fn finish(&mut self, memory: Option<MemoryLine>, last_error: &str) {
        let footer = Footer {
            failed_checks: self.failed_checks,
            average_busbw: self.average_busbw(),
            fast_enough: self.fast_enough(),
            memory,
        };
        self.progress.clear();
        self.print(&text::footer(&self.program.clone(), &footer));
        self.print(&text::last_line(last_error));
        self.close(Closing::Complete);
    }

    /// Prints the statistics of what was measured and ends files; the first reason counts.
    pub fn close(&mut self, reason: Closing) {
        if self.closed {
            return;
        }
        self.progress.clear();
        if self.stats {
            let table = self.spreads.table();
            self.print(&table);
        }
        self.closed = true;
        let (error, status) = match reason {
            Closing::Complete => (String::new(), RunStatus::Complete),
            Closing::Failed(error) => (error, RunStatus::Failed),
            Closing::Interrupted(error) => (error, RunStatus::Interrupted),
        };
        let fast_enough = if error.is_empty() { self.fast_enough() } else { None };
        let tail = Tail { fast_enough, end_time: Some(local_time()), ..self.tail(error, None) };
        self.with_json(|json| json.finish(&tail));
        let finished = self.csv.as_mut().map_or(Ok(()), |csv| csv.finish(status));
        if let Err(error) = finished {
            eprintln!("cannot write the manifest of the record (--csv): {error}");
            self.incomplete = true;
        }
    }

    /// Checks that found a wrong element, so far.
    pub fn failed_checks(&self) -> u64 {
        self.failed_checks
    }

    /// Mean bus bandwidth so far; NaN without rows.
    pub fn average_busbw(&self) -> f64 {
        self.busbw_sum / self.n_cells as f64
    }

    /// Whether NCCL_TESTS_MIN_BW was reached, when it is set.
    pub fn fast_enough(&self) -> Option<bool> {
        self.min_bw.map(|least| self.average_busbw() >= least)
    }

    /// Whether nobody reads stdout any more.
    pub fn pipe_closed(&self) -> bool {
        self.pipe_closed
    }

    /// Whether something asked for could not be written: the table, the record or the JSON report. A reader that went away is
    /// no such thing.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    fn tail(&self, error: String, fast_enough: Option<bool>) -> Tail {
        Tail {
            failed_checks: self.failed_checks,
            average_busbw: self.average_busbw(),
            fast_enough,
            error,
            end_time: None,
        }
    }

    fn with_json(&mut self, write: impl FnOnce(&mut Json) -> io::Result<()>) {
        let written = self.json.as_mut().map_or(Ok(()), write);
        if let Err(error) = written {
            eprintln!("cannot write the JSON report (-J): {error}");
            self.json = None;
            self.incomplete = true;
        }
    }

    fn print(&mut self, text: &str) {
        if self.pipe_closed || self.closed {
            return;
        }
        let out = &mut self.out;
        let written = self.progress.aside(|| out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        if let Err(error) = written {
            self.pipe_closed = true;
            if error.kind() != io::ErrorKind::BrokenPipe {
                eprintln!("{}: cannot write to stdout: {error}", self.program);
                self.incomplete = true;
            }
        }
    }
}

/// Now, in nccl-tests' form.
pub fn local_time() -> String {
    chrono::Local::now().format("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
