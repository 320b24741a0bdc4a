//! Chorus: collective communication built the way NCCL is built, and the benchmark that measures it.
//!
//! Read the modules in this order; ARCHITECTURE.md is the map. Under `--cfg loom` only the pure and the lock-free part exists.

pub mod engine;
pub mod env;
#[cfg(not(loom))]
pub mod fault;
#[cfg(not(loom))]
pub mod perf;
#[cfg(not(loom))]
pub mod rendezvous;
pub mod units;

#[cfg(not(loom))]
pub use engine::bootstrap::UniqueId;
#[cfg(not(loom))]
pub use engine::comm::buffer::{Buffer, Span};
#[cfg(not(loom))]
pub use engine::comm::group::{group_end, group_start};
#[cfg(not(loom))]
pub use engine::comm::stream::{Graph, Stream};
#[cfg(not(loom))]
pub use engine::comm::{
    CommInit, Communicator, CtaPolicy, MemoryUse, RegHandle, Registration, Settings, device_name,
};
#[cfg(not(loom))]
pub use engine::device::host::event::Event;
#[cfg(not(loom))]
pub use engine::device::host::reduce::SliceReducer;
pub use engine::error::{Error, Result};
pub use engine::tuning::host::{Choice, Forced};
pub use engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};
#[cfg(not(loom))]
pub use engine::watch;
