//! Graphs and models as JSON.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::engine::graph::model::{Domain, Variant};
use crate::engine::graph::{Channel, SearchGraph};

impl Serialize for SearchGraph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.id.name())?;
        map.serialize_entry("id", &(self.id as i32))?;
        map.serialize_entry("pattern", &self.pattern)?;
        map.serialize_entry("crossNic", &self.cross_nic)?;
        map.serialize_entry("collNet", &u8::from(self.coll_net))?;
        map.serialize_entry("minChannels", &self.min_channels)?;
        map.serialize_entry("maxChannels", &self.max_channels)?;
        map.serialize_entry("nChannels", &self.n_channels())?;
        map.serialize_entry("bwIntra", &self.bw_intra)?;
        map.serialize_entry("bwInter", &self.bw_inter)?;
        map.serialize_entry("latencyInter", &self.latency_inter)?;
        map.serialize_entry("typeIntra", &self.type_intra)?;
        map.serialize_entry("typeInter", &self.type_inter)?;
        map.serialize_entry("sameChannels", &u8::from(self.same_channels))?;
        map.serialize_entry("nHops", &self.n_hops)?;
        map.serialize_entry("channels", &self.channels)?;
        map.end()
    }
}

impl Serialize for Channel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(inter) = self.inter {
            map.serialize_entry("inter", &inter.map(|id| format!("{id:#x}")))?;
        }
        map.serialize_entry("intra", &self.intra)?;
        map.end()
    }
}

impl Serialize for Domain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("nvlsAssumed", &u8::from(self.nvls))?;
        map.serialize_entry("system", &self.system)?;
        map.serialize_entry("graphs", &self.graphs)?;
        map.end()
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("ngpus", &self.n_gpus)?;
        map.serialize_entry("domainOfLocalRank", &self.domain_of_local_rank)?;
        map.serialize_entry("domains", &self.domains)?;
        map.end()
    }
}
