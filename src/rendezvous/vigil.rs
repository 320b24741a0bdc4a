//! The time before processes have met. No socket tells of a death yet, and no watch listens to signals: this thread does both.
//!
//! Processes of one job on one machine have the launcher's variables in common, so each looks for the others under `/proc` and holds
//! on to those it has seen; the kernel says when one ends. Whoever ended before anybody saw it has left its parent, for a while, a
//! dead entry of this program's name with a failure in it: as many of them as ranks are missing are those ranks. On other machines,
//! and in other process namespaces, nobody is seen, and a late process is only late.
//!
//! What is seen here ends the waits of the other threads ([`bootstrap::give_up`]), so that it is told to all in the usual way.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::engine::bootstrap;
use crate::engine::error::{Error, Result};
use crate::engine::log;
use crate::rendezvous::launcher::{self, Announced};

/// How often to look at first; processes of one job start together.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// How often to look later.
const LATER_LOOKS: Duration = Duration::from_millis(250);
/// How long a process that was seen to end leaves the word to its own last words, which come over sockets.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long failed processes and missing ranks must have been equally many.
const CERTAINTY: Duration = Duration::from_millis(1000);
/// How long before this process one of the same job may have started, in clock ticks (hundredths of a second). Those that started by
/// hand long before are met over sockets; what is older may be left from the job before.
const HEAD_START: u64 = 200;
/// How long the other threads have to end the process after a signal.
const FAREWELL: Duration = Duration::from_millis(1200);

/// Watches until the processes have met, and over signals until the watch does.
#[derive(Debug)]
pub(super) struct Vigil {
    is_over: Arc<AtomicBool>,
}

impl Vigil {
    /// Begins. `own` is what the launcher told this process.
    pub(super) fn keep(own: &Announced) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let signals = [SIGINT, SIGTERM].into_iter().map(SignalPipe::new).collect::<Result<Vec<_>>>()?;
        let guard = Guard {
            siblings: Siblings::new(own.clone()),
            signals,
            is_over: Arc::clone(&is_over),
            suspicion: None,
        };
        std::thread::Builder::new()
            .name("chorus-vigil".into())
            .spawn(move || guard.run())
            .map_err(|error| Error::system("starting the vigil", error))?;
        bootstrap::expect_news(true);
        Ok(Self { is_over })
    }

    /// The processes are connected: from here on sockets tell of a death.
    pub(super) fn end(self) {
        bootstrap::expect_news(false);
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A signal and the socket that becomes readable when it comes.
#[derive(Debug)]
struct SignalPipe {
    signal: i32,
    pipe: UnixStream,
    id: SigId,
}

impl SignalPipe {
    fn new(signal: i32) -> Result<Self> {
        let failed = |error| Error::system("installing a signal handler", error);
        let (write, pipe) = UnixStream::pair().map_err(failed)?;
        pipe.set_nonblocking(true).map_err(failed)?;
        let id = signal_hook::low_level::pipe::register(signal, write).map_err(failed)?;
        Ok(Self { signal, pipe, id })
    }

    fn has_come(&self) -> bool {
        matches!((&self.pipe).read(&mut [0; 8]), Ok(n) if n > 0)
    }
}

impl Drop for SignalPipe {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.id);
    }
}

/// The thread's state.
struct Guard {
    siblings: Siblings,
    signals: Vec<SignalPipe>,
    is_over: Arc<AtomicBool>,
    /// Who seems to be gone, since when, and how long that has to last.
    suspicion: Option<(String, Instant, Duration)>,
}

impl Guard {
    fn run(mut self) {
        let mut nap = FIRST_LOOK;
        while !bootstrap::is_watched() {
            let is_over = self.is_over.load(Ordering::Relaxed);
            if !is_over {
                self.siblings.look();
                self.suspect();
            }
            self.sleep(nap, !is_over);
            if let Some(signal) = self.signals.iter().find(|signal| signal.has_come()) {
                bootstrap::give_up(Error::Interrupted(signal.signal));
                std::thread::sleep(FAREWELL);
                signal_hook::low_level::exit(128 + signal.signal);
            }
            nap = if self.suspicion.is_some() { LATER_LOOKS / 5 } else { (nap * 3 / 2).min(LATER_LOOKS) };
        }
    }

    /// Keeps an eye on whoever is gone, until it is sure that nobody else explains it.
    fn suspect(&mut self) {
        let gone = self.siblings.ended().map(|text| (text, LAST_WORDS));
        let gone = gone.or_else(|| self.siblings.lost().map(|text| (text, CERTAINTY)));
        match (&self.suspicion, gone) {
            (Some((text, since, patience)), Some((now, _))) if *text == now => {
                if since.elapsed() >= *patience && !self.is_over.load(Ordering::Relaxed) {
                    bootstrap::give_up(Error::PeerDied(format!("{text} died in start-up (0 bytes)")));
                }
            }
            (_, gone) => self.suspicion = gone.map(|(text, patience)| (text, Instant::now(), patience)),
        }
    }

    fn sleep(&self, nap: Duration, with_siblings: bool) {
        let siblings = self.siblings.seen.iter().filter(|_| with_siblings);
        let signals = self.signals.iter().map(|signal| signal.pipe.as_fd());
        let fds: Vec<BorrowedFd<'_>> = signals.chain(siblings.map(|s| s.pidfd.as_fd())).collect();
        if bootstrap::readable(&fds, nap).is_err() {
            std::thread::sleep(nap);
        }
    }
}

/// A process of this job that was seen on this machine.
#[derive(Debug)]
struct Sibling {
    process: usize,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Sibling {
    fn describe(&self) -> String {
        let Self { process, pid, .. } = self;
        format!("rank {process} (process {process}, pid {} on {})", pid.as_raw_nonzero(), log::host())
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(n) if n > 0)
    }
}

/// The other processes of this job, as far as `/proc` shows them.
#[derive(Debug)]
struct Siblings {
    own: Announced,
    program: Option<PathBuf>,
    own_entry: Option<Entry>,
    seen: Vec<Sibling>,
    /// Those of them that have ended since: which process, and how to call it.
    gone: Vec<(usize, String)>,
    /// Failed processes of this program and parent that nobody has collected yet, at the last look.
    n_corpses: usize,
}

impl Siblings {
    fn new(own: Announced) -> Self {
        let program = fs::read_link("/proc/self/exe").ok();
        Self {
            own,
            program,
            own_entry: Entry::read("self"),
            seen: Vec::new(),
            gone: Vec::new(),
            n_corpses: 0,
        }
    }

    /// Looks for processes not seen so far, and at those that were.
    fn look(&mut self) {
        self.n_corpses = 0;
        for sibling in self.seen.extract_if(.., |sibling| sibling.has_ended()) {
            // One that ended well belongs to a job before this one: nobody is done before all have met.
            let left = Entry::read(&sibling.pid.as_raw_nonzero().to_string());
            if left.is_none_or(|entry| !entry.is_dead || entry.status != 0) {
                self.gone.push((sibling.process, sibling.describe()));
            }
        }
        if self.seen.len() + 1 >= self.own.n_processes {
            return;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
            let Some(pid) = pid.filter(|&pid| pid != rustix::process::getpid()) else { continue };
            if self.seen.iter().any(|sibling| sibling.pid == pid) {
                continue;
            }
            match fs::read_link(entry.path().join("exe")) {
                Ok(program) if Some(&program) == self.program.as_ref() => self.meet(pid),
                Ok(_) => {}
                Err(_) => self.n_corpses += usize::from(self.is_corpse(pid)),
            }
        }
    }

    /// Holds on to a process of this program if it belongs to this job.
    fn meet(&mut self, pid: Pid) {
        // First the hold, then the look: a number that changes hands in between belongs to nobody of this job any more.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let Ok(environment) = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else { return };
        let entry = Entry::read(&pid.as_raw_nonzero().to_string());
        let (Some(entry), Some(own)) = (entry, &self.own_entry) else { return };
        if entry.start + HEAD_START < own.start {
            return;
        }
        let is_child_of_same = entry.parent == own.parent;
        let Ok(Some(announced)) = launcher::detect(&|name| variable(&environment, name)) else { return };
        // Without an address nothing but the launcher tells two jobs apart.
        let is_same_job = Announced { process: self.own.process, ..announced.clone() } == self.own
            && (announced.address.is_some() || is_child_of_same);
        let process = announced.process;
        if is_same_job && process != self.own.process && self.seen.iter().all(|s| s.process != process) {
            self.gone.retain(|(gone, _)| *gone != process);
            self.seen.push(Sibling { process, pid, pidfd });
        }
    }

    fn is_corpse(&self, pid: Pid) -> bool {
        let (Some(own), Some(entry)) = (&self.own_entry, Entry::read(&pid.as_raw_nonzero().to_string()))
        else {
            return false;
        };
        entry.is_dead
            && entry.status != 0
            && (&entry.name, entry.parent) == (&own.name, own.parent)
            && entry.start + HEAD_START >= own.start
    }

    /// A process that was seen and has ended, and that no other has replaced.
    fn ended(&self) -> Option<String> {
        self.gone.first().map(|(_, text)| text.clone())
    }

    /// The processes nobody has seen, where dead ones explain them all.
    fn lost(&self) -> Option<String> {
        let is_known =
            |process: &usize| *process == self.own.process || self.seen.iter().any(|s| s.process == *process);
        let missing: Vec<String> =
            (0..self.own.n_processes).filter(|process| !is_known(process)).map(|p| p.to_string()).collect();
        let explained = !missing.is_empty() && self.n_corpses >= missing.len();
        explained.then(|| {
            let list = missing.join(", ");
            format!("rank {list} (process {list} on {}, seen by nobody)", log::host())
        })
    }
}

/// A variable of another process's environment.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")))?;
    String::from_utf8(value.to_vec()).ok()
}

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    is_dead: bool,
    parent: i32,
    /// Clock ticks since the system's start.
    start: u64,
    /// As `wait` gives it: nonzero for a signal or a failure. Known only of dead ones.
    status: i32,
}

impl Entry {
    fn read(pid: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name stands in brackets and may hold anything, brackets too; fields are numbered from 3 after it.
    fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            name: name.to_owned(),
            is_dead: matches!(field(3)?, "Z" | "X"),
            parent: field(4)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
            status: field(52).and_then(|text| text.parse().ok()).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// The sleepers of one test would be members of another's job, and its dead ones too: one test at a time.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn own(n_processes: usize) -> Announced {
        Announced {
            kind: launcher::Kind::Torch,
            process: 0,
            n_processes,
            n_local_processes: None,
            address: Some("127.0.0.1".into()),
            port: Some(7),
            job: format!("MASTER_ADDR=127.0.0.1;MASTER_PORT=7;WORLD_SIZE={n_processes};"),
        }
    }

    /// A process that looks like one of the job but for its program, which the test names.
    fn sleeper(process: usize, n_processes: usize) -> Child {
        let child = Command::new("sleep")
            .arg("60")
            .env_clear()
            .envs([("RANK", process.to_string()), ("WORLD_SIZE", n_processes.to_string())])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "7")])
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep is part of coreutils");
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        let is_itself = || {
            let environment = fs::read(proc.join("environ")).unwrap_or_default();
            let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
            name.trim_end() == "sleep" && environment.windows(11).any(|word| word == b"WORLD_SIZE=")
        };
        let end = Instant::now() + Duration::from_secs(10);
        // A child is its parent until it has become what it was told to be; its name and its variables come last.
        while !is_itself() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn siblings_of(child: &Child, n_processes: usize) -> Siblings {
        let exe = format!("/proc/{}/exe", child.id());
        let mut siblings = Siblings::new(own(n_processes));
        siblings.program = fs::read_link(&exe).ok();
        let entry = siblings.own_entry.as_mut().expect("this process has an entry");
        (entry.name, entry.parent) = ("sleep".into(), std::process::id() as i32);
        siblings
    }

    #[test]
    fn processes_of_the_job_are_seen_and_their_end_is_noticed() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut one = sleeper(1, 3);
        let other_job = sleeper(2, 4);
        let mut siblings = siblings_of(&one, 3);
        siblings.look();
        assert_eq!(siblings.seen.iter().map(|s| s.process).collect::<Vec<_>>(), [1], "only of this job");
        assert_eq!(siblings.ended(), None);
        one.kill().expect("ours");
        let end = Instant::now() + Duration::from_secs(10);
        while siblings.ended().is_none() && Instant::now() < end {
            siblings.look();
        }
        let text = siblings.ended().expect("seen to end");
        assert!(text.starts_with("rank 1 (process 1, pid "), "{text}");
        for mut child in [one, other_job] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    #[test]
    fn a_process_nobody_saw_is_known_by_what_it_leaves() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut alive = sleeper(1, 3);
        let mut dead = sleeper(2, 3);
        let mut siblings = siblings_of(&alive, 3);
        dead.kill().expect("ours");
        let end = Instant::now() + Duration::from_secs(10);
        while siblings.lost().is_none() && Instant::now() < end {
            siblings.look();
        }
        let text = siblings.lost().expect("as many dead as missing");
        assert!(text.starts_with("rank 2 (process 2 on "), "{text}");
        dead.wait().expect("collected");
        siblings.look();
        assert_eq!(siblings.lost(), None, "nothing explains the missing one any more: it may be late");
        alive.kill().expect("ours");
        alive.wait().expect("collected");
    }

    #[test]
    fn entries_are_read_past_any_name() {
        let mut fields = vec!["0"; 50];
        (fields[0], fields[1], fields[19], fields[49]) = ("Z", "17", "4711", "9");
        let entry = Entry::parse(&format!("12 (a) (b c) {}", fields.join(" "))).expect("an entry");
        let name = "a) (b c".to_owned();
        assert_eq!(entry, Entry { name, is_dead: true, parent: 17, start: 4711, status: 9 });
        assert_eq!(Entry::parse("12 (short) R 1"), None);
    }

    #[test]
    fn variables_are_whole_names() {
        let environment = b"XRANK=1\0RANKS=2\0RANK=3\0EMPTY=\0";
        assert_eq!(variable(environment, "RANK").as_deref(), Some("3"));
        assert_eq!(variable(environment, "EMPTY").as_deref(), Some(""));
        assert_eq!(variable(environment, "R"), None);
    }
}
