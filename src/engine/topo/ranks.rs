//! Which GPUs of a description take part, and under which rank.

use crate::engine::topo::error::Error;
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

/// Lets `n_ranks` ranks play the GPUs of a description: rank i the GPU whose `dev` is i. The other GPUs go, and with them PCI
/// switches and CPUs that lead nowhere any more.
pub fn select_ranks(root: &mut Element, n_ranks: usize) -> Result<(), Error> {
    let mut devs = Vec::new();
    let mut bad = Ok(());
    each_gpu(root, &mut |gpu| match gpu.integer("dev") {
        Ok(dev) => devs.push(usize::try_from(dev).ok()),
        Err(e) => bad = Err(e),
    });
    bad?;
    if devs.len() < n_ranks {
        return Err(Error::machine(format!(
            "{n_ranks} ranks need a GPU each, but the topology describes {}",
            devs.len()
        )));
    }
    for rank in 0..n_ranks {
        match devs.iter().filter(|&&dev| dev == Some(rank)).count() {
            1 => {}
            0 => {
                return Err(Error::machine(format!(
                    "the topology has no GPU with dev {rank} for rank {rank} to play"
                )));
            }
            _ => return Err(Error::machine(format!("the topology has several GPUs with dev {rank}"))),
        }
    }
    each_gpu(root, &mut |gpu| {
        let dev = gpu.integer("dev").ok().and_then(|dev| usize::try_from(dev).ok());
        match dev.filter(|&dev| dev < n_ranks) {
            Some(rank) => gpu.set("rank", rank),
            None => gpu.attributes.retain(|(key, _)| key != "rank"),
        }
    });
    keep_useful(root);
    Ok(())
}

/// Drops all GPUs but that of one rank, and what then leads nowhere.
pub(crate) fn keep_rank(root: &mut Element, rank: usize) {
    each_gpu(root, &mut |gpu| {
        if gpu.integer("rank").ok().and_then(|own| usize::try_from(own).ok()) != Some(rank) {
            gpu.attributes.retain(|(key, _)| key != "rank");
        }
    });
    keep_useful(root);
}

/// How many GPUs of a description take part.
pub fn n_ranks(root: &Element) -> usize {
    let own = usize::from(root.name == "gpu" && root.text("rank").is_some());
    own + root.children.iter().map(n_ranks).sum::<usize>()
}

/// Drops GPUs without a rank and what then leads nowhere; answers whether anything is left.
fn keep_useful(element: &mut Element) -> bool {
    match element.name.as_str() {
        "gpu" => return element.text("rank").is_some(),
        "net" => return true,
        _ => {}
    }
    let container = |name: &str| matches!(name, "cpu" | "pci" | "nic" | "gpu");
    element.children.retain_mut(|child| !container(&child.name) || keep_useful(child));
    element.children.iter().any(|child| matches!(child.name.as_str(), "cpu" | "pci" | "nic" | "net" | "gpu"))
}

fn each_gpu(element: &mut Element, visit: &mut dyn FnMut(&mut Element)) {
    if element.name == "gpu" {
        visit(element);
    }
    for child in &mut element.children {
        each_gpu(child, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::topo::xml::{Limits, read_topology};

    fn machine(gpus: &[(&str, &str)]) -> Element {
        let pci = |(i, (dev, rank)): (usize, &(&str, &str))| {
            format!("<pci busid='0000:{i}0:00.0'><gpu dev='{dev}'{rank}/></pci>")
        };
        let gpus: String = gpus.iter().enumerate().map(pci).collect();
        let text = format!("<system version='1'><cpu numaid='0'>{gpus}</cpu><cpu numaid='1'/></system>");
        read_topology(&text, Limits::TOPOLOGY).expect("a good file")
    }

    fn ranks(root: &mut Element) -> Vec<(String, Option<String>)> {
        let mut ranks = Vec::new();
        let text = |gpu: &Element, key: &str| gpu.text(key).map(str::to_owned);
        each_gpu(root, &mut |gpu| ranks.push((text(gpu, "dev").unwrap_or_default(), text(gpu, "rank"))));
        ranks
    }

    #[test]
    fn ranks_that_do_not_count_up_are_replaced_by_the_order() {
        let mut kept = machine(&[("0", " rank='1'"), ("1", " rank='0'")]);
        number_ranks(&mut kept);
        assert_eq!(
            ranks(&mut kept),
            [("0".to_owned(), Some("1".to_owned())), ("1".to_owned(), Some("0".to_owned()))]
        );
        let mut replaced = machine(&[("0", " rank='1'"), ("1", "")]);
        number_ranks(&mut replaced);
        assert_eq!(ranks(&mut replaced)[1].1.as_deref(), Some("1"));
    }

    #[test]
    fn ranks_play_the_gpus_of_their_number_and_the_others_go() {
        let mut root = machine(&[("2", ""), ("0", ""), ("1", " rank='7'")]);
        select_ranks(&mut root, 2).expect("enough GPUs");
        assert_eq!(
            ranks(&mut root),
            [("0".to_owned(), Some("0".to_owned())), ("1".to_owned(), Some("1".to_owned()))]
        );
        assert_eq!(root.children.len(), 1, "the CPU without GPUs is gone");
    }

    #[test]
    fn too_many_ranks_are_one_clear_error() {
        let mut root = machine(&[("0", ""), ("1", "")]);
        let message = select_ranks(&mut root, 3).expect_err("two GPUs only").to_string();
        assert_eq!(message, "3 ranks need a GPU each, but the topology describes 2");
    }
}
