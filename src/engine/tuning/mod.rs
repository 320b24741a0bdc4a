//! Which algorithm, protocol, channels and threads a call gets. [`filter`] holds what the user allows.

pub mod constants;
pub mod filter;
pub mod host;
