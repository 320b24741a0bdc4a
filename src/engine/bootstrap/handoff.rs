//! Handing a file descriptor to other ranks of this kernel, so that they can map the same memory.
//!
//! First way: each rank serves its descriptor from an abstract Unix socket of a random name. A caller must have this process's
//! user id and know the communicator's magic; so must, the other way round, the server. Nothing of it has a place in the file
//! system, so nothing can be left behind. Second way, where abstract names do not reach (another network namespace): the
//! peer's entry under `/proc`, which the kernel opens for the same user in the same process namespace. What was opened is
//! compared with what the peer announced. Descriptors are close-on-exec everywhere.

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
#[error("no descriptor of rank {peer}: {by_socket}; {by_proc}")]
pub struct HandoffError {
    /// The peer.
    pub peer: usize,
    /// Why its socket gave none.
    pub by_socket: String,
    /// Why `/proc` gave none.
    pub by_proc: String,
}

/// Sharing of descriptors over a bootstrap.
#[derive(Debug)]
pub struct Handoff;

impl Handoff {
    /// Gives `mine` to whoever asks and asks each of `peers` for theirs; called by all ranks of the bootstrap together, with
    /// the same purpose. The results are in the order of `peers`.
    pub fn share(
        bootstrap: &mut Bootstrap,
        mine: BorrowedFd<'_>,
        peers: &[usize],
        purpose: &str,
    ) -> Result<Vec<Result<OwnedFd, HandoffError>>, BootstrapError> {
        let request = request(bootstrap.magic(), purpose);
        let server = Server::start(mine, request)?;
        let offer = Offer::of(mine, &server.name)?;
        let offers = bootstrap.all_gather(offer.to_string().as_bytes())?;
        let results = peers
            .iter()
            .map(|&peer| {
                let offer = offers.get(peer).and_then(|bytes| Offer::parse(bytes));
                take_from(peer, offer.as_ref(), &request)
            })
            .collect();
        // Nobody stops serving before everybody has asked.
        bootstrap.barrier()?;
        drop(server);
        Ok(results)
    }
}

fn take_from(peer: usize, offer: Option<&Offer>, request: &[u8; 16]) -> Result<OwnedFd, HandoffError> {
    let Some(offer) = offer else {
        let reason = "its offer cannot be read".to_owned();
        return Err(HandoffError { peer, by_socket: reason.clone(), by_proc: reason });
    };
    let by_socket = match offer.take_by_socket(request) {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    match offer.take_by_proc() {
        Ok(fd) => {
            log::info(
                Subsys::INIT | Subsys::SHM,
                format_args!("descriptor of rank {peer} taken from /proc, not by socket ({by_socket})"),
            );
            Ok(fd)
        }
        Err(by_proc) => Err(HandoffError {
            peer,
            by_socket: format!("socket: {by_socket}"),
            by_proc: format!("/proc: {by_proc}"),
        }),
    }
}

/// What a caller must send: the magic, and a hash that keeps purposes apart.
fn request(magic: u64, purpose: &str) -> [u8; 16] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in purpose.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&magic.to_le_bytes());
    bytes[8..].copy_from_slice(&hash.to_le_bytes());
    bytes
}

/// What a rank tells the others about its descriptor.
#[derive(Debug, PartialEq)]
struct Offer {
    name: String,
    pid: u32,
    fd: i32,
    device: u64,
    inode: u64,
}

impl std::fmt::Display for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {} {}", self.name, self.pid, self.fd, self.device, self.inode)
    }
}

impl Offer {
    fn of(fd: BorrowedFd<'_>, name: &str) -> Result<Self, BootstrapError> {
        let stat =
            rustix::fs::fstat(fd).map_err(|error| BootstrapError::io("looking at a descriptor", error))?;
        Ok(Self {
            name: name.to_owned(),
            pid: std::process::id(),
            fd: fd.as_raw_fd(),
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
        Some(Self {
            name: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            fd: words.next()?.parse().ok()?,
            device: words.next()?.parse().ok()?,
            inode: words.next()?.parse().ok()?,
        })
    }

    fn take_by_socket(&self, request: &[u8; 16]) -> io::Result<OwnedFd> {
        let socket = unix_socket()?;
        set_limits(&socket, ANSWER)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(self.name.as_bytes())?)?;
        check_user(&socket)?;
        rustix::net::send(&socket, request, SendFlags::NOSIGNAL)?;
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
    fn start(fd: BorrowedFd<'_>, request: [u8; 16]) -> Result<Self, BootstrapError> {
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
            .spawn(move || serve(&listener, &stopped, &fd, &request))
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
fn serve(listener: &OwnedFd, stopped: &OwnedFd, fd: &OwnedFd, request: &[u8; 16]) {
    loop {
        let mut polled = [listener, stopped].map(|fd| PollFd::new(fd, PollFlags::IN));
        if poll::sleep(&mut polled, poll::LONGEST_NAP).is_err() || !polled[1].revents().is_empty() {
            return;
        }
        if !polled[0].revents().is_empty()
            && let Ok(caller) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
        {
            // A caller who fails the checks gets nothing, and finds its connection closed.
            let _ = give_fd(&caller, fd, request);
        }
    }
}

fn give_fd(caller: &OwnedFd, fd: &OwnedFd, request: &[u8; 16]) -> io::Result<()> {
    check_user(caller)?;
    set_limits(caller, REQUEST)?;
    let mut heard = [0; 16];
    let (_, length) = rustix::net::recv(caller, &mut heard, RecvFlags::WAITALL)?;
    if length != heard.len() || heard != *request {
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

fn check_user(socket: &OwnedFd) -> io::Result<()> {
    let other = rustix::net::sockopt::socket_peercred(socket)?.uid;
    if other == rustix::process::geteuid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other end is user {}", other.as_raw())))
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

    #[test]
    fn a_served_descriptor_opens_the_same_memory_and_is_close_on_exec() {
        let fd = memory(b"shared");
        let request = request(7, "segment");
        let server = Server::start(fd.as_fd(), request).expect("a server");
        let offer = Offer::of(fd.as_fd(), &server.name).expect("an offer");
        let offer = Offer::parse(offer.to_string().as_bytes()).expect("survives the wire");
        let taken = offer.take_by_socket(&request).expect("served");
        rustix::io::pwrite(&taken, b"S", 0).expect("writable");
        assert_eq!(read(&fd), b"Shared");
        let flags = rustix::io::fcntl_getfd(&taken).expect("flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn who_does_not_know_the_magic_or_the_purpose_gets_nothing() {
        let fd = memory(b"secret");
        let server = Server::start(fd.as_fd(), request(7, "segment")).expect("a server");
        let offer = Offer::of(fd.as_fd(), &server.name).expect("an offer");
        assert!(offer.take_by_socket(&request(8, "segment")).is_err());
        assert!(offer.take_by_socket(&request(7, "arena")).is_err());
        assert!(offer.take_by_socket(&request(7, "segment")).is_ok(), "the server goes on");
    }

    #[test]
    fn a_name_is_free_again_once_its_server_is_dropped() {
        let fd = memory(b"x");
        let server = Server::start(fd.as_fd(), request(7, "segment")).expect("a server");
        let offer = Offer::of(fd.as_fd(), &server.name).expect("an offer");
        drop(server);
        assert!(offer.take_by_socket(&request(7, "segment")).is_err());
        let names = std::fs::read_to_string("/proc/net/unix").expect("the list of sockets");
        assert!(!names.contains(&offer.name));
    }

    #[test]
    fn the_second_way_opens_the_announced_file_only() {
        let fd = memory(b"proc");
        let mut offer = Offer::of(fd.as_fd(), "chorus-nobody-listens").expect("an offer");
        let taken = take_from(3, Some(&offer), &request(7, "segment")).expect("taken from /proc");
        assert_eq!(read(&taken), b"proc");
        offer.inode += 1;
        let error = take_from(3, Some(&offer), &request(7, "segment")).expect_err("another file").to_string();
        assert!(error.contains("rank 3") && error.contains("another file"), "{error}");
    }

    #[test]
    fn an_unreadable_offer_is_an_error_of_that_peer_alone() {
        assert!(Offer::parse(b"name 1 2").is_none());
        assert!(Offer::parse(&[0xff, 0xfe]).is_none());
        assert!(take_from(1, None, &request(1, "")).is_err());
    }
}
