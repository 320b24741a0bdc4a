//! Single messages between two ranks. Each is a connection of its own; what comes before it is asked for is kept.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::engine::bootstrap::hello::{self, Acceptor, Hello, Purpose};
use crate::engine::bootstrap::link::{self, Link};
use crate::engine::bootstrap::patience::Patience;
use crate::engine::bootstrap::{BootstrapError, poll};

/// A message that is on its way or waits to be asked for.
#[derive(Debug)]
struct Arrival {
    peer: usize,
    tag: u32,
    link: Link,
}

/// The rank's letter box.
#[derive(Debug)]
pub(crate) struct Messages {
    acceptor: Acceptor,
    arrivals: Vec<Arrival>,
    to_self: VecDeque<(u32, Vec<u8>)>,
}

impl Messages {
    pub(crate) fn new(acceptor: Acceptor) -> Self {
        Self { acceptor, arrivals: Vec::new(), to_self: VecDeque::new() }
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.acceptor.address()
    }

    pub(crate) fn keep_for_self(&mut self, tag: u32, body: &[u8]) {
        self.to_self.push_back((tag, body.to_vec()));
    }

    pub(crate) fn take_own(&mut self, tag: u32) -> Option<Vec<u8>> {
        let index = self.to_self.iter().position(|(own, _)| *own == tag)?;
        self.to_self.remove(index).map(|(_, body)| body)
    }

    /// What to sleep on before [`Messages::poll`].
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let live = self.arrivals.iter().map(|arrival| &arrival.link).filter(|link| !link.has_ended());
        self.acceptor.fds().chain(live.map(Link::fd))
    }

    /// The message of that peer and tag, if it is there in full.
    pub(crate) fn poll(&mut self, peer: usize, tag: u32) -> Result<Option<Vec<u8>>, BootstrapError> {
        while let Some((fd, hello)) = self.acceptor.advance()? {
            let peer = hello.rank as usize;
            self.arrivals.push(Arrival { peer, tag: hello.tag, link: Link::new(fd, peer) });
        }
        for index in 0..self.arrivals.len() {
            let arrival = &mut self.arrivals[index];
            arrival.link.fill();
            if (arrival.peer, arrival.tag) == (peer, tag)
                && let Some(frame) = arrival.link.take()?
            {
                self.arrivals.remove(index);
                return Ok(Some(frame.body));
            }
        }
        Ok(None)
    }
}

/// Delivers one message; waits only as long as the sockets' buffers are full.
pub(crate) fn send(
    address: SocketAddr,
    own: Hello,
    body: &[u8],
    peer: usize,
    patience: &mut Patience,
) -> Result<(), BootstrapError> {
    debug_assert_eq!(own.purpose, Purpose::Message, "messages have a hello of their own kind");
    let call = hello::call_listening(address, own, peer)?;
    let mut link = Link::new(call.into_fd(), peer);
    link.queue(own.tag, body);
    link.say_bye();
    let waiting = || format!("rank {} for rank {peer} to take {} bytes", own.rank, body.len());
    link::pump(&mut [&mut link], patience, |_| Ok(true), &waiting)
}

/// Sleeps until the letter box or one of the other sockets has something to do.
pub(crate) fn sleep<'a>(
    messages: &'a Messages,
    others: impl Iterator<Item = BorrowedFd<'a>>,
    patience: &Patience,
) -> Result<(), BootstrapError> {
    let fds: Vec<BorrowedFd<'_>> = messages.fds().chain(others).collect();
    poll::readable(&fds, patience.nap(poll::LONGEST_NAP))
}
