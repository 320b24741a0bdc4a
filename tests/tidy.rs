//! Rules of the source tree as a test: who may import whom, where unsafe may live, what every file begins with, how long it
//! may be, and what has no place in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Everybody may import these.
const BASE: [&str; 7] = ["types", "error", "sync", "log", "env", "units", "fault"];

/// Module of the engine, and what it may import beside the base and itself. A new row or edge is a change of design: the commit
/// that adds it says why.
const ENGINE_TABLE: [(&str, &[&str]); 12] = [
    ("topo", &[]),
    ("graph", &["topo"]),
    ("tuning", &["topo", "graph"]),
    ("plan", &["topo", "graph", "tuning"]),
    // The host device interprets plan steps itself, as a kernel would; the data types of `plan` are its instruction set, and the
    // flattened trees of `graph` are part of them.
    // `device::cuda` answers the probe's questions about GPUs, in the probe's plain data.
    ("device", &["plan", "graph", "topo"]),
    ("bootstrap", &[]),
    ("transport", &["topo", "device", "bootstrap"]),
    ("proxy", &["plan", "device", "transport"]),
    ("dispatch", &["plan", "device", "proxy"]),
    ("watch", &["bootstrap", "device"]),
    (
        "comm",
        &[
            "topo",
            "graph",
            "tuning",
            "plan",
            "device",
            "bootstrap",
            "transport",
            "proxy",
            "dispatch",
            "watch",
        ],
    ),
    ("mod", &[]),
];

/// Where unsafe may live: folders end in a slash.
const UNSAFE_PLACES: [&str; 8] = [
    "src/engine/device/",
    "src/engine/transport/shm.rs",
    "src/engine/transport/p2p.rs",
    "src/engine/transport/net/mpi.rs",
    "src/engine/proxy/queue.rs",
    // Buffers give the host a view of memory that peers write; requests carry pointers between threads.
    "src/engine/comm/",
    "src/rendezvous/mpi.rs",
    "src/perf/backend/mpi/",
];

const LINES_MAX: usize = 600;
const THIN_BINARY_LINES_MAX: usize = 30;

/// A source file, split into what ships and what tests it.
struct Source {
    path: String,
    text: String,
    is_test: bool,
}

impl Source {
    /// Lines of shipped code with their numbers, comments left out.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let shipped = if self.is_test { "" } else { shipped_part(&self.text) };
        shipped
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !is_comment(line))
    }

    fn n_shipped_lines(&self) -> usize {
        if self.is_test { 0 } else { shipped_part(&self.text).lines().count() }
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Everything before the file's test module.
fn shipped_part(text: &str) -> &str {
    let mut at = 0;
    while let Some(found) = text[at..].find("#[cfg(test)]") {
        let start = at + found;
        let rest = text[start + "#[cfg(test)]".len()..].trim_start();
        let rest = rest.strip_prefix("pub(super) ").or(rest.strip_prefix("pub(crate) ")).unwrap_or(rest);
        let is_module =
            rest.starts_with("mod ") && rest.lines().next().is_some_and(|line| line.ends_with('{'));
        if is_module && text[..start].ends_with('\n') {
            return &text[..start];
        }
        at = start + 1;
    }
    text
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn walk(folder: &Path, ends: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("a readable folder").path()) {
        if path.is_dir() {
            walk(&path, ends, found);
        } else if path.to_string_lossy().ends_with(ends) {
            found.push(path);
        }
    }
    found.sort();
}

fn sources(folders: &[&str]) -> Vec<Source> {
    let mut paths = Vec::new();
    folders.iter().for_each(|folder| walk(&root().join(folder), ".rs", &mut paths));
    let read: Vec<(PathBuf, String)> =
        paths.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).expect("UTF-8"))).collect();
    let test_files: BTreeSet<PathBuf> =
        read.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    read.into_iter()
        .map(|(path, text)| {
            let is_test =
                test_files.contains(&path) || !path.starts_with(root().join("src")) && is_in_tests(&path);
            let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            Source { path, text, is_test }
        })
        .collect()
}

fn is_in_tests(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "benches")
}

/// Files that a `#[cfg(test)] mod name;` of this file names.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.parent().expect("a folder").to_owned(),
        _ => path.with_extension(""),
    };
    let after = text.split("#[cfg(test)]").skip(1);
    after
        .filter_map(|rest| {
            let line = rest.trim_start().lines().next()?;
            if let Some(named) = line.strip_prefix("#[path = \"") {
                return Some(path.parent().expect("a folder").join(named.split('"').next()?));
            }
            let name = line.split_once("mod ")?.1.strip_suffix(';')?;
            Some(folder.join(format!("{name}.rs")))
        })
        .collect()
}

fn complain(rule: &str, complaints: &[String]) {
    assert!(complaints.is_empty(), "{rule}:\n  {}", complaints.join("\n  "));
}

/// Modules named after `crate::engine::` in a line.
fn engine_modules(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::engine::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

#[test]
fn modules_import_only_what_stands_before_them() {
    let mut complaints = Vec::new();
    for source in sources(&["src"]) {
        let Some(inside) = source.path.strip_prefix("src/engine/") else { continue };
        let module = inside.split(['/', '.']).next().expect("a first part");
        let row = ENGINE_TABLE.iter().find(|(name, _)| *name == module);
        if row.is_none() && !BASE.contains(&module) {
            complaints.push(format!("{}: module `{module}` has no row in the table", source.path));
        }
        let allowed = row.map_or(&[][..], |(_, allowed)| *allowed);
        for (number, line) in source.code() {
            for other in engine_modules(line).filter(|other| !other.is_empty()) {
                if other != module && !BASE.contains(&other) && !allowed.contains(&other) {
                    complaints.push(format!("{}:{number}: {module} imports {other}", source.path));
                }
            }
            for world in ["crate::perf", "crate::rendezvous"].iter().filter(|world| line.contains(**world)) {
                complaints.push(format!("{}:{number}: the engine imports {world}", source.path));
            }
        }
    }
    complain("imports against the table", &complaints);
}

#[test]
fn the_harness_reaches_the_engine_through_its_facade() {
    let mut complaints = Vec::new();
    for source in sources(&["src/perf", "src/rendezvous"]) {
        // Processes meet as ranks do: rendezvous shares hello, strangers and limits with the bootstrap.
        let allowed: &[&str] = if source.path.starts_with("src/rendezvous/") { &["bootstrap"] } else { &[] };
        for (number, line) in source.code() {
            for other in
                engine_modules(line).filter(|other| !BASE.contains(other) && !allowed.contains(other))
            {
                complaints.push(format!("{}:{number}: imports engine::{other}", source.path));
            }
            if source.path.starts_with("src/rendezvous/") && line.contains("crate::perf") {
                complaints.push(format!("{}:{number}: rendezvous imports perf", source.path));
            }
        }
    }
    complain("the façade in lib.rs is the only way in", &complaints);
}

#[test]
fn analysis_depends_on_nothing_of_ours() {
    let manifest = fs::read_to_string(root().join("analysis/Cargo.toml")).expect("the manifest");
    assert!(!manifest.contains("chorus"), "analysis must not depend on the root package");
}

#[test]
fn imports_spell_every_edge() {
    let mut complaints = Vec::new();
    for source in sources(&["src", "analysis/src"]) {
        for (number, line) in source.text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
            for hidden in ["use crate::engine::{", "use crate::{", "super::super::"] {
                if line.contains(hidden) {
                    complaints.push(format!("{}:{}: `{hidden}` hides an edge", source.path, number + 1));
                }
            }
        }
    }
    complain("one full path per import", &complaints);
}

#[test]
fn every_file_begins_with_its_documentation() {
    let all = sources(&["src", "tests", "analysis/src", "analysis/tests", "benches"]);
    let complaints: Vec<String> = all
        .iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.path.clone())
        .collect();
    complain("files that do not begin with //!", &complaints);
}

#[test]
fn files_stay_short() {
    let mut complaints = Vec::new();
    for source in sources(&["src", "analysis/src"]) {
        let n_lines = source.n_shipped_lines();
        if n_lines > LINES_MAX {
            complaints.push(format!("{}: {n_lines} lines, {LINES_MAX} are allowed", source.path));
        }
        let is_thin = source.path.starts_with("src/bin/") && source.path.ends_with("_perf.rs");
        if is_thin && n_lines > THIN_BINARY_LINES_MAX {
            complaints.push(format!("{}: {n_lines} lines in a thin binary", source.path));
        }
    }
    complain("long files", &complaints);
}

#[test]
fn unsafe_has_an_address() {
    let mut complaints = Vec::new();
    for source in sources(&["src", "analysis/src"]) {
        let may = UNSAFE_PLACES
            .iter()
            .any(|place| source.path == *place || place.ends_with('/') && source.path.starts_with(place));
        for (number, line) in source.code().filter(|_| !may) {
            let is_unsafe =
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait", "unsafe("];
            if is_unsafe.iter().any(|form| line.contains(form)) {
                complaints.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    complain("unsafe outside its places", &complaints);
}

#[test]
fn one_file_reads_the_environment() {
    let mut complaints = Vec::new();
    for source in sources(&["src"]).iter().filter(|source| source.path != "src/env.rs") {
        for (number, line) in source.code() {
            if ["std::env::var", "env::vars", "env::var(", "env::var_os"]
                .iter()
                .any(|call| line.contains(call))
            {
                complaints.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    complain("src/env.rs is the only reader of environment variables", &complaints);
}

#[test]
fn pure_modules_touch_no_system() {
    let mut complaints = Vec::new();
    let system =
        ["std::fs", "std::net", "std::time::Instant", "std::process", "std::thread", "crate::env", "rustix"];
    for source in sources(&["src/engine/topo", "src/engine/graph", "src/engine/tuning", "src/engine/plan"]) {
        if source.path == "src/engine/topo/probe.rs" {
            continue;
        }
        for (number, line) in source.code() {
            // Reading a number from text is no effect, wherever the function stands.
            let line = line.replace("crate::env::parse_integer", "");
            for effect in system.iter().filter(|effect| line.contains(**effect)) {
                complaints.push(format!("{}:{number}: {effect}", source.path));
            }
        }
    }
    complain("effects in pure modules (topo/probe.rs alone may)", &complaints);
}

#[test]
fn modelled_code_takes_its_atomics_from_the_facade() {
    let mut complaints = Vec::new();
    for source in sources(&["src/engine"]).iter().filter(|source| source.text.contains("fn loom_")) {
        for (number, line) in source.code().filter(|(_, line)| line.contains("std::sync::atomic")) {
            complaints.push(format!("{}:{number}: {}", source.path, line.trim()));
        }
    }
    complain("files with loom models import atomics from engine::sync", &complaints);
}

#[test]
fn nothing_unfinished_is_left() {
    let mut complaints = Vec::new();
    for source in sources(&["src", "analysis/src"]) {
        for (number, line) in source.code() {
            for left in ["todo!(", "unimplemented!(", "dbg!(", ".unwrap()"] {
                if line.contains(left) {
                    complaints.push(format!("{}:{number}: {left}", source.path));
                }
            }
        }
        let stem = Path::new(&source.path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if ["utils", "util", "common", "helpers", "helper", "misc", "manager"].contains(&stem) {
            complaints.push(format!("{}: a name that says nothing", source.path));
        }
    }
    complain("unfinished or nameless", &complaints);
}

#[test]
fn every_dependency_says_what_it_saves() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    let section = manifest.split("[workspace.dependencies]").nth(1).expect("dependencies");
    let lines = section.lines().take_while(|line| !line.starts_with('[')).filter(|line| line.contains(" = "));
    let silent: Vec<String> =
        lines.filter(|line| !line.contains('#') && !line.contains("path = ")).map(str::to_owned).collect();
    complain("dependencies without a reason", &silent);
}

#[test]
fn the_rules_see_what_they_forbid() {
    let text = "//! Doc.\nfn a() {}\n// unsafe { comment }\n#[cfg(test)]\nmod tests {\n    fn b() { x.unwrap() }\n}\n";
    let source = Source { path: "src/a.rs".into(), text: text.into(), is_test: false };
    assert_eq!(source.n_shipped_lines(), 3);
    assert_eq!(source.code().map(|(number, _)| number).collect::<Vec<_>>(), [2]);
    let found: Vec<&str> = engine_modules("use crate::engine::graph::X; crate::engine::plan::y()").collect();
    assert_eq!(found, ["graph", "plan"]);
    let named = test_modules(Path::new("/r/src/engine/plan/mod.rs"), "#[cfg(test)]\nmod simulate;\n");
    assert_eq!(named, [PathBuf::from("/r/src/engine/plan/simulate.rs")]);
}
