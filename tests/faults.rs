//! What happens to the others when a process dies, stops, or is told to stop: `all_reduce_perf` for real, over environment
//! variables and over mpirun. Faults at exact points need the feature `fault-hooks`; without it those cases say so.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_all_reduce_perf");
/// Survivors of a death have that long.
const AFTER_DEATH: Duration = Duration::from_secs(5);
const LAUNCHER_VARIABLES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "CHORUS_FAULT",
];
/// More than any test waits for: these runs end by what is done to them.
const ENDLESS: [&str; 10] = ["-b", "4M", "-e", "4M", "-n", "1000000", "-w", "1", "-c", "1"];
/// A row that comes soon, and one that takes as long as any test needs.
const TWO_ROWS: [&str; 12] = ["-b", "64K", "-e", "4M", "-f", "64", "-n", "5000", "-w", "1", "-c", "1"];
const SHORT: [&str; 10] = ["-b", "64K", "-e", "64K", "-n", "5", "-w", "1", "-c", "1"];

/// Jobs run one after the other: how fast survivors end is part of the tests.
static TURN: Mutex<()> = Mutex::new(());

/// The processes of one job, their output in files. None outlives it.
struct Job {
    _turn: MutexGuard<'static, ()>,
    folder: TempDir,
    children: Vec<Child>,
}

impl Job {
    fn empty() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { _turn: turn, folder: tempfile::tempdir().expect("a folder"), children: Vec::new() }
    }

    /// Starts one process a rank with torchrun's variables.
    fn start(n: usize, arguments: &[&str], fault: Option<&str>) -> Self {
        match fault {
            Some(fault) => Self::start_with(n, arguments, &[("CHORUS_FAULT", fault)]),
            None => Self::start_with(n, arguments, &[]),
        }
    }

    fn start_with(n: usize, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        Self::start_some(n, n, arguments, settings)
    }

    /// The first `n_started` processes of a job of `n`.
    fn start_some(n: usize, n_started: usize, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let mut job = Self::empty();
        for rank in 0..n_started {
            let mut command = job.command(PROGRAM, rank);
            command
                .args(arguments)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", n.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string());
            command.envs(settings.iter().copied());
            job.children.push(command.spawn().expect("started"));
        }
        job
    }

    fn command(&self, program: &str, rank: usize) -> Command {
        let file = |name: String| fs::File::create(self.folder.path().join(name)).expect("a file");
        let mut command = Command::new(program);
        for name in LAUNCHER_VARIABLES {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(file(format!("out{rank}"))).stderr(file(format!("err{rank}")));
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// The line a process wrote about its end.
    fn said(&self, rank: usize) -> Vec<String> {
        let text = self.read(&format!("err{rank}"));
        let prefixes = ["chorus: ", "all_reduce_perf: "];
        text.lines()
            .filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix)))
            .map(str::to_owned)
            .collect()
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.children[rank]);
        kill_process(pid, signal).expect("one of our children");
    }

    fn wait(&mut self, rank: usize, patience: Duration) -> ExitStatus {
        let end = Instant::now() + patience;
        loop {
            if let Some(status) = self.children[rank].try_wait().expect("waited") {
                return status;
            }
            assert!(Instant::now() < end, "rank {rank} does not end:\n{}", self.everything());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The row of that size, as far as it is printed.
    fn row(&self, size: &str) -> Option<String> {
        let text = self.read("out0");
        text.lines().find(|line| line.split_whitespace().next() == Some(size)).map(str::to_owned)
    }

    /// Until rank 0 has begun the row of that size.
    fn wait_for_row(&mut self, size: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.row(size).is_none() {
            assert!(Instant::now() < end, "no row of {size}:\n{}", self.everything());
            assert!(self.children[0].try_wait().expect("waited").is_none(), "ended:\n{}", self.everything());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn everything(&self) -> String {
        (0..self.children.len().max(1))
            .map(|rank| {
                format!(
                    "--- {rank}\n{}{}",
                    self.read(&format!("out{rank}")),
                    self.read(&format!("err{rank}"))
                )
            })
            .collect()
    }

    /// Every process but the victim ends with that status, in time, and says so in one line with these words.
    fn assert_survivors_end(&mut self, victim: usize, status: i32, patience: Duration, words: &[&str]) {
        let start = Instant::now();
        for rank in (0..self.children.len()).filter(|&rank| rank != victim) {
            let left = patience.saturating_sub(start.elapsed());
            let ended = self.wait(rank, left);
            assert_eq!(ended.code(), Some(status), "rank {rank}: {ended:?}\n{}", self.everything());
            let said = self.said(rank);
            assert_eq!(said.len(), 1, "rank {rank}:\n{}", self.everything());
            assert!(
                words.iter().all(|word| said[0].contains(word)),
                "rank {rank}, expected {words:?}: {said:?}"
            );
        }
        self.assert_nothing_left();
    }

    /// No name in the abstract socket space, no file in /dev/shm.
    fn assert_nothing_left(&self) {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        for child in &self.children {
            assert!(!sockets.contains(&format!("@chorus-{}-", child.id())), "a socket is left:\n{sockets}");
        }
        let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let left: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        assert!(!left.iter().any(|name| name.contains("chorus")), "{left:?}");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Those that have ended already cannot be killed again.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has_hooks() -> bool {
    if !cfg!(feature = "fault-hooks") {
        println!("skipped: faults at exact points need --features fault-hooks");
    }
    cfg!(feature = "fault-hooks")
}

#[test]
fn whoever_dies_wherever_the_others_end_and_name_it() {
    if !has_hooks() {
        return;
    }
    for point in ["join", "mesh", "startup", "warmup", "timing", "checking"] {
        for victim in [0, 2] {
            if (point, victim) == ("join", 0) {
                // Whoever has not met process 0 yet cannot tell its death from a late start, and looks for it for a minute.
                continue;
            }
            let mut job = Job::start(4, &SHORT, Some(&format!("kill:{victim}:{point}")));
            let died = job.wait(victim, Duration::from_secs(30));
            assert_eq!(died.signal(), Some(9), "{point}: {}", job.everything());
            let name = format!("rank {victim} ");
            let operation: &[&str] = match point {
                "join" | "mesh" | "startup" => &[&name, "start-up", " bytes"],
                // Where exactly a survivor is by then differs: some still time what others check.
                _ => &[&name, "all_reduce of 65536 bytes"],
            };
            job.assert_survivors_end(victim, 3, AFTER_DEATH, operation);
        }
    }
}

#[test]
fn a_process_killed_from_outside_in_a_collective_is_named_and_printed_rows_stay() {
    let mut job = Job::start(4, &TWO_ROWS, None);
    job.wait_for_row("65536");
    std::thread::sleep(Duration::from_millis(700));
    job.signal(3, Signal::KILL);
    job.assert_survivors_end(3, 3, AFTER_DEATH, &["rank 3 ", "all_reduce of 4194304 bytes"]);
    let row = job.row("65536");
    assert!(row.is_some_and(|row| row.split_whitespace().count() >= 13), "{}", job.read("out0"));
}

#[test]
fn a_process_killed_at_any_moment_after_its_first_word_never_leaves_the_others_hanging() {
    for (moment, delay_ms) in [0, 4, 10, 25, 60, 150, 400].into_iter().enumerate() {
        let mut job = Job::start_with(4, &ENDLESS, &[("NCCL_DEBUG", "INFO")]);
        let victim = moment % 4;
        let joined = format!("Bootstrap: rank {victim} of 4 joined");
        let end = Instant::now() + Duration::from_secs(30);
        while !job.read(&format!("err{victim}")).contains(&joined) {
            assert!(Instant::now() < end, "no `{joined}`:\n{}", job.everything());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(delay_ms));
        job.signal(victim, Signal::KILL);
        job.assert_survivors_end(victim, 3, AFTER_DEATH, &[&format!("rank {victim} "), " bytes"]);
    }
}

#[test]
fn a_process_killed_before_it_has_met_anybody_is_named_too() {
    for (moment, delay_ms) in [0, 8, 16, 30, 50, 80].into_iter().enumerate() {
        let mut job = Job::start(4, &ENDLESS, None);
        let victim = moment % 4;
        std::thread::sleep(Duration::from_millis(delay_ms));
        // Nobody collects it before the others have ended, as under most launchers.
        job.signal(victim, Signal::KILL);
        job.assert_survivors_end(victim, 3, AFTER_DEATH, &[&format!("rank {victim} "), " bytes"]);
    }
}

#[test]
fn a_signal_before_all_have_met_ends_those_that_are_there() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut job = Job::start_some(4, 3, &ENDLESS, &[]);
        std::thread::sleep(Duration::from_millis(1000));
        job.signal(1, signal);
        for rank in 0..3 {
            let ended = job.wait(rank, AFTER_DEATH);
            assert_eq!(ended.code(), Some(status), "rank {rank}: {ended:?}\n{}", job.everything());
        }
        let n_lines: usize = (0..3).map(|rank| job.said(rank).len()).sum();
        assert_eq!(n_lines, 1, "{}", job.everything());
        job.assert_nothing_left();
    }
}

#[test]
fn a_stopped_process_ends_the_others_within_the_limit_and_the_line_has_the_step() {
    if !has_hooks() {
        return;
    }
    let limit = Duration::from_secs(3);
    let mut arguments = SHORT.to_vec();
    arguments.extend(["-T", "3"]);
    for (point, words) in
        [("timing", "all_reduce of 65536 bytes"), ("startup", "start-up"), ("checking", "65536 bytes")]
    {
        let mut job = Job::start(4, &arguments, Some(&format!("stop:1:{point}")));
        let patience = limit + Duration::from_secs(6);
        job.assert_survivors_end(1, 4, patience, &["rank 1 ", words, "step"]);
    }
}

#[test]
fn without_a_limit_a_stopped_process_is_reported_and_the_run_goes_on_when_it_does() {
    let mut job = Job::start(3, &TWO_ROWS, None);
    job.wait_for_row("65536");
    std::thread::sleep(Duration::from_millis(700));
    job.signal(1, Signal::STOP);
    std::thread::sleep(Duration::from_millis(13_500));
    let said: Vec<String> = (0..3).flat_map(|rank| job.said(rank)).collect();
    assert_eq!(said.len(), 1, "{}", job.everything());
    for word in ["no progress for 1", "rank 1 ", "all_reduce of 4194304 bytes", "step"] {
        assert!(said[0].contains(word), "{said:?}");
    }
    job.signal(1, Signal::CONT);
    std::thread::sleep(Duration::from_millis(300));
    for rank in 0..3 {
        assert!(job.children[rank].try_wait().expect("waited").is_none(), "{}", job.everything());
    }
}

#[test]
fn signals_end_all_processes_with_rows_flushed_and_reports_closed() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let folder = tempfile::tempdir().expect("a folder");
        let json = folder.path().join("run.json");
        let mut arguments = TWO_ROWS.to_vec();
        arguments.extend(["-J", json.to_str().expect("a plain path")]);
        let mut job = Job::start(3, &arguments, None);
        job.wait_for_row("65536");
        // One process is told, as by `kill`; the others follow.
        job.signal(1, signal);
        for rank in 0..3 {
            let ended = job.wait(rank, AFTER_DEATH);
            assert_eq!(ended.code(), Some(status), "rank {rank}: {ended:?}\n{}", job.everything());
        }
        assert!(job.row("65536").is_some(), "{}", job.everything());
        let text = fs::read_to_string(&json).expect("the report");
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        job.assert_nothing_left();
    }
}

#[test]
fn a_run_that_ends_well_says_nothing_and_leaves_nothing() {
    let mut job = Job::start(4, &SHORT, None);
    for rank in 0..4 {
        let ended = job.wait(rank, Duration::from_secs(30));
        assert_eq!(ended.code(), Some(0), "rank {rank}: {ended:?}\n{}", job.everything());
        assert!(job.said(rank).is_empty(), "{}", job.everything());
    }
    job.assert_nothing_left();
}

/// Processes of this user that carry that text in their environment.
fn carriers(token: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(token.len()).any(|window| window == token.as_bytes())
        })
        .collect()
}

#[test]
fn under_mpirun_everybody_ends_when_one_dies_and_nothing_is_left() {
    if !has_hooks() {
        return;
    }
    if !cfg!(feature = "mpi") || Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: no MPI here");
        return;
    }
    for point in ["startup", "timing"] {
        let mut job = Job::empty();
        let token = format!("CHORUS_FAULT_TOKEN={}", job.folder.path().display());
        let (name, value) = token.split_once('=').expect("name and value");
        let mut command = job.command("timeout", 0);
        command.args(["-k", "3", "60", "mpirun", "-np", "4", PROGRAM]).args(SHORT);
        for setting in
            ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
        {
            command.env(setting, "1");
        }
        command.env(name, value).env("CHORUS_FAULT", format!("kill:2:{point}"));
        job.children.push(command.spawn().expect("timeout is part of coreutils"));
        let ended = job.wait(0, Duration::from_secs(40));
        assert!(!ended.success() && ended.code() != Some(124), "{ended:?}\n{}", job.everything());
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(carriers(&token), Vec::<u32>::new(), "processes are left");
        job.assert_nothing_left();
    }
}
