//! Exit statuses, in the one table that `--help` and the README show, and the error that carries one.

use std::fmt;

use crate::engine::error::Error as EngineError;

/// How a run ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Everything asked for was done and right.
    Success,
    /// A bug of ours, or a system call that failed.
    Internal,
    /// Another process of the job ended before its time.
    PeerDied,
    /// Waiting outlasted `-T`.
    Timeout,
    /// This machine or build lacks what was asked for.
    Unavailable,
    /// The algorithm, protocol or channel count does not exist for this collective.
    NoSuchCombination,
    /// The check found wrong elements.
    WrongData,
    /// The average bus bandwidth is below `NCCL_TESTS_MIN_BW`.
    TooSlow,
    /// SIGINT.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// A bad option, size or setting; nothing was started.
    Usage,
}

impl Status {
    /// Every status, by rising number.
    pub const ALL: &'static [Self] = &[
        Self::Success,
        Self::Internal,
        Self::PeerDied,
        Self::Timeout,
        Self::Unavailable,
        Self::NoSuchCombination,
        Self::WrongData,
        Self::TooSlow,
        Self::Interrupted,
        Self::Terminated,
        Self::Usage,
    ];

    /// The number the process ends with.
    pub fn code(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Internal => 1,
            Self::PeerDied => 3,
            Self::Timeout => 4,
            Self::Unavailable => 5,
            Self::NoSuchCombination => 6,
            Self::WrongData => 7,
            Self::TooSlow => 8,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::Usage => 255,
        }
    }

    /// What it means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "everything asked for was done, and the data were right where they were checked",
            Self::Internal => "internal error, or a system call failed",
            Self::PeerDied => "another process of the job died",
            Self::Timeout => "a wait outlasted -T",
            Self::Unavailable => "not available on this machine or in this build",
            Self::NoSuchCombination => "this algorithm, protocol and channel count do not exist together",
            Self::WrongData => "wrong data",
            Self::TooSlow => "average bus bandwidth below NCCL_TESTS_MIN_BW",
            Self::Interrupted => "interrupted (Ctrl-C)",
            Self::Terminated => "terminated (SIGTERM)",
            Self::Usage => "bad option, size or setting; nothing was started",
        }
    }

    /// The status a failed engine call ends with.
    pub fn of(error: &EngineError) -> Self {
        match error {
            EngineError::System { .. } | EngineError::Internal(_) | EngineError::InvalidArgument(_) => {
                Self::Internal
            }
            EngineError::InvalidUsage(_) => Self::Usage,
            EngineError::NoSuchCombination(_) => Self::NoSuchCombination,
            EngineError::Unavailable(_) => Self::Unavailable,
            EngineError::PeerDied(_) => Self::PeerDied,
            EngineError::Timeout { .. } => Self::Timeout,
            EngineError::Interrupted(signal) if *signal == libc::SIGTERM => Self::Terminated,
            EngineError::Interrupted(_) => Self::Interrupted,
        }
    }

    /// The table of statuses, one line each, indented for `--help`.
    pub fn table() -> String {
        Self::ALL.iter().map(|s| format!("\t{:>3}  {}\n", s.code(), s.meaning())).collect()
    }
}

/// Why a run stopped: the status it ends with and one line for stderr.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The status.
    pub status: Status,
    /// The line; lower case, no full stop.
    pub message: String,
    cause: Option<EngineError>,
}

impl Failure {
    /// A failure with its message.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), cause: None }
    }

    /// Bad usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::Usage, message)
    }

    /// The failure as the engine would have reported it, for those who watch the job.
    pub fn into_error(self) -> EngineError {
        let Self { status, message, cause } = self;
        cause.unwrap_or(match status {
            Status::Usage => EngineError::InvalidUsage(message),
            Status::Unavailable => EngineError::Unavailable(message),
            Status::NoSuchCombination => EngineError::NoSuchCombination(message),
            Status::PeerDied => EngineError::PeerDied(message),
            _ => EngineError::Internal(message),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self { status: Status::of(&error), message: error.to_string(), cause: Some(error) }
    }
}

/// Result of a step of a run.
pub type Result<T> = std::result::Result<T, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_own_number_and_the_table_shows_all() {
        let mut codes: Vec<i32> = Status::ALL.iter().map(|s| s.code()).collect();
        assert!(codes.is_sorted());
        codes.dedup();
        assert_eq!(codes, [0, 1, 3, 4, 5, 6, 7, 8, 130, 143, 255]);
        assert_eq!(Status::table().lines().count(), codes.len());
    }

    #[test]
    fn engine_errors_map_to_their_status() {
        assert_eq!(Failure::from(EngineError::PeerDied("rank 3".into())).status, Status::PeerDied);
        assert_eq!(Failure::from(EngineError::Interrupted(15)).status.code(), 143);
        assert_eq!(Failure::from(EngineError::Interrupted(2)).status.code(), 130);
    }

    #[test]
    fn a_failure_keeps_its_status_as_an_engine_error() {
        for failure in
            [Failure::usage("x"), Failure::new(Status::Unavailable, "x"), Failure::new(Status::Internal, "x")]
        {
            let status = failure.status;
            assert_eq!(Status::of(&failure.into_error()), status);
        }
        let timeout =
            EngineError::Timeout { what: "rank 1".into(), limit: std::time::Duration::from_secs(5) };
        assert_eq!(Status::of(&Failure::from(timeout).into_error()), Status::Timeout);
    }
}
