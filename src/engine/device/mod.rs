//! The seam to what executes plans. [`host`] runs them on CPUs; [`cuda`] only looks: it says which GPUs there are.

#[cfg(not(loom))]
pub mod cuda;
pub mod host;
