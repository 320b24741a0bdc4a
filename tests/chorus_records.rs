//! The verbs of `chorus` that read records, from outside: exit statuses and files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use analysis::record::{Manifest, Placement, Row, RowWriter, RunStatus};

fn chorus(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chorus")).args(arguments).output().unwrap()
}

fn status(arguments: &[&str]) -> i32 {
    chorus(arguments).status.code().unwrap()
}

/// Ten launches of one configuration over small and large sizes; no two times are equal.
fn recording(folder: &Path, (slow, wrong): (f64, u64), salt: f64) {
    fs::create_dir_all(folder).unwrap();
    let mut manifest = Manifest::new(Vec::new());
    let mut writer = RowWriter::append(&folder.join("raw_measurements.csv")).unwrap();
    for launch in 0..10u32 {
        let run_id = format!("run-{launch:02}");
        manifest.begin(&run_id);
        for bytes in (3..24).map(|power| 1u64 << power) {
            let noise = 1.0 + 0.01 * (salt * f64::from(launch + 1)).sin();
            let time_us = (5.0 + bytes as f64 / 4000.0) * noise * slow;
            let (algbw, busbw) = (bytes as f64 / time_us / 1e3, 1.5 * bytes as f64 / time_us / 1e3);
            let row = Row {
                run_id: run_id.clone(),
                repeat: launch,
                cycle: 0,
                timestamp: String::new(),
                backend: "engine".into(),
                device: "host".into(),
                n_hosts: 1,
                n_ranks: 4,
                collective: "all_reduce".into(),
                algorithm: "ring".into(),
                protocol: "simple".into(),
                n_channels: 2,
                dtype: "float".into(),
                redop: "sum".into(),
                root: -1,
                bytes,
                count: bytes / 4,
                placement: Placement::OutOfPlace,
                iterations: 20,
                time_us,
                algbw,
                busbw,
                wrong: Some(if launch == 3 && bytes == 8 { wrong } else { 0 }),
            };
            writer.write(&row).unwrap();
        }
        manifest.finish(&run_id, RunStatus::Complete);
    }
    manifest.save(&folder.join("manifest.json")).unwrap();
}

#[test]
fn the_gate_has_its_own_status_for_every_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (name, slow, wrong, salt) in
        [("base", 1.0, 0, 1.3), ("same", 1.0, 0, 2.1), ("slow", 1.2, 0, 2.7), ("wrong", 1.0, 5, 3.1)]
    {
        recording(&dir.path().join(name), (slow, wrong), salt);
    }
    let gate = |current: &str, more: &[&str]| {
        let (base, current) = (path("base"), path(current));
        let fixed = ["gate", "--baseline", &base, "--current", &current];
        status(&fixed.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };
    assert_eq!(gate("same", &[]), 0);
    assert_eq!(gate("slow", &[]), 1);
    assert_eq!(gate("wrong", &[]), 7);
    assert_eq!(gate("absent", &[]), 3);
    assert_eq!(gate("same", &["--min-busbw", "1000"]), 1);
    let quarantine = path("quarantine");
    fs::write(&quarantine, "# flaky\n*/bandwidth\n*/latency\n").unwrap();
    assert_eq!(gate("slow", &["--quarantine", &quarantine]), 0);
    assert_eq!(status(&["gate"]), 64);
    let (junit, markdown, new) = (path("gate.xml"), path("gate.md"), path("new-base"));
    assert_eq!(gate("slow", &["--junit", &junit, "--markdown", &markdown]), 1);
    assert!(fs::read_to_string(&junit).unwrap().contains("failures=\"2\""));
    assert!(fs::read_to_string(&markdown).unwrap().starts_with("## REGRESSED"));
    let first = chorus(&["gate", "--baseline", &new, "--current", &path("same")]);
    assert_eq!(first.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&first.stdout).contains("there was no baseline: recorded one"));
    assert_eq!(status(&["gate", "--baseline", &new, "--current", &path("same")]), 0);
}

#[test]
fn the_gate_refuses_other_machines_and_guards_its_baseline() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    recording(&dir.path().join("base"), (1.0, 0), 1.7);
    recording(&dir.path().join("now"), (1.0, 0), 2.3);
    let manifest = dir.path().join("now/manifest.json");
    let mut other = Manifest::load(&manifest).unwrap().unwrap();
    other.machine.cpu = "another processor".into();
    other.save(&manifest).unwrap();
    let (base, now) = (path("base"), path("now"));
    let gate = |more: &[&str]| {
        let fixed = ["gate", "--baseline", &base, "--current", &now];
        chorus(&fixed.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let refused = gate(&[]);
    assert_eq!(refused.status.code(), Some(3));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("another processor") && message.contains("--force"), "{message}");
    assert_eq!(gate(&["--force"]).status.code(), Some(0));
    // A recording that is its own baseline stays what it is.
    let itself = ["gate", "--baseline", &base, "--current", &base, "--accept"];
    assert_eq!(status(&itself), 0);
    assert_eq!(status(&["compare", &base, &base]), 0);
    // Accepting a table without a manifest must not leave the old one, which knows none of its launches.
    fs::remove_file(&manifest).unwrap();
    assert_eq!(gate(&["--accept"]).status.code(), Some(0));
    assert_eq!(gate(&[]).status.code(), Some(0));
    assert!(!dir.path().join("base/manifest.json").exists());
}

#[test]
fn the_gate_names_broken_programs_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().display().to_string();
    for (old, word) in [
        ("/bin/false", "OLD /bin/false ended with status 1"),
        ("/bin/true", "wrote no rows"),
        ("/no/such", "/no/such"),
    ] {
        let run = chorus(&["gate", "--run", old, "/bin/false", "--out", &out, "--", "-b", "8"]);
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(3), "{message}");
        assert!(message.lines().count() == 1 && message.contains(word), "{message}");
    }
}

#[test]
fn the_gate_tells_how_often_it_errs() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (name, salt) in [("one", 1.7), ("two", 2.3)] {
        recording(&dir.path().join(name), (1.0, 0), salt);
    }
    let (one, two, page) = (path("one"), path("two"), path("rates.md"));
    let rates = chorus(&[
        "gate",
        "--self-test",
        &one,
        &two,
        "--launches",
        "5",
        "--splits",
        "50",
        "--markdown",
        &page,
    ]);
    assert_eq!(rates.status.code(), Some(0), "{rates:?}");
    let text = String::from_utf8_lossy(&rates.stdout).into_owned();
    for title in ["within ", "baseline ", "across sessions, all together", "2 sessions pooled"] {
        assert!(text.contains(title), "{text}");
    }
    assert!(fs::read_to_string(&page).unwrap().contains("| false alarms"));
    assert_eq!(status(&["gate", "--self-test", &one, "--launches", "9"]), 3);
}

#[test]
fn reports_imports_exports_and_graph_logs_say_what_is_unusable() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    recording(&dir.path().join("base"), (1.0, 0), 1.3);
    let (base, out) = (path("base"), path("report"));
    assert_eq!(status(&["report", &base, "--out", &out, "--no-plots"]), 0);
    assert!(Path::new(&out).join("report.html").exists() && Path::new(&out).join("crossover.csv").exists());
    assert_eq!(status(&["report", &path("absent")]), 3);
    assert_eq!(status(&["report", &base, "--tie", "many"]), 64);
    assert_eq!(status(&["compare", &base, &base]), 0);
    let export = chorus(&["export", &base, "--format", "nccl"]);
    assert!(
        String::from_utf8_lossy(&export.stdout)
            .ends_with("allreduce,0,18446744073709551615,ring,simple,2,1,4,-1,-1\n")
    );
    let rubbish = path("rubbish.log");
    fs::write(&rubbish, "no benchmark\n8 9 10\n").unwrap();
    assert_eq!(status(&["import", &rubbish, "--out", &path("none")]), 3);
    assert_eq!(status(&["graph-log", &rubbish]), 3);
    let broken = path("broken.log");
    fs::write(
        &broken,
        "h:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1\nh:1:2 [0] NCCL INFO Trees [0] -1/-1/-1->1->2\n",
    )
    .unwrap();
    let graph = chorus(&["graph-log", &broken]);
    assert_eq!(graph.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&graph.stdout).contains("BROKEN: channel 0: rank 1 is under 2"));
}
