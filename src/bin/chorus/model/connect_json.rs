//! Rings, trees and heads across hosts as JSON. No rank is -1; numbers from the number of ranks on are the network and the switch.

use serde::ser::{Serialize, SerializeMap, Serializer};

use chorus::engine::graph::connect::{Channel, Connection};
use chorus::engine::graph::heads::{Direct, Nvls};
use chorus::engine::graph::p2p::P2pChannels;

/// Slots of the list of heads in the library's links.
const DIRECT_SLOTS: usize = 7;
/// Slots of a rank's children.
const TREE_SLOTS: usize = 3;

/// A connection in the schema of the model.
pub(super) struct Connected<'a>(pub(super) &'a Connection, pub(super) P2pChannels);

impl Serialize for Connected<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let connection = self.0;
        let n_channels = connection.channels.len();
        let nvls_channels = connection.nvls.as_ref().map_or(0, |nvls| nvls.shape.n_channels);
        let lanes: Vec<Lane<'_>> = connection
            .channels
            .iter()
            .enumerate()
            .map(|(index, channel)| Lane {
                connection,
                channel,
                parity: (index < nvls_channels).then_some(index % 2),
            })
            .collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("nRanks", &connection.n_ranks)?;
        map.serialize_entry("nNodes", &connection.n_hosts())?;
        map.serialize_entry("nChannels", &n_channels)?;
        map.serialize_entry("collChannels", &n_channels)?;
        map.serialize_entry("nvlsChannels", &nvls_channels)?;
        map.serialize_entry("p2pnChannels", &self.1.n_channels)?;
        map.serialize_entry("p2pnChannelsPerPeer", &self.1.per_peer)?;
        map.serialize_entry("rankToNode", &connection.rank_to_host)?;
        map.serialize_entry("channels", &lanes)?;
        map.end()
    }
}

/// One channel. `parity` tells which in-switch tree it carries.
struct Lane<'a> {
    connection: &'a Connection,
    channel: &'a Channel,
    parity: Option<usize>,
}

impl Serialize for Lane<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (ring, tree) = (&self.channel.ring, &self.channel.tree);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ring", &ring.order(0))?;
        map.serialize_entry("ringPrev", &ring.prev)?;
        map.serialize_entry("ringNext", &ring.next)?;
        map.serialize_entry("treeDepth", &self.connection.tree_depth)?;
        map.serialize_entry("treeUp", &Seq(|| tree.up.iter().map(|&up| number(up))))?;
        map.serialize_entry("treeDown", &Seq(|| tree.down.iter().map(|down| down.map(number))))?;
        if let Some(nvls) = self.connection.nvls.as_ref() {
            let link = |links| Switch { links, parity: self.parity };
            map.serialize_entry("nvls", &Seq(|| nvls.links.iter().map(link)))?;
        }
        if !self.channel.chain.is_empty() {
            let chain = || self.channel.chain.iter().map(|&(up, down)| [number(up), number(down)]);
            map.serialize_entry("collnetChain", &Seq(chain))?;
        }
        if let Some(collnet) = self.connection.collnet.as_ref().filter(|collnet| !collnet.direct.is_empty()) {
            map.serialize_entry("collnetDirect", &Seq(|| collnet.direct.iter().map(Heads)))?;
        }
        map.end()
    }
}

fn number(rank: Option<usize>) -> i64 {
    rank.map_or(-1, |rank| rank as i64)
}

/// A list made while it is written.
struct Seq<F>(F);

impl<F, I> Serialize for Seq<F>
where
    F: Fn() -> I,
    I: Iterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// Links of in-network reduction.
struct Heads<'a>(&'a Direct);

impl Serialize for Heads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let links = self.0;
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("headRank", &number(links.head))?;
        map.serialize_entry("nHeads", &links.heads.len())?;
        map.serialize_entry("out", &number(links.out))?;
        map.serialize_entry("shift", &links.shift)?;
        map.serialize_entry("up", &padded(&links.up, DIRECT_SLOTS))?;
        map.serialize_entry("down", &padded(&links.down, DIRECT_SLOTS))?;
        map.end()
    }
}

/// Links of in-switch reduction; channels beyond its own carry none.
struct Switch<'a> {
    links: &'a Nvls,
    parity: Option<usize>,
}

impl Serialize for Switch<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(5))?;
        let Some(parity) = self.parity else {
            for key in ["nHeads", "headRank", "down", "treeUp"] {
                map.serialize_entry(key, &0)?;
            }
            map.serialize_entry("treeDown", &[0; TREE_SLOTS])?;
            return map.end();
        };
        map.serialize_entry("nHeads", &self.links.n_heads)?;
        map.serialize_entry("headRank", &number(self.links.head))?;
        map.serialize_entry("down", &self.links.down)?;
        map.serialize_entry("treeUp", &number(self.links.tree_up[parity]))?;
        map.serialize_entry("treeDown", &padded(&self.links.tree_down[parity], TREE_SLOTS))?;
        map.end()
    }
}

/// A list filled up with -1.
fn padded(ranks: &[usize], slots: usize) -> Vec<i64> {
    let mut list: Vec<i64> = ranks.iter().map(|&rank| rank as i64).collect();
    list.resize(list.len().max(slots), -1);
    list
}
