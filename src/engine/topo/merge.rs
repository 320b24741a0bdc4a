//! Ports of a NIC, or NICs near each other, as one virtual NIC.
//!
//! ```text
//! pci (switch) ─┬─ pci 19:00.0 ── nic ── net a, 100 Gb/s        pci (switch) ── pci 19:00.2 ── nic ── net a+b, 200 Gb/s
//!               └─ pci 19:00.1 ── nic ── net b, 100 Gb/s   =>       (the ports are gone)
//! ```
//!
//! NCCL does it when its transport can drive several ports as one device; none of ours can, so it happens only where a setting asks. The
//! virtual NIC hangs at the PCI device its ports share; where they share only a switch or a CPU it gets a device of its own there, with
//! a bus id next to the first port's and the width of all of them together.

use crate::engine::topo::build::bus_number;
use crate::engine::topo::error::Error;
use crate::engine::topo::kind::PathType;
use crate::engine::topo::xml::Element;

/// Most ports of one virtual NIC (NCCL 2.30.7 with the newest transports).
const MAX_PORTS: usize = 8;
/// How ports of one card are related; a path type that means something else between other vertices.
pub(crate) const PORT: PathType = PathType::Nvl;
/// Tries to find a bus id that nobody has.
const MAX_TRIES: i64 = 100;
const SWITCH_CLASS: &str = "0x060400";

/// Which ports to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetMerge {
    /// Farthest way between two ports of one virtual NIC (`NCCL_NET_MERGE_LEVEL`).
    pub level: PathType,
    /// Only ports of one rail, which must be known (`NCCL_NET_MERGE_POLICY=RAIL`).
    pub same_rail: bool,
    /// Names of ports to merge in any case, by virtual NIC (`NCCL_NET_FORCE_MERGE`).
    pub forced: Vec<Vec<String>>,
}

/// A port: where its element is, as positions of children from the root, and what merging looks at.
struct Port {
    at: Vec<usize>,
    dev: i32,
    name: String,
    port: i32,
    rail: Option<i32>,
}

/// Replaces ports by virtual NICs.
pub(crate) fn merge_nics(root: &mut Element, how: &NetMerge) -> Result<(), Error> {
    let ports = ports(root)?;
    let groups = groups(root, &ports, how)?;
    let next_dev = ports.iter().map(|port| port.dev + 1).max().unwrap_or(0);
    for (group, dev) in groups.iter().zip(next_dev..) {
        let members: Vec<&Port> = group.iter().map(|&at| &ports[at]).collect();
        add_virtual(root, &members, dev)?;
    }
    for &at in groups.iter().flatten() {
        element_mut(root, &ports[at].at).set("net", 0);
    }
    drop_merged(root);
    Ok(())
}

fn element<'a>(root: &'a Element, at: &[usize]) -> &'a Element {
    at.iter().fold(root, |element, &child| &element.children[child])
}

fn element_mut<'a>(root: &'a mut Element, at: &[usize]) -> &'a mut Element {
    at.iter().fold(root, |element, &child| &mut element.children[child])
}

/// All ports that carry data, by number.
fn ports(root: &Element) -> Result<Vec<Port>, Error> {
    fn walk(element: &Element, at: &mut Vec<usize>, found: &mut Vec<Port>) -> Result<(), Error> {
        if element.name == "net" && element.text("dev").is_some() && element.integer_or("net", 1)? != 0 {
            found.push(Port {
                at: at.clone(),
                dev: element.integer("dev")?,
                name: element.text("name").unwrap_or_default().to_owned(),
                port: element.integer_or("port", 0)?,
                rail: Some(element.integer_or("rail", -1)?).filter(|&rail| rail != -1),
            });
        }
        for (child, below) in element.children.iter().enumerate() {
            at.push(child);
            walk(below, at, found)?;
            at.pop();
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(root, &mut Vec::new(), &mut found)?;
    found.sort_by_key(|port| port.dev);
    Ok(found)
}

/// Ports that become one, as positions: those named first, then every port with all that are near enough to it.
fn groups(root: &Element, ports: &[Port], how: &NetMerge) -> Result<Vec<Vec<usize>>, Error> {
    let mut is_placed = vec![false; ports.len()];
    let mut groups = Vec::new();
    for names in &how.forced {
        let group = named(ports, names)?;
        for &at in &group {
            if std::mem::replace(&mut is_placed[at], true) {
                return Err(Error::machine(format!(
                    "NCCL_NET_FORCE_MERGE names NIC port {} twice",
                    ports[at].name
                )));
            }
        }
        groups.push(group);
    }
    for first in 0..ports.len() {
        if std::mem::replace(&mut is_placed[first], true) {
            continue;
        }
        let mut group = vec![first];
        for other in 0..ports.len() {
            let is_near = distance(root, &[&ports[first], &ports[other]]) <= how.level;
            let rails = (ports[first].rail, ports[other].rail);
            let may = !how.same_rail || (rails.0.is_some() && rails.0 == rails.1);
            if group.len() < MAX_PORTS && !is_placed[other] && is_near && may {
                is_placed[other] = true;
                group.push(other);
            }
        }
        groups.push(group);
    }
    groups.retain(|group| group.len() > 1);
    Ok(groups)
}

/// The ports of a list of names; a name may say which port of a card it means, as in `mlx5_0:1`.
fn named(ports: &[Port], names: &[String]) -> Result<Vec<usize>, Error> {
    if names.len() > MAX_PORTS {
        return Err(Error::machine(format!(
            "NCCL_NET_FORCE_MERGE merges {} ports, at most {MAX_PORTS} can be one NIC",
            names.len()
        )));
    }
    let mut group = Vec::new();
    for name in names {
        let (word, number) = match name.split_once(':') {
            Some((word, number)) => (word, number.parse().ok()),
            None => (name.as_str(), None),
        };
        let is_it = |port: &Port| port.name == word && number.is_none_or(|number: i32| number == port.port);
        let at = ports.iter().position(is_it).ok_or_else(|| {
            let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            Error::machine(format!(
                "NCCL_NET_FORCE_MERGE names NIC port {name}; there are {}",
                known.join(" ")
            ))
        })?;
        group.push(at);
    }
    group.sort_unstable();
    Ok(group)
}

/// How many steps from the root all these ports share.
fn shared_depth(ports: &[&Port]) -> usize {
    let first = &ports[0].at;
    (0..first.len()).find(|&d| ports.iter().any(|port| port.at.get(d) != first.get(d))).unwrap_or(first.len())
}

/// How far ports are from each other.
fn distance(root: &Element, ports: &[&Port]) -> PathType {
    let depth = shared_depth(ports);
    let bus = |port: &&Port| element(root, &port.at[..port.at.len().min(depth + 1)]).text("busid");
    let buses: Option<Vec<&str>> = ports.iter().map(bus).collect();
    // Functions of one card: bus ids that differ in the last character only.
    let card = |bus: &str| bus.get(..bus.len().saturating_sub(1)).unwrap_or_default().to_owned();
    if buses.is_some_and(|buses| buses.iter().all(|bus| card(bus) == card(buses[0]))) {
        return PORT;
    }
    match element(root, &ports[0].at[..depth]).name.as_str() {
        "system" => PathType::Sys,
        "cpu" => PathType::Phb,
        "nic" | "net" => PORT,
        // Port, nic and device below the switch itself.
        _ if ports.iter().all(|port| port.at.len() == depth + 3) => PathType::Pix,
        _ => PathType::Pxb,
    }
}

/// Adds the virtual NIC of these ports.
fn add_virtual(root: &mut Element, ports: &[&Port], dev: i32) -> Result<(), Error> {
    let depth = shared_depth(ports);
    let kind = distance(root, ports);
    let above = &ports[0].at[..depth];
    let nearest_pci = (1..=depth).rev().find(|&d| element(root, &above[..d]).name == "pci");
    let is_cpu = |d: &usize| element(root, &above[..*d]).name == "cpu";
    let Some(parent) = nearest_pci.or_else(|| (1..=depth).rev().find(is_cpu)).map(|d| above[..d].to_vec())
    else {
        return Err(Error::machine(format!(
            "NIC ports {} cannot be one NIC: they hang on different NUMA domains",
            joined(ports)
        )));
    };
    let width = matches!(kind, PathType::Phb | PathType::Pxb | PathType::Pix)
        .then(|| element(root, &parent).children.iter().enumerate())
        .map(|below| {
            let at = |child| [&parent[..], &[child]].concat();
            below.filter_map(|(child, element)| width_below(element, &at(child), ports)).sum::<i32>()
        });
    let mut home = parent.clone();
    let needs_device = |element: &Element| {
        element.name == "cpu" || element.text("class").is_some_and(|class| class.starts_with(SWITCH_CLASS))
    };
    if needs_device(element(root, &parent)) && ports[0].at.len() >= depth + 3 {
        home.push(add_device(root, &parent, ports[0])?);
    }
    if let Some(width) = width.filter(|&width| width > 0) {
        for depth in parent.len()..=home.len() {
            let element = element_mut(root, &home[..depth]);
            if element.name == "pci" {
                element.set("link_width", width);
            }
        }
    }
    let net = virtual_net(root, ports, dev)?;
    let home = element_mut(root, &home);
    let at = home.children.iter().position(|child| child.name == "nic").unwrap_or_else(|| {
        home.children.push(Element::new("nic"));
        home.children.len() - 1
    });
    home.children[at].children.push(net);
    Ok(())
}

fn joined(ports: &[&Port]) -> String {
    ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join("+")
}

/// Lanes that lead to these ports at an element: its own, or those of what is below when that is less.
fn width_below(element: &Element, at: &[usize], ports: &[&Port]) -> Option<i32> {
    let own = if element.name == "pci" { element.integer_or("link_width", 0).unwrap_or(0) } else { 0 };
    let is_port = ports.iter().any(|port| port.at == at);
    let below: Vec<i32> = element
        .children
        .iter()
        .enumerate()
        .filter_map(|(child, element)| width_below(element, &[at, &[child]].concat(), ports))
        .collect();
    if !is_port && below.is_empty() {
        return None;
    }
    Some(match (own, below.iter().sum::<i32>()) {
        (own, 0) => own,
        (0, below) => below,
        (own, below) => own.min(below),
    })
}

/// Makes a PCI device like that of a port, with the next free bus id, and answers its place.
fn add_device(root: &mut Element, parent: &[usize], port: &Port) -> Result<usize, Error> {
    let mut device = Element { children: Vec::new(), ..element(root, &port.at[..port.at.len() - 2]).clone() };
    let taken = bus_number(device.text("busid").unwrap_or_default());
    let spelled = |id: i64| {
        format!("{:04x}:{:02x}:{:02x}.{:x}", id >> 20, (id >> 12) & 0xff, (id >> 4) & 0xff, id & 0xf)
    };
    let free = (1..=MAX_TRIES).map(|step| spelled(taken + step)).find(|bus| !has_bus(root, bus));
    let free = free.ok_or_else(|| Error::machine(format!("no free bus id near NIC port {}", port.name)))?;
    device.set("busid", free);
    let parent = element_mut(root, parent);
    parent.children.push(device);
    Ok(parent.children.len() - 1)
}

fn has_bus(element: &Element, bus: &str) -> bool {
    element.text("busid") == Some(bus) || element.children.iter().any(|child| has_bus(child, bus))
}

/// The element of a virtual NIC: the speeds of its ports together, the rail they share, all else the first port's.
fn virtual_net(root: &Element, ports: &[&Port], dev: i32) -> Result<Element, Error> {
    let mut mbps = 0_i32;
    for port in ports {
        let own = element(root, &port.at).integer_or("speed", 0)?;
        mbps = mbps.saturating_add(if own > 0 { own } else { 10_000 });
    }
    let first = element(root, &ports[0].at);
    let mut net = Element::new("net").with("name", joined(ports)).with("dev", dev).with("speed", mbps);
    for key in ["latency", "port", "guid", "maxconn", "gdr"] {
        if let Some(value) = first.text(key) {
            net.set(key, value);
        }
    }
    if let Some(rail) = ports[0].rail.filter(|&rail| ports.iter().all(|port| port.rail == Some(rail))) {
        net.set("rail", rail);
    }
    Ok(net.with("net", 1))
}

/// Drops ports that nobody uses any more, and what led only to them; answers whether anything is left.
fn drop_merged(element: &mut Element) -> bool {
    let is_used = |key: &str| element.integer_or(key, 0).is_ok_and(|use_| use_ != 0);
    if element.name == "net" {
        return element.text("net") != Some("0") || is_used("gin") || is_used("rma") || is_used("coll");
    }
    let had = !element.children.is_empty();
    element.children.retain_mut(drop_merged);
    !had || !element.children.is_empty() || !matches!(element.name.as_str(), "nic" | "pci")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::topo::params::Params;
    use crate::engine::topo::xml::{Limits, read_topology};
    use crate::engine::topo::{NodeType, System};

    const LINK: &str = "link_speed='16.0 GT/s PCIe' link_width='8'";

    fn nic(bus: &str, name: &str, dev: i32, more: &str) -> String {
        let net =
            format!("<net name='{name}' dev='{dev}' speed='100000' port='1' guid='0x{dev}' gdr='1' {more}/>");
        format!("<pci busid='{bus}' class='0x020000' {LINK}><nic>{net}</nic></pci>")
    }

    fn switch(bus: &str, inside: &str) -> String {
        format!(
            "<pci busid='{bus}' class='0x060400' link_speed='16.0 GT/s PCIe' link_width='16'>{inside}</pci>"
        )
    }

    /// A switch with a GPU, a card of two functions and another card; on the second socket a third card.
    fn machine() -> Element {
        let gpu = format!(
            "<pci busid='0000:12:00.0' class='0x030200' {LINK}><gpu dev='0' sm='90' rank='0' gdr='1'/></pci>"
        );
        let first = switch(
            "0000:10:00.0",
            &(gpu
                + &nic("0000:11:00.0", "a", 0, "rail='0'")
                + &nic("0000:11:00.1", "b", 1, "rail='1'")
                + &nic("0000:13:00.0", "c", 2, "rail='0'")),
        );
        let cpu = "arch='x86_64' vendor='GenuineIntel' familyid='6' modelid='143'";
        let second = nic("0000:80:00.0", "d", 3, "");
        let text = format!(
            "<system version='1'><cpu numaid='0' {cpu}>{first}</cpu><cpu numaid='1' {cpu}>{second}</cpu></system>"
        );
        read_topology(&text, Limits::TOPOLOGY).expect("a good file")
    }

    fn settings(pairs: &[(&str, &str)]) -> Params {
        let find =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Params::from_lookup(&find).expect("good settings")
    }

    fn merged(pairs: &[(&str, &str)]) -> Result<Element, String> {
        let mut root = machine();
        let how = settings(pairs).net_merge.expect("merging is asked for");
        merge_nics(&mut root, &how).map_err(|e| e.to_string())?;
        Ok(root)
    }

    fn names(root: &Element) -> Vec<String> {
        ports(root).expect("ports").into_iter().map(|port| port.name).collect()
    }

    #[test]
    fn functions_of_one_card_are_one_nic_with_both_speeds() {
        let root = merged(&[("NCCL_NET_MERGE_LEVEL", "PORT")]).expect("merged");
        assert_eq!(names(&root), ["c", "d", "a+b"]);
        let switch = &root.children[0].children[0];
        let device = switch.children.last().expect("a new device");
        assert_eq!(device.text("busid"), Some("0000:11:00.2"), "the next bus id that is free");
        assert_eq!(device.text("link_width"), Some("8"), "one card keeps its lanes");
        let net = &device.children[0].children[0];
        assert_eq!(
            [net.text("speed"), net.text("dev"), net.text("guid")],
            [Some("200000"), Some("4"), Some("0x0")]
        );
        assert_eq!(net.text("rail"), None, "the rails differ");
    }

    #[test]
    fn cards_of_one_switch_add_their_lanes() {
        let root = merged(&[("NCCL_NET_MERGE_LEVEL", "PIX")]).expect("merged");
        assert_eq!(names(&root), ["d", "a+b+c"]);
        let switch = &root.children[0].children[0];
        assert_eq!(
            switch.text("link_width"),
            Some("24"),
            "as the library has it, beyond the switch's own 16"
        );
        assert_eq!(switch.children.last().and_then(|device| device.text("link_width")), Some("24"));
        let system = System::from_xml(&root, &Params::default()).expect("a machine");
        assert_eq!((system.n_nets(), system.count(NodeType::Nic)), (2, 2));
    }

    #[test]
    fn a_policy_keeps_rails_apart() {
        let root =
            merged(&[("NCCL_NET_MERGE_LEVEL", "PIX"), ("NCCL_NET_MERGE_POLICY", "RAIL")]).expect("merged");
        assert_eq!(names(&root), ["b", "d", "a+c"]);
        let net = ports(&root).expect("ports").pop().expect("the virtual one");
        assert_eq!(net.rail, Some(0));
    }

    #[test]
    fn names_merge_what_is_far_apart_and_level_loc_nothing() {
        let root =
            merged(&[("NCCL_NET_FORCE_MERGE", "c,b:1"), ("NCCL_NET_MERGE_LEVEL", "LOC")]).expect("merged");
        assert_eq!(names(&root), ["a", "d", "b+c"]);
        assert_eq!(
            names(&merged(&[("NCCL_NET_MERGE_LEVEL", "LOC")]).expect("nothing")),
            ["a", "b", "c", "d"]
        );
    }

    #[test]
    fn what_cannot_be_merged_is_named() {
        let problem = |pairs: &[(&str, &str)]| merged(pairs).expect_err("cannot be");
        assert_eq!(
            problem(&[("NCCL_NET_MERGE_LEVEL", "SYS")]),
            "NIC ports a+b+c+d cannot be one NIC: they hang on different NUMA domains"
        );
        assert_eq!(
            problem(&[("NCCL_NET_FORCE_MERGE", "a,x")]),
            "NCCL_NET_FORCE_MERGE names NIC port x; there are a b c d"
        );
        assert_eq!(
            problem(&[("NCCL_NET_FORCE_MERGE", "a,b;b,c")]),
            "NCCL_NET_FORCE_MERGE names NIC port b twice"
        );
    }

    #[test]
    fn nothing_is_merged_unless_a_setting_asks() {
        assert_eq!(settings(&[]).net_merge, None);
        let system = System::from_xml(&machine(), &settings(&[("NCCL_NET_MERGE_LEVEL", "PIX")]));
        assert_eq!(system.expect("a machine").n_nets(), 2, "building a machine heeds the setting");
    }
}
