//! A recording becomes the baseline.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use analysis::dataset::record_files;
use analysis::record::Manifest;
use analysis::record::manifest::FILE_NAME;

use crate::Failure;

/// Whether there is no baseline yet: nothing at that path, or an empty folder, which a cache leaves that found nothing.
pub(super) fn is_absent(baseline: &Path) -> bool {
    match fs::read_dir(baseline) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Copies the current recording to where the baseline belongs.
pub(super) fn adopt(baseline: &Path, current: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let named = |error: io::Error| Failure::Input(format!("{}: {error}", baseline.display()));
    if is_same(baseline, current) {
        writeln!(out, "{} is the baseline already", baseline.display())?;
        return Ok(());
    }
    let is_first = is_absent(baseline);
    let (files, _) = record_files(current).map_err(named)?;
    let manifest = files.first().map(|file| Manifest::path_beside(file)).filter(|path| path.exists());
    if is_table(baseline) {
        let [file] = files.as_slice() else {
            let text = "is one file, and the current recording has several: name a folder";
            return Err(Failure::Input(format!("{} {text}", baseline.display())));
        };
        replace(file, baseline).map_err(named)?;
        beside_table(manifest.as_deref(), baseline).map_err(named)?;
    } else {
        fs::create_dir_all(baseline).map_err(named)?;
        let stale = record_files(baseline).map(|found| found.0).unwrap_or_default();
        let mut kept = Vec::new();
        for file in &files {
            let place = baseline.join(file.file_name().unwrap_or_default());
            replace(file, &place).map_err(named)?;
            kept.push(place);
        }
        for file in stale.iter().filter(|file| !kept.contains(file)) {
            fs::remove_file(file).map_err(named)?;
        }
        match &manifest {
            Some(manifest) => replace(manifest, &baseline.join(FILE_NAME)).map_err(named)?,
            // The old one does not know the new launches, so none of them would count.
            None => remove(&baseline.join(FILE_NAME)).map_err(named)?,
        }
    }
    let what = if is_first { "there was no baseline: recorded one" } else { "accepted as the new baseline" };
    writeln!(out, "{what} in {}", baseline.display())?;
    Ok(())
}

fn is_same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Whether the baseline is one file rather than a folder.
fn is_table(baseline: &Path) -> bool {
    let name = baseline.to_string_lossy();
    baseline.is_file() || (!baseline.is_dir() && (name.ends_with(".csv") || name.ends_with(".csv.gz")))
}

/// Copies under another name and renames, so that a reader never meets half a file.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut name = to.as_os_str().to_owned();
    name.push(".new");
    let part = PathBuf::from(name);
    fs::copy(from, &part)?;
    fs::rename(&part, to)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Other tables may share the folder and its manifest: launches are added to it.
fn beside_table(manifest: Option<&Path>, table: &Path) -> io::Result<()> {
    let path = Manifest::path_beside(table);
    let new = manifest.map(Manifest::load).transpose()?.flatten();
    match (new, Manifest::load(&path)?) {
        (Some(new), Some(mut old)) => {
            let is_known = |id: &str| old.runs.iter().any(|run| run.run_id == id);
            let added: Vec<_> = new.runs.into_iter().filter(|run| !is_known(&run.run_id)).collect();
            old.runs.extend(added);
            old.save(&path)
        }
        (Some(new), None) => new.save(&path),
        (None, Some(_)) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the manifest beside it does not know the launches of a recording without one; name a new folder",
        )),
        (None, None) => Ok(()),
    }
}
