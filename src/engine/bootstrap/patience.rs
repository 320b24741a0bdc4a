//! Waiting with a limit, and saying so while there is none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine::bootstrap::BootstrapError;
use crate::engine::error::Error;
use crate::engine::log;

/// When a wait without an end is first reported, and how often after that.
pub const FIRST_REPORT: Duration = Duration::from_secs(10);
/// Interval of the later reports.
pub const NEXT_REPORTS: Duration = Duration::from_secs(60);

/// One wait: when it began, when it must end, when it is next worth a line on stderr.
#[derive(Debug)]
pub struct Patience {
    start: Instant,
    limit: Option<Duration>,
    next_report: Duration,
}

/// Set once the watch runs: it reports long waits, with more knowledge.
static REPORTED_BY_WATCH: AtomicBool = AtomicBool::new(false);

/// Why every wait of this process is in vain, once somebody knows.
static NEWS: OnceLock<Error> = OnceLock::new();

/// Set while somebody looks out for deaths that no socket tells of.
static IS_LOOKED_OUT: AtomicBool = AtomicBool::new(false);
/// How long an end that a socket told waits for the lookout's word: a survivor that leaves first must not be taken for the dead one.
const SECOND_THOUGHTS: Duration = Duration::from_millis(900);

/// Says whether somebody looks out and will call [`give_up`].
pub(crate) fn expect_news(is_looked_out: bool) {
    IS_LOOKED_OUT.store(is_looked_out, Ordering::Relaxed);
}

/// The error of a socket that ended, or what explains it.
pub(crate) fn second_thoughts(error: BootstrapError) -> BootstrapError {
    use BootstrapError as E;
    let may_be_an_echo = matches!(error, E::Connect { .. } | E::PeerEnded { .. } | E::NotOurs { .. });
    let start = Instant::now();
    while may_be_an_echo && IS_LOOKED_OUT.load(Ordering::Relaxed) && start.elapsed() < SECOND_THOUGHTS {
        if let Err(news) = check_news() {
            return news;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    error
}

/// Ends all waits of this process with that error, and those that come. The first word counts.
pub(crate) fn give_up(error: Error) {
    let _ = NEWS.set(error);
}

/// Whether the watch has taken over.
pub(crate) fn is_watched() -> bool {
    REPORTED_BY_WATCH.load(Ordering::Relaxed)
}

/// Fails when waiting is in vain.
pub(crate) fn check_news() -> Result<(), BootstrapError> {
    NEWS.get().map_or(Ok(()), |error| Err(BootstrapError::Told(error.clone())))
}

impl Patience {
    /// From now on waits without an end are no longer reported here.
    pub(crate) fn leave_reports_to_the_watch() {
        REPORTED_BY_WATCH.store(true, Ordering::Relaxed);
    }

    /// A wait that begins now. Without a limit it lasts, but is reported after 10 s and then every minute.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { start: Instant::now(), limit, next_report: FIRST_REPORT }
    }

    /// How long to sleep at most before [`Patience::check`] has something to say.
    pub fn nap(&self, longest: Duration) -> Duration {
        let waited = self.start.elapsed();
        let end = self.limit.unwrap_or(self.next_report);
        end.saturating_sub(waited).clamp(Duration::from_millis(1), longest)
    }

    /// Fails once the limit has passed; reports a long wait without one. `waiting` says who waits for whom, and in what.
    pub fn check(&mut self, waiting: impl FnOnce() -> String) -> Result<(), BootstrapError> {
        check_news()?;
        let waited = self.start.elapsed();
        match self.limit {
            Some(limit) if waited >= limit => Err(BootstrapError::Late { what: waiting(), limit }),
            Some(_) => Ok(()),
            None => {
                if waited >= self.next_report && !is_watched() {
                    self.next_report += NEXT_REPORTS;
                    log::notice(format_args!("still waiting after {} s: {}", waited.as_secs(), waiting()));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit_and_names_what_it_waited_for() {
        let mut patience = Patience::new(Some(Duration::from_millis(20)));
        assert!(patience.check(|| unreachable!("nothing to say yet")).is_ok());
        std::thread::sleep(Duration::from_millis(25));
        let error = patience.check(|| "rank 0 for rank 1".into()).expect_err("the limit has passed");
        assert!(error.to_string().contains("rank 0 for rank 1"), "{error}");
    }

    #[test]
    fn naps_end_with_the_limit() {
        let patience = Patience::new(Some(Duration::from_millis(30)));
        assert!(patience.nap(Duration::from_secs(9)) <= Duration::from_millis(30));
        assert_eq!(patience.nap(Duration::from_millis(2)), Duration::from_millis(2));
    }
}
