//! The engine. Layers, lowest first; each may import only what stands before it (table in `tests/tidy.rs`):
//!
//! base: [`types`], [`error`], [`sync`], [`log`] ·
//! pure: `topo` → `graph` → `tuning` → `plan` ·
//! effects: `device`, `bootstrap` → `transport` → `proxy` → `dispatch`; `watch` ·
//! assembly: `comm`.

#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod comm;
pub mod device;
pub mod error;
pub mod graph;
#[cfg(not(loom))]
pub mod log;
pub mod plan;
pub mod sync;
pub mod topo;
#[cfg(not(loom))]
pub mod transport;
pub mod tuning;
pub mod types;
#[cfg(not(loom))]
pub mod watch;
