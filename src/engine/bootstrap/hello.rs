//! The first bytes of every connection. The magic comes first: who does not know it is dropped without an answer and changes
//! nothing. Who knows it but runs another build gets an answer, so that both ends can name both builds.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::engine::bootstrap::build::{BUILD_BYTES, Build};
use crate::engine::bootstrap::patience::Patience;
use crate::engine::bootstrap::{BootstrapError, UniqueId, poll};

/// How long a connection may stay silent before it is taken for a stranger's.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a rank that listens may be unreachable: two lost packets, but less than survivors of a death have.
const UNREACHABLE: Duration = Duration::from_millis(2500);
/// How long a root has to answer a probe; something else on the port may never do.
const PROBE: Duration = Duration::from_millis(1000);
/// Tag of a call to the root that only asks whether it is one.
pub(crate) const PROBE_TAG: u32 = 1;
/// Silent connections kept at a time; the oldest goes when more arrive.
const PENDING_MAX: usize = 256;
/// NCCL's backlog: all ranks of a large job may call at once.
const BACKLOG: i32 = 16384;
const HELLO_BYTES: usize = 8 + 4 + BUILD_BYTES + 12;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A rank checks in at the root.
    Root = 1,
    /// The previous rank of the ring calls.
    Ring = 2,
    /// One message between two ranks.
    Message = 3,
    /// Two processes watch each other.
    Control = 4,
}

/// Who calls, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) magic: u64,
    pub(crate) purpose: Purpose,
    pub(crate) build: Build,
    pub(crate) rank: u32,
    pub(crate) n_ranks: u32,
    pub(crate) tag: u32,
}

impl Hello {
    pub(crate) fn new(magic: u64, purpose: Purpose, rank: usize, n_ranks: usize, tag: u32) -> Self {
        let build = Build::of_this_process();
        Self { magic, purpose, build, rank: rank as u32, n_ranks: n_ranks as u32, tag }
    }

    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&self.magic.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.purpose as u32).to_le_bytes());
        bytes[12..12 + BUILD_BYTES].copy_from_slice(&self.build.to_bytes());
        for (slot, number) in
            bytes[12 + BUILD_BYTES..].chunks_exact_mut(4).zip([self.rank, self.n_ranks, self.tag])
        {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Nothing when magic or purpose are not the expected ones.
    fn from_bytes(bytes: &[u8; HELLO_BYTES], magic: u64, purpose: Purpose) -> Option<Self> {
        let number =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes"));
        if bytes[..8] != magic.to_le_bytes() || number(8) != purpose as u32 {
            return None;
        }
        let build = bytes[12..12 + BUILD_BYTES].try_into().expect("invariant: the build's bytes");
        let at = 12 + BUILD_BYTES;
        Some(Self {
            magic,
            purpose,
            build: Build::from_bytes(build),
            rank: number(at),
            n_ranks: number(at + 4),
            tag: number(at + 8),
        })
    }
}

/// A connection whose hello has not come in full.
#[derive(Debug)]
struct Pending {
    fd: OwnedFd,
    since: Instant,
    bytes: [u8; HELLO_BYTES],
    length: usize,
}

enum Heard {
    NotYet,
    /// Ended before it said anything.
    Silence,
    Stranger,
    Hello(Hello),
}

impl Pending {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, since: Instant::now(), bytes: [0; HELLO_BYTES], length: 0 }
    }

    fn listen(&mut self, magic: u64, purpose: Purpose) -> Heard {
        loop {
            // Never a byte beyond the hello: what follows belongs to the link.
            match rustix::net::recv(&self.fd, &mut self.bytes[self.length..], RecvFlags::DONTWAIT) {
                Ok((_, n)) if n > 0 => self.length += n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Heard::NotYet,
                _ if self.length == 0 => return Heard::Silence,
                _ => return Heard::Stranger,
            }
            let known = self.length.min(8);
            if self.bytes[..known] != magic.to_le_bytes()[..known] {
                return Heard::Stranger;
            }
            if self.length == HELLO_BYTES {
                return Hello::from_bytes(&self.bytes, magic, purpose).map_or(Heard::Stranger, Heard::Hello);
            }
        }
    }
}

/// A listening socket that lets in who knows the magic. It never blocks.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    own: Hello,
    answers: bool,
    pending: Vec<Pending>,
}

impl Acceptor {
    /// Listens at any free port of that address. `own` is what callers must match, and the answer they get.
    pub(crate) fn bind(ip: IpAddr, own: Hello) -> Result<Self, BootstrapError> {
        let address = SocketAddr::new(ip, 0);
        let listener =
            TcpListener::bind(address).map_err(|source| BootstrapError::Bind { address, source })?;
        Self::over(listener, own)
    }

    /// The same over a socket that listens already.
    pub(crate) fn over(listener: TcpListener, own: Hello) -> Result<Self, BootstrapError> {
        let set_up = || -> io::Result<()> {
            listener.set_nonblocking(true)?;
            Ok(rustix::net::listen(&listener, BACKLOG)?)
        };
        set_up().map_err(|error| BootstrapError::io("preparing a listening socket", error))?;
        // Messages are sent and forgotten: their sender must not wait for the receiver's attention.
        let answers = own.purpose != Purpose::Message;
        Ok(Self { listener, own, answers, pending: Vec::new() })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.listener.local_addr().map_err(|error| BootstrapError::io("asking for a socket's address", error))
    }

    /// What to poll before [`Acceptor::advance`].
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.pending.iter().map(|pending| pending.fd.as_fd()))
    }

    /// Takes in what has arrived; the next caller with the right magic and build, if there is one.
    pub(crate) fn advance(&mut self) -> Result<Option<(OwnedFd, Hello)>, BootstrapError> {
        while let Ok((stream, _)) = self.listener.accept() {
            if prepare(&stream).is_ok() {
                if self.pending.len() == PENDING_MAX {
                    self.pending.remove(0);
                }
                self.pending.push(Pending::new(stream.into()));
            }
        }
        let mut index = 0;
        while index < self.pending.len() {
            match self.pending[index].listen(self.own.magic, self.own.purpose) {
                Heard::NotYet if self.pending[index].since.elapsed() < STRANGER_PATIENCE => index += 1,
                Heard::NotYet | Heard::Silence | Heard::Stranger => drop(self.pending.swap_remove(index)),
                Heard::Hello(hello) => {
                    let fd = self.pending.swap_remove(index).fd;
                    return self.welcome(fd, hello).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn welcome(&self, fd: OwnedFd, hello: Hello) -> Result<(OwnedFd, Hello), BootstrapError> {
        if self.answers {
            // A fresh socket has room for these few bytes; a caller that is gone shows up at the first read.
            let _ = rustix::net::send(&fd, &self.own.to_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        compare(self.own.build, hello.build, &format!("rank {}", hello.rank))?;
        Ok((fd, hello))
    }
}

/// A call that waits for its answer. It never blocks.
#[derive(Debug)]
pub(crate) struct Call {
    pending: Pending,
    own: Hello,
    /// Who has ended when the call ends without an answer; the root is rank 0's.
    peer: usize,
    whom: String,
}

impl Call {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pending.fd.as_fd()
    }

    /// Whether the answer is there. A wrong one means that somebody else listens at that address.
    pub(crate) fn answer(&mut self) -> Result<Option<Hello>, BootstrapError> {
        match self.pending.listen(self.own.magic, self.own.purpose) {
            Heard::NotYet => Ok(None),
            Heard::Silence => Err(BootstrapError::PeerEnded { peer: self.peer }),
            Heard::Stranger => Err(BootstrapError::NotOurs { whom: self.whom.clone() }),
            Heard::Hello(hello) => {
                compare(self.own.build, hello.build, &self.whom)?;
                Ok(Some(hello))
            }
        }
    }

    /// Waits for the answer and gives the connection.
    pub(crate) fn finish(mut self, patience: &mut Patience) -> Result<(OwnedFd, Hello), BootstrapError> {
        loop {
            if let Some(hello) = self.answer()? {
                return Ok((self.into_fd(), hello));
            }
            patience.check(|| format!("rank {} for an answer of {}", self.own.rank, self.whom))?;
            poll::readable(&[self.fd()], patience.nap(poll::LONGEST_NAP))?;
        }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.pending.fd
    }
}

fn compare(mine: Build, theirs: Build, whom: &str) -> Result<(), BootstrapError> {
    if mine == theirs {
        return Ok(());
    }
    Err(BootstrapError::DifferentBuild { mine, theirs, whom: whom.to_owned() })
}

/// Connects, trying again until `patience` ends, and says hello.
pub(crate) fn call(
    address: SocketAddr,
    own: Hello,
    whom: &str,
    patience: &mut Patience,
) -> Result<Call, BootstrapError> {
    let mut pause = Duration::from_millis(5);
    let stream = loop {
        match TcpStream::connect_timeout(&address, patience.nap(Duration::from_secs(5))) {
            Ok(stream) => break stream,
            Err(source) if !may_pass(&source) => {
                return Err(BootstrapError::Connect { whom: whom.to_owned(), address, source });
            }
            Err(source) => {
                patience.check(|| format!("rank {} cannot reach {whom} at {address} ({source})", own.rank))?
            }
        }
        std::thread::sleep(patience.nap(pause));
        pause = (pause * 2).min(Duration::from_millis(100));
    };
    greet(stream, address, own, whom)
}

fn call_once(address: SocketAddr, own: Hello, whom: &str, limit: Duration) -> Result<Call, BootstrapError> {
    let stream = TcpStream::connect_timeout(&address, limit).map_err(|source| BootstrapError::Connect {
        whom: whom.to_owned(),
        address,
        source,
    })?;
    greet(stream, address, own, whom)
}

fn greet(stream: TcpStream, address: SocketAddr, own: Hello, whom: &str) -> Result<Call, BootstrapError> {
    let failed = |source: io::Error| BootstrapError::Connect { whom: whom.to_owned(), address, source };
    prepare(&stream).map_err(failed)?;
    let fd = OwnedFd::from(stream);
    let sent = rustix::net::send(&fd, &own.to_bytes(), SendFlags::NOSIGNAL).map_err(|e| failed(e.into()))?;
    if sent != HELLO_BYTES {
        return Err(failed(io::ErrorKind::WriteZero.into()));
    }
    Ok(Call { pending: Pending::new(fd), own, peer: 0, whom: whom.to_owned() })
}

/// The same for a rank that is known to listen already: when it cannot be reached for a moment, it has ended.
pub(crate) fn call_listening(address: SocketAddr, own: Hello, peer: usize) -> Result<Call, BootstrapError> {
    let mut patience = Patience::new(Some(UNREACHABLE));
    match call(address, own, &format!("rank {peer}"), &mut patience) {
        Ok(call) => Ok(Call { peer, ..call }),
        Err(BootstrapError::Late { .. }) => Err(BootstrapError::PeerEnded { peer }),
        Err(other) => Err(other),
    }
}

/// Which of these ids has a root that answers, asking again until `patience` ends. Strangers on the same ports are passed by.
pub(crate) fn find_root(
    ids: &[UniqueId],
    rank: usize,
    n_ranks: usize,
    patience: &mut Patience,
) -> Result<UniqueId, BootstrapError> {
    let mut pause = Duration::from_millis(5);
    loop {
        for id in ids {
            let own = Hello::new(id.magic, Purpose::Root, rank, n_ranks, PROBE_TAG);
            let mut try_once = Patience::new(Some(PROBE));
            let answer =
                call_once(id.root, own, "the root", PROBE).and_then(|call| call.finish(&mut try_once));
            match answer {
                Ok(_) => return Ok(*id),
                Err(error @ BootstrapError::DifferentBuild { .. }) => return Err(error),
                Err(_) => {}
            }
        }
        let place = ids.first().map_or_else(String::new, |id| id.root.to_string());
        patience.check(|| {
            format!("process {rank} finds no process 0 of this job at {place} or the ports above it")
        })?;
        std::thread::sleep(patience.nap(pause));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Errors that a peer which is still starting, or a network that is busy, can cause.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::TimedOut
            | Kind::Interrupted
            | Kind::WouldBlock
            | Kind::HostUnreachable
            | Kind::ConnectionReset
            | Kind::NetworkUnreachable
    )
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const MAGIC: u64 = 0x1234_5678_9abc_def0;

    fn hello(rank: usize) -> Hello {
        Hello::new(MAGIC, Purpose::Ring, rank, 4, 9)
    }

    fn acceptor() -> (Acceptor, SocketAddr) {
        let acceptor =
            Acceptor::bind("127.0.0.1".parse().expect("an address"), hello(0)).expect("a free port");
        let address = acceptor.address().expect("bound");
        (acceptor, address)
    }

    fn accept(acceptor: &mut Acceptor) -> Result<(OwnedFd, Hello), BootstrapError> {
        let mut patience = Patience::new(Some(Duration::from_secs(5)));
        loop {
            if let Some(found) = acceptor.advance()? {
                return Ok(found);
            }
            patience.check(|| "a caller".into())?;
            let fds: Vec<_> = acceptor.fds().collect();
            poll::readable(&fds, Duration::from_millis(20))?;
        }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        let mine = hello(3);
        assert_eq!(Hello::from_bytes(&mine.to_bytes(), MAGIC, Purpose::Ring), Some(mine));
        assert_eq!(Hello::from_bytes(&mine.to_bytes(), MAGIC + 1, Purpose::Ring), None);
        assert_eq!(Hello::from_bytes(&mine.to_bytes(), MAGIC, Purpose::Root), None);
    }

    #[test]
    fn strangers_change_nothing_for_the_caller_who_knows_the_magic() {
        let (mut acceptor, address) = acceptor();
        let _silent = TcpStream::connect(address).expect("connected");
        let mut rude = TcpStream::connect(address).expect("connected");
        rude.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        drop(TcpStream::connect(address).expect("connected"));
        let mut half = TcpStream::connect(address).expect("connected");
        half.write_all(&MAGIC.to_le_bytes()[..5]).expect("sent");
        assert!(acceptor.advance().expect("strangers are no error").is_none());

        let mut patience = Patience::new(Some(Duration::from_secs(5)));
        let call = call(address, hello(1), "rank 0", &mut patience).expect("reachable");
        let (_fd, caller) = accept(&mut acceptor).expect("the real caller");
        assert_eq!((caller.rank, caller.tag), (1, 9));
        let (_fd, answer) = call.finish(&mut patience).expect("an answer");
        assert_eq!(answer.rank, 0);
        assert!(acceptor.pending.len() <= 2, "only the silent and the half-spoken are still kept");
    }

    #[test]
    fn both_ends_name_both_builds_when_they_differ() {
        let (mut acceptor, address) = acceptor();
        let mut other = hello(2);
        other.build = other.build.with_id(0xbad);
        let mut patience = Patience::new(Some(Duration::from_secs(5)));
        let call = call(address, other, "rank 0", &mut patience).expect("reachable");
        let here = accept(&mut acceptor).expect_err("another build").to_string();
        let there = call.finish(&mut patience).expect_err("another build").to_string();
        for text in [&here, &there] {
            assert!(text.contains("0000000000000bad"), "{text}");
            assert!(text.contains(&Build::of_this_process().to_string()), "{text}");
        }
        assert!(here.contains("rank 2") && there.contains("rank 0"));
    }

    #[test]
    fn a_caller_notices_that_somebody_else_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            stream
                .write_all(b"220 mail.example ESMTP ready, and a good deal more text than that\r\n")
                .expect("sent");
            stream
        });
        let mut patience = Patience::new(Some(Duration::from_secs(5)));
        let call = call(address, hello(1), "the root", &mut patience).expect("reachable");
        let error = call.finish(&mut patience).expect_err("no rank of ours").to_string();
        assert!(error.contains("the root"), "{error}");
        drop(server.join().expect("the server"));
    }

    #[test]
    fn a_closed_port_is_tried_until_the_limit() {
        let address = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
        let mut patience = Patience::new(Some(Duration::from_millis(80)));
        let started = Instant::now();
        let error = call(address, hello(1), "rank 0", &mut patience).expect_err("nobody listens").to_string();
        assert!(started.elapsed() >= Duration::from_millis(80));
        assert!(error.contains("rank 0") && error.contains(&address.to_string()), "{error}");
    }
}
