//! Chorus: collective communication built the way NCCL is built, and the benchmark that measures it.
//!
//! Read the modules in this order; ARCHITECTURE.md is the map.

pub mod engine;
pub mod env;
pub mod fault;
pub mod perf;
pub mod rendezvous;
pub mod units;

pub use engine::bootstrap::UniqueId;
pub use engine::comm::buffer::{Buffer, Span};
pub use engine::comm::group::{group_end, group_start};
pub use engine::comm::stream::{Graph, Stream};
pub use engine::comm::{CommInit, Communicator, MemoryUse, RegHandle, Registration, Settings, device_name};
pub use engine::device::host::event::Event;
pub use engine::error::{Error, Result};
pub use engine::tuning::host::{Choice, Forced};
pub use engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};
pub use engine::watch;
