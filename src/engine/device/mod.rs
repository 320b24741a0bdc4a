//! The seam to what executes plans. [`host`] runs them on CPUs.

pub mod host;
