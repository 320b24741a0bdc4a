//! A connection that carries frames: length, kind, tag, body. Sending only queues; [`pump`] moves the bytes of several links
//! at once, so that a ring in which everybody sends first cannot lock up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::engine::bootstrap::patience::Patience;
use crate::engine::bootstrap::{BootstrapError, fault, poll};
use crate::engine::error::Error;

const HEADER_BYTES: usize = 12;
/// Larger lengths are taken for a broken stream.
const BODY_BYTES_MAX: usize = 1 << 30;
const READ_BYTES: usize = 64 << 10;

const DATA: u32 = 1;
const FAULT: u32 = 2;
const BYE: u32 = 3;

/// A data frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) tag: u32,
    pub(crate) body: Vec<u8>,
}

/// One end of a connection to `peer`.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    peer: usize,
    out: Vec<u8>,
    sent: usize,
    inbox: Vec<u8>,
    /// The peer's end is gone; what it sent before may still lie in the inbox.
    ended: bool,
    /// The peer said that it ends on purpose.
    said_bye: bool,
}

impl Link {
    pub(crate) fn new(fd: OwnedFd, peer: usize) -> Self {
        Self { fd, peer, out: Vec::new(), sent: 0, inbox: Vec::new(), ended: false, said_bye: false }
    }

    pub(crate) fn peer(&self) -> usize {
        self.peer
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the peer left on purpose.
    pub(crate) fn has_said_bye(&self) -> bool {
        self.said_bye
    }

    /// Queues a data frame.
    pub(crate) fn queue(&mut self, tag: u32, body: &[u8]) {
        self.queue_frame(DATA, tag, body);
    }

    /// Queues the news of a failure.
    pub(crate) fn queue_fault(&mut self, error: &Error) {
        self.queue_frame(FAULT, 0, &fault::encode(error));
    }

    fn queue_frame(&mut self, kind: u32, tag: u32, body: &[u8]) {
        for number in [body.len() as u32, kind, tag] {
            self.out.extend_from_slice(&number.to_le_bytes());
        }
        self.out.extend_from_slice(body);
    }

    /// Says good-bye, as far as the socket takes it without waiting: the end of this link is not a death.
    pub(crate) fn say_bye(&mut self) {
        self.queue_frame(BYE, 0, &[]);
        self.flush();
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends what the socket takes. A peer that is gone is noticed by reading.
    pub(crate) fn flush(&mut self) {
        while self.has_unsent() {
            match rustix::net::send(
                &self.fd,
                &self.out[self.sent..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // What the peer said before it ended must still be read, so nothing is decided here.
                Err(_) => break,
            }
        }
        self.out.clear();
        self.sent = 0;
    }

    /// Reads what has arrived.
    pub(crate) fn fill(&mut self) {
        while !self.ended {
            let length = self.inbox.len();
            self.inbox.resize(length + READ_BYTES, 0);
            let got = rustix::net::recv(&self.fd, &mut self.inbox[length..], RecvFlags::DONTWAIT);
            let n = got.as_ref().map_or(0, |&(_, n)| n);
            self.inbox.truncate(length + n);
            match got {
                Ok((_, 0)) => self.ended = true,
                Ok(_) | Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(_) => self.ended = true,
            }
            return;
        }
    }

    /// The next data frame. Fails when the peer told of a failure, and when it ended without a good-bye.
    pub(crate) fn take(&mut self) -> Result<Option<Frame>, BootstrapError> {
        loop {
            let Some((kind, tag, length)) = self.header()? else {
                if self.ended && !self.said_bye {
                    return Err(BootstrapError::PeerEnded { peer: self.peer });
                }
                return Ok(None);
            };
            let body = self.inbox[HEADER_BYTES..HEADER_BYTES + length].to_vec();
            self.inbox.drain(..HEADER_BYTES + length);
            match kind {
                DATA => return Ok(Some(Frame { tag, body })),
                FAULT => return Err(BootstrapError::Told(fault::decode(&body))),
                BYE => self.said_bye = true,
                _ => {
                    return Err(BootstrapError::Protocol(format!(
                        "rank {} sent frame kind {kind}",
                        self.peer
                    )));
                }
            }
        }
    }

    /// Fails when the peer told of a failure next, or ended without a good-bye. Data frames stay where they are.
    pub(crate) fn check_alive(&mut self) -> Result<(), BootstrapError> {
        match self.header()? {
            Some((DATA, ..)) => Ok(()),
            // `take` stops at the first data frame, and there is none before the end of what has come.
            Some(_) => match self.take()? {
                Some(frame) => {
                    self.put_back(&frame);
                    Ok(())
                }
                None => Ok(()),
            },
            None if self.ended && !self.said_bye => Err(BootstrapError::PeerEnded { peer: self.peer }),
            None => Ok(()),
        }
    }

    fn put_back(&mut self, frame: &Frame) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + frame.body.len() + self.inbox.len());
        for number in [frame.body.len() as u32, DATA, frame.tag] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&frame.body);
        bytes.append(&mut self.inbox);
        self.inbox = bytes;
    }

    fn header(&self) -> Result<Option<(u32, u32, usize)>, BootstrapError> {
        let Some(header) = self.inbox.get(..HEADER_BYTES) else { return Ok(None) };
        let number =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("invariant: four bytes"));
        let length = number(0) as usize;
        if length > BODY_BYTES_MAX {
            return Err(BootstrapError::Protocol(format!("rank {} announced {length} bytes", self.peer)));
        }
        Ok((self.inbox.len() >= HEADER_BYTES + length).then(|| (number(4), number(8), length)))
    }

    fn poll_entry(&self) -> PollFd<'_> {
        let flags = if self.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(self.fd.as_fd(), flags)
    }
}

/// Moves bytes on all links, sleeping in between, until `done` is content. `done` sees the links after each round.
pub(crate) fn pump<const N: usize>(
    links: &mut [&mut Link; N],
    patience: &mut Patience,
    mut done: impl FnMut(&mut [&mut Link; N]) -> Result<bool, BootstrapError>,
    waiting: &dyn Fn() -> String,
) -> Result<(), BootstrapError> {
    loop {
        for link in links.iter_mut() {
            link.flush();
            link.fill();
        }
        let is_sent = links.iter().all(|link| !link.has_unsent());
        if done(links)? && is_sent {
            return Ok(());
        }
        patience.check(waiting)?;
        let mut polled: Vec<PollFd<'_>> =
            links.iter().filter(|link| !link.ended).map(|link| link.poll_entry()).collect();
        poll::sleep(&mut polled, patience.nap(poll::LONGEST_NAP))?;
    }
}

/// Sends what is queued, but gives up after a moment: for last words.
pub(crate) fn flush_briefly<'a>(links: impl Iterator<Item = &'a mut Link>, moment: Duration) {
    let end = Instant::now() + moment;
    for link in links {
        link.flush();
        while link.has_unsent() && Instant::now() < end {
            let mut polled = [PollFd::from_borrowed_fd(link.fd.as_fd(), PollFlags::OUT)];
            let _ = poll::sleep(&mut polled, Duration::from_millis(10));
            link.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        (Link::new(a.into(), 1), Link::new(b.into(), 0))
    }

    fn patience() -> Patience {
        Patience::new(Some(Duration::from_secs(10)))
    }

    #[test]
    fn frames_larger_than_the_sockets_cross_each_other() {
        let (mut a, mut b) = pair();
        let big = vec![7_u8; 3 << 20];
        a.queue(1, &big);
        b.queue(2, &big);
        let other = std::thread::spawn(move || {
            let mut got = None;
            let done = |links: &mut [&mut Link; 1]| {
                got = got.take().or(links[0].take()?);
                Ok(got.is_some())
            };
            pump(&mut [&mut b], &mut patience(), done, &|| "b".into()).expect("b's exchange");
            (b, got.expect("a frame"))
        });
        let mut got = None;
        let done = |links: &mut [&mut Link; 1]| {
            got = got.take().or(links[0].take()?);
            Ok(got.is_some())
        };
        pump(&mut [&mut a], &mut patience(), done, &|| "a".into()).expect("a's exchange");
        let (_b, theirs) = other.join().expect("the other end");
        assert_eq!(got.expect("a frame"), Frame { tag: 2, body: big.clone() });
        assert_eq!(theirs, Frame { tag: 1, body: big });
    }

    #[test]
    fn an_end_without_bye_is_a_death_and_with_bye_is_not() {
        let (mut a, b) = pair();
        drop(b);
        a.fill();
        assert!(matches!(a.take(), Err(BootstrapError::PeerEnded { peer: 1 })));

        let (mut a, mut b) = pair();
        b.queue(5, b"last");
        b.say_bye();
        drop(b);
        a.fill();
        a.fill();
        assert_eq!(a.take().expect("data before the end").expect("a frame").body, b"last");
        assert_eq!(a.take().expect("no death"), None);
        assert!(a.has_said_bye());
    }

    #[test]
    fn news_of_a_failure_come_before_the_end_of_the_link() {
        let (mut a, mut b) = pair();
        b.queue_fault(&Error::PeerDied("rank 3 died".into()));
        b.flush();
        drop(b);
        a.fill();
        match a.take() {
            Err(BootstrapError::Told(Error::PeerDied(text))) => assert_eq!(text, "rank 3 died"),
            other => panic!("expected the news, got {other:?}"),
        }
    }

    #[test]
    fn absurd_lengths_end_the_link_with_an_error() {
        let (mut a, b) = pair();
        let rubbish = [0xff_u8; 40];
        rustix::net::send(&b.fd, &rubbish, SendFlags::NOSIGNAL).expect("sent");
        a.fill();
        assert!(matches!(a.take(), Err(BootstrapError::Protocol(_))));
    }

    #[test]
    fn a_silent_peer_ends_in_the_callers_words() {
        let (mut a, _b) = pair();
        let mut patience = Patience::new(Some(Duration::from_millis(40)));
        let error = pump(&mut [&mut a], &mut patience, |_| Ok(false), &|| "rank 0 for rank 1".into());
        assert!(error.expect_err("nothing comes").to_string().contains("rank 0 for rank 1"));
    }
}
