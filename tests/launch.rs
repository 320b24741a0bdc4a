//! Processes finding each other for real: environment variables, mpirun, alone. The children are this very test program, told
//! by a variable what to do.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use chorus::rendezvous::{self, LaunchMode, Reduction};

const ROLE: &str = "CHORUS_LAUNCH_TEST_ROLE";
const LAUNCHER_VARIABLES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "MASTER_PORT",
];

/// What a child does; run by the other tests only.
#[test]
#[ignore = "the child side of the other tests"]
fn child() {
    let role = chorus::env::text(ROLE).expect("started by another test of this file");
    if role == "late" {
        std::thread::sleep(Duration::from_millis(600));
    }
    let mode = if role == "mpi-forced" { LaunchMode::Mpi } else { LaunchMode::Auto };
    let world = match rendezvous::find(mode, Some(Duration::from_secs(20))) {
        Ok(world) => world,
        Err(failure) => {
            if failure.speaks {
                eprintln!("SAID {}", failure.error);
            }
            std::process::exit(9);
        }
    };
    if role == "dies" {
        std::process::abort();
    }
    let (process, n) = (world.process, world.n_processes);
    let all = world.all_gather(&vec![process as u8; process]).unwrap_or_else(|error| fail(&error));
    assert!(all.iter().enumerate().all(|(p, bytes)| *bytes == vec![p as u8; p]));
    let mut bytes = if process == 0 { b"from zero".to_vec() } else { Vec::new() };
    world.broadcast(&mut bytes).expect("broadcast");
    assert_eq!(bytes, b"from zero");
    let mean = world.reduce_f64(&[process as f64, 1.0], Reduction::Mean).expect("reduced");
    assert_eq!(mean, [(n - 1) as f64 / 2.0, 1.0]);
    assert_eq!(world.reduce_f64(&[process as f64], Reduction::Max).expect("reduced"), [(n - 1) as f64]);
    assert_eq!(world.sum_u64(process as u64 + 1).expect("summed") as usize, n * (n + 1) / 2);
    world.barrier().expect("everybody");
    let line = format!(
        "WORLD {} {process}/{n} local {}/{} hosts {}\n",
        world.mode.name(),
        world.local_process,
        world.n_local_processes,
        world.n_hosts
    );
    use std::io::Write;
    std::io::stdout().write_all(line.as_bytes()).expect("printed");
    world.finalize().expect("everybody ends");
}

fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("SAID {error}");
    std::process::exit(3)
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a path")
}

fn command(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"]);
    for name in LAUNCHER_VARIABLES {
        command.env_remove(name);
    }
    command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn env_child(program: &Path, role: &str, rank: usize, n: usize, port: u16) -> Child {
    command(program, role)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", n.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .spawn()
        .expect("a child")
}

/// Waits for all of them, at most half a minute.
fn finish(children: Vec<Child>) -> Vec<Output> {
    let end = Instant::now() + Duration::from_secs(30);
    children
        .into_iter()
        .map(|mut child| {
            while child.try_wait().expect("waited").is_none() {
                if Instant::now() > end {
                    child.kill().expect("killed");
                    panic!("a child did not end");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            child.wait_with_output().expect("its output")
        })
        .collect()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().filter_map(|line| line.strip_prefix("SAID ").map(str::to_owned)).collect()
}

#[test]
fn processes_with_torchruns_variables_become_a_world() {
    let (program, port) = (this_program(), free_port());
    // Process 0 comes last: the others look for it meanwhile.
    let roles = ["late", "plain", "plain", "plain"];
    let children = (0..4).rev().map(|rank| env_child(&program, roles[rank], rank, 4, port)).collect();
    for (output, rank) in finish(children).iter().zip((0..4).rev()) {
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(output).contains(&format!("WORLD env {rank}/4 local {rank}/4 hosts 1")), "{output:?}");
    }
}

#[test]
fn an_occupied_port_is_passed_by() {
    let occupied = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = occupied.local_addr().expect("bound").port();
    let program = this_program();
    let children = (0..2).map(|rank| env_child(&program, "plain", rank, 2, port)).collect();
    for output in finish(children) {
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn processes_of_different_builds_end_with_one_line_that_names_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, other) = (this_program(), folder.path().join("other"));
    let mut bytes = fs::read(&program).expect("this program");
    bytes.extend_from_slice(b"another build");
    fs::write(&other, bytes).expect("a copy");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("executable");
    let port = free_port();
    let children = (0..3)
        .map(|rank| env_child(if rank == 2 { &other } else { &program }, "plain", rank, 3, port))
        .collect();
    let outputs = finish(children);
    assert!(outputs.iter().all(|output| output.status.code() == Some(9)), "{outputs:?}");
    let lines: Vec<String> = outputs.iter().flat_map(said).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("different builds") && lines[0].matches("build ").count() >= 2, "{lines:?}");
}

#[test]
fn a_process_that_dies_after_the_start_is_named_by_the_others() {
    let (program, port) = (this_program(), free_port());
    let started = Instant::now();
    let children = (0..4)
        .map(|rank| env_child(&program, if rank == 2 { "dies" } else { "plain" }, rank, 4, port))
        .collect();
    for (rank, output) in finish(children).iter().enumerate().filter(|(rank, _)| *rank != 2) {
        assert_eq!(output.status.code(), Some(3), "process {rank}: {output:?}");
        assert!(said(output).iter().any(|line| line.contains("rank 2")), "process {rank}: {output:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn mpi_forced_on_processes_that_mpi_did_not_start_is_a_usage_error_said_once() {
    if !cfg!(feature = "mpi") {
        println!("skipped: built without MPI");
        return;
    }
    let (program, port) = (this_program(), free_port());
    let children = (0..2).map(|rank| env_child(&program, "mpi-forced", rank, 2, port)).collect();
    let outputs = finish(children);
    assert!(outputs.iter().all(|output| output.status.code() == Some(9)), "{outputs:?}");
    let lines: Vec<String> = outputs.iter().flat_map(said).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("2 processes") && lines[0].contains("the world has 1"), "{lines:?}");
}

#[test]
fn processes_under_mpirun_become_a_world() {
    if !cfg!(feature = "mpi") {
        println!("skipped: built without MPI");
        return;
    }
    let mut mpirun = Command::new("timeout");
    mpirun.args(["-k", "3", "60", "mpirun", "-np", "3"]).arg(this_program());
    mpirun.args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"]);
    for name in LAUNCHER_VARIABLES {
        mpirun.env_remove(name);
    }
    for name in
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
    {
        mpirun.env(name, "1");
    }
    let mut child = match mpirun.env(ROLE, "plain").stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: no mpirun here ({error})");
            return;
        }
    };
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("its output");
    assert!(child.wait().expect("waited").success(), "{text}");
    for process in 0..3 {
        assert!(text.contains(&format!("WORLD mpi {process}/3 local {process}/3 hosts 1")), "{text}");
    }
}
