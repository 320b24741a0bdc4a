//! Channels as the lines of a NCCL log: what graph readers and people already know.
//!
//! ```text
//! Pattern 4, crossNic 0, nChannels 1, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1
//!  0 : NET/0-0 GPU/0-f000 GPU/0-10000 NET/0-0
//! Channel 00/04 : 0 1 2 3
//! Ring 00 : 3 -> 0 -> 1
//! Tree 0 : -1 -> 0 -> 1/-1/-1
//! Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
//! ```

use crate::engine::graph::chains::{ARITY, RankTree};
use crate::engine::graph::connect::Connection;
use crate::engine::graph::{GraphId, SearchGraph};
use crate::engine::topo::{NodeType, System};

/// Longest ring line, before it is cut with dots.
const RING_LINE_BYTES: usize = 127;
/// Longest summary of a rank's trees.
const TREES_LINE_BYTES: usize = 1023;

/// A search result: its figures, then one line per channel. GPUs are named by host and bus id, NICs by host and number.
pub fn search(graph: &SearchGraph, system: &System) -> Vec<String> {
    let mut lines = vec![format!(
        "Pattern {}, crossNic {}, nChannels {}, bw {:.6}/{:.6}, type {}/{}, sameChannels {}",
        graph.pattern as i32,
        graph.cross_nic,
        graph.n_channels(),
        graph.bw_intra,
        graph.bw_inter,
        graph.type_intra,
        graph.type_inter,
        i32::from(graph.same_channels),
    )];
    for (index, channel) in graph.channels.iter().enumerate() {
        let mut line = format!("{index:2} :");
        let nic = |id: i64| format!(" NET/{}", host_and_id(id));
        line.extend(channel.inter.map(|[first, _]| nic(first)));
        let n_shown = if graph.id == GraphId::Nvls { 1 } else { channel.intra.len() };
        for &rank in &channel.intra[..n_shown.min(channel.intra.len())] {
            match system.index_of_rank(rank) {
                Some(gpu) => {
                    line.push_str(&format!(" GPU/{}", host_and_id(system.nodes(NodeType::Gpu)[gpu].id)))
                }
                None => line.push_str(&format!(" GPU/?{rank}")),
            }
        }
        line.extend(channel.inter.map(|[_, last]| nic(last)));
        lines.push(line);
    }
    lines
}

/// An id as `host-local`, both hexadecimal.
fn host_and_id(id: i64) -> String {
    format!("{:x}-{:x}", (id as u64) >> 56, id & 0x00ff_ffff_ffff_ffff)
}

/// Every channel's ring from rank 0 on; rank 0 logs these.
pub fn rings(connection: &Connection) -> Vec<String> {
    let n_channels = connection.channels.len();
    let width = (connection.n_ranks.max(1) - 1).to_string().len();
    let line = |index: usize| {
        let mut line = format!("Channel {index:02}/{n_channels:02} :");
        for rank in connection.channels[index].ring.order(0) {
            if line.len() > RING_LINE_BYTES {
                break;
            }
            line.push_str(&format!(" {rank:width$}"));
        }
        if line.len() > RING_LINE_BYTES {
            line.truncate(RING_LINE_BYTES - 3);
            line.push_str("...");
        }
        line
    };
    (0..n_channels).map(line).collect()
}

/// A rank's neighbours in every ring.
pub fn ring_neighbours(connection: &Connection, rank: usize) -> Vec<String> {
    let line = |(index, channel): (usize, &std::sync::Arc<crate::engine::graph::connect::Channel>)| {
        format!("Ring {index:02} : {} -> {rank} -> {}", channel.ring.prev[rank], channel.ring.next[rank])
    };
    connection.channels.iter().enumerate().map(line).collect()
}

/// A rank's links in every tree, one line per channel.
pub fn tree_links(connection: &Connection, rank: usize) -> Vec<String> {
    let line = |index: usize| {
        let tree = &connection.channels[index].tree;
        format!("Tree {index} : {} -> {rank} -> {}", or_none(tree.up[rank]), children(tree, rank))
    };
    (0..connection.channels.len()).map(line).collect()
}

/// A rank's links in all trees, in one line.
pub fn trees(connection: &Connection, rank: usize) -> String {
    let mut line = "Trees".to_string();
    for (index, channel) in connection.channels.iter().enumerate() {
        let up = or_none(channel.tree.up[rank]);
        line.push_str(&format!(" [{index}] {}->{rank}->{up}", children(&channel.tree, rank)));
    }
    line.truncate(TREES_LINE_BYTES);
    line
}

fn children(tree: &RankTree, rank: usize) -> String {
    let downs: [String; ARITY] = tree.down[rank].map(or_none);
    downs.join("/")
}

fn or_none(rank: Option<usize>) -> String {
    rank.map_or_else(|| "-1".to_string(), |rank| rank.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::graph::channels::{Facts, Params};
    use crate::engine::graph::connect::{Member, connect};
    use crate::engine::graph::{Channel, Pattern};
    use crate::engine::topo::PathType;

    fn connection(n_gpus: i32) -> Connection {
        let graph = |id, pattern| SearchGraph {
            id,
            pattern,
            cross_nic: 0,
            coll_net: false,
            min_channels: 1,
            max_channels: 1,
            bw_intra: 20.0,
            bw_inter: 20.0,
            latency_inter: 0.0,
            type_intra: PathType::Nvl,
            type_inter: PathType::Pix,
            same_channels: true,
            n_hops: 0,
            channels: vec![Channel { intra: (0..n_gpus).collect(), inter: None }],
        };
        let graphs = [graph(GraphId::Ring, Pattern::Ring), graph(GraphId::Tree, Pattern::BalancedTree)];
        let facts = Facts { min_compute_cap: 80, min_net_bw: 0.0 };
        connect(&[Member { graphs: &graphs, first_rank: 0 }], &facts, &Params::default()).expect("connects")
    }

    #[test]
    fn lines_have_the_known_forms() {
        let connection = connection(4);
        assert_eq!(rings(&connection), ["Channel 00/02 : 0 1 2 3", "Channel 01/02 : 0 1 2 3"]);
        assert_eq!(ring_neighbours(&connection, 0)[1], "Ring 01 : 3 -> 0 -> 1");
        assert_eq!(tree_links(&connection, 3)[0], "Tree 0 : 2 -> 3 -> -1/-1/-1");
        assert_eq!(trees(&connection, 0), "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1");
    }

    #[test]
    fn long_rings_are_padded_and_cut() {
        let line = &rings(&connection(72))[0];
        assert!(line.starts_with("Channel 00/02 :  0  1  2") && line.ends_with("..."), "{line}");
        assert_eq!(line.len(), RING_LINE_BYTES);
    }
}
