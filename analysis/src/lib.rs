//! Records of measurements and everything that reads them. Depends on nothing else of ours: `chorus` writes with these types,
//! so writer and reader cannot drift.

pub mod compare;
pub mod crossover;
pub mod dataset;
pub mod export;
pub mod format;
pub mod graph_log;
pub mod groups;
pub mod history;
pub mod import;
pub mod launch;
pub mod plot;
pub mod record;
pub mod report;
pub mod ruleset;
pub mod stats;
pub mod sweep;
pub mod verify;
