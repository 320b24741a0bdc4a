//! One launch: a fresh process of a benchmark, its output in a log, its rows under a run id that is marked complete only here.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Names the run to the benchmark, which then leaves the manifest to its launcher.
pub const RUN_ID: &str = "CHORUS_RUN_ID";
/// Number of the process repeat.
pub const REPEAT: &str = "CHORUS_REPEAT";

/// Status of a benchmark that found wrong elements.
pub const WRONG_DATA: i32 = 7;

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
            return Ok(match (asked, status.code()) {
                (Some(_), _) => Ended::Stopped,
                (None, Some(code)) => Ended::Status(code),
                (None, None) => Ended::Signal,
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

    use super::{Ended, Launch, run, tail};

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
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = launch(dir.path(), "");
        launch.command = vec!["no-such-program-here".into()];
        assert!(
            run(&launch, &AtomicBool::new(false)).unwrap_err().to_string().contains("no-such-program-here")
        );
    }
}
