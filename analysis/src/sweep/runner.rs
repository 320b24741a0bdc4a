//! Runs the launches of a matrix into a folder.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::launch::{self, Ended, Launch, UNAVAILABLE, WRONG_DATA};
use crate::record::manifest::{FILE_NAME, Manifest, RunStatus, new_run_id, now};
use crate::record::{COLUMNS, Machine, RowReader, RowWriter};
use crate::sweep::matrix::{Matrix, Setup};
use crate::sweep::{ROWS, folder, preflight};

/// What happened, for whoever shows progress.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A launch starts: its number from 0, of how many.
    Started(usize, usize, &'a str),
    /// It is complete: rows, and sizes where fewer ran than were asked for.
    Done(u64, Option<usize>),
    /// Something else worth a line.
    Note(&'a str),
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
    /// A launch needs what this machine or build lacks (status 5).
    Unavailable(String),
    /// A launch failed: which, how, and its log.
    Failed(String),
}

/// What a sweep is started with.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The matrix file as it is written.
    pub text: &'a str,
    /// The matrix, sizes cut already.
    pub matrix: Matrix,
    /// Where sizes were cut, as it was typed.
    pub cut: Option<&'a str>,
    /// Folder of the record.
    pub folder: &'a Path,
    /// Folder of the programs.
    pub programs: String,
    /// Whether a folder that holds launches is gone on with.
    pub resume: bool,
}

/// A sweep bound to its folder.
#[derive(Debug)]
pub struct Sweep {
    matrix: Matrix,
    folder: PathBuf,
    programs: String,
    manifest: Manifest,
    /// Holds the folder's lock.
    _lock: File,
}

impl Sweep {
    /// Prepares a folder, or finds the one that is to be resumed.
    ///
    /// # Errors
    /// When the folder holds another sweep, one that nobody asked to resume, or one of another machine, or when somebody is at work there.
    pub fn open(request: Request<'_>) -> io::Result<Self> {
        let Request { text, matrix, cut, folder, programs, resume } = request;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        let old = Manifest::load(&folder.join(FILE_NAME))?;
        let mut manifest = match old {
            Some(old) if !old.runs.is_empty() => {
                if !resume {
                    let text =
                        format!("{} already holds launches; --resume goes on with them", folder.display());
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
                }
                if let Some(other) = difference(&old, text, cut) {
                    let text = format!("{} was begun {other}; take a new folder", folder.display());
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
                }
                old
            }
            _ => Manifest::new(folder::publishable(&std::env::args().collect::<Vec<_>>())),
        };
        fs::create_dir_all(folder).map_err(named)?;
        let lock = folder::lock(folder)?;
        folder::sweep_up(folder);
        manifest.launcher = Some(matrix.launcher.clone());
        manifest.environment = matrix.environment.clone();
        manifest.extra.insert("matrix".into(), text.into());
        if let Some(cut) = cut {
            manifest.extra.insert("max_size".into(), cut.into());
        }
        manifest.versions.entry("chorus".into()).or_insert_with(|| env!("CARGO_PKG_VERSION").into());
        manifest.versions.extend(folder::launcher_version(&matrix.launcher));
        manifest.git_revision = folder::revision(&programs);
        Ok(Self { matrix, folder: folder.to_owned(), programs, manifest, _lock: lock })
    }

    /// What may spoil numbers here. The manifest keeps it for every session of the sweep, with its time, command and revision.
    pub fn preflight(&mut self) -> Vec<preflight::Note> {
        let ranks = self.matrix.ranks.iter().copied().max().unwrap_or(1);
        let largest = self.matrix.byte_sizes().ok().and_then(|sizes| sizes.last().copied()).unwrap_or(0);
        let notes = preflight::check(&self.manifest.machine, ranks, 2 * largest * u64::from(ranks));
        let list: Vec<Value> =
            notes.iter().map(|note| json!({ "text": note.text, "is_noise": note.is_noise })).collect();
        let session = json!({
            "started": now(),
            "command_line": folder::publishable(&std::env::args().collect::<Vec<_>>()),
            "git_revision": self.manifest.git_revision,
            "preflight": list,
        });
        let sessions = self.manifest.extra.entry("sessions").or_insert_with(|| json!([]));
        if let Some(sessions) = sessions.as_array_mut() {
            sessions.push(session);
        }
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
        let mut note = |text: &str| show(Event::Note(text));
        folder::wait_for_orphans(&self.folder, &self.manifest, stop, &mut note)?;
        let pending = self.pending();
        for (index, (repeat, setup)) in pending.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(Outcome::Stopped);
            }
            show(Event::Started(index, pending.len(), &setup.label()));
            match self.one(*repeat, setup, stop)? {
                Ok(checked) => {
                    let fewer = checked.sizes.len() < self.matrix.byte_sizes().map_or(0, |sizes| sizes.len());
                    show(Event::Done(checked.rows, fewer.then_some(checked.sizes.len())));
                }
                Err(outcome) => return Ok(outcome),
            }
        }
        self.graph_logs(stop)
    }

    fn one(&mut self, repeat: u32, setup: &Setup, stop: &AtomicBool) -> io::Result<Result<Checked, Outcome>> {
        let run_id = new_run_id();
        let launch = Launch {
            command: self.command(setup),
            environment: self.environment().into_iter().chain(setup.environment()).collect(),
            run_id: run_id.clone(),
            repeat,
            log: self.folder.join(folder::log_of(&run_id)),
        };
        let rows = self.folder.join(ROWS);
        // Closes the torn line of a killed launch, whoever writes next.
        drop(RowWriter::append(&rows)?);
        let before = fs::metadata(&rows).map_or(0, |data| data.len());
        let run = self.manifest.begin(&run_id);
        run.command_line = folder::publishable(&launch.command);
        run.detail = json!({ "launch": launch_name(repeat, setup), "setup": setup });
        self.save()?;
        let ended = match launch::run(&launch, stop) {
            Ok(ended) => ended,
            Err(error) => {
                self.manifest.finish(&run_id, RunStatus::Failed);
                self.save()?;
                return Err(error);
            }
        };
        let checked = check_rows(&rows, before, &run_id, setup, self.matrix.fewer_channels);
        let (status, outcome) = self.judge(ended, checked, (setup, &run_id));
        self.manifest.finish(&run_id, status);
        if let Err(Outcome::Wrong(reason) | Outcome::Failed(reason) | Outcome::Unavailable(reason)) = &outcome
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
        (setup, run_id): (&Setup, &str),
    ) -> (RunStatus, Result<Checked, Outcome>) {
        let label = setup.label();
        let file = folder::log_of(run_id);
        let log = self.folder.join(&file);
        let fail = |outcome| (RunStatus::Failed, Err(outcome));
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => return fail(Outcome::Failed(format!("{label}: its rows cannot be read: {error}"))),
        };
        if let Some(reason) = checked.wrong {
            return fail(Outcome::Wrong(reason));
        }
        let told = |what: &str| format!("{label}: {what}: {} ({file})", launch::reason(&log));
        match ended {
            Ended::Stopped => (RunStatus::Interrupted, Err(Outcome::Stopped)),
            Ended::Status(WRONG_DATA) => fail(Outcome::Wrong(told("status 7"))),
            Ended::Status(UNAVAILABLE) => fail(Outcome::Unavailable(told("not available"))),
            Ended::Status(0) => {
                let cycles = u64::from(self.matrix.cycles);
                if checked.rows == 0 {
                    let text = "it left no row under its run id (a launcher must pass CHORUS_RUN_ID on)";
                    return fail(Outcome::Failed(format!("{label}: {text} ({file})")));
                }
                if !checked.rows.is_multiple_of(cycles * self.matrix.placements.len() as u64) {
                    let rows = checked.rows;
                    let text =
                        format!("{rows} rows, which is no multiple of {cycles} cycles and the placements");
                    return fail(Outcome::Failed(format!("{label}: {text} ({file})")));
                }
                (RunStatus::Complete, Ok(checked))
            }
            other => fail(Outcome::Failed(told(&other.to_string()))),
        }
    }

    fn environment(&self) -> Vec<(String, String)> {
        self.matrix.launch_environment()
    }

    fn save(&self) -> io::Result<()> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot write the manifest: {error}"));
        self.manifest.save(&self.folder.join(FILE_NAME)).map_err(named)
    }

    /// One more launch per world with graph lines in a file per rank; its times are no measurement and are not recorded.
    fn graph_logs(&mut self, stop: &AtomicBool) -> io::Result<Outcome> {
        let Some(wanted) = self.matrix.graph_log.clone() else { return Ok(Outcome::Complete) };
        for n_ranks in self.matrix.ranks.clone() {
            let place = format!("graph/{n_ranks}-ranks");
            let folder = self.folder.join(&place);
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
            let log = folder.join("launch.log");
            let launch = Launch { command, environment, run_id: new_run_id(), repeat: 0, log };
            let told = |what: &str| {
                format!(
                    "graph log of {n_ranks} ranks: {what}: {} ({place}/launch.log)",
                    launch::reason(&launch.log)
                )
            };
            match launch::run(&launch, stop)? {
                Ended::Status(0) => fs::write(folder.join("done"), "")?,
                Ended::Stopped => return Ok(Outcome::Stopped),
                Ended::Status(UNAVAILABLE) => return Ok(Outcome::Unavailable(told("not available"))),
                other => return Ok(Outcome::Failed(told(&other.to_string()))),
            }
        }
        Ok(Outcome::Complete)
    }
}

/// In what the sweep that a folder holds differs from the one that is asked for.
fn difference(old: &Manifest, text: &str, cut: Option<&str>) -> Option<String> {
    let known = |key: &str| old.extra.get(key).and_then(Value::as_str);
    if known("matrix").is_some_and(|known| known != text) {
        return Some("with another matrix file".into());
    }
    match (known("max_size"), cut) {
        (Some(was), now) if now != Some(was) => return Some(format!("with --max-size {was}")),
        (None, Some(_)) => return Some("without --max-size".into()),
        _ => {}
    }
    let differences = old.machine.differences(&Machine::probe());
    (!differences.is_empty()).then(|| format!("on another machine ({})", differences.join("; ")))
}

fn launch_name(repeat: u32, setup: &Setup) -> String {
    format!("{} repeat {repeat}", setup.label())
}

/// What the rows of one launch say.
#[derive(Debug)]
pub(crate) struct Checked {
    /// How many there are.
    pub(crate) rows: u64,
    sizes: BTreeSet<u64>,
    /// What is wrong with the first wrong one.
    pub(crate) wrong: Option<String>,
}

/// Looks at the rows that a launch appended: how many, and whether they are right and what was asked for.
pub(crate) fn check_rows(
    file: &Path,
    from: u64,
    run_id: &str,
    setup: &Setup,
    fewer: bool,
) -> io::Result<Checked> {
    let mut checked = Checked { rows: 0, sizes: BTreeSet::new(), wrong: None };
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
        checked.sizes.insert(row.bytes);
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

    use super::{Event, Outcome, Request, Sweep};
    use crate::dataset::load;
    use crate::record::{COLUMNS, Manifest};
    use crate::sweep::matrix::Matrix;
    use crate::sweep::matrix::tests::SMALL;

    /// A program of shell that writes rows as the benchmark does; `$RAN_ALGO` and `$WRONG` bend it, `$DIE_AT` stops it after so many rows.
    const PROGRAM: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do case $1 in
 -g) ranks=$2;; --algo) algo=$2;; --proto) proto=$2;; --channels) ch=$2;; --csv) csv=$2;; -N) cycles=$2;; esac; shift; done
[ -s "$csv" ] || echo "HEADER" > "$csv"
written=0
c=0; while [ $c -lt $cycles ]; do for b in 4 8 16 32 64; do for p in out_of_place in_place; do
 [ -n "$CHORUS_PLACEMENTS" ] && [ "$p" != "$CHORUS_PLACEMENTS" ] && continue
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
        let mut sweep = Sweep::open(request(SMALL, matrix, dir, resume)).unwrap();
        sweep.run(&AtomicBool::new(false), |_| ()).unwrap()
    }

    fn request<'a>(text: &'a str, matrix: Matrix, dir: &Path, resume: bool) -> Request<'a> {
        let folder: &'static Path = Box::leak(dir.join("out").into_boxed_path());
        Request { text, matrix, cut: None, folder, programs: programs(dir), resume }
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
        let refused = |request: Request<'_>| Sweep::open(request).unwrap_err().to_string();
        assert!(refused(request(SMALL, matrix(), dir.path(), false)).contains("--resume"));
        assert!(refused(request("title = 1", matrix(), dir.path(), true)).contains("another matrix"));
        let cut = Request { cut: Some("16"), ..request(SMALL, matrix(), dir.path(), true) };
        assert!(refused(cut).contains("begun without --max-size"));
        let file = dir.path().join("out/manifest.json");
        let mut manifest = Manifest::load(&file).unwrap().unwrap();
        manifest.machine.cores += 1;
        manifest.save(&file).unwrap();
        assert!(refused(request(SMALL, matrix(), dir.path(), true)).contains("on another machine (cores"));
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
    fn one_placement_alone_is_recorded_where_the_matrix_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("{SMALL}placements = [\"in_place\"]\n");
        let matrix = Matrix::parse(&text).unwrap();
        let mut sweep = Sweep::open(request(&text, matrix, dir.path(), false)).unwrap();
        assert_eq!(sweep.run(&AtomicBool::new(false), |_| ()).unwrap(), Outcome::Complete);
        let data = load(&[dir.path().join("out")]).unwrap();
        assert_eq!(data.n_samples(), 8 * 5 * 2);
        assert!(data.groups.iter().all(|group| group.key.scenario.placement.name() == "in_place"));
    }

    #[test]
    fn what_is_not_available_has_an_outcome_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let matrix = Matrix::parse(SMALL).unwrap();
        let program = dir.path().join("all_reduce_perf");
        let mut sweep = Sweep::open(request(SMALL, matrix, dir.path(), false)).unwrap();
        fs::write(&program, "#!/bin/sh\necho 'no such back end' >&2\nexit 5\n").unwrap();
        let Outcome::Unavailable(reason) = sweep.run(&AtomicBool::new(false), |_| ()).unwrap() else {
            panic!("taken for something else")
        };
        assert!(reason.contains("not available: no such back end (logs/"), "{reason}");
        let manifest = fs::read_to_string(dir.path().join("out/manifest.json")).unwrap();
        assert!(!manifest.contains(&dir.path().display().to_string()), "the manifest tells where things lie");
    }

    #[test]
    fn progress_names_every_launch() {
        let dir = tempfile::tempdir().unwrap();
        let matrix = Matrix::parse(SMALL).unwrap();
        let mut sweep = Sweep::open(request(SMALL, matrix, dir.path(), false)).unwrap();
        let mut lines = Vec::new();
        let outcome = sweep.run(&AtomicBool::new(false), |event| match event {
            Event::Started(index, of, label) => lines.push(format!("{index}/{of} {label}")),
            Event::Done(rows, fewer) => lines.push(format!("{rows} rows, {fewer:?}")),
            Event::Note(text) => lines.push(text.to_owned()),
        });
        assert_eq!(outcome.unwrap(), Outcome::Complete);
        assert_eq!(lines[..2], ["0/8 all_reduce 2 ranks ring/simple/1", "20 rows, None"]);
        assert_eq!(lines.len(), 16);
        assert!(sweep.pending().is_empty());
    }
}
