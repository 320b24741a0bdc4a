//! The engine. Layers, lowest first; each may import only what stands before it (table in `tests/tidy.rs`):
//!
//! base: [`types`], [`error`], [`sync`], [`log`] ·
//! pure: `topo` → `graph` → `tuning` → `plan` ·
//! effects: `device`, `bootstrap` → `transport` → `proxy` → `dispatch`; `watch` ·
//! assembly: `comm`.

pub mod bootstrap;
pub mod comm;
pub mod device;
pub mod error;
pub mod graph;
pub mod log;
pub mod plan;
pub mod sync;
pub mod topo;
pub mod transport;
pub mod tuning;
pub mod types;
pub mod watch;
