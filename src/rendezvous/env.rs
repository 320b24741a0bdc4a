//! Processes that know each other from environment variables only (torchrun, Slurm, PMI, Open MPI's variables without its
//! library). They meet as ranks do: over the engine's bootstrap, whose root process 0 hosts at the announced address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::engine::bootstrap::{self, Bootstrap, BootstrapError, BootstrapParams, UniqueId};
use crate::engine::error::Error;
use crate::rendezvous::launcher::{Announced, Kind};
use crate::rendezvous::vigil::Vigil;

/// Ports tried one after the other: torchrun's own store may sit on the announced one.
const PORTS_TRIED: u16 = 4;
/// Derived ports lie below the range from which systems give ports to clients.
const PORTS_FROM: u16 = 20_000;
const N_PORTS: u64 = 12_000;
/// How long a process whose start failed stays where process 0 is expected, so that late processes are told why instead of finding nobody.
const LINGER: Duration = Duration::from_millis(1500);

/// Joins the other processes.
pub(super) fn connect(announced: &Announced, limit: Option<Duration>) -> Result<Bootstrap, BootstrapError> {
    let ids = meeting_places(announced)?;
    let params = BootstrapParams { comm_id: None, ..BootstrapParams::from_env(limit)? };
    let vigil = Vigil::keep(announced).map_err(BootstrapError::Told)?;
    let joined = if announced.process == 0 {
        join_as_first(&ids, announced, &params)
    } else {
        join(&ids, announced, &params)
    };
    if joined.is_ok() {
        vigil.end();
    }
    joined
}

fn join_as_first(
    ids: &[UniqueId],
    announced: &Announced,
    params: &BootstrapParams,
) -> Result<Bootstrap, BootstrapError> {
    let id = host_root(ids, params.limit)?;
    let joined = Bootstrap::connect(&id, announced.process, announced.n_processes, params);
    if joined.is_err() {
        std::thread::sleep(LINGER);
    }
    joined
}

fn join(
    ids: &[UniqueId],
    announced: &Announced,
    params: &BootstrapParams,
) -> Result<Bootstrap, BootstrapError> {
    let (process, n) = (announced.process, announced.n_processes);
    let found = bootstrap::find_root(ids, process, n, params.limit);
    let place = *found.as_ref().ok().or(ids.first()).ok_or_else(no_port)?;
    let joined = found.and_then(|id| Bootstrap::connect(&id, process, n, params));
    joined.map_err(|error| {
        let error = Error::from(bootstrap::second_thoughts(error));
        if matches!(error, Error::PeerDied(_)) {
            bootstrap::stand_in(&place, &error, LINGER);
        }
        BootstrapError::Told(error)
    })
}

fn host_root(ids: &[UniqueId], limit: Option<Duration>) -> Result<UniqueId, BootstrapError> {
    let mut first_error = None;
    for id in ids {
        match id.host_root(limit) {
            Ok(()) => return Ok(*id),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(no_port))
}

fn no_port() -> BootstrapError {
    BootstrapError::Usage("no port to meet at".into())
}

/// Where process 0 may be found, most likely place first.
fn meeting_places(announced: &Announced) -> Result<Vec<UniqueId>, BootstrapError> {
    let job = hash(&format!("{}{}", announced.job, parent_if_local(announced)));
    let first_port = announced.port.unwrap_or(PORTS_FROM + (job % N_PORTS) as u16);
    let ip = match &announced.address {
        Some(name) => resolve(name, first_port, announced.process == 0)?,
        None if announced.n_local_processes == Some(announced.n_processes) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        None => {
            return Err(BootstrapError::Usage(format!(
                "{} started {} processes but does not say where process 0 is: set MASTER_ADDR (and MASTER_PORT)",
                announced.kind.name(),
                announced.n_processes
            )));
        }
    };
    let ports = (0..PORTS_TRIED).filter_map(|offset| first_port.checked_add(offset));
    Ok(ports.map(|port| UniqueId::at(SocketAddr::new(ip, port), job)).collect())
}

/// Two jobs of one host that nothing else tells apart have different launchers.
fn parent_if_local(announced: &Announced) -> String {
    let is_plain = announced.address.is_none() && announced.kind != Kind::Slurm;
    let parent = rustix::process::getppid().filter(|_| is_plain);
    parent.map_or(String::new(), |pid| format!("parent={pid:?}"))
}

fn resolve(name: &str, port: u16, is_mine: bool) -> Result<IpAddr, BootstrapError> {
    let bad = |reason: String| BootstrapError::Usage(format!("MASTER_ADDR={name}: {reason}"));
    let found: Vec<IpAddr> =
        (name, port).to_socket_addrs().map_err(|error| bad(error.to_string()))?.map(|a| a.ip()).collect();
    let ip = *found
        .iter()
        .find(|ip| ip.is_ipv4())
        .or(found.first())
        .ok_or_else(|| bad("has no address".into()))?;
    let is_plain = name.parse::<IpAddr>().is_ok() || name == "localhost";
    // Many systems map their own name to a loopback address, at which no other host can find them.
    Ok(if is_mine && ip.is_loopback() && !is_plain { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { ip })
}

fn hash(text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What is told to all at once needs one voice: only process 0 repeats it.
pub(super) fn speaks(error: &Error, process: usize) -> bool {
    process == 0 || !matches!(error, Error::InvalidUsage(_) | Error::Interrupted(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(address: Option<&str>, port: Option<u16>, n_local: Option<usize>) -> Announced {
        Announced {
            kind: Kind::Torch,
            process: 1,
            n_processes: 4,
            n_local_processes: n_local,
            address: address.map(str::to_owned),
            port,
            job: "RUN=7;".into(),
        }
    }

    #[test]
    fn processes_meet_at_the_announced_address_or_a_few_ports_above() {
        let places = meeting_places(&announced(Some("127.0.0.1"), Some(29500), None)).expect("an address");
        assert_eq!(places.len(), usize::from(PORTS_TRIED));
        assert!(format!("{:?}", places[0]).contains("127.0.0.1:29500"));
        let near_the_end =
            meeting_places(&announced(Some("127.0.0.1"), Some(65535), None)).expect("an address");
        assert_eq!(near_the_end.len(), 1);
    }

    #[test]
    fn processes_of_one_host_need_no_address() {
        let places = meeting_places(&announced(None, None, Some(4))).expect("this host");
        assert_eq!(
            places,
            meeting_places(&announced(None, None, Some(4))).expect("the same for all processes")
        );
        let error = meeting_places(&announced(None, None, Some(2))).expect_err("two hosts").to_string();
        assert!(error.contains("MASTER_ADDR"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_variable() {
        let error =
            meeting_places(&announced(Some("no such host"), Some(1), None)).expect_err("no host").to_string();
        assert!(error.contains("MASTER_ADDR=no such host"), "{error}");
    }
}
