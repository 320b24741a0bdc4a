//! One description of a host from what its processes see of it.
//!
//! ```text
//! process of rank 0:  cpu 0 ── rank 0, NIC        ┐
//! process of rank 1:  cpu 0 ── NIC                ├─>  cpu 0 ── rank 0, NIC     cpu 1 ── rank 1
//!                     cpu 1 ── rank 1             ┘
//! ```
//!
//! Every process describes its own rank and all NICs. Descriptions are laid over each other in rank order: elements with equal
//! attributes are one, all else is added behind what is there. So the order of CPUs, switches and GPUs is the order in which ranks
//! meet them, not that of any one process.

use crate::engine::topo::ranks;
use crate::engine::topo::xml::Element;

/// What the process of one rank tells the others: its own GPU and every NIC, and what leads there.
pub fn own_view(root: &Element, rank: usize) -> Element {
    let mut view = root.clone();
    ranks::keep_rank(&mut view, rank);
    view
}

/// Lays the views of a host's processes over each other, in this order; nothing without views.
pub fn fuse(views: impl IntoIterator<Item = Element>) -> Option<Element> {
    let mut views = views.into_iter();
    let mut fused = views.next()?;
    for view in views {
        lay_over(&mut fused, view);
    }
    Some(fused)
}

fn lay_over(below: &mut Element, above: Element) {
    for child in above.children {
        match below.children.iter_mut().find(|known| is_same(known, &child)) {
            Some(known) => lay_over(known, child),
            None => below.children.push(child),
        }
    }
}

/// Whether two elements describe one thing: name and all attributes agree, in whatever order those stand.
fn is_same(a: &Element, b: &Element) -> bool {
    a.name == b.name
        && a.attributes.len() == b.attributes.len()
        && b.attributes.iter().all(|(key, value)| a.text(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::topo::xml::{Limits, read_topology};

    /// Two sockets, two ranks on each in the order 0 2 | 1 3, and a NIC on the second.
    fn machine() -> Element {
        let gpu = |rank: i32| {
            format!("<pci busid='0000:{rank}0:00.0' class='0x030200'><gpu dev='{rank}' rank='{rank}'/></pci>")
        };
        let nic = "<pci busid='0000:90:00.0' class='0x020000'><nic><net name='a' dev='0'/></nic></pci>";
        let text = format!(
            "<system version='1'><cpu numaid='0'>{}{}</cpu><cpu numaid='1'>{}{}{nic}</cpu></system>",
            gpu(0),
            gpu(2),
            gpu(1),
            gpu(3)
        );
        read_topology(&text, Limits::TOPOLOGY).expect("a good file")
    }

    fn buses(cpu: &Element) -> Vec<&str> {
        cpu.children.iter().filter_map(|child| child.text("busid")).collect()
    }

    #[test]
    fn a_process_tells_of_its_own_rank_and_of_all_nics() {
        let view = own_view(&machine(), 2);
        assert_eq!(
            view.children.iter().map(buses).collect::<Vec<_>>(),
            [vec!["0000:20:00.0"], vec!["0000:90:00.0"]]
        );
    }

    #[test]
    fn views_in_rank_order_give_every_rank_and_nic_once() {
        let fused = fuse((0..4).map(|rank| own_view(&machine(), rank))).expect("four views");
        let expected =
            [vec!["0000:00:00.0", "0000:20:00.0"], vec!["0000:90:00.0", "0000:10:00.0", "0000:30:00.0"]];
        assert_eq!(
            fused.children.iter().map(buses).collect::<Vec<_>>(),
            expected,
            "the NIC came with rank 0"
        );
    }

    #[test]
    fn what_differs_in_an_attribute_is_two_things() {
        let mut other = own_view(&machine(), 1);
        other.children[0].set("affinity", "ff");
        let fused = fuse([own_view(&machine(), 0), other]).expect("two views");
        assert_eq!(fused.children.len(), 3);
        assert!(fuse([]).is_none());
    }
}
