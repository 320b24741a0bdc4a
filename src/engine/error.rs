//! What can go wrong in the engine, as its callers see it. Modules keep precise errors of their own and convert upwards here;
//! exit statuses are given at the outermost edge (`perf::exit`).

use std::time::Duration;

/// An engine call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {reason}")]
    System {
        /// What was being done.
        what: String,
        /// The system's answer.
        reason: String,
    },
    /// A bug of ours or an inconsistency between ranks.
    #[error("internal error: {0}")]
    Internal(String),
    /// An argument outside its domain.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// A setting or call that cannot be honoured.
    #[error("{0}")]
    InvalidUsage(String),
    /// The algorithm, protocol or channel count does not exist for this collective; the text lists those that do.
    #[error("{0}")]
    NoSuchCombination(String),
    /// Something this machine or build lacks.
    #[error("{0}")]
    Unavailable(String),
    /// A peer process ended. The text names rank, operation and size.
    #[error("{0}")]
    PeerDied(String),
    /// Waiting outlasted the limit. The text names rank, operation, size and step.
    #[error("{what} (limit {} s)", limit.as_secs_f64())]
    Timeout {
        /// Who is late, in what, and where.
        what: String,
        /// The limit that passed.
        limit: Duration,
    },
    /// This process was told to stop (signal number).
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failed system call with what was being done.
    pub fn system(what: impl Into<String>, source: impl std::fmt::Display) -> Self {
        Self::System { what: what.into(), reason: source.to_string() }
    }
}
