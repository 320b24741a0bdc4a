//! `manifest.json`: how and where the rows of a folder came about, and which launches came to their end.
//!
//! Rows of a launch that is not marked `complete` are kept in the file and skipped by readers. The manifest is replaced whole (a new
//! file renamed over the old one), so a reader never sees half of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::record::Machine;

/// File name of a manifest.
pub const FILE_NAME: &str = "manifest.json";

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Started and not ended yet, or its process vanished.
    Running,
    /// All its rows are there and may be used.
    Complete,
    /// It ended with an error, or ran something else than it was asked.
    Failed,
    /// It was stopped from outside.
    Interrupted,
}

/// One launch: one fresh process start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The `run_id` column of its rows.
    pub run_id: String,
    /// RFC 3339 time of its start.
    pub started: String,
    /// RFC 3339 time of its end, when it had one.
    #[serde(default)]
    pub finished: Option<String>,
    /// How it ended.
    pub status: RunStatus,
    /// Its own command line, where it differs from the manifest's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command_line: Vec<String>,
    /// Anything its launcher wants to remember (a sweep keeps the configuration here).
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub detail: serde_json::Value,
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Words of the command that made the folder.
    #[serde(default)]
    pub command_line: Vec<String>,
    /// Program and library versions by name.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Revision of the checkout that the programs lie in, `-dirty` behind it when tracked files were changed.
    #[serde(default)]
    pub git_revision: Option<String>,
    /// The machine.
    #[serde(default)]
    pub machine: Machine,
    /// `local`, `env`, `mpi` or the launcher's command.
    #[serde(default)]
    pub launcher: Option<String>,
    /// Variables on the allow-list that were set. Never the whole environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Launches in the order they were started.
    #[serde(default)]
    pub runs: Vec<Run>,
    /// Keys that other versions or tools added; kept.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Manifest {
    /// A manifest of this machine without runs.
    pub fn new(command_line: Vec<String>) -> Self {
        Self { command_line, machine: Machine::probe(), ..Self::default() }
    }

    /// Where the manifest of a CSV file or of a folder lies.
    pub fn path_beside(path: &Path) -> PathBuf {
        if path.is_dir() {
            return path.join(FILE_NAME);
        }
        path.parent().unwrap_or(Path::new("")).join(FILE_NAME)
    }

    /// Reads a manifest; nothing when there is no such file.
    ///
    /// # Errors
    /// When the file is there but cannot be read or is no manifest.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a manifest: {error}", path.display()))
        })
    }

    /// Replaces the file at `path` in one step.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut file = tempfile::Builder::new().prefix(".manifest-").suffix(".tmp").tempfile_in(folder)?;
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        readable(file.as_file())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Notes the start of a launch.
    pub fn begin(&mut self, run_id: &str) -> &mut Run {
        self.runs.push(Run {
            run_id: run_id.into(),
            started: now(),
            finished: None,
            status: RunStatus::Running,
            command_line: Vec::new(),
            detail: serde_json::Value::Null,
        });
        self.runs.last_mut().expect("invariant: one was pushed just now")
    }

    /// Notes the end of a launch. A run id that never began is ignored.
    pub fn finish(&mut self, run_id: &str, status: RunStatus) {
        if let Some(run) = self.runs.iter_mut().rev().find(|run| run.run_id == run_id) {
            run.finished = Some(now());
            run.status = status;
        }
    }

    /// Whether the rows of that launch may be used.
    pub fn is_complete(&self, run_id: &str) -> bool {
        self.runs.iter().any(|run| run.run_id == run_id && run.status == RunStatus::Complete)
    }
}

/// Temporary files are private; a record is for everybody who may read its folder.
#[cfg(unix)]
fn readable(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable(_file: &fs::File) -> io::Result<()> {
    Ok(())
}

/// The time now in RFC 3339 form with milliseconds, as rows and runs hold it.
pub fn now() -> String {
    chrono::Local::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, false)
}

/// A name for a launch that no other launch has: start time, process, random tail.
pub fn new_run_id() -> String {
    let time = chrono::Utc::now().format("%Y%m%dT%H%M%S%3f");
    format!("{time}-{}-{:08x}", std::process::id(), rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::{FILE_NAME, Manifest, RunStatus, new_run_id};

    #[test]
    fn only_finished_runs_are_complete_after_a_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        assert_eq!(Manifest::load(&path).unwrap(), None);
        let mut manifest = Manifest::new(vec!["all_reduce_perf".into()]);
        manifest.begin("a");
        manifest.begin("b");
        manifest.begin("c");
        manifest.finish("a", RunStatus::Complete);
        manifest.finish("b", RunStatus::Interrupted);
        manifest.extra.insert("note".into(), "kept".into());
        manifest.save(&path).unwrap();
        let back = Manifest::load(&path).unwrap().unwrap();
        assert_eq!(back, manifest);
        assert_eq!(["a", "b", "c"].map(|run| back.is_complete(run)), [true, false, false]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_broken_manifest_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        std::fs::write(&path, "{\"runs\": [").unwrap();
        assert!(Manifest::load(&path).unwrap_err().to_string().contains("manifest.json: not a manifest"));
    }

    #[test]
    fn run_ids_differ() {
        assert_ne!(new_run_id(), new_run_id());
    }
}
