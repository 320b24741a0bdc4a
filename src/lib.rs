//! Chorus: collective communication built the way NCCL is built, and the benchmark that measures it.
//!
//! Read the modules in this order; ARCHITECTURE.md is the map.

pub mod engine;
pub mod env;
pub mod perf;
pub mod rendezvous;
pub mod units;
