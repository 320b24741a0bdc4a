//! The memory of all ranks as FIFOs use it: raw addresses in this process, by rank.

use std::sync::Arc;

use super::fifo::FifoMemory;
use super::region::{Mapping, Region};
use crate::engine::error::Result;

/// Segments and arenas of all ranks, this rank's own among them.
#[derive(Debug)]
pub struct Reachable {
    own: Arc<Region>,
    /// Segment and, with P2P, arena of each rank.
    ranks: Vec<(Arc<Mapping>, Option<Arc<Mapping>>)>,
    table_offset: usize,
}

impl Reachable {
    /// Memory in which connection tables stand at `table_offset` of every segment.
    pub fn new(
        own: Arc<Region>,
        ranks: Vec<(Arc<Mapping>, Option<Arc<Mapping>>)>,
        table_offset: usize,
    ) -> Self {
        Self { own, ranks, table_offset }
    }
}

impl FifoMemory for Reachable {
    fn segment(&self, rank: usize) -> Option<*mut u8> {
        self.ranks.get(rank).map(|(segment, _)| segment.base())
    }

    fn arena(&self, rank: usize) -> Option<*mut u8> {
        self.ranks.get(rank)?.1.as_ref().map(|arena| arena.base())
    }

    fn table_offset(&self) -> usize {
        self.table_offset
    }

    fn alloc(&self, bytes: usize) -> Result<usize> {
        self.own.alloc(bytes)
    }

    fn populate(&self, rank: usize, offset: usize, bytes: usize) {
        if let Some((segment, _)) = self.ranks.get(rank) {
            segment.populate(offset, bytes);
        }
    }
}
