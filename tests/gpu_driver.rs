//! What `chorus topo` makes of a CUDA driver, of an old one, of one without a device, and of none. The libraries are stand-ins built here:
//! they answer what the real ones answer, through the same functions, so that the calls themselves are tested without a GPU.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Builds a stand-in as the file the loader looks for.
fn build(folder: &Path, source: &str, name: &str, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in").join(source);
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow", "-C", "panic=abort"]);
    let built = rustc.args(flags).arg("-o").arg(folder.join(name)).arg(source).output();
    let built = built.expect("rustc runs: the test was asked whether it is there");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

fn has_rustc() -> bool {
    let run = Command::new("rustc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = run.is_ok_and(|status| status.success());
    if !is_there {
        println!("skipped: rustc is not in PATH, the stand-in libraries cannot be built");
    }
    is_there
}

fn topo(folder: &Path, n_gpus: usize, args: &[&str]) -> Output {
    let mut chorus = Command::new(env!("CARGO_BIN_EXE_chorus"));
    chorus.arg("topo").args(args).env("LD_LIBRARY_PATH", folder).env("STAND_IN_GPUS", n_gpus.to_string());
    chorus.output().expect("chorus runs")
}

fn shown(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing is said about drivers");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether the loader finds a real driver by itself: then its answer, not its absence, would be seen.
fn has_real_driver() -> bool {
    let found = chorus::engine::device::cuda::gpus().is_some();
    if found {
        println!("skipped: this machine has a CUDA driver");
    }
    found
}

#[test]
fn a_driver_and_a_management_library_show_gpus_and_their_nvlinks() {
    if !has_rustc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    build(folder.path(), "cuda.rs", "libcuda.so.1", &[]);
    build(folder.path(), "cuda.rs", "libcuda.so", &[]);
    let without = shown(&topo(folder.path(), 2, &["--xml"]));
    if !has_real_driver() {
        assert!(
            without.contains(r#"<gpu dev="1" sm="90" rank="1" gdr="1"/>"#),
            "no NVLinks without NVML:\n{without}"
        );
    }
    build(folder.path(), "nvml.rs", "libnvidia-ml.so.1", &[]);
    let with = shown(&topo(folder.path(), 2, &["--xml"]));
    for expected in [
        r#"<gpu dev="6" sm="90" rank="1" gdr="1">"#,
        r#"<nvlink target="fffffff:ffff:ff" count="17" tclass="0x068000"/>"#,
        r#"<c2c bw="40000" count="2"/>"#,
    ] {
        assert!(with.contains(expected), "{expected} is not in\n{with}");
    }
    let drawn = shown(&topo(folder.path(), 2, &[]));
    assert!(drawn.contains("2 ranks") && drawn.contains("NVSwitch") && drawn.contains("sm 90"), "{drawn}");
    let in_memory = shown(&topo(folder.path(), 2, &["--ranks", "3"]));
    assert!(in_memory.contains("3 ranks") && in_memory.contains("host memory"), "{in_memory}");
}

#[test]
fn an_old_driver_or_one_without_device_gives_host_ranks_and_no_noise() {
    if !has_rustc() || has_real_driver() {
        return;
    }
    for (what, flags, n_gpus) in [("a function is missing", &["--cfg", "old"][..], 2), ("no device", &[], 0)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libcuda.so", "libcuda.so.1"] {
            build(folder.path(), "cuda.rs", name, flags);
        }
        let drawn = shown(&topo(folder.path(), n_gpus, &[]));
        assert!(drawn.contains("host memory") && !drawn.contains("sm 90"), "{what}: {drawn}");
    }
}

#[test]
fn without_a_driver_there_are_host_ranks_and_no_noise() {
    if has_real_driver() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = shown(&topo(folder.path(), 2, &[]));
    assert!(drawn.contains("host memory"), "{drawn}");
}
