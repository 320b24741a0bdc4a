//! A rank's place in the ring of sockets, and what the ranks do together over it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::engine::bootstrap::hello::{self, Acceptor, Call, Hello, Purpose};
use crate::engine::bootstrap::link::{self, Frame, Link};
use crate::engine::bootstrap::message::{self, Messages};
use crate::engine::bootstrap::patience::{Patience, check_news, second_thoughts};
use crate::engine::bootstrap::root::{ADDRESS_TAG, DONE_TAG, read_address};
use crate::engine::bootstrap::{BootstrapError, BootstrapParams, CONNECT_LIMIT, UniqueId, poll};
use crate::engine::error::Error;
use crate::engine::log::{self, Subsys};
use crate::fault;

/// What a rank may add to the limit while it waits for the root, which knows better who is late.
const GRACE: Duration = Duration::from_millis(700);
/// How long a failing rank listens for news that explain its failure.
const NEWS: Duration = Duration::from_millis(400);
/// How long last words may take.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// One rank's end of the bootstrap network.
#[derive(Debug)]
pub struct Bootstrap {
    rank: usize,
    n_ranks: usize,
    magic: u64,
    params: BootstrapParams,
    interface: std::net::IpAddr,
    ring: Option<Ring>,
    messages: Messages,
    addresses: Vec<SocketAddr>,
    n_operations: u32,
    n_splits: u64,
    has_failed: bool,
}

#[derive(Debug)]
struct Ring {
    next: Link,
    prev: Link,
}

impl Bootstrap {
    /// Joins the communicator of that id as `rank`. Returns once all ranks are there and the ring works.
    pub fn connect(
        id: &UniqueId,
        rank: usize,
        n_ranks: usize,
        params: &BootstrapParams,
    ) -> Result<Self, BootstrapError> {
        if rank >= n_ranks {
            return Err(BootstrapError::Usage(format!("rank {rank} of {n_ranks} does not exist")));
        }
        if rank == 0 && params.comm_id.is_some_and(|address| address == id.root) {
            id.host_root(params.limit)?;
        }
        let ip = params.interface(id.root.ip().is_loopback().then_some(id.root.ip()))?.ip;
        let hello = |purpose| Hello::new(id.magic, purpose, rank, n_ranks, 0);
        let mut to_root = Patience::new(Some(params.limit.unwrap_or(CONNECT_LIMIT)));
        // The root of a fresh id listens before anybody knows the id; the one at a known address may come later.
        let call = match params.comm_id {
            Some(_) => hello::call(id.root, hello(Purpose::Root), "the root", &mut to_root)?,
            None => hello::call_listening(id.root, hello(Purpose::Root), 0)?,
        };
        let (fd, _) = call.finish(&mut to_root)?;
        let mut root = Link::new(fd, 0);

        let ring_acceptor = Acceptor::bind(ip, hello(Purpose::Ring))?;
        let messages = Messages::new(Acceptor::bind(ip, hello(Purpose::Message))?);
        let mut joining = Joining { rank, n_ranks, root: &mut root, limit: params.limit };
        let ring = joining.ring(ring_acceptor, id.magic)?;
        let mut bootstrap = Self {
            rank,
            n_ranks,
            magic: id.magic,
            params: params.clone(),
            interface: ip,
            ring,
            messages,
            addresses: Vec::new(),
            n_operations: 0,
            n_splits: 0,
            has_failed: false,
        };
        let exchanged = bootstrap.exchange_addresses().map_err(Error::from);
        match &exchanged {
            Ok(()) => root.queue(DONE_TAG, &[]),
            // Others may still wait for their neighbours, and hear the root alone.
            Err(error) => root.queue_fault(error),
        }
        link::flush_briefly(std::iter::once(&mut root), LAST_WORDS);
        exchanged.map_err(BootstrapError::Told)?;
        log::info(
            Subsys::BOOTSTRAP,
            format_args!("Bootstrap: rank {rank} of {n_ranks} joined over {ip}, root {}", id.root),
        );
        Ok(bootstrap)
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// All ranks.
    pub fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// The secret the ranks share: for further sockets and names of theirs.
    pub(crate) fn magic(&self) -> u64 {
        self.magic
    }

    /// Changes the limit of waits.
    pub fn set_limit(&mut self, limit: Option<Duration>) {
        self.params.limit = limit;
    }

    /// The limit of waits.
    pub fn limit(&self) -> Option<Duration> {
        self.params.limit
    }

    /// Everybody's bytes, in order of ranks; lengths may differ.
    ///
    /// The ring runs both ways at once: step s passes on what came s steps ago, so n/2 steps do. With an even number of ranks
    /// the last step goes one way only.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.operate("all_gather", |this, tag, patience| {
            let (n, r) = (this.n_ranks, this.rank);
            let mut all: Vec<Option<Vec<u8>>> = vec![None; n];
            all[r] = Some(mine.to_vec());
            let (rank, ring) = (this.rank, this.ring.as_mut());
            if let Some(Ring { next, prev }) = ring {
                for step in 0..n / 2 {
                    let is_two_way = !(n % 2 == 0 && step == n / 2 - 1);
                    let forth = (r + n - step) % n;
                    let back = (r + step) % n;
                    next.queue(tag, all[forth].as_deref().expect("invariant: it came in the step before"));
                    if is_two_way {
                        prev.queue(tag, all[back].as_deref().expect("invariant: it came in the step before"));
                    }
                    let (mut from_prev, mut from_next) = (None, None);
                    link::pump(
                        &mut [&mut *next, &mut *prev],
                        patience,
                        |[next, prev]| {
                            take_once(prev, tag, &mut from_prev)?;
                            if is_two_way {
                                take_once(next, tag, &mut from_next)?;
                            } else {
                                notice_end(next)?;
                            }
                            Ok(from_prev.is_some() && (from_next.is_some() || !is_two_way))
                        },
                        &|| format!("rank {rank} for its neighbours in a bootstrap all_gather, step {step}"),
                    )?;
                    all[(forth + n - 1) % n] = from_prev;
                    if is_two_way {
                        all[(back + 1) % n] = from_next;
                    }
                }
            }
            Ok(all.into_iter().map(|part| part.expect("invariant: n/2 steps bring all parts")).collect())
        })
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.all_gather(&[]).map(drop)
    }

    /// Replaces everybody's bytes with those of `root`.
    pub fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<(), BootstrapError> {
        if root >= self.n_ranks {
            return Err(BootstrapError::Usage(format!("broadcast from rank {root} of {}", self.n_ranks)));
        }
        self.operate("broadcast", |this, tag, patience| {
            let (rank, n) = (this.rank, this.n_ranks);
            let Some(Ring { next, prev }) = this.ring.as_mut() else { return Ok(()) };
            let waiting =
                || format!("rank {rank} for the rank before it in a bootstrap broadcast from rank {root}");
            if rank != root {
                let mut got = None;
                let done = |[next, prev]: &mut [&mut Link; 2]| {
                    notice_end(next)?;
                    take_once(prev, tag, &mut got)?;
                    Ok(got.is_some())
                };
                link::pump(&mut [&mut *next, &mut *prev], patience, done, &waiting)?;
                *bytes = got.expect("invariant: the wait ended with it");
            }
            if (rank + 1) % n != root {
                next.queue(tag, bytes);
                link::pump(&mut [&mut *next], patience, |_| Ok(true), &waiting)?;
            }
            Ok(())
        })
    }

    /// Sends one message. It does not wait for the receiver unless the sockets' buffers are full.
    pub fn send(&mut self, peer: usize, tag: u32, bytes: &[u8]) -> Result<(), BootstrapError> {
        if peer == self.rank {
            self.messages.keep_for_self(tag, bytes);
            return Ok(());
        }
        let address = *self.addresses.get(peer).ok_or_else(|| self.no_such_peer(peer))?;
        let own = Hello::new(self.magic, Purpose::Message, self.rank, self.n_ranks, tag);
        let mut patience = Patience::new(self.params.limit);
        let sent = message::send(address, own, bytes, peer, &mut patience);
        self.spread(sent)
    }

    /// The message that `peer` sent under `tag`. Others that come meanwhile are kept.
    pub fn recv(&mut self, peer: usize, tag: u32) -> Result<Vec<u8>, BootstrapError> {
        if peer >= self.n_ranks {
            return Err(self.no_such_peer(peer));
        }
        let received = self.wait_for_message(peer, tag);
        self.spread(received)
    }

    fn wait_for_message(&mut self, peer: usize, tag: u32) -> Result<Vec<u8>, BootstrapError> {
        if peer == self.rank {
            let nothing =
                || BootstrapError::Usage(format!("rank {peer} waits for a message it never sent itself"));
            return self.messages.take_own(tag).ok_or_else(nothing);
        }
        let mut patience = Patience::new(self.params.limit);
        loop {
            if let Some(bytes) = self.messages.poll(peer, tag)? {
                return Ok(bytes);
            }
            if let Some(ring) = &mut self.ring {
                for link in [&mut ring.next, &mut ring.prev] {
                    link.fill();
                    notice_end(link)?;
                }
            }
            patience.check(|| format!("rank {} for a message of rank {peer}, tag {tag:#x}", self.rank))?;
            let neighbours = self.ring.iter().flat_map(|ring| [&ring.next, &ring.prev]);
            let fds = neighbours.filter(|link| !link.has_ended()).map(Link::fd);
            message::sleep(&self.messages, fds, &patience)?;
        }
    }

    /// A bootstrap among the ranks that gave the same colour, ordered by key, then by rank. Nothing for those without colour.
    pub fn split(&mut self, color: Option<u32>, key: i64) -> Result<Option<Self>, BootstrapError> {
        self.n_splits += 1;
        let magic = mix(self.magic, self.n_splits, color.map_or(0, |c| u64::from(c) + 1));
        let hello = |purpose| Hello::new(magic, purpose, 0, 0, 0);
        let ring_acceptor = Acceptor::bind(self.interface, hello(Purpose::Ring))?;
        let mine = color.map_or(String::new(), |color| {
            ring_acceptor.address().map_or(String::new(), |address| format!("{color} {key} {address}"))
        });
        let all = self.all_gather(mine.as_bytes())?;
        let Some(color) = color else { return Ok(None) };
        let mut members = Vec::new();
        for (rank, line) in all.iter().enumerate() {
            members.extend(read_member(line, rank)?.filter(|member| member.color == color));
        }
        members.sort_by_key(|member| (member.key, member.rank));
        let n_ranks = members.len();
        let rank = members
            .iter()
            .position(|member| member.rank == self.rank)
            .ok_or_else(|| BootstrapError::Protocol("a rank is missing from its own split".into()))?;
        let messages = Acceptor::bind(self.interface, Hello::new(magic, Purpose::Message, rank, n_ranks, 0))?;
        let next = members[(rank + 1) % n_ranks].address;
        let mut patience = Patience::new(self.params.limit);
        let mut meeting =
            Meeting { rank, n_ranks, magic, acceptor: ring_acceptor, call: None, prev: None, next: None };
        meeting.call(next)?;
        while !meeting.advance()? {
            patience.check(|| meeting.waiting())?;
            poll::readable(&meeting.fds(), patience.nap(poll::LONGEST_NAP))?;
        }
        let mut child = Self {
            rank,
            n_ranks,
            magic,
            params: self.params.clone(),
            interface: self.interface,
            ring: meeting.into_ring(),
            messages: Messages::new(messages),
            addresses: Vec::new(),
            n_operations: 0,
            n_splits: 0,
            has_failed: false,
        };
        child.exchange_addresses()?;
        Ok(Some(child))
    }

    fn exchange_addresses(&mut self) -> Result<(), BootstrapError> {
        let mine = self.messages.address()?.to_string();
        let all = self.all_gather(mine.as_bytes())?;
        self.addresses =
            all.iter().enumerate().map(|(rank, body)| read_address(body, rank)).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Runs one operation of all ranks; its number is the tag by which ranks that disagree about the order notice it.
    fn operate<T>(
        &mut self,
        name: &str,
        run: impl FnOnce(&mut Self, u32, &mut Patience) -> Result<T, BootstrapError>,
    ) -> Result<T, BootstrapError> {
        if self.has_failed {
            return Err(BootstrapError::Usage(format!("{name} on a bootstrap that has failed before")));
        }
        self.n_operations = self.n_operations.wrapping_add(1);
        let mut patience = Patience::new(self.params.limit);
        let result = run(self, self.n_operations, &mut patience);
        self.spread(result)
    }

    /// Tells both neighbours of a failure, which pass it on: everybody ends with the words of the rank that met it.
    fn spread<T>(&mut self, result: Result<T, BootstrapError>) -> Result<T, BootstrapError> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => Error::from(error),
        };
        self.fail(&error);
        Err(BootstrapError::Told(error))
    }

    /// Tells the other ranks that this one gives up, and why.
    pub fn fail(&mut self, error: &Error) {
        if let Some(ring) = self.ring.as_mut().filter(|_| !self.has_failed) {
            ring.next.queue_fault(error);
            ring.prev.queue_fault(error);
            link::flush_briefly([&mut ring.next, &mut ring.prev].into_iter(), LAST_WORDS);
        }
        self.has_failed = true;
    }

    /// Closes the sockets without a word, as a killed process would.
    #[cfg(test)]
    pub(crate) fn vanish(mut self) {
        self.ring = None;
    }

    fn no_such_peer(&self, peer: usize) -> BootstrapError {
        BootstrapError::Usage(format!("rank {peer} of {} does not exist", self.n_ranks))
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.as_mut().filter(|_| !self.has_failed && !std::thread::panicking()) {
            ring.next.say_bye();
            ring.prev.say_bye();
        }
    }
}

/// A rank between its check-in and a working ring.
struct Joining<'a> {
    rank: usize,
    n_ranks: usize,
    root: &'a mut Link,
    limit: Option<Duration>,
}

impl Joining<'_> {
    fn ring(&mut self, acceptor: Acceptor, magic: u64) -> Result<Option<Ring>, BootstrapError> {
        let (rank, n_ranks) = (self.rank, self.n_ranks);
        let mut patience = Patience::new(self.limit.map(|limit| limit + GRACE));
        self.root.queue(ADDRESS_TAG, acceptor.address()?.to_string().as_bytes());
        self.root.flush();
        fault::point("join", 0);
        let mut meeting = Meeting { rank, n_ranks, magic, acceptor, call: None, prev: None, next: None };
        match self.meet(&mut meeting, &mut patience) {
            Ok(()) => Ok(meeting.into_ring()),
            Err(error) => {
                let error = self.explain(error);
                meeting.fail(&error);
                Err(BootstrapError::Told(error))
            }
        }
    }

    fn meet(&mut self, meeting: &mut Meeting, patience: &mut Patience) -> Result<(), BootstrapError> {
        loop {
            self.root.fill();
            if let Some(frame) = self.root.take()? {
                meeting.call(read_address(&frame.body, 0)?)?;
            }
            if meeting.advance()? {
                return Ok(());
            }
            // Only a limit speaks here; a wait without one is reported by the root, once for all.
            match self.limit {
                Some(_) => patience.check(|| meeting.waiting())?,
                None => check_news()?,
            }
            let fds: Vec<BorrowedFd<'_>> = meeting.fds().into_iter().chain([self.root.fd()]).collect();
            poll::readable(&fds, patience.nap(poll::LONGEST_NAP))?;
        }
    }

    /// The root may know the reason of a failure: a neighbour that cannot be reached has died, or left because another did.
    /// Any other failure is news for the root.
    fn explain(&mut self, error: BootstrapError) -> Error {
        use BootstrapError as E;
        if !matches!(error, E::Connect { .. } | E::PeerEnded { .. } | E::NotOurs { .. }) {
            let error = Error::from(error);
            self.root.queue_fault(&error);
            link::flush_briefly(std::iter::once(&mut *self.root), LAST_WORDS);
            return error;
        }
        let mut patience = Patience::new(Some(NEWS));
        let nothing = |[root]: &mut [&mut Link; 1]| root.take().map(|_| false);
        match link::pump(&mut [&mut *self.root], &mut patience, nothing, &String::new) {
            Err(E::Told(news)) => news,
            _ => Error::from(second_thoughts(error)),
        }
    }
}

/// The two connections of a ring while they come to be: the call to the next rank and the one of the previous.
struct Meeting {
    rank: usize,
    n_ranks: usize,
    magic: u64,
    acceptor: Acceptor,
    call: Option<Call>,
    next: Option<Link>,
    prev: Option<Link>,
}

impl Meeting {
    fn call(&mut self, next: SocketAddr) -> Result<(), BootstrapError> {
        if self.n_ranks > 1 {
            let own = Hello::new(self.magic, Purpose::Ring, self.rank, self.n_ranks, 0);
            self.call = Some(hello::call_listening(next, own, (self.rank + 1) % self.n_ranks)?);
        }
        Ok(())
    }

    /// Whether both neighbours are there.
    fn advance(&mut self) -> Result<bool, BootstrapError> {
        if self.n_ranks == 1 {
            return Ok(true);
        }
        let (before, after) = ((self.rank + self.n_ranks - 1) % self.n_ranks, (self.rank + 1) % self.n_ranks);
        while let Some((fd, hello)) = self.acceptor.advance()? {
            if hello.rank as usize != before || self.prev.is_some() {
                return Err(BootstrapError::Protocol(format!(
                    "rank {} called rank {}, whose previous rank is {before}",
                    hello.rank, self.rank
                )));
            }
            self.prev = Some(Link::new(fd, before));
        }
        if let Some(call) = &mut self.call
            && call.answer()?.is_some()
        {
            self.next = self.call.take().map(|call| Link::new(call.into_fd(), after));
        }
        Ok(self.next.is_some() && self.prev.is_some())
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.acceptor.fds().chain(self.call.as_ref().map(Call::fd)).collect()
    }

    fn waiting(&self) -> String {
        let (rank, n) = (self.rank, self.n_ranks);
        match (&self.next, &self.prev) {
            (_, None) => format!("start-up: rank {rank} for a call of rank {}", (rank + n - 1) % n),
            _ => format!("start-up: rank {rank} for an answer of rank {}", (rank + 1) % n),
        }
    }

    /// Tells the neighbours that are there already: they must not take this rank for the one that failed first.
    fn fail(self, error: &Error) {
        let (before, after) = ((self.rank + self.n_ranks - 1) % self.n_ranks, (self.rank + 1) % self.n_ranks);
        let called = self.call.map(|call| Link::new(call.into_fd(), after));
        let mut links: Vec<Link> = [self.next, called, self.prev].into_iter().flatten().collect();
        debug_assert!(links.iter().all(|link| [before, after].contains(&link.peer())), "neighbours only");
        links.iter_mut().for_each(|link| link.queue_fault(error));
        link::flush_briefly(links.iter_mut(), LAST_WORDS);
    }

    fn into_ring(self) -> Option<Ring> {
        Some(Ring { next: self.next?, prev: self.prev? })
    }
}

struct Member {
    color: u32,
    key: i64,
    rank: usize,
    address: SocketAddr,
}

fn read_member(line: &[u8], rank: usize) -> Result<Option<Member>, BootstrapError> {
    if line.is_empty() {
        return Ok(None);
    }
    let broken = || BootstrapError::Protocol(format!("rank {rank} sent a split request that is none"));
    let text = std::str::from_utf8(line).map_err(|_| broken())?;
    let mut words = text.split(' ');
    let mut word = || words.next().ok_or_else(broken);
    let color = word()?.parse().map_err(|_| broken())?;
    let key = word()?.parse().map_err(|_| broken())?;
    let address = word()?.parse().map_err(|_| broken())?;
    Ok(Some(Member { color, key, rank, address }))
}

fn take_once(link: &mut Link, tag: u32, slot: &mut Option<Vec<u8>>) -> Result<(), BootstrapError> {
    if slot.is_some() {
        return Ok(());
    }
    match link.take()? {
        Some(Frame { tag: theirs, body }) if theirs == tag => *slot = Some(body),
        Some(frame) => {
            return Err(BootstrapError::Protocol(format!(
                "rank {} is in operation {}, this rank in operation {tag}: the ranks do not call the same sequence",
                link.peer(),
                frame.tag
            )));
        }
        None if link.has_said_bye() => return Err(BootstrapError::PeerEnded { peer: link.peer() }),
        None => {}
    }
    Ok(())
}

/// Fails when the link ended without a good-bye or told of a failure; frames stay for the operation they belong to.
fn notice_end(link: &mut Link) -> Result<(), BootstrapError> {
    link.check_alive()
}

fn mix(magic: u64, count: u64, color: u64) -> u64 {
    let mut hash = magic;
    for word in [count, color] {
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }
    hash
}
