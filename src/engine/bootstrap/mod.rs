//! How ranks find each other before they share anything: a unique id, a root where they check in, a ring of sockets.
//!
//! | who | connects to | for |
//! | --- | --- | --- |
//! | every rank | the root ([`root`], a thread of the process that made the id) | the address of the next rank; kept until the ring works |
//! | rank r | rank r + 1 | the ring: allgather, barrier, broadcast; kept for the communicator's life |
//! | any rank | any rank | one message, then closed |
//!
//! Every connection starts with a [`hello`]: magic, purpose, build. Who does not know the magic is dropped; another build is an
//! error that names both. Every wait has a limit or is reported, and watches its sockets: a peer that closes without a
//! good-bye is dead, and the rank that sees it tells its neighbours, who tell theirs, so that all name the same rank.

pub mod build;
mod fault;
pub mod handoff;
mod hello;
mod id;
pub mod interface;
mod link;
mod message;
mod patience;
mod poll;
mod ring;
mod root;
#[cfg(test)]
mod tests;

pub use handoff::Handoff;
pub use id::{ID_BYTES, UniqueId, parse_comm_id};
pub use interface::Family;
pub use patience::{FIRST_REPORT, NEXT_REPORTS, Patience};
pub use ring::Bootstrap;

pub(crate) use hello::{Acceptor, Call, Hello, Purpose, call_listening};
pub(crate) use link::{Link, flush_briefly};
pub(crate) use patience::{expect_news, give_up, is_watched, second_thoughts};
pub(crate) use poll::{LONGEST_NAP, readable};
pub(crate) use root::stand_in;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use crate::engine::bootstrap::build::Build;
use crate::engine::error::Error;
use crate::engine::log::{self, Subsys};
use crate::env;

/// How long a refused connection is tried again without `-T`: about as long as NCCL does.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

/// How ranks are to meet.
#[derive(Clone, Debug, Default)]
pub struct BootstrapParams {
    /// `NCCL_SOCKET_IFNAME`: which interface.
    pub ifname: Option<String>,
    /// `NCCL_SOCKET_FAMILY`: which kind of address.
    pub family: Option<Family>,
    /// `NCCL_COMM_ID`: where the root listens, when it is not to be chosen freely.
    pub comm_id: Option<SocketAddr>,
    /// When waiting fails (`-T`). Without it waits are only reported.
    pub limit: Option<Duration>,
}

impl BootstrapParams {
    /// The settings of this process's environment.
    pub fn from_env(limit: Option<Duration>) -> Result<Self, BootstrapError> {
        let comm_id = env::text("NCCL_COMM_ID").filter(|text| !text.is_empty());
        let family = env::text("NCCL_SOCKET_FAMILY").and_then(|text| Family::from_name(&text));
        let params = Self {
            ifname: env::text("NCCL_SOCKET_IFNAME").filter(|text| !text.is_empty()),
            family,
            comm_id: comm_id.as_deref().map(parse_comm_id).transpose()?,
            limit,
        };
        if let Some(ifname) = &params.ifname {
            log::setting("NCCL_SOCKET_IFNAME", ifname);
        }
        if let Some(comm_id) = &comm_id {
            log::setting("NCCL_COMM_ID", comm_id);
        }
        Ok(params)
    }

    /// For ranks that all live on this host: nothing leaves the loopback.
    pub fn on_this_host(limit: Option<Duration>) -> Self {
        Self { ifname: Some("=lo".into()), limit, ..Self::default() }
    }

    /// The address at which to listen.
    pub(crate) fn ip(&self) -> Result<IpAddr, BootstrapError> {
        Ok(self.interface(None)?.ip)
    }

    fn interface(&self, root: Option<IpAddr>) -> Result<interface::Interface, BootstrapError> {
        let near = self.comm_id.map(|address| address.ip()).or(root);
        let loopback = near.filter(|ip| ip.is_loopback() && self.ifname.is_none());
        // A root that listens on the loopback can only be met from this host, whatever other networks there are.
        let ifname = if loopback.is_some() { Some("=lo") } else { self.ifname.as_deref() };
        interface::find(ifname, self.family, near)
    }
}

impl UniqueId {
    /// Makes the id of a new communicator and starts its root in this process. With `NCCL_COMM_ID` the root is started by
    /// rank 0 instead, when it connects.
    pub fn create(params: &BootstrapParams) -> Result<Self, BootstrapError> {
        if let Some(address) = params.comm_id {
            return Ok(Self::at(address, 0));
        }
        let interface = params.interface(None)?;
        log::info(
            Subsys::BOOTSTRAP | Subsys::INIT,
            format_args!("Bootstrap: Using {}:{}<0>", interface.name, interface.ip),
        );
        let address = SocketAddr::new(interface.ip, 0);
        let bound = TcpListener::bind(address).map_err(|source| BootstrapError::Bind { address, source })?;
        let root =
            bound.local_addr().map_err(|error| BootstrapError::io("asking for a socket's address", error))?;
        let id = Self::random(root)?;
        root::start(bound, id.magic, params.limit)?;
        Ok(id)
    }

    /// Starts this id's root at its own address. For ids that everybody can make; one process does it.
    pub(crate) fn host_root(&self, limit: Option<Duration>) -> Result<(), BootstrapError> {
        let address = self.root;
        let bound = TcpListener::bind(address).map_err(|source| BootstrapError::Bind { address, source })?;
        root::start(bound, self.magic, limit)
    }
}

/// Which of these ids has its root running, for processes that cannot know on which port it found room. Asks for a minute at
/// most, or as long as the limit says.
pub fn find_root(
    ids: &[UniqueId],
    rank: usize,
    n_ranks: usize,
    limit: Option<Duration>,
) -> Result<UniqueId, BootstrapError> {
    hello::find_root(ids, rank, n_ranks, &mut Patience::new(Some(limit.unwrap_or(CONNECT_LIMIT))))
}

/// What can go wrong while ranks meet.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// No interface suits the settings.
    #[error("no usable network interface for {wanted} (present and running: {present})")]
    NoInterface {
        /// The setting.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// An address that is none.
    #[error("NCCL_COMM_ID `{text}`: {reason}; expected address:port, [address]:port or name:port")]
    BadAddress {
        /// As given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A port cannot be had.
    #[error("cannot listen at {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// A peer cannot be reached.
    #[error("cannot reach {whom} at {address}: {source}")]
    Connect {
        /// The peer.
        whom: String,
        /// Where it should listen.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Something else listens there.
    #[error("what listens for {whom} is not part of this job")]
    NotOurs {
        /// Who should.
        whom: String,
    },
    /// Ranks of different builds.
    #[error(
        "different builds: this rank runs {mine}, {whom} runs {theirs}; all ranks must run the same file"
    )]
    DifferentBuild {
        /// Ours.
        mine: Build,
        /// The peer's.
        theirs: Build,
        /// The peer.
        whom: String,
    },
    /// A peer's connection ended without a good-bye.
    #[error("rank {peer} died in start-up or between operations (0 bytes under way)")]
    PeerEnded {
        /// The peer.
        peer: usize,
    },
    /// A peer told of a failure that it met or heard of.
    #[error(transparent)]
    Told(Error),
    /// A wait outlasted its limit.
    #[error("{what} (limit {} s)", limit.as_secs_f64())]
    Late {
        /// Who waited for what.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// The ranks do not fit together.
    #[error("{0}")]
    Usage(String),
    /// A peer of our build sent what no build of ours sends.
    #[error("bootstrap protocol broken: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl BootstrapError {
    pub(crate) fn io(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { what, source: source.into() }
    }
}

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        use BootstrapError as E;
        let text = error.to_string();
        match error {
            E::Told(told) => told,
            E::PeerEnded { .. } => Self::PeerDied(text),
            E::Connect { .. } => Self::PeerDied(text),
            E::Late { what, limit } => Self::Timeout { what, limit },
            E::NoInterface { .. } | E::BadAddress { .. } | E::DifferentBuild { .. } | E::Usage(_) => {
                Self::InvalidUsage(text)
            }
            E::NotOurs { .. } => Self::InvalidUsage(text),
            E::Bind { .. } => Self::InvalidUsage(text),
            E::Protocol(_) => Self::Internal(text),
            E::System { what, source } => Self::system(what, source),
        }
    }
}
