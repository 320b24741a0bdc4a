//! Two-level PCI switches that are one crossbar: their lower halves are merged into the upper one.

use crate::engine::topo::error::Error;
use crate::engine::topo::kind::NodeType;
use crate::engine::topo::system::{NodeData, NodeRef, System};

/// Broadcom's switches show themselves as two levels although all their ports share one crossbar: the generation of such a switch.
fn two_level_generation(device: u64, level: u64) -> Option<u32> {
    let family = device & 0xffff_ffff_ffff_f000;
    if family == 0x1000_c010_1000_a000 {
        Some(4)
    } else if family == 0x1000_c030_1000_0000 | (level * 0x1000) {
        Some(5)
    } else {
        None
    }
}

fn pci_number(system: &System, at: NodeRef) -> u64 {
    match system.node(at).data {
        NodeData::Pci(device) => device,
        _ => 0,
    }
}

/// Makes one switch of every two-level one.
pub(crate) fn flatten_switches(system: &mut System) -> Result<(), Error> {
    let mut index = 0;
    while index < system.count(NodeType::Pci) {
        let top = NodeRef { kind: NodeType::Pci, index };
        let Some(generation) = two_level_generation(pci_number(system, top), 0) else {
            index += 1;
            continue;
        };
        let is_sub = |to: NodeRef| {
            to.kind == NodeType::Pci && two_level_generation(pci_number(system, to), 1) == Some(generation)
        };
        let subs: Vec<i64> = system
            .node(top)
            .links
            .iter()
            .filter(|link| is_sub(link.to))
            .map(|link| system.node(link.to).id)
            .collect();
        let kept = system.node(top).links.iter().filter(|link| !is_sub(link.to)).copied().collect();
        system.node_mut(top).links = kept;
        let top_id = system.node(top).id;
        for id in subs {
            merge_switch(system, top_id, id)?;
        }
        // Its number must no longer look like a two-level switch; other switches have moved, so start over.
        if let Some(index) = system.index_of(NodeType::Pci, top_id)
            && let NodeData::Pci(device) = &mut system.nodes_mut(NodeType::Pci)[index].data
        {
            *device |= 0xffff;
        }
        index = 0;
    }
    Ok(())
}

/// Moves everything below the lower switch to the upper one.
fn merge_switch(system: &mut System, top_id: i64, sub_id: i64) -> Result<(), Error> {
    let find = |system: &System, id| {
        let index = system.index_of(NodeType::Pci, id);
        index.ok_or_else(|| Error::machine(format!("PCI switch {id:x} appears twice")))
    };
    let top = NodeRef { kind: NodeType::Pci, index: find(system, top_id)? };
    let sub = NodeRef { kind: NodeType::Pci, index: find(system, sub_id)? };
    if top == sub {
        return Err(Error::machine(format!("PCI switch {top_id:x} appears twice")));
    }
    for link in system.node(sub).links.clone() {
        if link.to == top {
            continue;
        }
        system.node_mut(top).links.push(link);
        if let Some(back) = system.node_mut(link.to).links.iter_mut().find(|back| back.to == sub) {
            back.to = top;
        }
    }
    system.remove(sub);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::topo::kind::NodeType;
    use crate::engine::topo::params::Params;
    use crate::engine::topo::system::System;
    use crate::engine::topo::xml::{Limits, read_topology};

    /// A switch over two switches over a GPU each. `lower` is the device number of the lower ones.
    fn system(lower: &str) -> System {
        let pci = |bus: &str, device: &str, inside: &str| {
            let ids = format!(
                "vendor='0x1000' device='{device}' subsystem_vendor='0x1000' subsystem_device='0xa000'"
            );
            let link = "link_speed='16.0 GT/s PCIe' link_width='16'";
            format!("<pci busid='{bus}' class='0x060400' {ids} {link}>{inside}</pci>")
        };
        let gpu = |dev: i32| {
            let gpu = format!("<gpu dev='{dev}' sm='80' rank='{dev}' gdr='1'/>");
            pci(&format!("000{dev}:00:00.0"), "0", &gpu).replace("0x060400", "0x030200")
        };
        let subs = pci("0020:00:00.0", lower, &gpu(0)) + &pci("0030:00:00.0", lower, &gpu(1));
        let top = pci("0010:00:00.0", "0xc010", &subs);
        let text = format!("<system version='1'><cpu numaid='0' arch='arm64'>{top}</cpu></system>");
        let root = read_topology(&text, Limits::TOPOLOGY).expect("a good file");
        System::from_xml(&root, &Params::default()).expect("a machine")
    }

    #[test]
    fn levels_of_one_switch_become_one() {
        let system = system("0xc010");
        assert_eq!(system.count(NodeType::Pci), 1);
        let ends: Vec<NodeType> =
            system.nodes(NodeType::Pci)[0].links.iter().map(|link| link.to.kind).collect();
        assert_eq!(ends, [NodeType::Dev, NodeType::Dev, NodeType::Cpu]);
    }

    #[test]
    fn switches_of_another_make_stay() {
        assert_eq!(system("0x1234").count(NodeType::Pci), 3);
    }
}
