//! The benchmark: nccl-tests' command line, table, data checks and exit statuses over the engine or the MPI library.
//!
//! [`cli`] makes a plan, [`run`] sets up the [`job`], [`measure`] times and checks rows over a [`backend`], [`report`] shows them.

pub mod backend;
pub mod bandwidth;
pub mod cli;
pub mod crew;
pub mod environment;
pub mod exit;
mod fatal;
pub mod job;
pub mod measure;
pub mod memory;
pub mod plan;
pub mod report;
pub mod run;
pub mod split;
pub mod statistic;
pub mod sweep;
pub mod verify;

pub use run::main;

/// The release of nccl-tests whose output this is.
pub const NCCL_TESTS_VERSION: &str = "2.19.6";

/// The code of the NCCL release the engine is modelled on (2.30.7), as the version line shows it.
pub const LIBRARY_CODE: u32 = 23007;
