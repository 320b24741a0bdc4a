//! Events: the time at which a stream reached a point.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A point in a stream. Cloning gives another handle to the same point.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// Nanoseconds since the process's epoch plus one; 0 when not reached.
    nanos: Arc<AtomicU64>,
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

impl Event {
    /// An event that was not recorded.
    pub fn new() -> Self {
        epoch();
        Self::default()
    }

    /// Forgets an earlier time; the next one counts.
    pub(crate) fn reset(&self) {
        self.nanos.store(0, Ordering::Relaxed);
    }

    /// The stream is here.
    pub(crate) fn take_time(&self) {
        self.nanos.store(epoch().elapsed().as_nanos() as u64 + 1, Ordering::Release);
    }

    /// Whether the stream has reached it.
    pub fn is_reached(&self) -> bool {
        self.nanos.load(Ordering::Acquire) != 0
    }

    /// Microseconds from this event to a later one; nothing while one of them is not reached.
    pub fn elapsed_us(&self, later: &Event) -> Option<f64> {
        let (from, to) = (self.nanos.load(Ordering::Acquire), later.nanos.load(Ordering::Acquire));
        (from != 0 && to != 0).then(|| (to as f64 - from as f64) / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::Event;

    #[test]
    fn time_passes_between_two_events_and_only_then() {
        let (a, b) = (Event::new(), Event::new());
        assert_eq!(a.elapsed_us(&b), None);
        a.take_time();
        std::thread::sleep(std::time::Duration::from_millis(2));
        b.take_time();
        assert!(a.elapsed_us(&b).unwrap() >= 2000.0);
    }
}
