//! The control sockets: one connection between any two processes, which says by ending that a process is gone.
//!
//! A mesh and not a ring: every survivor sees a death itself, at once, however many die and whoever has left already. Over it
//! go a question (are you there, and do you move?), its answer, the news of a failure, and the good-bye.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::engine::bootstrap::{
    Acceptor, BootstrapError, BootstrapParams, Call, Hello, LONGEST_NAP, Link, Patience, Purpose,
    call_listening, flush_briefly, readable,
};
use crate::engine::error::{Error, Result};
use crate::engine::watch::verdict::Identity;
use crate::fault;

/// Asks a process whether it is there.
const PING: u32 = 1;
/// The answer, with a number that changes when the process moves.
const PONG: u32 = 2;

/// How long to wait for connections before asking whether everybody is still there.
const ROUND: Duration = Duration::from_millis(800);
/// How long last words may take.
const LAST_WORDS: Duration = Duration::from_millis(150);

/// Everybody's bytes from everybody, by whatever way the processes found each other.
pub type Exchange<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>> + 'a;

/// Another process, and the connection to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) identity: Identity,
    link: Link,
    /// When the question was asked that has no answer yet.
    asked: Option<Instant>,
    /// What the last answer said.
    fingerprint: Option<u64>,
}

impl Peer {
    /// Still a member: it has not said good-bye.
    pub(super) fn is_present(&self) -> bool {
        !self.link.has_said_bye() && !self.link.has_ended()
    }

    /// Whether a question has been without an answer for that long.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        self.is_present() && self.asked.is_some_and(|asked| asked.elapsed() >= patience)
    }
}

/// Connections to all other processes.
#[derive(Debug, Default)]
pub(super) struct Mesh {
    pub(super) peers: Vec<Peer>,
}

/// What came in.
#[derive(Debug)]
pub(super) enum Event {
    /// A process ended without a good-bye.
    Died(Identity),
    /// A process tells why it ends.
    Told(Error),
    /// A process moves.
    Moved,
}

impl Mesh {
    /// Connects this process with all others; all call it together. `ranks_of` says which ranks live where.
    pub(super) fn connect(
        own: &Identity,
        exchange: &mut Exchange<'_>,
        limit: Option<Duration>,
    ) -> Result<Self> {
        let random = getrandom::u64().map_err(|error| Error::system("asking for random bytes", error))?;
        let introduction = format!(
            "{random} {} {} {} {} {}",
            own.pid,
            own.host,
            own.ranks.start,
            own.ranks.end,
            host_identity()
        );
        let all = exchange(introduction.as_bytes())?;
        let n_processes = all.len();
        let others: Vec<Introduction> = all
            .iter()
            .enumerate()
            .map(|(process, bytes)| read_introduction(process, bytes))
            .collect::<Result<_>>()?;
        // Everybody's random number goes in: whoever was not at the exchange cannot know the sum.
        let magic = others.iter().fold(0x4c07_11ad_u64, |sum, other| {
            (sum ^ other.random).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        });
        let is_one_host = others.iter().all(|other| other.kernel == others[0].kernel);
        let params = if is_one_host {
            BootstrapParams::on_this_host(limit)
        } else {
            BootstrapParams::from_env(limit)?
        };
        let hello = Hello::new(magic, Purpose::Control, own.process, n_processes, 0);
        let acceptor = Acceptor::bind(params.ip()?, hello)?;
        let addresses = exchange(acceptor.address()?.to_string().as_bytes())?;
        fault::point("mesh", 0);
        let mut meeting = Meeting { acceptor, hello, calls: Vec::new(), links: Vec::new() };
        let called: Result<()> = addresses
            .iter()
            .enumerate()
            .take(own.process)
            .try_for_each(|(process, address)| meeting.call(process, address));
        let mut links = meeting.finish(called, n_processes - 1, exchange, limit)?;
        links.sort_by_key(Link::peer);
        let identities = others.into_iter().map(|other| other.identity).filter(|i| i.process != own.process);
        let peers = identities
            .zip(links)
            .map(|(identity, link)| Peer { identity, link, asked: None, fingerprint: None })
            .collect();
        Ok(Self { peers })
    }

    /// What to sleep on.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.peers.iter().filter(|peer| !peer.link.has_ended()).map(|peer| peer.link.fd())
    }

    /// Reads and answers; the first event that ends the job wins over progress.
    pub(super) fn advance(&mut self, fingerprint: u64) -> Option<Event> {
        let mut event = None;
        for peer in self.peers.iter_mut().filter(|peer| !peer.link.has_ended()) {
            peer.link.flush();
            peer.link.fill();
            loop {
                match peer.link.take() {
                    Ok(Some(frame)) if frame.tag == PING => {
                        peer.link.queue(PONG, &fingerprint.to_le_bytes());
                        peer.link.flush();
                    }
                    Ok(Some(frame)) => {
                        let theirs = frame.body.as_slice().try_into().map(u64::from_le_bytes).ok();
                        if peer.fingerprint.is_some() && theirs != peer.fingerprint {
                            event = event.or(Some(Event::Moved));
                        }
                        peer.fingerprint = theirs;
                        peer.asked = None;
                    }
                    Ok(None) => break,
                    Err(BootstrapError::Told(error)) => return Some(Event::Told(error)),
                    Err(_) => return Some(Event::Died(peer.identity.clone())),
                }
            }
        }
        event
    }

    /// Asks everybody who owes no answer.
    pub(super) fn ask(&mut self) {
        for peer in self.peers.iter_mut().filter(|peer| peer.is_present() && peer.asked.is_none()) {
            peer.link.queue(PING, &[]);
            peer.link.flush();
            peer.asked = Some(Instant::now());
        }
    }

    /// The wait is over: answers that come now are about the past.
    pub(super) fn forget_answers(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.fingerprint = None);
    }

    /// Tells everybody why this process ends.
    pub(super) fn tell(&mut self, error: &Error) {
        let present = self.peers.iter_mut().filter(|peer| peer.is_present()).map(|peer| &mut peer.link);
        let mut links: Vec<&mut Link> = present.collect();
        links.iter_mut().for_each(|link| link.queue_fault(error));
        flush_briefly(links.into_iter(), LAST_WORDS);
    }

    /// Leaves in order.
    pub(super) fn say_bye(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.link.say_bye());
        flush_briefly(self.peers.iter_mut().map(|peer| &mut peer.link), LAST_WORDS);
    }
}

/// Connections while they come to be: this process calls those before it and is called by those after it.
struct Meeting {
    acceptor: Acceptor,
    hello: Hello,
    calls: Vec<(usize, Call)>,
    links: Vec<Link>,
}

impl Meeting {
    fn call(&mut self, process: usize, address: &[u8]) -> Result<()> {
        let address: SocketAddr = std::str::from_utf8(address)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Error::Internal(format!("process {process} sent an address that is none")))?;
        self.calls.push((process, call_listening(address, self.hello, process)?));
        Ok(())
    }

    /// Waits for all connections. Nobody here sees a process die that has not connected yet, but whoever exchanges bytes with
    /// it does: so every round ends with an exchange, until all processes say in it that they are content.
    fn finish(
        mut self,
        called: Result<()>,
        n_links: usize,
        exchange: &mut Exchange<'_>,
        limit: Option<Duration>,
    ) -> Result<Vec<Link>> {
        let mut patience = Patience::new(limit);
        loop {
            let round = if called.is_ok() { self.meet(n_links) } else { Ok(()) };
            let is_content = self.links.len() == n_links && round.is_ok() && called.is_ok();
            let all = exchange(&[u8::from(is_content)])?;
            // A death would have ended the exchange: what went wrong is something else.
            called.clone()?;
            round?;
            if all.iter().all(|content| *content == [1]) {
                return Ok(self.links);
            }
            let (own, n_missing) = (self.hello.rank, n_links - self.links.len());
            patience.check(|| format!("start-up: process {own} for {n_missing} control connections"))?;
        }
    }

    fn meet(&mut self, n_links: usize) -> Result<()> {
        let mut round = Patience::new(Some(ROUND));
        loop {
            self.advance()?;
            if self.links.len() == n_links || round.check(String::new).is_err() {
                return Ok(());
            }
            let fds: Vec<BorrowedFd<'_>> =
                self.acceptor.fds().chain(self.calls.iter().map(|(_, call)| call.fd())).collect();
            readable(&fds, round.nap(LONGEST_NAP))?;
        }
    }

    fn advance(&mut self) -> Result<()> {
        while let Some((fd, hello)) = self.acceptor.advance()? {
            self.keep(fd, hello.rank as usize);
        }
        let mut index = 0;
        while index < self.calls.len() {
            if self.calls[index].1.answer()?.is_some() {
                let (process, call) = self.calls.swap_remove(index);
                self.keep(call.into_fd(), process);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    fn keep(&mut self, fd: OwnedFd, process: usize) {
        self.links.push(Link::new(fd, process));
    }
}

struct Introduction {
    random: u64,
    identity: Identity,
    kernel: String,
}

fn read_introduction(process: usize, bytes: &[u8]) -> Result<Introduction> {
    let broken = || Error::Internal(format!("process {process} introduced itself wrongly"));
    let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
    let mut words = text.splitn(6, ' ');
    let mut word = || words.next().ok_or_else(broken);
    let random = word()?.parse().map_err(|_| broken())?;
    let pid = word()?.parse().map_err(|_| broken())?;
    let host = word()?.to_owned();
    let start = word()?.parse().map_err(|_| broken())?;
    let end = word()?.parse().map_err(|_| broken())?;
    let kernel = word()?.to_owned();
    Ok(Introduction { random, identity: Identity { process, pid, host, ranks: start..end }, kernel })
}

/// Two processes with the same text can meet on the loopback.
fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}
