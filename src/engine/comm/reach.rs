//! Reaching every rank's memory by the first transport that links. Descriptors go over sockets or `/proc`; where neither leads
//! to a rank, its segment moves into a named file, and its buffers stay its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::init::{OwnMemory, SEGMENT_RESERVE, agree, with_control_pages};
use super::registry;
use crate::engine::bootstrap::handoff::{HandoffError, Offered};
use crate::engine::bootstrap::{Bootstrap, Handoff};
use crate::engine::device::host::region::{Mapping, Region};
use crate::engine::error::{Error, Result};
use crate::engine::log::{self, Subsys};
use crate::engine::transport::{
    PeerInfo, Reach, TransportKind, allow_p2p, is_same_user, p2p, share_kernel, shm,
};

type Taken = Vec<std::result::Result<OwnedFd, HandoffError>>;

/// Reaches every rank's memory, or says who cannot be reached. Called by all ranks together.
pub(super) fn reach_all(
    bootstrap: &mut Bootstrap,
    own: &mut OwnMemory,
    peers: &[PeerInfo],
    rank: usize,
) -> Result<Vec<Reach>> {
    let me = &peers[rank];
    let magic = bootstrap.magic();
    let foreign: Vec<usize> =
        peers.iter().filter(|p| p.process != me.process && share_kernel(p, me)).map(|p| p.rank).collect();
    let segments = hand_segments(bootstrap, own, &foreign, rank)?;
    registry::publish(magic, rank, &own.segment, &own.arena);
    let mapped: Vec<usize> = foreign.iter().copied().filter(|&p| allow_p2p(&peers[p], me)).collect();
    // The barrier in here also lets ranks of one process find each other's memory below.
    let arenas = Handoff::share(bootstrap, Offered { fd: own.arena.fd(), path: None }, &mapped)?;
    let mut segments = foreign.into_iter().zip(segments);
    let mut arenas = mapped.into_iter().zip(arenas).peekable();
    let mut reach = Vec::with_capacity(peers.len());
    for peer in peers {
        if peer.process == me.process {
            let (segment, arena) = registry::find(magic, peer.rank)?;
            let arena = (me.p2p && peer.p2p || peer.rank == rank).then_some(arena);
            let kind = if arena.is_some() { TransportKind::P2pDirect } else { TransportKind::Shm };
            reach.push(Reach { kind, segment, arena });
            continue;
        }
        if !share_kernel(peer, me) {
            return Err(no_transport(me, peer, "they run on different machines, or NCCL_SHM_DISABLE is set"));
        }
        let (_, segment) = segments.next().expect("invariant: an answer for every peer of this machine");
        let segment =
            segment.map_err(|error| no_transport(me, peer, &format!("no memory is shared: {error}")))?;
        let segment = shm::map(peer, segment.as_fd())?;
        let arena = arenas.next_if(|(of, _)| *of == peer.rank);
        let arena = arena.and_then(|(_, arena)| map_arena(peer, arena)).or_else(|| explain_refusal(me, peer));
        let kind = if arena.is_some() { TransportKind::P2pMapped } else { TransportKind::Shm };
        reach.push(Reach { kind, segment, arena });
    }
    Ok(reach)
}

/// The segments of `foreign`. Ranks whose segment somebody cannot be handed move it into a named file and offer it once more.
fn hand_segments(
    bootstrap: &mut Bootstrap,
    own: &mut OwnMemory,
    foreign: &[usize],
    rank: usize,
) -> Result<Taken> {
    let mut taken = Handoff::share(bootstrap, Offered { fd: own.segment.fd(), path: None }, foreign)?;
    let missing: Vec<usize> =
        foreign.iter().zip(&taken).filter(|(_, fd)| fd.is_err()).map(|(&peer, _)| peer).collect();
    if agree(bootstrap, missing.is_empty())? {
        return Ok(taken);
    }
    let missing: Vec<u8> = missing.iter().flat_map(|&peer| (peer as u32).to_le_bytes()).collect();
    let everybodys = bootstrap.all_gather(&missing)?.concat();
    let moved: Vec<usize> = everybodys
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("invariant: four bytes")) as usize)
        .collect();
    let file = if moved.contains(&rank) { move_segment(own, bootstrap.n_ranks(), rank) } else { None };
    let path = file.as_ref().map(shm::SegmentFile::path);
    let again: Vec<usize> = foreign.iter().copied().filter(|peer| moved.contains(peer)).collect();
    let offered = Offered { fd: own.segment.fd(), path };
    let second = Handoff::share(bootstrap, offered, &again)?;
    for (peer, fd) in again.iter().zip(second) {
        let at = foreign.iter().position(|p| p == peer).expect("invariant: taken from this list");
        taken[at] = fd;
    }
    Ok(taken)
}

/// Puts the segment into a named file. Where that fails the segment stays: whoever cannot reach it says so.
fn move_segment(own: &mut OwnMemory, n_ranks: usize, rank: usize) -> Option<shm::SegmentFile> {
    let moved = shm::SegmentFile::create().and_then(|(file, fd)| {
        let region = Region::over(fd, SEGMENT_RESERVE)?;
        own.segment = with_control_pages(region, n_ranks)?;
        Ok(file)
    });
    let text = match &moved {
        Ok(file) => format!(
            "segment of rank {rank} moves to {}: a peer could not be handed its descriptor",
            file.path()
        ),
        Err(error) => format!(
            "segment of rank {rank} finds no file for peers that cannot be handed its descriptor: {error}"
        ),
    };
    log::info(Subsys::INIT | Subsys::SHM, format_args!("{text}"));
    moved.ok()
}

/// A peer's arena, or nothing with a line that says why: then data go through FIFO slots.
fn map_arena(peer: &PeerInfo, arena: std::result::Result<OwnedFd, HandoffError>) -> Option<Arc<Mapping>> {
    let why = match arena {
        Ok(fd) => p2p::map(peer, fd.as_fd()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    why.inspect_err(|why| p2p_is_off(peer, why)).ok()
}

/// Says why P2P was not tried, where that is not what somebody asked for.
fn explain_refusal(me: &PeerInfo, peer: &PeerInfo) -> Option<Arc<Mapping>> {
    if !is_same_user(me, peer) {
        p2p_is_off(peer, &format!("it runs as user {}, this rank as user {}", peer.user, me.user));
    }
    None
}

fn p2p_is_off(peer: &PeerInfo, why: &str) {
    log::info(Subsys::INIT | Subsys::P2P, format_args!("P2P to rank {} is off, using SHM: {why}", peer.rank));
}

fn no_transport(me: &PeerInfo, peer: &PeerInfo, why: &str) -> Error {
    log::warn(format_args!("No transport found for rank {}[0] -> rank {}[0]", me.rank, peer.rank));
    Error::Unavailable(format!(
        "no transport found for rank {} ({}) -> rank {} ({}): {why}",
        me.rank, me.host_name, peer.rank, peer.host_name
    ))
}
