//! The benchmark: nccl-tests' command line, table, data checks and exit statuses over the engine or the MPI library.
//!
//! [`cli`] makes a plan, `run` sets up the job, `measure` times and checks rows, [`report`] shows them.

pub mod bandwidth;
pub mod cli;
pub mod exit;
pub mod report;
pub mod split;
pub mod statistic;
pub mod sweep;
pub mod verify;

/// The release of nccl-tests whose output this is.
pub const NCCL_TESTS_VERSION: &str = "2.19.6";

/// The code of the NCCL release the engine is modelled on (2.30.7), as the version line shows it.
pub const LIBRARY_CODE: u32 = 23007;
