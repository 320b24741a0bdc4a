//! The host device: a rank plays one GPU on the CPUs of this machine.
//!
//! From the bottom: [`region`] shared memory · [`control`] the words in it · [`wait`] how to wait · [`reduce`] arithmetic ·
//! [`fifo`], [`prims`], [`cta`], [`classic`] plans through FIFOs · [`collectives`] symmetric memory · [`rank`] the queue ·
//! [`process`] all ranks of a process.

#[cfg(not(loom))]
pub mod classic;
#[cfg(not(loom))]
pub mod collectives;
pub mod control;
#[cfg(not(loom))]
pub mod cta;
#[cfg(not(loom))]
pub mod event;
pub mod fifo;
#[cfg(not(loom))]
pub mod machine;
#[cfg(loom)]
#[cfg(test)]
mod model;
#[cfg(not(loom))]
mod prims;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod rank;
#[cfg(not(loom))]
pub mod reachable;
#[cfg(not(loom))]
pub mod reduce;
#[cfg(not(loom))]
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
