//! Files that CI systems read.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use analysis::compare::{Comparison, output};
use analysis::dataset::Dataset;
use analysis::record::manifest;

use super::Args;
use crate::Failure;

/// Writes every file that was asked for.
pub(super) fn write(args: &Args, comparison: &Comparison, current: &Dataset) -> Result<(), Failure> {
    let whole = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => fs::write(path, text()).map_err(|error| named(path, &error)),
        None => Ok(()),
    };
    whole(&args.junit, &|| output::junit(comparison))?;
    whole(&args.benchmark_json, &|| output::benchmark_json(comparison))?;
    if let Some(path) = &args.markdown {
        let taken = fs::metadata(path).map_or(0, |file| file.len() as usize);
        append(path, &output::markdown(comparison, taken))?;
    }
    if let Some(path) = &args.otava_csv {
        otava(path, comparison, current)?;
    }
    Ok(())
}

fn otava(path: &Path, comparison: &Comparison, current: &Dataset) -> Result<(), Failure> {
    let started =
        current.manifests().flat_map(|manifest| &manifest.runs).map(|run| run.started.clone()).max();
    let time = started.unwrap_or_else(manifest::now);
    let revision = current.manifests().find_map(|manifest| manifest.git_revision.clone());
    let table = match fs::read_to_string(path) {
        Ok(table) => table,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(named(path, &error)),
    };
    let written = output::otava(comparison, table.lines().next(), &time, revision.as_deref().unwrap_or("-"));
    let mut text = String::new();
    if !table.is_empty() && !table.ends_with('\n') {
        text.push('\n');
    }
    for line in written.header.iter().chain(&written.row) {
        text.push_str(line);
        text.push('\n');
    }
    if !written.unknown.is_empty() {
        let n = written.unknown.len();
        eprintln!("warning: {}: it has no column for {n} bands (a new file has)", path.display());
    }
    if written.row.is_none() {
        let lacking = written.lacking.join(", ");
        eprintln!("warning: {}: no row written, this run lacks {lacking}", path.display());
        return Ok(());
    }
    append(path, &text)
}

fn append(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file =
        fs::OpenOptions::new().append(true).create(true).open(path).map_err(|error| named(path, &error))?;
    file.write_all(text.as_bytes()).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> Failure {
    Failure::Input(format!("{}: {error}", path.display()))
}
