//! Sleeping until one of several sockets has something to do.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::engine::bootstrap::BootstrapError;

/// How long to sleep at a time when nothing else sets a date: deadlines are looked at that often.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(500);

/// Sleeps until one of them can be read (or has ended), at most `nap`.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], nap: Duration) -> Result<(), BootstrapError> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    sleep(&mut polled, nap)
}

/// Sleeps until one of the entries is ready, at most `nap`. Signals only shorten it.
pub(crate) fn sleep(polled: &mut [PollFd<'_>], nap: Duration) -> Result<(), BootstrapError> {
    let timeout = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) as _ };
    match rustix::event::poll(polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(BootstrapError::io("waiting for sockets", error)),
    }
}
