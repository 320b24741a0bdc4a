//! Which algorithm, protocol, channels and threads a call gets.
//!
//! ```text
//! graphs' figures ─► model (latency, bandwidth, exclusions) ─► cost table of a call ─► tuner file ─► cheapest ─► channels, threads
//!                       ▲ constants                 filter (NCCL_ALGO, NCCL_PROTO) excludes in the model
//! ```
//!
//! [`model`] and [`choose`] are NCCL's own model, for CUDA devices and for comparison; [`host`] is the model of the host device;
//! [`filter`] and [`tuner`] serve both.

pub mod choose;
pub mod constants;
pub mod exclusion;
pub mod filter;
pub mod host;
pub mod model;
pub mod params;
pub mod tuner;

pub use self::choose::{Choice, NothingLeft, Request, UNAVAILABLE};
pub use self::exclusion::Exclusion;
pub use self::filter::Filter;
pub use self::model::{Facts, Model};
pub use self::params::Params;
