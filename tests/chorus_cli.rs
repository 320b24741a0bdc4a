//! The tool `chorus` as people call it: statuses, messages, tables.

use std::process::{Command, Output, Stdio};

fn chorus(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chorus")).args(args).output().expect("chorus runs")
}

fn stdout(args: &[&str]) -> String {
    let output = chorus(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn bad_usage_of_every_verb_is_status_64_and_one_line() {
    for args in [
        &["trees"][..],
        &["trees", "0"],
        &["trees", "4-2"],
        &["trees", "8", "--nonsense"],
        &["trees", "8", "--csv", "--json"],
        &["nonsense"],
    ] {
        let output = chorus(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
        assert!(message.starts_with("chorus") && message.contains("--help"), "{args:?}: {message}");
    }
    assert_eq!(chorus(&[]).status.code(), Some(64));
}

#[test]
fn help_shows_examples() {
    for verb in ["trees", "help"] {
        let help = if verb == "help" { stdout(&["help", "trees"]) } else { stdout(&[verb, "--help"]) };
        assert!(help.contains("Examples:"), "{verb}: {help}");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chorus"))
        .args(["trees", "1-2000", "--csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("chorus runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("chorus ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tree_tables_say_which_inner_hosts_are_shared() {
    let table = stdout(&["trees", "1-16"]);
    assert!(
        table.contains("even numbers of hosts (2 4 6 8 10 12 14 16): both trees share no inner host"),
        "{table}"
    );
    assert!(
        table.contains("odd numbers of hosts (3 5 7 9 11 13 15): both trees share inner host 0"),
        "{table}"
    );
    let row = table.lines().find(|line| line.trim_start().starts_with("15 ")).expect("a row for 15");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["15", "shift", "0", "4", "8", "1", "4", "8", "0"]);
}

#[test]
fn trees_as_json_hold_parents_and_children() {
    let text = stdout(&["trees", "3", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["construction"], "shift");
    assert_eq!(json["trees"][1]["parent"], serde_json::json!([1, null, 0]));
    assert_eq!(json["sharedInner"], serde_json::json!([0]));
}
