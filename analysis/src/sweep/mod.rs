//! Sweeps: an experiment matrix becomes launches, launches become rows, and an interrupted sweep goes on where it stopped.
//!
//! Rows are only ever appended. A launch counts when the manifest says `complete`, and that is written after its rows were looked at:
//! all there, no wrong element, and what ran is what was asked. Everything else is repeated under a new run id.

pub mod folder;
pub mod matrix;
pub mod predict;
pub mod preflight;
pub mod retest;
pub mod runner;

pub use self::matrix::{Matrix, Setup};
pub use self::runner::{Event, Outcome, Request, Sweep};

/// The sweep's rows.
pub const ROWS: &str = "raw_measurements.csv";
