//! `--run`: launches of two programs that alternate on this machine.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use analysis::dataset::{self, Dataset};
use analysis::launch::{self, Ended, Launch};
use analysis::record::manifest::{self, Manifest, RunStatus};

use super::Args;
use crate::Failure;
use crate::compare::load;

/// What is measured where no arguments are given: few sizes, small and large, each long enough that a clock's tick does not show.
const SIZES: [&str; 8] = ["-b", "8", "-e", "4M", "-f", "8", "-n", "1000"];
/// Ranks of a launch without a launcher and without arguments.
const LOCAL_RANKS: [&str; 2] = ["-g", "2"];

/// How a row of launches ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All are there.
    Done,
    /// The new program has wrong data: no further launch can change the verdict.
    WrongData,
    /// Somebody stopped it.
    Interrupted,
}

/// One program and its recording.
#[derive(Debug)]
struct Side {
    word: &'static str,
    program: PathBuf,
    folder: PathBuf,
    manifest: Manifest,
    launches: usize,
}

/// Records both sides.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    args: &'a Args,
    folder: PathBuf,
    sides: [Side; 2],
    stop: &'a AtomicBool,
}

impl<'a> Recorder<'a> {
    /// Checks both programs and makes the folders.
    pub(super) fn new(
        args: &'a Args,
        programs: [&PathBuf; 2],
        stop: &'a AtomicBool,
    ) -> Result<Self, Failure> {
        let [old, new] = programs.map(|path| resolve(path, &args.program));
        let folder = args.out.join(format!("gate-{}", manifest::new_run_id()));
        Self::in_folder(args, [old?, new?], folder, stop)
    }

    /// Another recording of the same programs inside this one's folder.
    pub(super) fn confirmation(&self) -> Result<Self, Failure> {
        let programs = [self.sides[0].program.clone(), self.sides[1].program.clone()];
        Self::in_folder(self.args, programs, self.folder.join("confirmation"), self.stop)
    }

    fn in_folder(
        args: &'a Args,
        [old, new]: [PathBuf; 2],
        folder: PathBuf,
        stop: &'a AtomicBool,
    ) -> Result<Self, Failure> {
        let side = |word, program: PathBuf, name| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder)
                .map_err(|error| Failure::Input(format!("{}: {error}", folder.display())))?;
            let mut manifest = Manifest::new(vec![program.display().to_string()]);
            manifest.launcher =
                Some(if args.launcher.is_empty() { "local".into() } else { args.launcher.clone() });
            Ok::<_, Failure>(Side { word, program, folder, manifest, launches: 0 })
        };
        let sides = [side("old", old, "baseline")?, side("new", new, "current")?];
        Ok(Self { args, folder, sides, stop })
    }

    /// Where everything lies.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Both recordings.
    pub(super) fn load(&self) -> Result<(Dataset, Dataset), Failure> {
        Ok((load(&self.sides[0].folder)?, load(&self.sides[1].folder)?))
    }

    /// Whatever of both recordings can be read.
    pub(super) fn load_any(&self) -> (Dataset, Dataset) {
        let load = |side: &Side| dataset::load(std::slice::from_ref(&side.folder)).unwrap_or_default();
        (load(&self.sides[0]), load(&self.sides[1]))
    }

    /// So many launches of each; which one goes first alternates too.
    pub(super) fn alternate(&mut self, launches: usize) -> Result<Outcome, Failure> {
        let begun = Instant::now();
        for repeat in 0..launches {
            let order = if repeat % 2 == 0 { [0, 1] } else { [1, 0] };
            for (step, which) in order.into_iter().enumerate() {
                let (done, all) = (2 * repeat + step, 2 * launches);
                let outcome = self.launch(which);
                if let Err(failure) = outcome {
                    // Wrong data of the new program outweigh that the old one is broken.
                    let is_unseen = which == 0 && self.sides[1].launches == 0;
                    return match is_unseen.then(|| self.launch(1)) {
                        Some(Ok(Outcome::WrongData)) => Ok(Outcome::WrongData),
                        _ => Err(failure),
                    };
                }
                match outcome? {
                    Outcome::Done => {}
                    Outcome::Interrupted => {
                        self.say_interrupted(done, all);
                        return Ok(Outcome::Interrupted);
                    }
                    Outcome::WrongData => return Ok(Outcome::WrongData),
                }
                let left = begun.elapsed().as_secs_f64() / (done + 1) as f64 * (all - done - 1) as f64;
                let word = self.sides[which].word;
                eprintln!("launch {} of {all}, {word}: done, about {left:.0} s left", done + 1);
            }
        }
        Ok(Outcome::Done)
    }

    fn say_interrupted(&self, done: usize, all: usize) {
        let [old, new] = &self.sides;
        eprintln!(
            "chorus gate: interrupted after {done} of {all} launches; they are kept: \
             chorus gate --baseline {} --current {} judges them",
            old.folder.display(),
            new.folder.display()
        );
    }

    fn launch(&mut self, which: usize) -> Result<Outcome, Failure> {
        let run_id = manifest::new_run_id();
        let side = &self.sides[which];
        let launch = Launch {
            command: self.command(side),
            environment: Vec::new(),
            run_id: run_id.clone(),
            repeat: side.launches as u32,
            log: side.folder.join("logs").join(format!("{run_id}.log")),
        };
        let limit = Duration::from_secs(self.args.launch_limit);
        let side = &mut self.sides[which];
        side.manifest.begin(&run_id).command_line = launch.command.clone();
        side.save()?;
        let begun = Instant::now();
        let ended = run_limited(&launch, self.stop, limit);
        // Ctrl-C may end the program before it reaches us.
        let is_own_end = matches!(ended, Ok(Ended::Stopped)) && begun.elapsed() < limit;
        let is_stopped = self.stop.load(Ordering::Relaxed) || is_own_end;
        let status = match &ended {
            _ if is_stopped => RunStatus::Interrupted,
            Ok(Ended::Status(0 | launch::WRONG_DATA)) => RunStatus::Complete,
            _ => RunStatus::Failed,
        };
        side.manifest.finish(&run_id, status);
        side.save()?;
        if is_stopped {
            return Ok(Outcome::Interrupted);
        }
        let ended = ended.map_err(|error| Failure::Input(format!("--run: {error}")))?;
        side.launches += 1;
        let (word, program) = (side.word.to_uppercase(), side.program.display());
        let last = last_words(&launch.log, &ended);
        let log = launch.log.display();
        match ended {
            Ended::Status(0) if side.launches > 1 || side.has_rows() => Ok(Outcome::Done),
            Ended::Status(0) => Err(Failure::Input(format!(
                "{word} {program} ended well but wrote no rows: it must be one of the *_perf programs, which know --csv"
            ))),
            Ended::Status(launch::WRONG_DATA) if which == 1 => Ok(Outcome::WrongData),
            Ended::Status(launch::WRONG_DATA) => Err(Failure::Input(format!(
                "{word} {program} has wrong data, nothing can be compared with it; log: {log}"
            ))),
            Ended::Status(status) => {
                Err(Failure::Input(format!("{word} {program} ended with status {status}{last} (log: {log})")))
            }
            Ended::Signal => {
                Err(Failure::Input(format!("{word} {program} was killed by a signal (log: {log})")))
            }
            Ended::Stopped => Err(Failure::Input(format!(
                "{word} {program} took longer than the {} s of --launch-limit (log: {log})",
                limit.as_secs()
            ))),
        }
    }

    fn command(&self, side: &Side) -> Vec<String> {
        let args = self.args;
        let mut command: Vec<String> = args.launcher.split_whitespace().map(str::to_owned).collect();
        command.push(side.program.display().to_string());
        if args.arguments.is_empty() {
            let ranks: &[&str] = if args.launcher.is_empty() { &LOCAL_RANKS } else { &[] };
            command.extend(ranks.iter().chain(&SIZES).map(|&word| word.to_owned()));
        }
        command.extend(args.arguments.iter().cloned());
        command.extend(["-N".into(), args.cycles.to_string(), "--csv".into()]);
        command.push(side.rows().display().to_string());
        command
    }
}

impl Side {
    fn rows(&self) -> PathBuf {
        self.folder.join(analysis::sweep::ROWS)
    }

    fn save(&self) -> Result<(), Failure> {
        let path = self.folder.join(manifest::FILE_NAME);
        self.manifest.save(&path).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
    }

    fn has_rows(&self) -> bool {
        dataset::load(&[self.rows()]).is_ok_and(|data| data.n_samples() > 0)
    }
}

/// A folder means the program of that name in it.
fn resolve(path: &Path, program: &str) -> Result<PathBuf, Failure> {
    let path = if path.is_dir() { path.join(program) } else { path.to_owned() };
    let failed = |text: &str| Failure::Input(format!("--run: {}: {text}", path.display()));
    match fs::metadata(&path) {
        Ok(file) if !file.is_file() => Err(failed("not a program")),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Err(failed("not executable")),
        Ok(_) if path.components().count() == 1 => Ok(Path::new(".").join(path)),
        Ok(_) => Ok(path),
        // A bare word may be found on the search path.
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.components().count() == 1 => Ok(path),
        Err(error) => Err(failed(&error.to_string())),
    }
}

/// `: what it said`, for a message of one line. Usage errors say it first and explain themselves behind it.
fn last_words(log: &Path, ended: &Ended) -> String {
    let all = launch::tail(log, usize::MAX);
    let mut lines = all.lines().filter(|line| !line.starts_with('#'));
    let line = if *ended == Ended::Status(255) { lines.next() } else { lines.next_back() };
    line.map_or(String::new(), |line| {
        let text: String = line.trim().chars().filter(|c| !c.is_control()).take(200).collect();
        format!(": {text}")
    })
}

/// Ends the launch when it is over time or when somebody asks to stop.
fn run_limited(launch: &Launch, stop: &AtomicBool, limit: Duration) -> io::Result<Ended> {
    let (end, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed) || begun.elapsed() > limit {
                    end.store(true, Ordering::Relaxed);
                }
                std::thread::park_timeout(Duration::from_millis(50));
            }
        });
        let ended = launch::run(launch, &end);
        is_over.store(true, Ordering::Relaxed);
        ended
    })
}
