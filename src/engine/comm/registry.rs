//! Ranks of one process find each other's memory here instead of mapping it again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::engine::device::host::region::{Mapping, Region};
use crate::engine::error::{Error, Result};

type Entry = (Arc<Mapping>, Arc<Mapping>);

static RANKS: LazyLock<Mutex<HashMap<(u64, usize), Entry>>> = LazyLock::new(Mutex::default);

/// Offers a rank's segment and arena to the other ranks of this process.
pub(super) fn publish(hash: u64, rank: usize, segment: &Region, arena: &Region) {
    let entry = (segment.mapping().clone(), arena.mapping().clone());
    RANKS.lock().unwrap_or_else(PoisonError::into_inner).insert((hash, rank), entry);
}

/// The segment and arena of a rank of this process.
pub(super) fn find(hash: u64, rank: usize) -> Result<Entry> {
    let ranks = RANKS.lock().unwrap_or_else(PoisonError::into_inner);
    ranks
        .get(&(hash, rank))
        .cloned()
        .ok_or_else(|| Error::Internal(format!("rank {rank} says it lives in this process and does not")))
}

/// Takes the offer back once everybody has found what it needs.
pub(super) fn withdraw(hash: u64, rank: usize) {
    RANKS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(hash, rank));
}
