//! What the CUDA driver says of this machine's GPUs, as plain facts for the topology. Nothing here runs a kernel or owns memory: there
//! is no CUDA device yet.
//!
//! ```text
//! libcuda       [driver]       how many, PCI address, compute capability, whether NICs may reach their memory
//! libnvidia-ml  [management]   number, NVLinks with what is at their far end, chip-to-chip links
//! Answers       ── facts ──>   GpuFacts, which the probe hangs into the PCI tree of /sys
//! ```
//!
//! Both libraries are opened at run time. A machine without them, or without a device, has no GPUs: no error, no message.

mod driver;
mod management;

use std::panic::catch_unwind;

use crate::engine::topo::probe::{C2c, GpuFacts, NvLinks};

/// The address by which topology files name the far end of an NVLink that this system cannot see.
pub const UNSEEN: &str = "fffffff:ffff:ff";

/// What the libraries answer about one GPU, unjudged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Its number as CUDA counts.
    pub ordinal: usize,
    /// Its PCI address as the driver spells it.
    pub bus_id: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Whether the driver lets NICs reach its memory.
    pub gdr: bool,
    /// What the management library adds, where it loads and knows the GPU.
    pub managed: Option<Managed>,
}

/// What the management library answers about one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// Its number as this library counts.
    pub index: Option<usize>,
    /// All NVLinks it may have.
    pub nvlinks: Vec<LinkAnswer>,
    /// MB/s of every chip-to-chip link that is up.
    pub c2c: Vec<i32>,
}

/// One NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkAnswer {
    /// Whether GPUs may talk over it.
    pub carries_p2p: bool,
    /// Whether it is trained.
    pub is_up: bool,
    /// PCI address of the far end as the library spells it; none when it does not tell.
    pub remote: Option<String>,
}

/// The GPUs that CUDA shows this process, in its order; nothing without driver or device.
///
/// cudarc panics where it misses the library or a function of it, and has no other way to say so. Library and functions are looked
/// for first, so that no panic's message reaches the terminal; what a later release may add is caught.
pub fn gpus() -> Option<Vec<GpuFacts>> {
    if !driver::is_usable() {
        return None;
    }
    let answers = catch_unwind(driver::ask).ok()??;
    (!answers.is_empty()).then(|| answers.iter().map(facts).collect())
}

/// What the topology wants to know of a GPU.
pub fn facts(answers: &Answers) -> GpuFacts {
    let managed = answers.managed.clone().unwrap_or_default();
    let mut nvlinks: Vec<NvLinks> = Vec::new();
    for link in managed.nvlinks.iter().filter(|link| link.carries_p2p && link.is_up) {
        let Some(remote) = &link.remote else { continue };
        let target = pci_address(remote).unwrap_or_else(|| UNSEEN.to_owned());
        match nvlinks.iter_mut().find(|known| known.target == target) {
            Some(known) => known.count += 1,
            None => nvlinks.push(NvLinks { target, count: 1, class: None }),
        }
    }
    let (major, minor) = answers.capability;
    GpuFacts {
        bus_id: pci_address(&answers.bus_id).unwrap_or_else(|| answers.bus_id.to_ascii_lowercase()),
        dev: managed.index.unwrap_or(answers.ordinal),
        sm: 10 * major + minor,
        gdr: answers.gdr,
        nvlinks,
        c2c: managed.c2c.last().map(|&mb_per_s| C2c { mb_per_s, count: managed.c2c.len() }),
    }
}

/// Most NVLinks a GPU of that compute capability has (NCCL 2.30.7).
fn n_nvlinks(sm: i32) -> u32 {
    match sm {
        90.. => 18,
        80.. => 12,
        70.. => 6,
        60.. => 4,
        _ => 0,
    }
}

/// An address as `/sys` spells it, `0000:1b:00.0`; nothing when the text is no address, as those of far ends out of sight.
fn pci_address(text: &str) -> Option<String> {
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let (domain, bus, device, function) = (number(domain)?, number(bus)?, number(device)?, number(function)?);
    let fits = bus <= 0xff && device <= 0x1f && function <= 7;
    fits.then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(carries_p2p: bool, is_up: bool, remote: Option<&str>) -> LinkAnswer {
        LinkAnswer { carries_p2p, is_up, remote: remote.map(str::to_owned) }
    }

    #[test]
    fn links_to_one_far_end_add_up_and_dead_ones_do_not_count() {
        let managed = Managed {
            index: Some(3),
            nvlinks: vec![
                link(true, true, Some("00000000:C4:00.0")),
                link(true, true, Some("00000000:C5:00.0")),
                link(true, false, Some("00000000:C4:00.0")),
                link(false, true, Some("00000000:C4:00.0")),
                link(true, true, Some("00000000:C4:00.0")),
                link(true, true, None),
            ],
            c2c: Vec::new(),
        };
        let answers = Answers {
            ordinal: 0,
            bus_id: "0000:1B:00.0".to_owned(),
            capability: (9, 0),
            gdr: true,
            managed: Some(managed),
        };
        let facts = facts(&answers);
        assert_eq!((facts.bus_id.as_str(), facts.dev, facts.sm, facts.gdr), ("0000:1b:00.0", 3, 90, true));
        let links: Vec<(&str, usize)> = facts.nvlinks.iter().map(|l| (l.target.as_str(), l.count)).collect();
        assert_eq!(links, [("0000:c4:00.0", 2), ("0000:c5:00.0", 1)]);
        assert_eq!(facts.c2c, None);
    }

    #[test]
    fn far_ends_out_of_sight_share_the_name_that_files_give_them() {
        for remote in ["FFFFFFFF:FFFF:FF.FF", "", "?"] {
            let managed = Managed { nvlinks: vec![link(true, true, Some(remote)); 18], ..Managed::default() };
            let facts = facts(&Answers { managed: Some(managed), ..Answers::default() });
            assert_eq!(facts.nvlinks, [NvLinks { target: UNSEEN.to_owned(), count: 18, class: None }]);
        }
    }

    #[test]
    fn chip_to_chip_links_are_counted() {
        let managed = Managed { c2c: vec![44_712; 10], ..Managed::default() };
        let facts = facts(&Answers { capability: (9, 0), managed: Some(managed), ..Answers::default() });
        assert_eq!(facts.c2c, Some(C2c { mb_per_s: 44_712, count: 10 }));
    }

    #[test]
    fn without_management_library_cuda_s_number_stands() {
        let facts =
            facts(&Answers { ordinal: 2, bus_id: "00000001:00:00.0".to_owned(), ..Answers::default() });
        assert_eq!((facts.dev, facts.bus_id.as_str(), facts.nvlinks.len()), (2, "0001:00:00.0", 0));
    }

    #[test]
    fn every_generation_has_its_number_of_links() {
        assert_eq!([37, 60, 61, 70, 75, 80, 86, 90, 100].map(n_nvlinks), [0, 4, 4, 6, 6, 12, 12, 18, 18]);
    }
}
