//! The end of a run that cannot go on: nccl-tests' lines on stdout, rows and reports closed. The watch prints the line on stderr.

use std::io::Write;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::engine::error::Error;
use crate::perf::cli::config::SweepConfig;
use crate::perf::exit::Status;
use crate::perf::report::{Closing, Report};

/// How long a thread that prints may keep the report from being closed.
const PATIENCE: Duration = Duration::from_millis(800);

/// Prepares what the watch calls before it ends the process.
pub(super) fn ending(
    config: &SweepConfig,
    host: &str,
    report: Option<Arc<Mutex<Report>>>,
) -> impl Fn(&Error) -> i32 + Send + Sync + use<> {
    let host = host.to_owned();
    let limit_s = config.limit.unwrap_or_default().as_secs();
    move |error| {
        let interrupted = matches!(error, Error::Interrupted(_));
        if !interrupted {
            let at = Location::caller();
            show(&lines(error, &host, limit_s, (at.file(), at.line())));
        }
        if let Some(mut report) = report.as_deref().and_then(lock_soon) {
            let text = error.to_string();
            report.close(if interrupted { Closing::Interrupted(text) } else { Closing::Failed(text) });
        }
        Status::of(error).code()
    }
}

/// What nccl-tests prints for a failure.
fn lines(error: &Error, host: &str, limit_s: u64, (file, line): (&str, u32)) -> String {
    let short = short(host);
    let first = match error {
        Error::Timeout { .. } => format!("{short}: Test timeout ({limit_s}s) {file}:{line}\n"),
        _ => format!("{short}: Test NCCL failure {file}:{line} '{error} / '\n"),
    };
    first + &trace(host, file, line)
}

/// nccl-tests' trace line; parsers look for its words.
pub(super) fn trace(host: &str, file: &str, line: u32) -> String {
    format!(" .. {} pid {}: Test failure {file}:{line}\n", short(host), std::process::id())
}

/// Text for stdout; a closed pipe is no error.
pub(super) fn show(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or_default()
}

fn lock_soon(report: &Mutex<Report>) -> Option<MutexGuard<'_, Report>> {
    let start = Instant::now();
    loop {
        match report.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_in_nccl_tests_words() {
        let at = ("src/a.rs", 7);
        let text = lines(&Error::PeerDied("rank 3 died".into()), "node1.cluster", 0, at);
        let mut seen = text.lines();
        assert_eq!(seen.next(), Some("node1: Test NCCL failure src/a.rs:7 'rank 3 died / '"));
        assert!(
            seen.next().unwrap().starts_with(" .. node1 pid ")
                && text.ends_with(": Test failure src/a.rs:7\n")
        );
        let late = Error::Timeout { what: "rank 1".into(), limit: Duration::from_secs(5) };
        assert!(lines(&late, "n", 5, at).starts_with("n: Test timeout (5s) src/a.rs:7\n"));
    }
}
