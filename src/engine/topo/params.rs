//! Settings that change paths, NIC choice and the search. They come in as a value; nobody here reads the environment.

use crate::engine::topo::error::Error;
use crate::engine::topo::kind::PathType;
use crate::engine::topo::merge::{self, NetMerge};
use crate::env::parse_integer;

/// How many NICs a GPU may use when several are equally near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetDevsPolicy {
    /// Its share among the GPUs they are near to.
    Auto,
    /// All of them.
    All,
    /// At most so many.
    Max(usize),
}

/// The settings, with NCCL's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Farthest path over which GPUs talk directly (`NCCL_P2P_LEVEL`, `NCCL_P2P_DISABLE=1` is LOC); unset lets the machine decide.
    pub p2p_level: Option<PathType>,
    /// Farthest path between GPU and NIC for direct access (`NCCL_NET_GDR_LEVEL`); unset is P2C.
    pub net_gdr_level: Option<PathType>,
    /// Direct reads by the NIC (`NCCL_NET_GDR_READ`); negative lets the machine decide.
    pub net_gdr_read: i64,
    /// Direct access through a chip-to-chip link and the CPU's PCI port (`NCCL_NET_GDR_C2C`).
    pub net_gdr_c2c: bool,
    /// Direct access to partitions of a GPU (`NCCL_NET_GDR_MLOPART`).
    pub net_gdr_partition: bool,
    /// Never prefer the network inside a host (`NCCL_NET_DISABLE_INTRA=1`).
    pub net_disable_intra: bool,
    /// No NVLink path through another GPU (`NCCL_NVB_DISABLE`).
    pub nvb_disable: bool,
    /// No NIC reached through another GPU (`NCCL_PXN_DISABLE=1`).
    pub pxn_disable: bool,
    /// That other GPU may itself use a chip-to-chip link (`NCCL_PXN_C2C`).
    pub pxn_c2c: bool,
    /// No shared memory between ranks (`NCCL_SHM_DISABLE=1`).
    pub shm_disable: bool,
    /// Rings and trees may change NIC: 0 no, 1 yes, 2 when it helps (`NCCL_CROSS_NIC`).
    pub cross_nic: i64,
    /// NICs per GPU (`NCCL_NETDEVS_POLICY`).
    pub net_devs_policy: NetDevsPolicy,
    /// With several hosts joined by NVLink, take NICs GPU by GPU (`NCCL_MNNVL_SCATTER_NETS_ENABLE`).
    pub scatter_nets: bool,
    /// With several hosts joined by NVLink, rails are per host (`NCCL_MNNVL_RAIL_PER_HOST`).
    pub rail_per_host: bool,
    /// Partitions of a GPU are devices of their own (`NCCL_TOPO_SPLIT_MLOPART`).
    pub split_partitions: bool,
    /// Ports that act as one NIC; none unless `NCCL_NET_MERGE_LEVEL` or `NCCL_NET_FORCE_MERGE` is set.
    pub net_merge: Option<NetMerge>,
    /// Text of a graph file to use instead of searching (contents of `NCCL_GRAPH_FILE`).
    pub graph_xml: Option<String>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            p2p_level: None,
            net_gdr_level: None,
            net_gdr_read: -2,
            net_gdr_c2c: true,
            net_gdr_partition: false,
            net_disable_intra: false,
            nvb_disable: false,
            pxn_disable: false,
            pxn_c2c: true,
            shm_disable: false,
            cross_nic: 2,
            net_devs_policy: NetDevsPolicy::Auto,
            scatter_nets: true,
            rail_per_host: false,
            split_partitions: true,
            net_merge: None,
            graph_xml: None,
        }
    }
}

impl Params {
    /// Reads the settings from wherever `lookup` finds them, by their full names. [`Params::graph_xml`] stays empty: it is a file's
    /// text, and reading files is the caller's business.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let number = |name, default| integer(lookup, name, default);
        let mut params = Self {
            p2p_level: level(lookup, "NCCL_P2P_LEVEL")?,
            net_gdr_level: level(lookup, "NCCL_NET_GDR_LEVEL")?,
            net_gdr_read: number("NCCL_NET_GDR_READ", -2)?,
            net_gdr_c2c: number("NCCL_NET_GDR_C2C", 1)? != 0,
            net_gdr_partition: number("NCCL_NET_GDR_MLOPART", 0)? != 0,
            net_disable_intra: number("NCCL_NET_DISABLE_INTRA", 0)? == 1,
            nvb_disable: number("NCCL_NVB_DISABLE", 0)? != 0,
            pxn_disable: number("NCCL_PXN_DISABLE", 0)? == 1,
            pxn_c2c: number("NCCL_PXN_C2C", 1)? != 0,
            shm_disable: number("NCCL_SHM_DISABLE", 0)? == 1,
            cross_nic: number("NCCL_CROSS_NIC", 2)?,
            net_devs_policy: policy(lookup)?,
            scatter_nets: number("NCCL_MNNVL_SCATTER_NETS_ENABLE", 1)? != 0,
            rail_per_host: number("NCCL_MNNVL_RAIL_PER_HOST", 0)? != 0,
            split_partitions: number("NCCL_TOPO_SPLIT_MLOPART", 1)? != 0,
            net_merge: net_merge(lookup)?,
            graph_xml: None,
        };
        if number("NCCL_P2P_DISABLE", 0)? == 1 {
            params.p2p_level = Some(PathType::Loc);
        }
        Ok(params)
    }
}

impl Params {
    /// The same for ranks in host memory, which reach each other's wherever they live unless the user says otherwise.
    #[must_use]
    pub fn for_host_ranks(mut self) -> Self {
        self.p2p_level.get_or_insert(PathType::Sys);
        self
    }
}

fn integer(lookup: &dyn Fn(&str) -> Option<String>, name: &'static str, default: i64) -> Result<i64, Error> {
    match lookup(name) {
        Some(text) if !text.is_empty() => {
            parse_integer(&text).ok_or(Error::Setting { name, value: text, want: "an integer" })
        }
        _ => Ok(default),
    }
}

/// A path type by its acronym up to SYS, or by the numbers used before acronyms existed.
fn level(lookup: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<Option<PathType>, Error> {
    const OLD_NUMBERS: [PathType; 6] =
        [PathType::Loc, PathType::Pix, PathType::Pxb, PathType::Phb, PathType::Sys, PathType::Sys];
    let Some(text) = lookup(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    if let Some(kind) = PathType::from_name(&text).filter(|&kind| kind <= PathType::Sys) {
        return Ok(Some(kind));
    }
    match parse_integer(&text).and_then(|number| usize::try_from(number).ok()) {
        Some(number) => Ok(Some(OLD_NUMBERS[number.min(OLD_NUMBERS.len() - 1)])),
        None => Err(Error::Setting {
            name,
            value: text,
            want: "one of LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS, or an old number 0 to 5",
        }),
    }
}

/// Which NIC ports to merge: `NCCL_NET_MERGE_LEVEL`, `NCCL_NET_MERGE_POLICY`, and groups of names, `a,b;c,d`.
fn net_merge(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<NetMerge>, Error> {
    const LEVELS: [(&str, PathType); 8] = [
        ("LOC", PathType::Loc),
        ("PORT", merge::PORT),
        ("PIX", PathType::Pix),
        ("PXB", PathType::Pxb),
        ("P2C", PathType::P2c),
        ("PXN", PathType::Pxn),
        ("PHB", PathType::Phb),
        ("SYS", PathType::Sys),
    ];
    let text = |name| lookup(name).filter(|text| !text.is_empty());
    let level = text("NCCL_NET_MERGE_LEVEL");
    let forced = text("NCCL_NET_FORCE_MERGE");
    if level.is_none() && forced.is_none() {
        return Ok(None);
    }
    let level = match level {
        Some(value) => {
            let known = LEVELS.iter().find(|(word, _)| word.eq_ignore_ascii_case(&value));
            let want = "one of LOC PORT PIX PXB P2C PXN PHB SYS";
            known.ok_or(Error::Setting { name: "NCCL_NET_MERGE_LEVEL", value, want })?.1
        }
        None => merge::PORT,
    };
    let same_rail = match text("NCCL_NET_MERGE_POLICY") {
        Some(value) if value.eq_ignore_ascii_case("RAIL") => true,
        Some(value) if !value.eq_ignore_ascii_case("ALL") => {
            return Err(Error::Setting { name: "NCCL_NET_MERGE_POLICY", value, want: "ALL or RAIL" });
        }
        _ => false,
    };
    let words =
        |text: &str, mark| text.split(mark).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let groups: Vec<String> = words(&forced.unwrap_or_default(), ';');
    let forced = groups.iter().map(|group| words(group, ',')).collect();
    Ok(Some(NetMerge { level, same_rail, forced }))
}

fn policy(lookup: &dyn Fn(&str) -> Option<String>) -> Result<NetDevsPolicy, Error> {
    const NAME: &str = "NCCL_NETDEVS_POLICY";
    let Some(text) = lookup(NAME).filter(|text| !text.is_empty()) else { return Ok(NetDevsPolicy::Auto) };
    let upper = text.to_ascii_uppercase();
    let max = upper
        .strip_prefix("MAX:")
        .and_then(|number| number.parse().ok())
        .filter(|&number: &usize| number > 0);
    match (upper.as_str(), max) {
        ("AUTO", _) => Ok(NetDevsPolicy::Auto),
        ("ALL", _) => Ok(NetDevsPolicy::All),
        (_, Some(number)) => Ok(NetDevsPolicy::Max(number)),
        _ => Err(Error::Setting { name: NAME, value: text, want: "AUTO, ALL or MAX:number" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Params, Error> {
        Params::from_lookup(&|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(Params::from_lookup(&|_| None), Ok(Params::default()));
    }

    #[test]
    fn levels_take_acronyms_and_old_numbers() {
        assert_eq!(with("NCCL_P2P_LEVEL", "PHB").map(|p| p.p2p_level), Ok(Some(PathType::Phb)));
        assert_eq!(with("NCCL_P2P_LEVEL", "2").map(|p| p.p2p_level), Ok(Some(PathType::Pxb)));
        assert_eq!(with("NCCL_P2P_LEVEL", "99").map(|p| p.p2p_level), Ok(Some(PathType::Sys)));
        assert_eq!(with("NCCL_P2P_DISABLE", "1").map(|p| p.p2p_level), Ok(Some(PathType::Loc)));
        let message = with("NCCL_NET_GDR_LEVEL", "FAR").expect_err("no such level").to_string();
        assert!(message.starts_with("NCCL_NET_GDR_LEVEL is \"FAR\", want one of LOC"), "{message}");
    }

    #[test]
    fn policies_are_words_or_a_number() {
        assert_eq!(
            with("NCCL_NETDEVS_POLICY", "max:3").map(|p| p.net_devs_policy),
            Ok(NetDevsPolicy::Max(3))
        );
        assert!(with("NCCL_NETDEVS_POLICY", "MAX:0").is_err());
    }
}
