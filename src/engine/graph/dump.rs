//! Graphs as files: what a search found, written for people and other programs, and read back instead of searching.
//!
//! ```text
//! <graphs version="1">
//!   <graph id="0" pattern="4" … nchannels="1" …>
//!     <channel> <net dev="0"/> <gpu dev="0" rank="0"/> <gpu dev="0x1" rank="1"/> <net dev="0"/> </channel>
//! ```

use crate::engine::graph::{Channel, GraphId, Pattern, SearchGraph};
use crate::engine::topo::xml::Element;
use crate::engine::topo::{Error, NodeType, Params, PathType, System};

/// All five graphs as a file's text; one that was not searched has no channels.
pub fn to_text(system: &System, graphs: &[SearchGraph]) -> String {
    const ORDER: [(GraphId, Pattern); 5] = [
        (GraphId::Ring, Pattern::Ring),
        (GraphId::Tree, Pattern::BalancedTree),
        (GraphId::CollNetDirect, Pattern::CollNetDirect),
        (GraphId::CollNetChain, Pattern::Tree),
        (GraphId::Nvls, Pattern::Nvls),
    ];
    let mut root = Element::new("graphs").with("version", 1);
    for (id, pattern) in ORDER {
        let element = match graphs.iter().find(|graph| graph.id == id) {
            Some(graph) => graph_element(system, graph),
            None => header(id, pattern, &Header::default()),
        };
        root.children.push(element);
    }
    root.to_text()
}

/// The attributes of a graph besides its id and pattern.
struct Header {
    cross_nic: i32,
    n_channels: usize,
    rates: [f32; 3],
    kinds: [PathType; 2],
    same_channels: bool,
}

impl Default for Header {
    fn default() -> Self {
        Self { cross_nic: 0, n_channels: 0, rates: [0.0; 3], kinds: [PathType::Loc; 2], same_channels: false }
    }
}

fn header(id: GraphId, pattern: Pattern, header: &Header) -> Element {
    Element::new("graph")
        .with("id", id as i32)
        .with("pattern", pattern as i32)
        .with("crossnic", header.cross_nic)
        .with("nchannels", header.n_channels)
        .with("speedintra", general(header.rates[0]))
        .with("speedinter", general(header.rates[1]))
        .with("latencyinter", general(header.rates[2]))
        .with("typeintra", header.kinds[0])
        .with("typeinter", header.kinds[1])
        .with("samechannels", u8::from(header.same_channels))
}

fn graph_element(system: &System, graph: &SearchGraph) -> Element {
    let head = Header {
        cross_nic: graph.cross_nic,
        n_channels: graph.n_channels(),
        rates: [graph.bw_intra, graph.bw_inter, graph.latency_inter],
        kinds: [graph.type_intra, graph.type_inter],
        same_channels: graph.same_channels,
    };
    let mut element = header(graph.id, graph.pattern, &head);
    let net = |id: i64| Element::new("net").with("dev", prefixed_hex(id));
    for channel in &graph.channels {
        let mut child = Element::new("channel");
        child.children.extend(channel.inter.map(|inter| net(inter[0])));
        child.children.extend(channel.intra.iter().map(|&rank| {
            let dev = system.index_of_rank(rank).map_or(-1, |g| dev_id(system, g));
            Element::new("gpu").with("dev", prefixed_hex(dev)).with("rank", rank)
        }));
        child.children.extend(channel.inter.map(|inter| net(inter[1])));
        element.children.push(child);
    }
    element
}

/// A GPU as graph files name it: its host in the top byte and its device number.
fn dev_id(system: &System, gpu: usize) -> i64 {
    let host = system.nodes(NodeType::Gpu)[gpu].id >> 56;
    (host << 56) + i64::from(system.gpu(gpu).dev)
}

/// C's `%#lx`: zero has no prefix.
fn prefixed_hex(number: i64) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}

/// C's `%g`: six significant digits without trailing zeros.
fn general(value: f32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{:.5e}", f64::from(value));
    let (digits, exponent) =
        scientific.split_once('e').expect("invariant: scientific notation has an exponent");
    let exponent: i32 = exponent.parse().expect("invariant: an exponent is a number");
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        trimmed(&format!("{:.decimals$}", f64::from(value)))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
    }
}

/// The graph of a file for a purpose; nothing when the file has none, or one that changes NICs where that is forbidden.
pub fn load(
    root: &Element,
    system: &System,
    id: GraphId,
    params: &Params,
) -> Result<Option<SearchGraph>, Error> {
    let mut found = None;
    for element in root.children.iter().filter(|child| child.name == "graph") {
        let cross_nic = element.integer("crossnic")?;
        if element.integer("id")? == id as i32 && !(params.cross_nic == 0 && cross_nic == 1) {
            found = Some(load_graph(element, system, id, cross_nic)?);
        }
    }
    Ok(found.filter(|graph| graph.n_channels() > 0))
}

fn load_graph(element: &Element, system: &System, id: GraphId, cross_nic: i32) -> Result<SearchGraph, Error> {
    let number = element.integer("pattern")?;
    let pattern = Pattern::from_number(number)
        .ok_or_else(|| element.error(format!("attribute pattern of graph is {number}, want 1 to 6")))?;
    let kind = |key: &str| {
        let word = element.required(key)?;
        let bad = || {
            element.error(format!(
                "attribute {key} of graph is {word:?}, want a path type such as NVL, PIX or SYS"
            ))
        };
        PathType::from_name(word).ok_or_else(bad)
    };
    let n_channels = usize::try_from(element.integer("nchannels")?).unwrap_or(0);
    if n_channels > element.children.len() {
        let text =
            format!("attribute nchannels of graph is {n_channels}, but {} follow", element.children.len());
        return Err(element.error(text));
    }
    let n_places = if id == GraphId::Nvls { 1 } else { system.n_gpus() };
    let channels =
        element.children.iter().take(n_channels).map(|child| load_channel(child, system, n_places));
    let channels: Vec<Channel> = channels.collect::<Result<_, _>>()?;
    let latency = if element.text("latencyinter").is_some() { element.float("latencyinter")? } else { 0.0 };
    Ok(SearchGraph {
        id,
        pattern,
        cross_nic,
        coll_net: matches!(id, GraphId::CollNetChain | GraphId::CollNetDirect),
        min_channels: n_channels,
        max_channels: n_channels,
        bw_intra: element.float("speedintra")?,
        bw_inter: element.float("speedinter")?,
        latency_inter: latency,
        type_intra: kind("typeintra")?,
        type_inter: kind("typeinter")?,
        same_channels: element.integer("samechannels")? != 0,
        n_hops: 0,
        channels,
    })
}

fn load_channel(element: &Element, system: &System, n_places: usize) -> Result<Channel, Error> {
    let mut intra = Vec::new();
    let mut nets = Vec::new();
    for child in &element.children {
        let dev = child.hexadecimal("dev")?.map(u64::cast_signed);
        if child.name == "net" {
            let dev = dev.ok_or_else(|| child.error("element net has no attribute dev"))?;
            if system.index_of(NodeType::Net, dev).is_none() {
                return Err(child
                    .error(format!("attribute dev of net is {dev:#x}, which this machine does not have")));
            }
            nets.push(dev);
        } else {
            let rank = match child.text("rank") {
                Some(_) => Some(child.integer("rank")?).filter(|&rank| system.index_of_rank(rank).is_some()),
                None => {
                    (0..system.n_gpus()).find(|&g| Some(dev_id(system, g)) == dev).map(|g| system.gpu(g).rank)
                }
            };
            let rank =
                rank.ok_or_else(|| child.error("element gpu names no GPU of this machine by rank or dev"))?;
            if intra.contains(&rank) {
                return Err(child.error(format!("rank {rank} stands twice in a channel")));
            }
            intra.push(rank);
        }
    }
    if intra.len() != n_places {
        return Err(element.error(format!("a channel has {} gpus, want {n_places}", intra.len())));
    }
    let inter = match (system.inter, nets.as_slice()) {
        (true, &[first, last]) => Some([first, last]),
        (true, _) => return Err(element.error(format!("a channel has {} nets, want 2", nets.len()))),
        (false, _) => None,
    };
    Ok(Channel { intra, inter })
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_are_written_as_c_does() {
        let written: Vec<String> =
            [48.0, 0.0, 0.24, 17.5, 45.1, 1.0e-5, 123456.0, 1.0e6, 20.6].map(general).into();
        assert_eq!(written, ["48", "0", "0.24", "17.5", "45.1", "1e-05", "123456", "1e+06", "20.6"]);
    }
}
