//! Which network interface ranks meet on: NCCL's grammar and order of preference.

use std::net::IpAddr;

use crate::engine::bootstrap::BootstrapError;

/// `NCCL_SOCKET_FAMILY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

impl Family {
    /// The family of that name, or nothing for other words.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "AF_INET" => Some(Self::V4),
            "AF_INET6" => Some(Self::V6),
            _ => None,
        }
    }

    fn has(self, ip: IpAddr) -> bool {
        matches!((self, ip), (Self::V4, IpAddr::V4(_)) | (Self::V6, IpAddr::V6(_)))
    }
}

/// A running interface with its first usable address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Address to listen at.
    pub ip: IpAddr,
    prefix_bits: u8,
}

impl Interface {
    fn has_neighbour(&self, other: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.prefix_bits));
        match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let (a, b) = (a.to_bits(), b.to_bits());
                (a ^ b).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let (a, b) = (a.to_bits(), b.to_bits());
                (a ^ b).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// `NCCL_SOCKET_IFNAME`: a comma list of name prefixes; a leading `^` excludes, `=` asks for exact names. A port behind a name, which
/// the grammar shares with the setting for other adapters, says nothing about an interface.
#[derive(Debug)]
struct Filter<'a> {
    excludes: bool,
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> Filter<'a> {
    fn parse(text: &'a str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let without_port = |name: &'a str| name.split(':').next().unwrap_or_default().trim();
        let names = text.split(',').map(without_port).filter(|name| !name.is_empty()).collect();
        Self { excludes, exact, names }
    }

    fn allows(&self, interface: &str) -> bool {
        let is_named = self
            .names
            .iter()
            .any(|&name| if self.exact { interface == name } else { interface.starts_with(name) });
        is_named != self.excludes
    }
}

/// The interface of this host that suits the settings, preferring the subnet of `near`.
pub fn find(
    ifname: Option<&str>,
    family: Option<Family>,
    near: Option<IpAddr>,
) -> Result<Interface, BootstrapError> {
    let found =
        if_addrs::get_if_addrs().map_err(|error| BootstrapError::io("listing network interfaces", error))?;
    let running = found.into_iter().filter(is_running).map(|interface| Interface {
        ip: interface.ip(),
        prefix_bits: match &interface.addr {
            if_addrs::IfAddr::V4(v4) => v4.prefixlen,
            if_addrs::IfAddr::V6(v6) => v6.prefixlen,
        },
        name: interface.name,
    });
    let candidates = first_addresses(running, family);
    choose(&candidates, ifname, near).cloned().ok_or_else(|| BootstrapError::NoInterface {
        wanted: match ifname {
            Some(text) => format!("NCCL_SOCKET_IFNAME={text}"),
            None => "any name".into(),
        },
        present: candidates.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

fn is_running(interface: &if_addrs::Interface) -> bool {
    // Loopback and tunnels report no state of their own; only a state that says "down" counts.
    use if_addrs::IfOperStatus::{Down, LowerLayerDown, NotPresent};
    !matches!(interface.oper_status, Down | LowerLayerDown | NotPresent)
}

/// The first address of each name. The IPv6 loopback is left out as in NCCL; so are link-local addresses, which mean
/// nothing on another host.
fn first_addresses(all: impl Iterator<Item = Interface>, family: Option<Family>) -> Vec<Interface> {
    let mut kept: Vec<Interface> = Vec::new();
    for interface in all {
        let usable = match interface.ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let wanted = family.is_none_or(|family| family.has(interface.ip));
        if usable && wanted && kept.iter().all(|k| k.name != interface.name) {
            kept.push(interface);
        }
    }
    kept
}

fn choose<'a>(all: &'a [Interface], ifname: Option<&str>, near: Option<IpAddr>) -> Option<&'a Interface> {
    if let Some(text) = ifname.filter(|text| !text.is_empty()) {
        let filter = Filter::parse(text);
        return all.iter().find(|interface| filter.allows(&interface.name));
    }
    let named = |text: &str| {
        let filter = Filter::parse(text);
        all.iter().find(|interface| filter.allows(&interface.name))
    };
    named("ib")
        .or_else(|| near.and_then(|ip| all.iter().find(|interface| interface.has_neighbour(ip))))
        .or_else(|| named("^docker,lo,virbr"))
        .or_else(|| named("docker"))
        .or_else(|| named("lo"))
        .or_else(|| named("virbr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str, prefix_bits: u8) -> Interface {
        Interface { name: name.into(), ip: ip.parse().expect("an address"), prefix_bits }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", 8),
            interface("docker0", "172.17.0.1", 16),
            interface("eth0", "10.0.0.5", 24),
            interface("eth10", "10.1.0.5", 16),
        ]
    }

    fn chosen(ifname: Option<&str>, near: Option<&str>) -> Option<String> {
        let near = near.map(|ip| ip.parse().expect("an address"));
        choose(&host(), ifname, near).map(|interface| interface.name.clone())
    }

    #[test]
    fn names_are_prefixes_unless_marked_exact() {
        assert_eq!(chosen(Some("eth1"), None).as_deref(), Some("eth10"));
        assert_eq!(chosen(Some("=eth1"), None), None);
        assert_eq!(
            chosen(Some("=eth10,eth0"), None).as_deref(),
            Some("eth0"),
            "in the order of the host's list"
        );
        assert_eq!(chosen(Some("wlan,lo"), None).as_deref(), Some("lo"));
        assert_eq!(chosen(Some("=eth10:1"), None).as_deref(), Some("eth10"), "a port says nothing");
    }

    #[test]
    fn a_caret_excludes() {
        assert_eq!(chosen(Some("^lo,docker"), None).as_deref(), Some("eth0"));
        assert_eq!(chosen(Some("^=lo,docker0,eth0"), None).as_deref(), Some("eth10"));
        assert_eq!(chosen(Some("^=eth"), None).as_deref(), Some("lo"));
    }

    #[test]
    fn real_networks_come_before_docker_and_loopback() {
        assert_eq!(chosen(None, None).as_deref(), Some("eth0"));
        let poor = [interface("lo", "127.0.0.1", 8), interface("docker0", "172.17.0.1", 16)];
        assert_eq!(choose(&poor, None, None).map(|i| i.name.as_str()), Some("docker0"));
        assert_eq!(choose(&poor[..1], None, None).map(|i| i.name.as_str()), Some("lo"));
        let rich = [interface("eth0", "10.0.0.5", 24), interface("ib0", "10.9.0.1", 24)];
        assert_eq!(choose(&rich, None, None).map(|i| i.name.as_str()), Some("ib0"));
    }

    #[test]
    fn the_subnet_of_the_root_is_preferred() {
        assert_eq!(chosen(None, Some("10.1.77.1")).as_deref(), Some("eth10"));
        assert_eq!(chosen(None, Some("127.0.0.1")).as_deref(), Some("lo"));
        assert_eq!(chosen(None, Some("8.8.8.8")).as_deref(), Some("eth0"));
    }

    #[test]
    fn one_address_per_name_and_of_the_wanted_family() {
        let all = vec![
            interface("lo", "127.0.0.1", 8),
            interface("lo", "::1", 128),
            interface("eth0", "10.0.0.5", 24),
            interface("eth0", "fe80::1", 64),
            interface("eth0", "fd00::2", 64),
        ];
        let v4 = first_addresses(all.clone().into_iter(), None);
        assert_eq!(v4.iter().map(|i| i.ip.to_string()).collect::<Vec<_>>(), ["127.0.0.1", "10.0.0.5"]);
        let v6 = first_addresses(all.into_iter(), Some(Family::V6));
        assert_eq!(v6.iter().map(|i| i.ip.to_string()).collect::<Vec<_>>(), ["fd00::2"]);
    }

    #[test]
    fn this_host_has_an_interface_and_a_missing_one_is_named() {
        find(None, None, None).expect("every host has at least its loopback");
        let error = find(Some("=nosuch9"), None, None).expect_err("no such name").to_string();
        assert!(error.contains("NCCL_SOCKET_IFNAME==nosuch9"), "{error}");
    }
}
