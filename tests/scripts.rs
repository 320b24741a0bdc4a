//! What the scripts say on systems that lack something, played with a PATH that holds nothing but links and stand-ins.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Tools every system has.
const USUAL: [&str; 15] = [
    "bash", "env", "dirname", "sed", "head", "awk", "sort", "tr", "grep", "date", "mkdir", "rmdir",
    "ldconfig", "cat", "sh",
];

fn tool(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a tool");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// Runs quickstart where there is only what is usual and these tools (name, script).
fn quickstart(tools: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    for name in USUAL {
        let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
        if let Some(place) = places.iter().find(|place| Path::new(place).join(name).exists()) {
            symlink(Path::new(place).join(name), folder.path().join(name)).expect("a link");
        }
    }
    for (name, script) in tools {
        tool(folder.path(), name, script);
    }
    Command::new("/bin/bash")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/quickstart"))
        .env_clear()
        .env("PATH", folder.path())
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("bash")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const ORDINARY_USER: (&str, &str) = ("id", "echo 1000");
const RUST: (&str, &str) = ("rustc", "echo 'rustc 1.95.0 (x)'");
/// Ends the script where the build would begin, and shows what would be built.
const CARGO: (&str, &str) = ("cargo", "echo \"cargo $*\" >&2; exit 9");

#[test]
fn without_a_toolchain_it_says_how_to_get_one_and_stops() {
    let output = quickstart(&[ORDINARY_USER]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("version 1.89 or newer. Get it from https://rustup.rs"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_toolchain_that_is_too_old_is_named_with_the_version_that_would_do() {
    let output = quickstart(&[ORDINARY_USER, ("rustc", "echo 'rustc 1.70.0 (x)'"), CARGO]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(
        stderr(&output).starts_with("Rust 1.70.0 is too old, Chorus needs 1.89 or newer: "),
        "{}",
        stderr(&output)
    );
    let output = quickstart(&[ORDINARY_USER, ("rustc", "echo 'rustc 1.89.0 (x)'"), CARGO, ("cc", "exit 1")]);
    assert_eq!(output.status.code(), Some(9), "the oldest that works: {}", stderr(&output));
}

#[test]
fn without_apt_it_names_the_packages_and_builds_without_mpi() {
    let output = quickstart(&[ORDINARY_USER, RUST, CARGO, ("cc", "exit 1")]);
    let text = stderr(&output);
    assert!(text.starts_with("This system has no apt."), "{text}");
    assert!(text.contains("openmpi-bin libopenmpi-dev libclang-dev; Fedora: openmpi-devel"), "{text}");
    assert!(text.contains("cargo build --release --locked --no-default-features"), "{text}");
}

#[test]
fn without_the_right_to_install_it_tries_nothing_and_builds_without_mpi() {
    let apt = ("apt-get", "echo 'apt was called' >&2; exit 1");
    let output = quickstart(&[ORDINARY_USER, RUST, CARGO, ("cc", "exit 1"), apt]);
    let text = stderr(&output);
    assert!(text.contains("installing takes root or sudo: libopenmpi-dev openmpi-bin"), "{text}");
    assert!(!text.contains("apt was called") && !text.contains("installing:"), "{text}");
    assert!(text.contains("No MPI here: building without it; all ranks run in one process."), "{text}");
    assert!(text.contains("--no-default-features"), "{text}");
}

#[test]
fn root_installs_what_is_missing_without_a_question() {
    // An apt that has everything: it makes the tools as it is told.
    let apt = (
        "apt-get",
        "echo \"apt-get $* as $DEBIAN_FRONTEND\" >&2; d=${0%/*}; for t in mpicc mpirun; do printf '#!/bin/sh\\n' >$d/$t; /bin/chmod +x $d/$t; done",
    );
    let output = quickstart(&[("id", "echo 0"), RUST, CARGO, ("cc", "exit 1"), apt]);
    let text = stderr(&output);
    assert!(text.contains("installing: libopenmpi-dev openmpi-bin"), "{text}");
    assert!(text.contains("-y --no-install-recommends install libopenmpi-dev openmpi-bin"), "{text}");
    assert!(text.contains(" as noninteractive"), "{text}");
}
