//! What a collective does, channel by channel: the request and the choice become parts, chunks and steps. Pure.
//!
//! ```text
//! request, choice -> partition (which channel takes which elements) -> chunk (elements per step) -> ChannelWork
//! ChannelWork -> one or two lanes -> cursor: steps, one after the other, made when asked for and never stored
//! ```
//!
//! A **step** is one primitive of the algorithm on one chunk: receive, combine with the own input, keep, send on. Steps with nothing to
//! move are yielded too: both ends of a connection count slots and must count the same ones, whatever the number of elements.
//!
//! A **lane** is a sequence of steps with fixed peers. A ring channel has one. A tree channel has two that run at the same time, one
//! up and one down; run one after the other they would wait for each other as soon as a message is longer than a FIFO.
//!
//! Every number here depends only on what is equal on all ranks, so the ranks agree without a message.

pub mod chunk;
pub mod partition;
pub mod ring;
pub mod tree;

#[cfg(test)]
mod simulate;

pub use chunk::Params;
pub use ring::Ring;
pub use tree::Tree;

use crate::engine::tuning::host::Choice;
use crate::engine::types::{Algorithm, Collective, DataType, Protocol};

/// Most peers on one side of a lane: children of a tree node.
pub const MAX_PEERS: usize = 3;

/// One call of a collective, as the ranks agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// Elements, counted as in the call: those of one rank's input.
    pub count: usize,
    /// Element type.
    pub dtype: DataType,
    /// Ranks of the communicator.
    pub n_ranks: usize,
    /// The rank the plan is for.
    pub rank: usize,
}

/// How the ranks are connected, as one rank sees it. Index = channel.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Rings.
    pub rings: Vec<Ring>,
    /// Trees.
    pub trees: Vec<Tree>,
    /// Hosts of the communicator.
    pub n_hosts: usize,
}

/// A collective cut into channels.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One work per channel that takes part, ascending.
    pub channels: Vec<ChannelWork>,
}

/// Elements a channel takes, counted from the start of one rank's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
}

/// What one channel of one rank does in one collective.
#[derive(Clone, Debug)]
pub struct ChannelWork {
    /// The channel.
    pub channel: usize,
    /// Format of the slots.
    pub protocol: Protocol,
    /// Bytes of an element as the plan counts them (1 for AllGather, which only moves bytes).
    pub elem_bytes: usize,
    /// Bytes of a FIFO slot on the wire.
    pub slot_bytes: usize,
    /// How a chunk is cut for synchronisation.
    pub slicing: Slicing,
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Shape {
    Ring(ring::Work),
    Tree(tree::Work),
}

/// How a chunk is cut into slices, each announced by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    /// Slices of every chunk; those that find nothing to move are empty but still announced.
    pub n_slices: usize,
    /// Slots a slice occupies.
    pub slice_steps: usize,
    /// Elements a slice has at least, while there are any.
    min_elem: usize,
}

impl Slicing {
    /// Elements per slice of a chunk of `n_elem` elements: an even cut on a 16-element grid, but not below a thirty-second of a slice.
    pub fn slice_elem(&self, n_elem: usize) -> usize {
        (16 * n_elem.div_ceil(16 * self.n_slices)).max(self.min_elem)
    }

    /// Slots a chunk occupies.
    pub fn chunk_steps(&self) -> usize {
        self.n_slices * self.slice_steps
    }
}

/// The ranks on one side of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    len: usize,
    ranks: [usize; MAX_PEERS],
}

impl Peers {
    /// Nobody.
    pub const NONE: Self = Self { len: 0, ranks: [0; MAX_PEERS] };

    /// These ranks, at most [`MAX_PEERS`].
    pub fn of(ranks: &[usize]) -> Self {
        assert!(
            ranks.len() <= MAX_PEERS,
            "a lane has at most {MAX_PEERS} peers on a side, not {}",
            ranks.len()
        );
        let mut peers = Self { len: ranks.len(), ..Self::NONE };
        peers.ranks[..ranks.len()].copy_from_slice(ranks);
        peers
    }

    /// The ranks.
    pub fn as_slice(&self) -> &[usize] {
        &self.ranks[..self.len]
    }
}

/// One primitive on one chunk.
///
/// Sources are the received slots (when `receives`) and the own input at `src`; they are reduced, or copied when there is only one. The
/// result goes to the result buffer at `dst`, to all peers sent to (when `sends`), or both.
/// A step that sends and has a `dst` sends a value that every receiver stores at that same offset of its own result buffer, so it may
/// be written there directly; every other send is an intermediate value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether a chunk arrives from every peer of the receiving side.
    pub receives: bool,
    /// Whether the result leaves to every peer of the sending side.
    pub sends: bool,
    /// Element offset in the own input.
    pub src: Option<usize>,
    /// Element offset in the own result.
    pub dst: Option<usize>,
    /// Elements to move; 0 is a step like any other.
    pub n_elem: usize,
    /// Whether the value becomes final here, for operators that end with a division.
    pub is_final: bool,
}

/// A sequence of steps with fixed peers.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Who sends to this rank here.
    pub recv: Peers,
    /// Whom this rank sends to here.
    pub send: Peers,
    steps: Cursor,
}

#[derive(Clone, Debug)]
enum Cursor {
    RingAllReduce(ring::AllReduce),
    RingAllGather(ring::AllGather),
    Tree(tree::Steps),
}

impl Iterator for Lane {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        match &mut self.steps {
            Cursor::RingAllReduce(steps) => steps.next(),
            Cursor::RingAllGather(steps) => steps.next(),
            Cursor::Tree(steps) => steps.next(),
        }
    }
}

impl ChannelWork {
    /// The lanes, to be run side by side.
    pub fn lanes(&self) -> [Option<Lane>; 2] {
        match &self.shape {
            Shape::Ring(work) => [Some(work.lane()), None],
            Shape::Tree(work) => work.lanes(),
        }
    }
}

/// The plan of one rank for one call. No elements, no channels.
///
/// # Panics
/// When the combination does not exist or the layout has no channel for it; both are the caller's to check before.
pub fn build(request: &Request, choice: &Choice, layout: &Layout, params: &Params) -> Plan {
    // AllGather never looks at elements: it moves bytes.
    let gather = request.collective == Collective::AllGather;
    let (count, elem_bytes) = match request.collective {
        Collective::AllGather => (request.count * request.dtype.size(), 1),
        _ => (request.count, request.dtype.size()),
    };
    if count == 0 {
        return Plan { channels: Vec::new() };
    }
    let tree = choice.algorithm == Algorithm::Tree;
    assert!(tree || choice.algorithm == Algorithm::Ring, "{} has no plan of steps", choice.algorithm);
    assert!(!(tree && gather), "there is no {} over a tree", request.collective);
    let limit = if tree { layout.trees.len() } else { layout.rings.len() };
    assert!(limit > 0, "invariant: a layout has a channel for every algorithm that may be chosen");

    let load = partition::Load {
        count,
        elem_bytes,
        traffic_per_byte: partition::traffic_per_byte(request.collective, request.n_ranks, choice.protocol),
        n_channels_max: choice.n_channels.max(1) as usize,
    };
    let share = partition::partition(&[load], limit).shares[0];
    let geometry = chunk::Geometry {
        algorithm: choice.algorithm,
        protocol: choice.protocol,
        n_ranks: request.n_ranks,
        n_hosts: layout.n_hosts.max(1),
    };
    let channels = (share.channel_lo..=share.channel_hi)
        .map(|channel| {
            let part = share.part(channel);
            let chunk = geometry.chunk(params, part.count * elem_bytes);
            let chunk_elem = chunk.bytes / elem_bytes;
            let shape = if tree {
                Shape::Tree(tree::Work::new(&layout.trees[channel], part, chunk_elem))
            } else {
                let pass = ring::Pass { part, chunk_elem, elem_bytes, count };
                Shape::Ring(ring::Work::new(&layout.rings[channel], pass, gather))
            };
            let slicing = Slicing {
                n_slices: chunk.chunk_steps / chunk.slice_steps,
                slice_steps: chunk.slice_steps,
                min_elem: chunk.slot_bytes * chunk.slice_steps / 32 / elem_bytes,
            };
            let protocol = choice.protocol;
            ChannelWork { channel, protocol, elem_bytes, slot_bytes: chunk.slot_bytes, slicing, shape }
        })
        .collect();
    Plan { channels }
}
