//! One row of a record: one cycle of one size of one placement. Column order and names are the file format.
//!
//! A record is a folder: rows in CSV files that only ever grow ([`writer`]), and a `manifest.json` beside them ([`manifest`]) that
//! says which launches came to their end. [`reader`] streams rows back and names every line that it cannot use.

pub mod machine;
pub mod manifest;
pub mod reader;
pub mod tuned;
pub mod writer;

use serde::{Deserialize, Serialize};

pub use self::machine::Machine;
pub use self::manifest::{Manifest, Run, RunStatus};
pub use self::reader::{Problem, RowReader, RowRef};
pub use self::tuned::Tuned;
pub use self::writer::RowWriter;

/// Column names in file order.
pub const COLUMNS: [&str; 23] = [
    "run_id",
    "repeat",
    "cycle",
    "timestamp",
    "backend",
    "device",
    "n_hosts",
    "n_ranks",
    "collective",
    "algorithm",
    "protocol",
    "n_channels",
    "dtype",
    "redop",
    "root",
    "bytes",
    "count",
    "placement",
    "iterations",
    "time_us",
    "algbw",
    "busbw",
    "wrong",
];

/// Where the result went relative to the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Separate send and receive buffers.
    OutOfPlace,
    /// The send pointer lies in the receive buffer.
    InPlace,
}

impl Placement {
    /// The word records hold.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out_of_place",
            Self::InPlace => "in_place",
        }
    }

    /// The placement of that name.
    pub fn from_name(word: &str) -> Option<Self> {
        match word {
            "out_of_place" => Some(Self::OutOfPlace),
            "in_place" => Some(Self::InPlace),
            _ => None,
        }
    }
}

/// A measured row. `algorithm`, `protocol` and `n_channels` say what ran, not what was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Identifies one launch (one fresh process start).
    pub run_id: String,
    /// Process repeat within a sweep, from 0.
    pub repeat: u32,
    /// Cycle within the launch (`-N`), from 0.
    pub cycle: u32,
    /// RFC 3339 time the row was written.
    pub timestamp: String,
    /// `engine`, `mpi` or `nccl`.
    pub backend: String,
    /// Device kind and name.
    pub device: String,
    /// Hosts the ranks believe they are on.
    pub n_hosts: u32,
    /// Ranks in the group that was timed.
    pub n_ranks: u32,
    /// `all_reduce`, `all_gather`, …
    pub collective: String,
    /// Lower-case algorithm name that ran.
    pub algorithm: String,
    /// Lower-case protocol name that ran.
    pub protocol: String,
    /// Channels that ran.
    pub n_channels: u32,
    /// nccl-tests' spelling of the element type.
    pub dtype: String,
    /// nccl-tests' spelling of the operator, or `none`.
    pub redop: String,
    /// Root rank, -1 when there is none.
    pub root: i32,
    /// The `size` column, bytes.
    pub bytes: u64,
    /// The `count` column, elements.
    pub count: u64,
    /// Out of place or in place.
    pub placement: Placement,
    /// Timed iterations behind `time_us`.
    pub iterations: u32,
    /// Time of one operation, microseconds.
    pub time_us: f64,
    /// Algorithm bandwidth, 10^9 bytes/s.
    pub algbw: f64,
    /// Bus bandwidth, 10^9 bytes/s.
    pub busbw: f64,
    /// Wrong elements, or nothing when unchecked.
    pub wrong: Option<u64>,
}
