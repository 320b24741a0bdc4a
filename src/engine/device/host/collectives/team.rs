//! All ranks of one machine as one of them sees them, and the two counters they advance together.

use std::sync::Arc;

use crate::engine::device::host::control::{Bell, Claims, Control};
use crate::engine::device::host::reduce::Source;
use crate::engine::device::host::region::Mapping;
use crate::engine::device::host::wait::{Policy, ring};

/// One rank as seen from another.
#[derive(Debug)]
pub struct Peer {
    /// Its control pages.
    pub control: Control,
    /// Its arena, when this rank may load from and store to it.
    pub arena: Option<Arc<Mapping>>,
    /// Arena bytes whose pages are already in this process's page table.
    pub populated: usize,
}

/// The ranks of one machine, in rank order.
#[derive(Debug)]
pub struct Team {
    /// Position of this rank.
    pub me: usize,
    /// Everybody, this rank included.
    pub peers: Vec<Peer>,
    /// How this machine's ranks wait.
    pub policy: Policy,
    /// Symmetric operations started so far; equal on all ranks once they have started the same operation.
    pub(super) seq: u64,
    /// Two-shot chunks of each share in all operations started so far.
    pub(super) chunks: u64,
    /// Room for the sources of one reduction.
    pub(super) sources: Vec<Source>,
    /// Room for its destinations.
    pub(super) destinations: Vec<*mut u8>,
}

// SAFETY: the destination pointers are scratch that is filled and used within one call.
unsafe impl Send for Team {}

impl Team {
    /// The team of `peers`, of which this rank is number `me`.
    pub fn new(me: usize, peers: Vec<Peer>, policy: Policy) -> Self {
        let n = peers.len();
        Self {
            me,
            peers,
            policy,
            seq: 0,
            chunks: 0,
            sources: Vec::with_capacity(n),
            destinations: Vec::with_capacity(n),
        }
    }

    /// Number of ranks.
    pub fn n_ranks(&self) -> usize {
        self.peers.len()
    }

    /// Whether every rank's arena can be loaded from and stored to.
    pub fn is_peer_mapped(&self) -> bool {
        self.peers.iter().all(|peer| peer.arena.is_some())
    }

    /// Where sleepers are woken.
    pub fn bell(&self) -> &Bell {
        self.peers[0].control.bell()
    }

    /// Who takes the chunks of a share: the rank of that number lends its counters.
    pub(super) fn claims(&self, share: usize) -> &Claims {
        self.peers[share].control.claims()
    }

    /// Wakes who sleeps.
    #[inline]
    pub fn ring(&self) {
        ring(&self.policy, self.bell());
    }

    /// The first peer from `from` on that has not posted operation `seq`.
    #[inline]
    pub(super) fn first_missing(&self, seq: u64, from: usize) -> Option<usize> {
        (from..self.peers.len()).find(|&p| !self.peers[p].control.post(seq).is_posted(seq))
    }

    /// The first peer from `from` on that still may read inputs of operation `seq`.
    #[inline]
    pub(super) fn first_reader(&self, seq: u64, from: usize) -> Option<usize> {
        (from..self.peers.len()).find(|&p| !self.peers[p].control.reads().has_read(seq))
    }

    /// Enters the pages of the first `len` arena bytes of a peer in this process's page table, once.
    pub(super) fn populate(&mut self, peer: usize, len: usize) {
        let peer = &mut self.peers[peer];
        if len > peer.populated {
            if let Some(arena) = &peer.arena {
                arena.populate(peer.populated, len - peer.populated);
            }
            peer.populated = len;
        }
    }
}
