//! Which GPUs of a description take part, and under which rank.

use crate::engine::topo::xml::Element;

/// Numbers the GPUs of a description: the file's ranks where those are exactly 0, 1, …, else the file's order.
pub fn number_ranks(root: &mut Element) {
    let mut given = Vec::new();
    each_gpu(root, &mut |gpu| given.push(gpu.integer("rank").ok()));
    let n = given.len();
    let mut sorted: Vec<_> = given.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let counts_up = sorted.len() == n && sorted.iter().zip(0..).all(|(&rank, place)| rank == place);
    if !counts_up {
        let mut next = 0;
        each_gpu(root, &mut |gpu| {
            gpu.set("rank", next);
            next += 1;
        });
    }
}

fn each_gpu(element: &mut Element, visit: &mut dyn FnMut(&mut Element)) {
    if element.name == "gpu" {
        visit(element);
    }
    for child in &mut element.children {
        each_gpu(child, visit);
    }
}
