//! The host device: a rank plays one GPU on the CPUs of this machine.
//!
//! From the bottom: [`region`] shared memory · [`control`] the words in it · [`wait`] how to wait · [`reduce`] arithmetic ·
//! [`fifo`], [`prims`], [`cta`], [`classic`] plans through FIFOs · [`collectives`] symmetric memory · [`rank`] the queue ·
//! [`process`] all ranks of a process.

pub mod classic;
pub mod collectives;
pub mod control;
pub mod cta;
pub mod event;
pub mod fifo;
pub mod machine;
mod prims;
pub mod process;
pub mod rank;
pub mod reachable;
pub mod reduce;
pub mod region;
pub mod wait;

/// How far a poll came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The operation is complete on this rank.
    Done,
    /// Something moved; poll again.
    Advanced,
    /// Nothing can move until a peer does something.
    Blocked {
        /// The peer, when it is one.
        peer: Option<usize>,
    },
}
