//! Handing a file descriptor to other ranks of this kernel, so that they can map the same memory.
//!
//! | way | reaches | because |
//! | --- | --- | --- |
//! | an abstract Unix socket of a random name | all of the same network namespace | the name has no place in the file system: nothing is left behind |
//! | the peer's entry under `/proc` | the same user in the same process namespace | the kernel opens it like a file |
//! | a file with a random name, mode 0600 ([`Offered::path`]) | the same user where that folder is shared | its owner makes it for this, and unlinks it when all have it |
//!
//! The socket's server gives its descriptor to whoever knows the random token of the offer. Offers travel over the bootstrap, so
//! only members of the job know one, whatever user they run as. What was opened is compared with what the peer announced.
//! Descriptors are close-on-exec everywhere.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::engine::bootstrap::ring::Bootstrap;
use crate::engine::bootstrap::{BootstrapError, poll};
use crate::engine::log::{self, Subsys};

/// How long one peer may take to answer: it serves from a thread of its own, so only a stopped one is slow.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a caller may take to say what it knows.
const REQUEST: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 4096;

/// A peer's descriptor could not be had; the caller takes another way to move data.
#[derive(Debug, thiserror::Error)]
#[error("no descriptor of rank {peer}: {reasons}")]
pub struct HandoffError {
    /// The peer.
    pub peer: usize,
    /// Why each way gave none.
    pub reasons: String,
}

/// What a rank gives away.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// A name under which peers can open the same file, where there is one.
    pub path: Option<&'a str>,
}

/// Sharing of descriptors over a bootstrap.
#[derive(Debug)]
pub struct Handoff;

impl Handoff {
    /// Gives `mine` to whoever asks and asks each of `peers` for theirs; called by all ranks of the bootstrap together. The
    /// results are in the order of `peers`.
    pub fn share(
        bootstrap: &mut Bootstrap,
        mine: Offered<'_>,
        peers: &[usize],
    ) -> Result<Vec<Result<OwnedFd, HandoffError>>, BootstrapError> {
        let token = new_token()?;
        let server = Server::start(mine.fd, token)?;
        let offer = Offer::of(mine, &server.name, token)?;
        let offers = bootstrap.all_gather(offer.to_string().as_bytes())?;
        let offers: Vec<Option<Offer>> = offers.iter().map(|bytes| Offer::parse(bytes)).collect();
        let results =
            peers.iter().map(|&peer| take_from(peer, offers.get(peer).and_then(Option::as_ref))).collect();
        // Nobody stops serving before everybody has asked.
        let asked = bootstrap.barrier();
        if asked.is_err() {
            offers.iter().flatten().for_each(Offer::remove_file);
        }
        asked?;
        drop(server);
        Ok(results)
    }
}

fn new_token() -> Result<Token, BootstrapError> {
    let mut token = Token::default();
    getrandom::fill(&mut token).map_err(|error| BootstrapError::io("asking for random bytes", error))?;
    Ok(token)
}

fn take_from(peer: usize, offer: Option<&Offer>) -> Result<OwnedFd, HandoffError> {
    let Some(offer) = offer else {
        return Err(HandoffError { peer, reasons: "its offer cannot be read".into() });
    };
    let mut reasons = Vec::new();
    let ways: [(&str, Way); 3] = [
        ("socket", Offer::take_by_socket),
        ("/proc", Offer::take_by_proc),
        ("named file", Offer::take_by_name),
    ];
    for (way, take) in ways {
        match take(offer) {
            Ok(fd) if reasons.is_empty() => return Ok(fd),
            Ok(fd) => {
                log::info(
                    Subsys::INIT | Subsys::SHM,
                    format_args!("descriptor of rank {peer} taken by {way} ({})", reasons.join("; ")),
                );
                return Ok(fd);
            }
            Err(error) => reasons.push(format!("{way}: {error}")),
        }
    }
    Err(HandoffError { peer, reasons: reasons.join("; ") })
}

/// One way to come by the descriptor of an offer.
type Way = fn(&Offer) -> io::Result<OwnedFd>;

/// What a caller must know.
type Token = [u8; 16];

/// What a rank tells the others about its descriptor.
#[derive(Debug, PartialEq)]
struct Offer {
    name: String,
    token: Token,
    pid: u32,
    fd: i32,
    device: u64,
    inode: u64,
    path: Option<String>,
}

impl std::fmt::Display for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, pid, fd, device, inode, path, .. } = self;
        let token = u128::from_le_bytes(self.token);
        write!(f, "{name} {token:x} {pid} {fd} {device} {inode} {}", path.as_deref().unwrap_or_default())
    }
}

impl Offer {
    fn of(mine: Offered<'_>, name: &str, token: Token) -> Result<Self, BootstrapError> {
        let stat = rustix::fs::fstat(mine.fd)
            .map_err(|error| BootstrapError::io("looking at a descriptor", error))?;
        Ok(Self {
            name: name.to_owned(),
            token,
            pid: std::process::id(),
            fd: mine.fd.as_raw_fd(),
            device: stat.st_dev,
            inode: stat.st_ino,
            path: mine.path.map(str::to_owned),
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.splitn(7, ' ');
        Some(Self {
            name: words.next()?.to_owned(),
            token: u128::from_str_radix(words.next()?, 16).ok()?.to_le_bytes(),
            pid: words.next()?.parse().ok()?,
            fd: words.next()?.parse().ok()?,
            device: words.next()?.parse().ok()?,
            inode: words.next()?.parse().ok()?,
            path: Some(words.next()?).filter(|path| !path.is_empty()).map(str::to_owned),
        })
    }

    fn take_by_socket(&self) -> io::Result<OwnedFd> {
        let socket = unix_socket()?;
        set_limits(&socket, ANSWER)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(self.name.as_bytes())?)?;
        rustix::net::send(&socket, &self.token, SendFlags::NOSIGNAL)?;
        let fd = receive_fd(&socket)?;
        self.check(&fd)?;
        Ok(fd)
    }

    fn take_by_proc(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        self.check(&fd)?;
        Ok(fd)
    }

    fn take_by_name(&self) -> io::Result<OwnedFd> {
        let path = self.path.as_deref().ok_or_else(|| io::Error::other("there is none"))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        self.check(&fd)?;
        Ok(fd)
    }

    /// Its owner may have died before it could: whoever knows the name takes it away.
    fn remove_file(&self) {
        if let (Some(path), Ok(_)) = (&self.path, self.take_by_name()) {
            // The owner may be faster.
            let _ = rustix::fs::unlink(path);
        }
    }

    /// The kernel's own identity of the file: whatever was opened is the peer's, or refused.
    fn check(&self, fd: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(fd)?;
        if (stat.st_dev, stat.st_ino) == (self.device, self.inode) {
            return Ok(());
        }
        Err(io::Error::other("another file than the peer announced"))
    }
}

/// The thread that gives one descriptor away. Dropping it ends the thread and frees the name.
#[derive(Debug)]
struct Server {
    name: String,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(fd: BorrowedFd<'_>, token: Token) -> Result<Self, BootstrapError> {
        let failed = |error: io::Error| BootstrapError::io("serving a descriptor", error);
        let random =
            getrandom::u64().map_err(|error| BootstrapError::io("asking for random bytes", error))?;
        let name = format!("chorus-{}-{random:016x}", std::process::id());
        let fd = fd.try_clone_to_owned().map_err(failed)?;
        let listener = listen(&name).map_err(failed)?;
        let (stop, stopped) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(read, write)| (write, read))
            .map_err(|error| failed(error.into()))?;
        let thread = std::thread::Builder::new()
            .name("chorus-handoff".into())
            .spawn(move || serve(&listener, &stopped, &fd, &token))
            .map_err(failed)?;
        Ok(Self { name, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing to give any more; its peers took the second way.
            let _ = thread.join();
        }
    }
}

fn listen(name: &str) -> io::Result<OwnedFd> {
    let listener = unix_socket()?;
    rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Serves until the other end of `stopped` is closed.
fn serve(listener: &OwnedFd, stopped: &OwnedFd, fd: &OwnedFd, token: &Token) {
    loop {
        let mut polled = [listener, stopped].map(|fd| PollFd::new(fd, PollFlags::IN));
        if poll::sleep(&mut polled, poll::LONGEST_NAP).is_err() || !polled[1].revents().is_empty() {
            return;
        }
        if !polled[0].revents().is_empty()
            && let Ok(caller) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
        {
            // A caller who does not know the token gets nothing, and finds its connection closed.
            let _ = give_fd(&caller, fd, token);
        }
    }
}

fn give_fd(caller: &OwnedFd, fd: &OwnedFd, token: &Token) -> io::Result<()> {
    set_limits(caller, REQUEST)?;
    let mut heard = Token::default();
    let (_, length) = rustix::net::recv(caller, &mut heard, RecvFlags::WAITALL)?;
    if length != heard.len() || heard != *token {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(caller, &[IoSlice::new(b"f")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("the peer's server refused"))
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

fn set_limits(socket: &OwnedFd, limit: Duration) -> Result<(), Errno> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    set_socket_timeout(socket, Timeout::Recv, Some(limit))?;
    set_socket_timeout(socket, Timeout::Send, Some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn memory(text: &[u8]) -> OwnedFd {
        let fd = rustix::fs::memfd_create("handoff-test", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::io::write(&fd, text).expect("written");
        fd
    }

    fn read(fd: &OwnedFd) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let length = rustix::io::pread(fd, &mut bytes, 0).expect("readable");
        bytes.truncate(length);
        bytes
    }

    fn served(fd: &OwnedFd) -> (Server, Offer) {
        let token = new_token().expect("random bytes");
        let server = Server::start(fd.as_fd(), token).expect("a server");
        let offer = offer(fd, &server.name, None);
        (server, Offer { token, ..offer })
    }

    fn offer(fd: &OwnedFd, name: &str, path: Option<&str>) -> Offer {
        Offer::of(Offered { fd: fd.as_fd(), path }, name, Token::default()).expect("an offer")
    }

    #[test]
    fn a_served_descriptor_opens_the_same_memory_and_is_close_on_exec() {
        let fd = memory(b"shared");
        let (_server, offer) = served(&fd);
        let offer = Offer::parse(offer.to_string().as_bytes()).expect("survives the wire");
        let taken = offer.take_by_socket().expect("served");
        rustix::io::pwrite(&taken, b"S", 0).expect("writable");
        assert_eq!(read(&fd), b"Shared");
        let flags = rustix::io::fcntl_getfd(&taken).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn who_does_not_know_the_token_gets_nothing() {
        let fd = memory(b"secret");
        let (_server, offer) = served(&fd);
        let stranger =
            Offer { token: [7; 16], ..Offer::parse(offer.to_string().as_bytes()).expect("an offer") };
        assert!(stranger.take_by_socket().is_err());
        assert!(offer.take_by_socket().is_ok(), "the server goes on");
    }

    #[test]
    fn a_name_is_free_again_once_its_server_is_dropped() {
        let fd = memory(b"x");
        let (server, offer) = served(&fd);
        drop(server);
        assert!(offer.take_by_socket().is_err());
        let names = std::fs::read_to_string("/proc/net/unix").expect("the list of sockets");
        assert!(!names.contains(&offer.name));
    }

    #[test]
    fn the_second_way_opens_the_announced_file_only() {
        let fd = memory(b"proc");
        let mut offer = offer(&fd, "chorus-nobody-listens", None);
        let taken = take_from(3, Some(&offer)).expect("taken from /proc");
        assert_eq!(read(&taken), b"proc");
        offer.inode += 1;
        let error = take_from(3, Some(&offer)).expect_err("another file").to_string();
        assert!(error.contains("rank 3") && error.contains("another file"), "{error}");
    }

    #[test]
    fn the_third_way_is_a_named_file_and_no_other_of_that_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("segment");
        let open = || OwnedFd::from(std::fs::File::create(&path).expect("a file"));
        let fd = open();
        rustix::io::write(&fd, b"named").expect("written");
        let path_text = path.to_str().expect("a plain path");
        // As from another process namespace: neither name nor pid lead anywhere.
        let offer = Offer { fd: -1, ..offer(&fd, "chorus-nobody-listens", Some(path_text)) };
        let offer = Offer::parse(offer.to_string().as_bytes()).expect("survives the wire");
        assert_eq!(read(&take_from(1, Some(&offer)).expect("taken by name")), b"named");
        std::fs::remove_file(&path).expect("removed");
        let _other = open();
        offer.remove_file();
        assert!(path.exists(), "a file of somebody else stays");
        let error = take_from(1, Some(&offer)).expect_err("another file").to_string();
        assert!(error.contains("named file: another file"), "{error}");
    }

    #[test]
    fn an_unreadable_offer_is_an_error_of_that_peer_alone() {
        assert!(Offer::parse(b"name 1 2").is_none());
        assert!(Offer::parse(&[0xff, 0xfe]).is_none());
        assert!(take_from(1, None).is_err());
    }
}
