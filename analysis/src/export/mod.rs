//! Rules from a recording, as files that libraries read.
//!
//! [`rules`] decides; one module per consumer writes its format and reads it back the way the consumer's own parser does, strictness and
//! traps included. What comes back must equal what was meant, or nothing is written.

pub mod nccl;
pub mod ncclx;
pub mod ompi;
pub mod rules;
pub mod ucc;

pub use self::rules::{Derived, Limits, Rule, Scope, derive};

/// A file, and what somebody who uses it should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The file.
    pub text: String,
    /// Sentences.
    pub notes: Vec<String>,
}

/// A file that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The consumer has no word for something.
    #[error("{0}")]
    NoWord(String),
    /// What was written reads back as something else: a bug here or a trap in the format.
    #[error("the file reads back differently: {0}")]
    Mismatch(String),
}
