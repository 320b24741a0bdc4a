//! What a sweep needs to know around its rows: that it is alone in its folder, what was built, and words fit to be published.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::record::Manifest;
use crate::record::manifest::RunStatus;

/// Takes the folder for this process until the returned file is dropped.
///
/// # Errors
/// When another sweep or retest is at work there.
pub fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let text = format!("{}: another sweep is at work in this folder", folder.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        // A file system without locks cannot tell; refusing there would help nobody.
        Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Waits for launches that outlived a killed sweep: they hold the lock of their log, would disturb the next launch, and end by
/// themselves. `show` hears once that there is one.
///
/// # Errors
/// When a log cannot be opened for another reason than being absent.
pub fn wait_for_orphans(
    folder: &Path,
    manifest: &Manifest,
    stop: &AtomicBool,
    show: &mut dyn FnMut(&str),
) -> io::Result<()> {
    for run in manifest.runs.iter().filter(|run| run.status == RunStatus::Running) {
        let log = match File::open(folder.join(log_of(&run.run_id))) {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut is_told = false;
        while matches!(log.try_lock(), Err(TryLockError::WouldBlock)) && !stop.load(Ordering::Relaxed) {
            if !is_told {
                show(&format!("launch {} of the killed sweep still runs: waiting for its end", run.run_id));
                is_told = true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Where a launch's output goes, relative to the folder.
pub fn log_of(run_id: &str) -> String {
    format!("logs/{run_id}.log")
}

/// Removes what a manifest being written left behind when its writer was killed.
pub fn sweep_up(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".manifest-") && name.ends_with(".tmp") {
            // It is in nobody's way; the next sweep tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Words of a command as a record may hold them: absolute paths say where somebody keeps things, so they become relative to the current
/// folder, or their last part where they lie elsewhere.
pub fn publishable(words: &[String]) -> Vec<String> {
    let here = std::env::current_dir().unwrap_or_default();
    words.iter().map(|word| publishable_word(word, &here)).collect()
}

fn publishable_word(word: &str, here: &Path) -> String {
    let (option, path) = match word.split_once('=') {
        Some((option, path)) if option.starts_with("--") => (format!("{option}="), path),
        _ => (String::new(), word),
    };
    let path = Path::new(path);
    if !path.is_absolute() {
        return word.to_owned();
    }
    let shown = match path.strip_prefix(here) {
        Ok(inside) if inside.as_os_str().is_empty() => Path::new("."),
        Ok(inside) => inside,
        Err(_) => path.file_name().map_or(path, Path::new),
    };
    format!("{option}{}", shown.display())
}

/// Revision of the checkout that the programs lie in, with `-dirty` after it when tracked files were changed and `-older-build` when the
/// programs were built before that revision was committed; nothing for programs that were installed elsewhere.
pub fn revision(programs: &str) -> Option<String> {
    let folder = Path::new(if programs.is_empty() { "." } else { programs });
    let top = git(folder, &["rev-parse", "--show-toplevel"])?;
    if !Path::new(&top).join("src/bin/all_reduce_perf.rs").exists() {
        return None;
    }
    let commit = git(folder, &["rev-parse", "HEAD"])?;
    let changed = git(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    let committed = git(folder, &["log", "-1", "--format=%ct"])?.parse::<u64>().ok()?;
    let older = built(folder).is_some_and(|built| built < committed);
    Some(format!(
        "{commit}{}{}",
        if changed.is_empty() { "" } else { "-dirty" },
        if older { "-older-build" } else { "" }
    ))
}

/// When the newest of the programs in a folder was written, seconds since 1970.
fn built(folder: &Path) -> Option<u64> {
    let programs = std::fs::read_dir(folder).ok()?.flatten();
    let perf = programs.filter(|entry| entry.file_name().to_string_lossy().ends_with("_perf"));
    let times = perf.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    times.max()?.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    first_words(command.arg("-C").arg(folder).args(arguments))
}

/// First line of what the launcher says about its version; nothing for `local`.
pub fn launcher_version(launcher: &str) -> Option<(String, String)> {
    let program = launcher.split_whitespace().next().filter(|word| *word != "local")?;
    let text = first_words(Command::new(program).arg("--version"))?;
    let name = Path::new(program).file_name()?.to_string_lossy().into_owned();
    Some((name, text.lines().next()?.trim().to_owned()))
}

/// Standard output of a command that succeeded, trimmed.
fn first_words(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::AtomicBool;

    use super::{launcher_version, lock, log_of, publishable_word, wait_for_orphans};
    use crate::record::Manifest;

    #[test]
    fn places_of_this_machine_leave_words_that_are_kept() {
        let here = Path::new("/home/somebody/chorus");
        let shown = |word: &str| publishable_word(word, here);
        assert_eq!(shown("/home/somebody/chorus/target/release/chorus"), "target/release/chorus");
        assert_eq!(shown("/opt/secret-project/bin/all_reduce_perf"), "all_reduce_perf");
        assert_eq!(shown("--out=/home/somebody/chorus"), "--out=.");
        assert_eq!(shown("results/x"), "results/x");
        assert_eq!(shown("-b"), "-b");
        assert_eq!(launcher_version("local"), None);
    }

    #[test]
    fn a_folder_belongs_to_one_sweep_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).unwrap_err().to_string().contains("another sweep"));
        drop(first);
        assert!(lock(dir.path()).is_ok());
    }

    #[test]
    fn a_launch_that_outlived_its_sweep_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::default();
        manifest.begin("old");
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        let log = std::fs::File::create(dir.path().join(log_of("old"))).unwrap();
        log.try_lock().unwrap();
        let mut heard = Vec::new();
        let orphan = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(150));
            drop(log);
        });
        let mut show = |text: &str| heard.push(text.to_owned());
        wait_for_orphans(dir.path(), &manifest, &AtomicBool::new(false), &mut show).unwrap();
        orphan.join().unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
    }

    #[test]
    fn programs_older_than_the_revision_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("src/bin")).unwrap();
        std::fs::write(root.join("src/bin/all_reduce_perf.rs"), "").unwrap();
        let git = |words: &[&str]| {
            let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
            let status = Command::new("git").arg("-C").arg(root).args(identity).args(words).status().unwrap();
            assert!(status.success(), "git {words:?}");
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        git(&["commit", "-qm", "one"]);
        let program = std::fs::File::create(root.join("all_reduce_perf")).unwrap();
        let day = std::time::Duration::from_secs(86_400);
        program.set_modified(std::time::SystemTime::now() + day).unwrap();
        let shown = super::revision(root.to_str().unwrap()).unwrap();
        assert_eq!(shown.len(), 40, "{shown}");
        program.set_modified(std::time::SystemTime::now() - day).unwrap();
        assert_eq!(super::revision(root.to_str().unwrap()).unwrap(), format!("{shown}-older-build"));
    }
}
