//! Runs the built programs as a user would, alone or under mpirun, with nothing inherited that would change what they do.

#![allow(dead_code, reason = "every test binary uses another part")]

use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Path of `all_reduce_perf`.
pub(crate) const ALL_REDUCE: &str = env!("CARGO_BIN_EXE_all_reduce_perf");
/// Path of `all_gather_perf`.
pub(crate) const ALL_GATHER: &str = env!("CARGO_BIN_EXE_all_gather_perf");

/// How a program ended and what it said.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit status, -1 after a signal.
    pub(crate) status: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Outcome {
    /// Rows of the table as tokens.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        let lines =
            self.stdout.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        lines.map(|line| line.split_whitespace().collect()).collect()
    }

    /// Panics with everything that was said unless the status is this one.
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(self.status, status, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// A command without what launchers, libraries and the person at the keyboard may have set.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let prefixes = ["NCCL_", "CHORUS_", "OMPI_", "PMI", "SLURM_", "MPI_"];
        let exact = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) || exact.contains(&name.as_str()) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a program in one process.
pub(crate) fn run(program: &str, args: &[&str]) -> Outcome {
    run_with(program, args, &[])
}

/// Runs a program in one process with these variables.
pub(crate) fn run_with(program: &str, args: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut command = clean(program);
    command.args(args).envs(variables.iter().copied());
    finish(&mut command)
}

/// Runs a program under mpirun, or says why not.
pub(crate) fn mpirun(n: usize, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Option<Outcome> {
    if !has_launcher() {
        return None;
    }
    let mut command = clean("timeout");
    command.args(["-k", "3", "100", "mpirun", "--oversubscribe", "-np", &n.to_string()]);
    for (name, value) in variables {
        command.env(name, value).args(["-x", name]);
    }
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.arg(program).args(args);
    Some(finish(&mut command))
}

/// Whether jobs can be started under mpirun; says so when not.
pub(crate) fn has_launcher() -> bool {
    let has = cfg!(feature = "mpi") && has_mpirun();
    if !has {
        eprintln!("skipped: no mpirun, or built without MPI");
    }
    has
}

fn has_mpirun() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let version = clean("mpirun").arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
    })
}

fn finish(command: &mut Command) -> Outcome {
    let output = command.output().expect("the program starts");
    Outcome {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
