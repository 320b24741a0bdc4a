//! Runs the launches of a matrix into a folder.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::launch::{self, Ended, Launch, WRONG_DATA};
use crate::record::manifest::{FILE_NAME, Manifest, RunStatus, new_run_id};
use crate::record::{COLUMNS, RowReader, RowWriter};
use crate::sweep::matrix::{Matrix, Setup};
use crate::sweep::{ROWS, preflight};

/// What happened, for whoever shows progress.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A launch starts: its number from 0, of how many.
    Started(usize, usize, &'a str),
    /// It is complete.
    Done(u64),
}

/// How a sweep ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every launch is complete.
    Complete,
    /// It was asked to stop; `--resume` goes on.
    Stopped,
    /// Wrong elements, or something else ran than was asked (status 7).
    Wrong(String),
    /// A launch failed (its status, its log's end).
    Failed(String),
}

/// A sweep bound to its folder.
#[derive(Debug)]
pub struct Sweep {
    matrix: Matrix,
    folder: PathBuf,
    programs: String,
    manifest: Manifest,
}

impl Sweep {
    /// Prepares a folder, or finds the one that is to be resumed.
    ///
    /// # Errors
    /// When the folder holds another sweep, or one that nobody asked to resume.
    pub fn open(
        text: &str,
        matrix: Matrix,
        folder: &Path,
        programs: String,
        resume: bool,
    ) -> io::Result<Self> {
        let refuse = |text: String| io::Error::new(io::ErrorKind::AlreadyExists, text);
        let mut manifest = match Manifest::load(&folder.join(FILE_NAME))? {
            Some(old) if !resume && !old.runs.is_empty() => {
                return Err(refuse(format!(
                    "{} already holds launches; --resume goes on with them",
                    folder.display()
                )));
            }
            Some(old) => {
                let known = old.extra.get("matrix").and_then(|value| value.as_str());
                if known.is_some_and(|known| known != text) {
                    return Err(refuse(format!(
                        "{} was begun with another matrix file; take a new folder",
                        folder.display()
                    )));
                }
                old
            }
            None => Manifest::new(std::env::args().collect()),
        };
        fs::create_dir_all(folder)?;
        manifest.launcher = Some(matrix.launcher.clone());
        manifest.environment = matrix.environment.clone();
        manifest.extra.insert("matrix".into(), text.into());
        manifest.versions.entry("chorus".into()).or_insert_with(|| env!("CARGO_PKG_VERSION").into());
        Ok(Self { matrix, folder: folder.to_owned(), programs, manifest })
    }

    /// What may spoil numbers here; kept in the manifest.
    pub fn preflight(&mut self) -> Vec<preflight::Note> {
        let ranks = self.matrix.ranks.iter().copied().max().unwrap_or(1);
        let largest = self.matrix.byte_sizes().ok().and_then(|sizes| sizes.last().copied()).unwrap_or(0);
        let notes = preflight::check(&self.manifest.machine, ranks, 2 * largest * u64::from(ranks));
        let texts: Vec<&str> = notes.iter().map(|note| note.text.as_str()).collect();
        self.manifest.extra.insert("preflight".into(), json!(texts));
        notes
    }

    /// Launches that are still to be run, in order.
    pub fn pending(&self) -> Vec<(u32, Setup)> {
        let done: BTreeSet<String> = self
            .manifest
            .runs
            .iter()
            .filter(|run| run.status == RunStatus::Complete)
            .filter_map(|run| Some(run.detail.get("launch")?.as_str()?.to_owned()))
            .collect();
        let all = self.matrix.launches().into_iter();
        all.filter(|(repeat, setup)| !done.contains(&launch_name(*repeat, setup))).collect()
    }

    /// The command of a launch, as it will be run.
    pub fn command(&self, setup: &Setup) -> Vec<String> {
        let mut command = self.matrix.command(setup, &self.programs);
        command.extend(self.matrix.size_arguments());
        command.extend(["--csv".into(), self.folder.join(ROWS).display().to_string()]);
        command
    }

    /// Runs what is pending. `stop` ends the launch under way and the sweep.
    ///
    /// # Errors
    /// When the folder cannot be written or a program cannot be started.
    pub fn run(&mut self, stop: &AtomicBool, mut show: impl FnMut(Event<'_>)) -> io::Result<Outcome> {
        let pending = self.pending();
        for (index, (repeat, setup)) in pending.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(Outcome::Stopped);
            }
            show(Event::Started(index, pending.len(), &setup.label()));
            match self.one(*repeat, setup, stop)? {
                Ok(rows) => show(Event::Done(rows)),
                Err(outcome) => return Ok(outcome),
            }
        }
        self.graph_logs(stop)
    }

    fn one(&mut self, repeat: u32, setup: &Setup, stop: &AtomicBool) -> io::Result<Result<u64, Outcome>> {
        let run_id = new_run_id();
        let launch = Launch {
            command: self.command(setup),
            environment: self.environment(),
            run_id: run_id.clone(),
            repeat,
            log: self.folder.join("logs").join(format!("{run_id}.log")),
        };
        let rows = self.folder.join(ROWS);
        // Closes the torn line of a killed launch, whoever writes next.
        drop(RowWriter::append(&rows)?);
        let before = fs::metadata(&rows).map_or(0, |data| data.len());
        let run = self.manifest.begin(&run_id);
        run.command_line = launch.command.clone();
        run.detail = json!({ "launch": launch_name(repeat, setup), "setup": setup });
        self.save()?;
        let ended = launch::run(&launch, stop)?;
        let checked = check_rows(&rows, before, &run_id, setup, self.matrix.fewer_channels);
        let (status, outcome) = self.judge(ended, checked, &launch);
        self.manifest.finish(&run_id, status);
        if let Err(Outcome::Wrong(reason) | Outcome::Failed(reason)) = &outcome
            && let Some(run) = self.manifest.runs.last_mut()
        {
            run.detail["reason"] = json!(reason);
        }
        self.save()?;
        Ok(outcome)
    }

    fn judge(
        &self,
        ended: Ended,
        checked: io::Result<Checked>,
        launch: &Launch,
    ) -> (RunStatus, Result<u64, Outcome>) {
        let fail = |outcome| (RunStatus::Failed, Err(outcome));
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => return fail(Outcome::Failed(format!("its rows cannot be read: {error}"))),
        };
        if let Some(reason) = checked.wrong {
            return fail(Outcome::Wrong(reason));
        }
        match ended {
            Ended::Stopped => (RunStatus::Interrupted, Err(Outcome::Stopped)),
            Ended::Status(WRONG_DATA) => {
                fail(Outcome::Wrong(format!("status 7; log: {}", launch.log.display())))
            }
            Ended::Status(0) => {
                let cycles = u64::from(self.matrix.cycles);
                if checked.rows == 0 || !checked.rows.is_multiple_of(cycles) {
                    let text = format!("{} rows where a multiple of {cycles} was expected", checked.rows);
                    return fail(Outcome::Failed(format!("{text}; log: {}", launch.log.display())));
                }
                (RunStatus::Complete, Ok(checked.rows))
            }
            other => {
                let tail = launch::tail(&launch.log, 4);
                fail(Outcome::Failed(format!("{other:?}; the log {} ends:\n{tail}", launch.log.display())))
            }
        }
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.matrix.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn save(&self) -> io::Result<()> {
        self.manifest.save(&self.folder.join(FILE_NAME))
    }

    /// One more launch per world with graph lines in a file per rank; its times are no measurement and are not recorded.
    fn graph_logs(&mut self, stop: &AtomicBool) -> io::Result<Outcome> {
        let Some(wanted) = self.matrix.graph_log.clone() else { return Ok(Outcome::Complete) };
        for n_ranks in self.matrix.ranks.clone() {
            let folder = self.folder.join("graph").join(format!("{n_ranks}-ranks"));
            if folder.join("done").exists() {
                continue;
            }
            fs::create_dir_all(&folder)?;
            for old in fs::read_dir(&folder)?.flatten() {
                fs::remove_file(old.path())?;
            }
            let first = self.matrix.launches().into_iter().find(|(_, setup)| setup.n_ranks == n_ranks);
            let Some((_, setup)) = first else { continue };
            let setup = Setup { algorithm: wanted.algorithm.clone(), ..setup };
            let mut command = self.matrix.command(&setup, &self.programs);
            command.extend(["-b", "1M", "-e", "1M", "-f", "2", "-N", "1"].map(str::to_owned));
            let mut environment = self.environment();
            environment.extend(wanted.environment.iter().map(|(name, value)| (name.clone(), value.clone())));
            let file = folder.join("nccl.%h.%p.log").display().to_string();
            let settings = [
                ("NCCL_DEBUG", "INFO"),
                ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH"),
                ("NCCL_DEBUG_FILE", file.as_str()),
            ];
            environment.extend(settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let launch = Launch {
                command,
                environment,
                run_id: new_run_id(),
                repeat: 0,
                log: folder.join("launch.log"),
            };
            match launch::run(&launch, stop)? {
                Ended::Status(0) => fs::write(folder.join("done"), "")?,
                Ended::Stopped => return Ok(Outcome::Stopped),
                other => {
                    let tail = launch::tail(&launch.log, 4);
                    return Ok(Outcome::Failed(format!("graph log of {n_ranks} ranks: {other:?}\n{tail}")));
                }
            }
        }
        Ok(Outcome::Complete)
    }
}

fn launch_name(repeat: u32, setup: &Setup) -> String {
    format!("{} repeat {repeat}", setup.label())
}

#[derive(Debug)]
struct Checked {
    rows: u64,
    wrong: Option<String>,
}

/// Looks at the rows that a launch appended: how many, and whether they are right and what was asked for.
fn check_rows(file: &Path, from: u64, run_id: &str, setup: &Setup, fewer: bool) -> io::Result<Checked> {
    let mut checked = Checked { rows: 0, wrong: None };
    let mut rows = match File::open(file) {
        Ok(rows) => rows,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(checked),
        Err(error) => return Err(error),
    };
    rows.seek(SeekFrom::Start(from))?;
    // A launch that made the file wrote the header itself.
    let header = if from == 0 { String::new() } else { COLUMNS.join(",") + "\n" };
    if from == 0 && rows.metadata()?.len() == 0 {
        return Ok(checked);
    }
    let mut reader = RowReader::new(BufReader::new(Cursor::new(header).chain(rows)))?;
    while let Some(item) = reader.next_row() {
        let Ok(row) = item else { continue };
        if row.run_id != run_id {
            continue;
        }
        checked.rows += 1;
        let differs = |asked: &str, ran: &str| asked != "auto" && !asked.eq_ignore_ascii_case(ran);
        let channels = setup.n_channels;
        let other_channels =
            channels != 0 && (row.n_channels > channels || (!fewer && row.n_channels != channels));
        let reason = if row.wrong.is_some_and(|wrong| wrong > 0) {
            format!("{} wrong elements at {} bytes", row.wrong.unwrap_or(0), row.bytes)
        } else if differs(&setup.algorithm, row.algorithm)
            || differs(&setup.protocol, row.protocol)
            || other_channels
        {
            format!(
                "{}/{}/{} ran at {} bytes where {}/{}/{channels} was asked",
                row.algorithm, row.protocol, row.n_channels, row.bytes, setup.algorithm, setup.protocol
            )
        } else {
            continue;
        };
        checked.wrong.get_or_insert_with(|| format!("{}: {reason}", setup.label()));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::{Event, Outcome, Sweep};
    use crate::dataset::load;
    use crate::record::COLUMNS;
    use crate::sweep::matrix::Matrix;
    use crate::sweep::matrix::tests::SMALL;

    /// A program of shell that writes rows as the benchmark does; `$RAN_ALGO` and `$WRONG` bend it, `$DIE_AT` stops it after so many rows.
    const PROGRAM: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do case $1 in
 -g) ranks=$2;; --algo) algo=$2;; --proto) proto=$2;; --channels) ch=$2;; --csv) csv=$2;; -N) cycles=$2;; esac; shift; done
[ -s "$csv" ] || echo "HEADER" > "$csv"
written=0
c=0; while [ $c -lt $cycles ]; do for b in 4 8 16 32 64; do for p in out_of_place in_place; do
 [ -n "$DIE_AT" ] && [ $written -ge "$DIE_AT" ] && { printf '%s,0,' "$CHORUS_RUN_ID" >> "$csv"; kill -9 $$; }
 echo "$CHORUS_RUN_ID,$CHORUS_REPEAT,$c,t,engine,host,1,$ranks,all_reduce,${RAN_ALGO:-$algo},$proto,$ch,float,sum,-1,$b,$((b/4)),$p,20,1$b.5,0,0,${WRONG:-0}" >> "$csv"
 written=$((written+1))
done; done; c=$((c+1)); done
"#;

    fn programs(dir: &Path) -> String {
        let path = dir.join("all_reduce_perf");
        fs::write(&path, PROGRAM.replace("HEADER", &COLUMNS.join(","))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        dir.display().to_string()
    }

    fn sweep(dir: &Path, environment: &str, resume: bool) -> Outcome {
        // The text stays the same over a resume; the fault comes with the process's environment.
        let mut matrix = Matrix::parse(SMALL).unwrap();
        if let Some((name, value)) = environment.split_once('=') {
            matrix.environment = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        }
        let mut sweep = Sweep::open(SMALL, matrix, &dir.join("out"), programs(dir), resume).unwrap();
        sweep.run(&AtomicBool::new(false), |_| ()).unwrap()
    }

    fn keys(dir: &Path) -> Vec<String> {
        let data = load(&[dir.join("out")]).unwrap();
        let mut keys = Vec::new();
        for group in &data.groups {
            for sample in &group.samples {
                let repeat = data.launches[sample.launch as usize].repeat;
                keys.push(
                    format!(
                        "{:?} {} {repeat} {}",
                        group.key.scenario,
                        group.key.config.label(),
                        sample.cycle
                    ) + &group.key.bytes.to_string(),
                );
            }
        }
        keys.sort();
        keys
    }

    #[test]
    fn a_killed_sweep_resumes_to_the_same_rows_each_once() {
        let whole = tempfile::tempdir().unwrap();
        assert_eq!(sweep(whole.path(), "", false), Outcome::Complete);
        let expected = keys(whole.path());
        assert_eq!(expected.len(), 8 * 5 * 2 * 2);
        let cut = tempfile::tempdir().unwrap();
        assert!(matches!(sweep(cut.path(), "DIE_AT=7", false), Outcome::Failed(_)));
        assert!(matches!(sweep(cut.path(), "DIE_AT=13", true), Outcome::Failed(_)));
        assert_eq!(sweep(cut.path(), "", true), Outcome::Complete);
        assert_eq!(keys(cut.path()), expected);
        let data = load(&[cut.path().join("out")]).unwrap();
        assert_eq!(data.sources[0].incomplete_rows, 7 + 13, "{:?}", data.warnings());
        assert_eq!(data.sources[0].n_problems, 2, "the two torn lines");
        assert_eq!(data.sources[0].incomplete_launches.len(), 2);
    }

    #[test]
    fn a_folder_is_not_begun_twice_and_not_with_another_matrix() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sweep(dir.path(), "", false), Outcome::Complete);
        let matrix = || Matrix::parse(SMALL).unwrap();
        let again = Sweep::open(SMALL, matrix(), &dir.path().join("out"), String::new(), false);
        assert!(again.unwrap_err().to_string().contains("--resume"));
        let other = Sweep::open("title = 1", matrix(), &dir.path().join("out"), String::new(), true);
        assert!(other.unwrap_err().to_string().contains("another matrix"));
    }

    #[test]
    fn wrong_elements_and_other_algorithms_stop_the_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let Outcome::Wrong(reason) = sweep(dir.path(), "WRONG=3", false) else { panic!("not noticed") };
        assert!(reason.contains("3 wrong elements at 4 bytes"), "{reason}");
        let dir = tempfile::tempdir().unwrap();
        let Outcome::Wrong(reason) = sweep(dir.path(), "RAN_ALGO=ring", false) else { panic!("not noticed") };
        assert!(reason.contains("ring/simple/1 ran at 4 bytes where tree/simple/1 was asked"), "{reason}");
    }

    #[test]
    fn progress_names_every_launch() {
        let dir = tempfile::tempdir().unwrap();
        let programs = programs(dir.path());
        let matrix = Matrix::parse(SMALL).unwrap();
        let mut sweep = Sweep::open(SMALL, matrix, &dir.path().join("out"), programs, false).unwrap();
        let mut lines = Vec::new();
        let outcome = sweep.run(&AtomicBool::new(false), |event| match event {
            Event::Started(index, of, label) => lines.push(format!("{index}/{of} {label}")),
            Event::Done(rows) => lines.push(format!("{rows} rows")),
        });
        assert_eq!(outcome.unwrap(), Outcome::Complete);
        assert_eq!(lines[..2], ["0/8 all_reduce 2 ranks ring/simple/1", "20 rows"]);
        assert_eq!(lines.len(), 16);
        assert!(sweep.pending().is_empty());
    }
}
