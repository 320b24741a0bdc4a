//! The place where ranks meet first: one thread that tells each rank where the next one of the ring listens.
//!
//! Each rank keeps its connection to the root open until its ring works. So the root sees a rank die while others are still
//! starting, and tells them; and every rank sees the root's process die.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::engine::bootstrap::hello::{Acceptor, Hello, PROBE_TAG, Purpose};
use crate::engine::bootstrap::link::{self, Link};
use crate::engine::bootstrap::patience::{Patience, second_thoughts};
use crate::engine::bootstrap::{BootstrapError, UniqueId, poll};
use crate::engine::error::Error;

/// A rank says where it listens for its previous one; the root says where the next one listens.
pub(crate) const ADDRESS_TAG: u32 = 1;
/// A rank's ring works: it needs the root no more.
pub(crate) const DONE_TAG: u32 = 2;

/// How long a failed root stays to tell those who come late.
const LINGER: Duration = Duration::from_secs(10);
/// How long last words may take.
const LAST_WORDS: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct Seat {
    link: Option<Link>,
    address: Option<SocketAddr>,
    is_told: bool,
    is_done: bool,
}

struct Root {
    acceptor: Acceptor,
    seats: Vec<Seat>,
    limit: Option<Duration>,
}

/// Starts the root of a communicator over a bound socket. Its thread ends when all ranks are through, or one has failed.
pub(crate) fn start(
    listener: TcpListener,
    magic: u64,
    limit: Option<Duration>,
) -> Result<(), BootstrapError> {
    let own = Hello::new(magic, Purpose::Root, 0, 0, 0);
    let root = Root { acceptor: Acceptor::over(listener, own)?, seats: Vec::new(), limit };
    std::thread::Builder::new()
        .name("chorus-root".into())
        .spawn(move || root.run())
        .map_err(|error| BootstrapError::io("starting the root thread", error))?;
    Ok(())
}

/// Takes the place of a root whose process has died, for a moment and if its address can be had: ranks that come late are told,
/// instead of looking for somebody who will never be there. The moment passes in any case: whoever leaves at once may be taken
/// for the dead one.
pub(crate) fn stand_in(id: &UniqueId, error: &Error, moment: Duration) {
    let own = Hello::new(id.magic, Purpose::Root, 0, 0, 0);
    let acceptor = TcpListener::bind(id.root).ok().and_then(|listener| Acceptor::over(listener, own).ok());
    match acceptor {
        Some(acceptor) => Root { acceptor, seats: Vec::new(), limit: None }.tell(error, moment),
        None => std::thread::sleep(moment),
    }
}

impl Root {
    fn run(mut self) {
        if let Err(error) = self.serve() {
            self.tell(&Error::from(second_thoughts(error)), LINGER);
        }
    }

    /// Tells everybody, and for a while also those who come late: they would find nobody and wait for long.
    fn tell(mut self, error: &Error, linger: Duration) {
        let mut links: Vec<Link> = self.seats.iter_mut().filter_map(|seat| seat.link.take()).collect();
        links.iter_mut().for_each(|link| link.queue_fault(error));
        link::flush_briefly(links.iter_mut(), LAST_WORDS);
        // Not a wait that can be in vain: it ends by the clock alone.
        let end = Instant::now() + linger;
        while Instant::now() < end {
            if let Ok(Some((fd, _))) = self.acceptor.advance() {
                let mut late = Link::new(fd, 0);
                late.queue_fault(error);
                link::flush_briefly(std::iter::once(&mut late), LAST_WORDS);
                links.push(late);
            }
            let fds: Vec<BorrowedFd<'_>> = self.acceptor.fds().collect();
            if poll::readable(&fds, Duration::from_millis(100)).is_err() {
                return;
            }
        }
    }

    fn serve(&mut self) -> Result<(), BootstrapError> {
        let mut patience = None;
        loop {
            self.sleep(patience.as_ref())?;
            while let Some((fd, hello)) = self.acceptor.advance()? {
                if hello.tag == PROBE_TAG {
                    continue;
                }
                // The clock starts with the first rank: until then nobody waits.
                patience.get_or_insert_with(|| Patience::new(self.limit));
                self.seat(fd, &hello)?;
            }
            self.listen()?;
            self.introduce();
            if !self.seats.is_empty() && self.seats.iter().all(|seat| seat.is_done) {
                return Ok(());
            }
            if let Some(patience) = &mut patience {
                patience.check(|| self.waiting())?;
            }
        }
    }

    fn sleep(&self, patience: Option<&Patience>) -> Result<(), BootstrapError> {
        let links = self.seats.iter().filter_map(|seat| seat.link.as_ref()).filter(|link| !link.has_ended());
        let fds: Vec<BorrowedFd<'_>> = self.acceptor.fds().chain(links.map(Link::fd)).collect();
        poll::readable(&fds, patience.map_or(poll::LONGEST_NAP, |p| p.nap(poll::LONGEST_NAP)))
    }

    fn seat(&mut self, fd: OwnedFd, hello: &Hello) -> Result<(), BootstrapError> {
        let (rank, n_ranks) = (hello.rank as usize, hello.n_ranks as usize);
        let mut link = Link::new(fd, rank);
        if self.seats.is_empty() {
            self.seats.resize_with(n_ranks, Seat::default);
        }
        let n_known = self.seats.len();
        let complaint = if n_ranks != n_known {
            Some(format!("rank {rank} says there are {n_ranks} ranks, others said {n_known}"))
        } else if rank >= n_ranks {
            Some(format!("rank {rank} of {n_ranks} does not exist"))
        } else if self.seats[rank].link.is_some() {
            Some(format!("rank {rank} checks in twice: two processes were given the same rank"))
        } else {
            None
        };
        if let Some(text) = complaint {
            link.queue_fault(&Error::InvalidUsage(text.clone()));
            link::flush_briefly(std::iter::once(&mut link), LAST_WORDS);
            return Err(BootstrapError::Usage(text));
        }
        self.seats[rank].link = Some(link);
        Ok(())
    }

    /// Reads what the ranks say; a rank that is gone before its ring works is a death.
    fn listen(&mut self) -> Result<(), BootstrapError> {
        for seat in &mut self.seats {
            let Some(link) = seat.link.as_mut().filter(|_| !seat.is_done) else { continue };
            link.flush();
            link.fill();
            while let Some(frame) = link.take()? {
                match frame.tag {
                    ADDRESS_TAG => seat.address = Some(read_address(&frame.body, link.peer())?),
                    DONE_TAG => seat.is_done = true,
                    tag => {
                        return Err(BootstrapError::Protocol(format!("rank {} sent tag {tag}", link.peer())));
                    }
                }
                if seat.is_done {
                    break;
                }
            }
        }
        Ok(())
    }

    /// As soon as both are known, rank r learns where rank r + 1 listens.
    fn introduce(&mut self) {
        let n_ranks = self.seats.len();
        for rank in 0..n_ranks {
            let next = self.seats[(rank + 1) % n_ranks].address;
            let seat = &mut self.seats[rank];
            if let (Some(next), Some(link), false) = (next, seat.link.as_mut(), seat.is_told) {
                link.queue(ADDRESS_TAG, next.to_string().as_bytes());
                link.flush();
                seat.is_told = true;
            }
        }
    }

    fn waiting(&self) -> String {
        let missing = |is_late: &dyn Fn(&Seat) -> bool| {
            let late = self.seats.iter().enumerate().filter(|(_, seat)| is_late(seat));
            late.map(|(rank, _)| rank.to_string()).collect::<Vec<_>>().join(", ")
        };
        let n_ranks = self.seats.len();
        let absent = missing(&|seat| seat.address.is_none());
        if absent.is_empty() {
            let slow = missing(&|seat| !seat.is_done);
            format!("start-up of {n_ranks} ranks: rank {slow} has checked in but does not go on")
        } else {
            format!("start-up of {n_ranks} ranks: rank {absent} has not checked in")
        }
    }
}

/// An address as ranks send it.
pub(crate) fn read_address(body: &[u8], rank: usize) -> Result<SocketAddr, BootstrapError> {
    std::str::from_utf8(body)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| BootstrapError::Protocol(format!("rank {rank} sent an address that is none")))
}
