//! The 128 bytes that name a communicator before it exists: a random magic and the address of its root.
//!
//! Layout as NCCL's: `u64` magic, a `sockaddr_in` or `sockaddr_in6`, zeros. Whoever holds the bytes may join, nobody else can.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::engine::bootstrap::BootstrapError;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Bytes of an id.
pub const ID_BYTES: usize = 128;
/// Magic of communicators whose address comes from `NCCL_COMM_ID` and which therefore share no secret.
const SHARED_MAGIC: u64 = 0x43ab_0f1e_5d2c_9786;

/// Names a communicator and says where its ranks meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    pub(crate) magic: u64,
    pub(crate) root: SocketAddr,
}

impl UniqueId {
    /// A fresh id whose root listens at `root`.
    pub(crate) fn random(root: SocketAddr) -> Result<Self, BootstrapError> {
        let magic = getrandom::u64().map_err(|error| BootstrapError::io("asking for random bytes", error))?;
        Ok(Self { magic, root })
    }

    /// The id that everybody who knows the address can make (`NCCL_COMM_ID`, or a launcher's variables).
    pub fn at(root: SocketAddr, job: u64) -> Self {
        Self { magic: SHARED_MAGIC ^ job, root }
    }

    /// The bytes to hand to the other ranks.
    pub fn to_bytes(&self) -> [u8; ID_BYTES] {
        let mut bytes = [0; ID_BYTES];
        bytes[..8].copy_from_slice(&self.magic.to_ne_bytes());
        bytes[10..12].copy_from_slice(&self.root.port().to_be_bytes());
        match self.root {
            SocketAddr::V4(v4) => {
                bytes[8..10].copy_from_slice(&AF_INET.to_ne_bytes());
                bytes[12..16].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                bytes[8..10].copy_from_slice(&AF_INET6.to_ne_bytes());
                bytes[16..32].copy_from_slice(&v6.ip().octets());
                bytes[32..36].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        bytes
    }

    /// The id that [`UniqueId::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8; ID_BYTES]) -> Result<Self, BootstrapError> {
        let magic = u64::from_ne_bytes(take(bytes, 0));
        let port = u16::from_be_bytes(take(bytes, 10));
        let root = match u16::from_ne_bytes(take(bytes, 8)) {
            AF_INET => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(take::<4>(bytes, 12))), port),
            AF_INET6 => {
                let scope = u32::from_ne_bytes(take(bytes, 32));
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(take::<16>(bytes, 16)), port, 0, scope))
            }
            family => {
                return Err(BootstrapError::BadAddress {
                    text: format!("unique id with address family {family}"),
                    reason: "these are not the bytes of a unique id".into(),
                });
            }
        };
        Ok(Self { magic, root })
    }
}

/// The magic stays out of logs: it is the communicator's only secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("root", &self.root).finish_non_exhaustive()
    }
}

fn take<const N: usize>(bytes: &[u8; ID_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("invariant: every field lies inside the 128 bytes")
}

/// `NCCL_COMM_ID`: `ipv4:port`, `[ipv6]:port` or `host:port`.
pub fn parse_comm_id(text: &str) -> Result<SocketAddr, BootstrapError> {
    use std::net::ToSocketAddrs;
    let bad = |reason: String| BootstrapError::BadAddress { text: text.to_owned(), reason };
    let (_, port) = text.rsplit_once(':').ok_or_else(|| bad("expected address:port".into()))?;
    port.parse::<u16>().map_err(|_| bad(format!("`{port}` is not a port")))?;
    let mut found = text.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
    found.next().ok_or_else(|| bad("the name has no address".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_the_journey_as_bytes() {
        for address in ["127.0.0.1:1234", "[fd00::2]:65535", "10.1.2.3:1"] {
            let id = UniqueId::random(address.parse().expect("an address")).expect("random bytes");
            let bytes = id.to_bytes();
            assert_eq!(UniqueId::from_bytes(&bytes).expect("the same id"), id);
            assert!(bytes[36..].iter().all(|&b| b == 0), "the rest of the id is zero");
        }
    }

    #[test]
    fn foreign_bytes_are_no_id() {
        assert!(UniqueId::from_bytes(&[0; ID_BYTES]).is_err());
        assert!(UniqueId::from_bytes(&[0xff; ID_BYTES]).is_err());
    }

    #[test]
    fn the_magic_does_not_reach_logs() {
        let id = UniqueId::random("127.0.0.1:1".parse().expect("an address")).expect("random bytes");
        assert!(!format!("{id:?}").contains(&id.magic.to_string()));
    }

    #[test]
    fn comm_ids_are_addresses_with_a_port() {
        assert_eq!(parse_comm_id("127.0.0.1:77").expect("v4").to_string(), "127.0.0.1:77");
        assert_eq!(parse_comm_id("[::1]:77").expect("v6").to_string(), "[::1]:77");
        assert_eq!(parse_comm_id("localhost:77").expect("a name").port(), 77);
        for bad in ["127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999", ""] {
            let error = parse_comm_id(bad).expect_err("no address").to_string();
            assert!(error.contains("NCCL_COMM_ID"), "{error}");
        }
    }
}
