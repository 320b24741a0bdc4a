//! Deliberate faults for tests: a process that kills or stops itself at a named point. With the feature `fault-hooks` only; a
//! release build has none of it.
//!
//! `CHORUS_FAULT=kill:2:timing` lets the process of rank 2 (by the launcher's variables) kill itself when it comes to its first
//! timed iterations; `stop` instead of `kill` stops it; a fourth field gives the size at which it happens. Points: `join` (checked
//! in at the root, not yet in the ring) and the phases of the watch: `startup warmup timing checking barrier teardown`.
//!
//! `CHORUS_FAULT_DELAY=10%` makes every timed loop that much longer: a slow-down of known size, for trying what looks for slow-downs.

/// The process has come to that point, with operations of that size.
#[cfg(not(feature = "fault-hooks"))]
#[inline]
pub fn point(_name: &str, _bytes: u64) {}

/// The process has come to that point, with operations of that size.
#[cfg(feature = "fault-hooks")]
pub fn point(name: &str, bytes: u64) {
    use rustix::process::{Signal, getpid, kill_process};
    let Some(fault) = armed().filter(|fault| fault.is_at(name, bytes)) else { return };
    let signal = if fault.kills { Signal::KILL } else { Signal::STOP };
    if FIRED.swap(true, std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    // A process may always signal itself.
    let _ = kill_process(getpid(), signal);
}

/// A timed loop that began then is over: waits until it has taken as much longer as CHORUS_FAULT_DELAY says.
#[cfg(not(feature = "fault-hooks"))]
#[inline]
pub fn delay(_begun: std::time::Instant) {}

/// A timed loop that began then is over: waits until it has taken as much longer as CHORUS_FAULT_DELAY says.
#[cfg(feature = "fault-hooks")]
pub fn delay(begun: std::time::Instant) {
    static PERCENT: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    let percent =
        *PERCENT.get_or_init(|| percent(&crate::env::text("CHORUS_FAULT_DELAY").unwrap_or_default()));
    let end = begun.elapsed().mul_f64(1.0 + percent / 100.0);
    while begun.elapsed() < end {
        std::hint::spin_loop();
    }
}

/// `10%` or `10`; anything else is no delay.
#[cfg(feature = "fault-hooks")]
fn percent(text: &str) -> f64 {
    let value = text.trim().trim_end_matches('%').trim().parse().unwrap_or(0.0);
    if (0.0..=1000.0).contains(&value) { value } else { 0.0 }
}

#[cfg(feature = "fault-hooks")]
static FIRED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

#[cfg(feature = "fault-hooks")]
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    kills: bool,
    rank: String,
    point: String,
    bytes: Option<u64>,
}

#[cfg(feature = "fault-hooks")]
impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let kills = match fields.next()? {
            "kill" => true,
            "stop" => false,
            _ => return None,
        };
        let (rank, point) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let bytes = fields.next().map(str::parse).transpose().ok()?;
        Some(Self { kills, rank, point, bytes })
    }

    fn is_at(&self, name: &str, bytes: u64) -> bool {
        self.point == name && self.bytes.is_none_or(|wanted| wanted == bytes)
    }
}

/// The fault that is meant for this process.
#[cfg(feature = "fault-hooks")]
fn armed() -> Option<&'static Fault> {
    static ARMED: std::sync::OnceLock<Option<Fault>> = std::sync::OnceLock::new();
    let own_rank =
        || ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().find_map(|name| crate::env::text(name));
    ARMED
        .get_or_init(|| {
            let fault = Fault::parse(&crate::env::text("CHORUS_FAULT")?)?;
            (own_rank() == Some(fault.rank.clone())).then_some(fault)
        })
        .as_ref()
}

#[cfg(all(test, feature = "fault-hooks"))]
mod tests {
    use super::*;

    #[test]
    fn faults_name_deed_rank_point_and_size() {
        let fault = Fault::parse("stop:3:checking:4096").expect("a fault");
        assert!(!fault.kills && fault.rank == "3");
        assert!(fault.is_at("checking", 4096) && !fault.is_at("checking", 8) && !fault.is_at("timing", 4096));
        assert!(Fault::parse("kill:0:join").expect("a fault").is_at("join", 77));
        assert_eq!(Fault::parse("explode:0:join"), None);
        assert_eq!(Fault::parse("kill:0"), None);
    }

    #[test]
    fn delays_are_shares() {
        assert_eq!(["10%", "25 %", "7.5", "", "much", "-5%"].map(percent), [10.0, 25.0, 7.5, 0.0, 0.0, 0.0]);
    }
}
