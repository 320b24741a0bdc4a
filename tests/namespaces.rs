//! Two processes that do not share everything: another process namespace, another user. They still reach each other's memory, by
//! the first transport that may be used between them. Needs root to make such processes; says so where it is not.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use rustix::process::geteuid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_all_reduce_perf");

/// A job of two, the second one started by `wrapper`. Outputs by rank.
fn run(wrapper: &[&str], arguments: &[&str]) -> [Output; 2] {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port()).expect("a port");
    let start = |rank: usize, words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "60"]).args(words).arg(PROGRAM).args(arguments);
        command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".into())]);
        command.envs([("MASTER_ADDR", "127.0.0.1".into()), ("MASTER_PORT", port.to_string())]);
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("timeout is part of coreutils")
    };
    let children = [start(0, &[]), start(1, wrapper)];
    children.map(|child| child.wait_with_output().expect("its output"))
}

fn log_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether such a process can be started here and may run the program.
fn works(wrapper: &[&str]) -> bool {
    let mut command = Command::new(wrapper[0]);
    let works = geteuid().is_root()
        && command
            .args(&wrapper[1..])
            .args([PROGRAM, "--version"])
            .output()
            .is_ok_and(|o| o.status.success());
    if !works {
        println!("skipped: `{}` does not work here", wrapper.join(" "));
    }
    works
}

fn assert_right(outputs: &[Output; 2]) {
    for output in outputs {
        assert!(output.status.success(), "{output:?}");
    }
    let table = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
    assert!(table.contains("# Out of bounds values : 0 OK"), "{table}");
    let left = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let left: Vec<String> = left.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.contains("chorus")), "{left:?}");
}

#[test]
fn processes_of_different_process_namespaces_map_each_other() {
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if works(&wrapper) {
        let outputs = run(&wrapper, &["-b", "8", "-e", "1M", "-f", "64", "-n", "3"]);
        assert_right(&outputs);
        assert!(outputs.iter().all(|output| log_of(output).contains("via P2P/CUMEM")), "{outputs:?}");
    }
}

#[test]
fn between_users_data_go_through_shared_slots_only_and_a_line_says_so() {
    let wrapper = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    if works(&wrapper) {
        let outputs = run(&wrapper, &["-b", "8", "-e", "1M", "-f", "64", "-n", "3"]);
        assert_right(&outputs);
        let expected =
            ["P2P to rank 1 is off, using SHM: it runs as user 65534", "P2P to rank 0 is off, using SHM"];
        for (output, line) in outputs.iter().zip(expected) {
            let log = log_of(output);
            assert!(
                log.contains(line) && log.contains("via SHM/direct") && !log.contains("via P2P"),
                "{log}"
            );
        }
    }
}
