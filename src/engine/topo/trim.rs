//! Domains: the GPUs of a host that stay together, and what the search may expect of them.
//!
//! Where the network is faster than the way between two GPUs, NCCL lets it carry their traffic: each side then acts as a host of its
//! own. A domain keeps all vertices but the other GPUs.

use crate::engine::topo::build::{LOCAL_BW, build};
use crate::engine::topo::error::Error;
use crate::engine::topo::kind::{LinkType, NodeType, PathType};
use crate::engine::topo::merge::merge_nics;
use crate::engine::topo::params::Params;
use crate::engine::topo::paths::compute_paths;
use crate::engine::topo::system::{Node, NodeRef, System};
use crate::engine::topo::xml::Element;

impl System {
    /// Builds vertices and links from a `system` element. GPUs without a rank are left out with all their links; NIC ports are
    /// merged where the settings ask for it.
    pub fn from_xml(root: &Element, params: &Params) -> Result<Self, Error> {
        let Some(how) = &params.net_merge else { return build(root, params) };
        let mut merged = root.clone();
        merge_nics(&mut merged, how)?;
        build(&merged, params)
    }

    /// Computes paths and tells for each GPU the lowest GPU it stays together with.
    pub fn domains(&mut self, params: &Params) -> Result<Vec<usize>, Error> {
        compute_paths(self, params)?;
        let mut domains: Vec<usize> = Vec::new();
        for g in 0..self.n_gpus() {
            let joined = (0..g).filter(|&p| self.gpu_path(g, p).kind < PathType::Net).map(|p| domains[p]);
            domains.push(joined.fold(g, usize::min));
        }
        Ok(domains)
    }

    /// The machine as one of its domains sees it: other GPUs removed, paths and bounds computed. `n_ranks` are those of all hosts.
    pub fn domain(
        &self,
        domains: &[usize],
        domain: usize,
        n_ranks: usize,
        params: &Params,
    ) -> Result<Self, Error> {
        let mut system = self.clone();
        for g in (0..domains.len()).rev().filter(|&g| domains[g] != domain) {
            system.remove(NodeRef { kind: NodeType::Gpu, index: g });
        }
        system.inter = system.n_gpus() != n_ranks;
        compute_paths(&mut system, params)?;
        set_bounds(&mut system);
        Ok(system)
    }
}

/// What one channel, and all together, can carry at most.
fn set_bounds(system: &mut System) {
    if !system.inter && system.n_gpus() == 1 {
        system.max_bw = LOCAL_BW;
        system.total_bw = LOCAL_BW;
        return;
    }
    let ends = if system.inter { NodeType::Net } else { NodeType::Dev };
    let (mut max_bw, mut total_bw) = (0f32, 0f32);
    for dev in system.nodes(NodeType::Dev) {
        let paths = dev.paths[ends as usize].iter().filter(|path| !path.hops.is_empty());
        max_bw = paths.map(|path| path.bw).fold(max_bw, f32::max);
        total_bw = total_bw.max(device_bw(dev));
    }
    system.max_bw = max_bw;
    system.total_bw = total_bw;
}

/// All NVLinks of a device together, or its PCI link.
fn device_bw(dev: &Node) -> f32 {
    let of = |kind| dev.links.iter().filter(move |link| link.kind == kind).map(|link| link.bw);
    let nvlinks: f32 = of(LinkType::Nvl).fold(0.0, |sum, bw| sum + bw);
    of(LinkType::Pci).next_back().unwrap_or(0.0).max(nvlinks)
}
