//! One launch: a fresh process of a benchmark, its output in a log, its rows under a run id that is marked complete only here.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Names the run to the benchmark, which then leaves the manifest to its launcher.
pub const RUN_ID: &str = "CHORUS_RUN_ID";
/// The only placements whose rows it shall record, joined by commas; unset: both.
pub const PLACEMENTS: &str = "CHORUS_PLACEMENTS";
/// Number of the process repeat.
pub const REPEAT: &str = "CHORUS_REPEAT";

/// Status of a benchmark that found wrong elements.
pub const WRONG_DATA: i32 = 7;

/// Status of a benchmark that lacks something here: a back end, a device.
pub const UNAVAILABLE: i32 = 5;

/// Statuses of a benchmark that Ctrl-C or SIGTERM ended.
const INTERRUPTED: i32 = 130;
const TERMINATED: i32 = 143;

/// How long a stopped benchmark may take to end by itself: it flushes rows and closes files.
const GRACE: Duration = Duration::from_secs(10);

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Command and arguments.
    pub command: Vec<String>,
    /// Variables set for it, beside what is inherited.
    pub environment: Vec<(String, String)>,
    /// Run id of its rows.
    pub run_id: String,
    /// Process repeat.
    pub repeat: u32,
    /// Where its standard output and errors go.
    pub log: PathBuf,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with that status.
    Status(i32),
    /// By a signal nobody here sent.
    Signal,
    /// Because the caller asked to stop.
    Stopped,
}

/// Starts the launch and waits for its end. `stop` is looked at all the time.
///
/// # Errors
/// When the program cannot be started or its log cannot be made; the error names which.
pub fn run(launch: &Launch, stop: &AtomicBool) -> io::Result<Ended> {
    let (program, arguments) = launch
        .command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the launch command is empty"))?;
    if let Some(folder) = launch.log.parent() {
        fs::create_dir_all(folder)?;
    }
    let log = File::create(&launch.log)?;
    // The launch inherits the lock with its output: whoever finds the log locked knows that the launch still runs. A file system
    // without locks tells nobody.
    let _ = log.try_lock();
    let mut child = Command::new(program)
        .args(arguments)
        .env(RUN_ID, &launch.run_id)
        .env(REPEAT, launch.repeat.to_string())
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot start {program}: {error}")))?;
    wait(&mut child, stop)
}

fn wait(child: &mut Child, stop: &AtomicBool) -> io::Result<Ended> {
    let mut asked: Option<Instant> = None;
    // A poll costs a few microseconds of one core; this interval keeps it far below the noise of a measurement.
    let mut nap = Duration::from_millis(5);
    loop {
        if let Some(status) = child.try_wait()? {
            // Ctrl-C reaches the benchmark too, and it may be the first to end.
            let stopped = asked.is_some() || stop.load(Ordering::Relaxed);
            return Ok(match (stopped, status.code()) {
                (_, Some(0)) => Ended::Status(0),
                (true, _) | (_, Some(INTERRUPTED | TERMINATED)) => Ended::Stopped,
                (false, Some(code)) => Ended::Status(code),
                (false, None) => Ended::Signal,
            });
        }
        match asked {
            None if stop.load(Ordering::Relaxed) => {
                // Ctrl-C reached the child as well; a signal to us alone did not.
                let _ = Command::new("kill")
                    .args(["-TERM", &child.id().to_string()])
                    .stderr(Stdio::null())
                    .status();
                asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > GRACE => child.kill()?,
            _ => {}
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(50));
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(code) => write!(f, "status {code}"),
            Self::Signal => f.write_str("killed by a signal"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// What a well-known launcher's refusal means and what helps; the launchers say it in many lines, not always the last ones.
const REFUSALS: [(&str, &str); 4] = [
    (
        "OMPI_ALLOW_RUN_AS_ROOT",
        "Open MPI does not run as root unless OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 are set",
    ),
    (
        "not enough slots available",
        "Open MPI does not run more ranks than cores unless OMPI_MCA_rmaps_base_oversubscribe=1 is set",
    ),
    ("was unable to find the specified executable", "the launcher does not find the program"),
    ("could not access\nor execute an executable", "the launcher does not find the program"),
];

/// The line that explains a failed launch: a known refusal in words, else the last line of its log that is no part of the table.
pub fn reason(log: &Path) -> String {
    let text = tail(log, 40);
    if let Some((_, meaning)) = REFUSALS.iter().find(|(sign, _)| text.contains(sign)) {
        return (*meaning).to_owned();
    }
    let is_message = |line: &&str| !line.starts_with(['#', ' ']) && !line.starts_with("---");
    text.lines().rev().find(is_message).unwrap_or("it said nothing").to_owned()
}

/// The last lines of a log, for messages.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::{Ended, Launch, reason, run, tail};

    fn launch(dir: &std::path::Path, script: &str) -> Launch {
        Launch {
            command: vec!["sh".into(), "-c".into(), script.into()],
            environment: vec![("EXTRA".into(), "e".into())],
            run_id: "r1".into(),
            repeat: 3,
            log: dir.join("logs/one.log"),
        }
    }

    #[test]
    fn the_child_knows_its_run_and_its_status_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let launch = launch(dir.path(), "echo $CHORUS_RUN_ID $CHORUS_REPEAT $EXTRA; echo err >&2; exit 7");
        assert_eq!(run(&launch, &AtomicBool::new(false)).unwrap(), Ended::Status(7));
        assert_eq!(tail(&launch.log, 5), "r1 3 e\nerr");
        assert_eq!(tail(&launch.log, 1), "err");
    }

    #[test]
    fn a_request_to_stop_ends_the_child_soon() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let ended = run(&launch(dir.path(), "exec sleep 60"), &AtomicBool::new(true)).unwrap();
        assert_eq!(ended, Ended::Stopped);
        assert!(begun.elapsed().as_secs() < 20);
    }

    #[test]
    fn a_benchmark_that_ctrl_c_ended_first_was_stopped_and_did_not_fail() {
        let dir = tempfile::tempdir().unwrap();
        let ended = run(&launch(dir.path(), "exit 130"), &AtomicBool::new(false)).unwrap();
        assert_eq!(ended, Ended::Stopped);
    }

    #[test]
    fn known_refusals_are_told_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "There are not enough slots available in the system\n\nmore\nwords\n----\n")
            .unwrap();
        assert!(reason(&log).contains("OMPI_MCA_rmaps_base_oversubscribe=1"));
        std::fs::write(&log, "a\nlast words\n").unwrap();
        assert_eq!(reason(&log), "last words");
    }

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = launch(dir.path(), "");
        launch.command = vec!["no-such-program-here".into()];
        assert!(
            run(&launch, &AtomicBool::new(false)).unwrap_err().to_string().contains("no-such-program-here")
        );
    }
}
