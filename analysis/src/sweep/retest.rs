//! Measures the unstable groups of a sweep again: only those, in new launches, into a file of its own beside the first.
//!
//! Neighbouring sizes of one configuration share a launch. What is asked is what the sweep asked: a choice that was left to the library is
//! left to it again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::dataset::{Dataset, load};
use crate::groups::{GroupStats, describe};
use crate::launch::{self, Ended, Launch, UNAVAILABLE, WRONG_DATA};
use crate::record::manifest::{FILE_NAME, Manifest, RunStatus, new_run_id};
use crate::record::{Placement, RowWriter};
use crate::sweep::folder;
use crate::sweep::matrix::{Matrix, Setup};
use crate::sweep::predict::Cut;
use crate::sweep::runner::{Outcome, check_rows};

/// Launches per group.
pub const LAUNCHES: u32 = 2;
/// Cycles per launch.
pub const CYCLES: u32 = 20;

/// What one launch measures again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Again {
    /// As the sweep asked for it.
    pub setup: Setup,
    /// Placements that were unstable at every one of the sizes.
    pub placements: Vec<Placement>,
    /// Neighbours in the matrix, ascending.
    pub sizes: Vec<u64>,
}

impl Again {
    /// Groups that it measures.
    pub fn n_groups(&self) -> usize {
        self.sizes.len() * self.placements.len()
    }

    fn label(&self) -> String {
        let (first, last) = (self.sizes[0], self.sizes[self.sizes.len() - 1]);
        let sizes = match first == last {
            true => format!("at {}", crate::format::size(first)),
            false => format!("from {} to {}", crate::format::size(first), crate::format::size(last)),
        };
        format!("{} {sizes}", self.setup.label())
    }
}

/// Unstable groups of a sweep as launches; `factor` is that of the sizes.
///
/// # Errors
/// When the folder holds no record.
pub fn unstable(folder: &Path, factor: u32) -> io::Result<Vec<Again>> {
    let data = load(&[folder.to_owned()])?;
    let asked = asked(&data);
    let stats = describe(&data, 0.05);
    let mut groups: BTreeMap<Setup, BTreeMap<u64, BTreeSet<Placement>>> = BTreeMap::new();
    for stats in stats.iter().filter(|stats| stats.is_unstable()) {
        let key = &stats.group.key;
        let sizes = groups.entry(setup_of(&data, &asked, stats)).or_default();
        sizes.entry(key.bytes).or_default().insert(key.scenario.placement);
    }
    let mut all: Vec<Again> = Vec::new();
    for (setup, sizes) in groups {
        for (bytes, placements) in sizes {
            let placements: Vec<Placement> = placements.into_iter().collect();
            match all.last_mut() {
                Some(last)
                    if last.setup == setup
                        && last.placements == placements
                        && last
                            .sizes
                            .last()
                            .is_some_and(|&before| before * u64::from(factor) == bytes && before > 0) =>
                {
                    last.sizes.push(bytes);
                }
                _ => all.push(Again { setup: setup.clone(), placements, sizes: vec![bytes] }),
            }
        }
    }
    Ok(all)
}

/// What the sweep asked of each launch, by run id.
fn asked(data: &Dataset) -> BTreeMap<&str, Setup> {
    let runs = data.manifests().flat_map(|manifest| &manifest.runs);
    runs.filter_map(|run| {
        let setup = serde_json::from_value(run.detail.get("setup")?.clone()).ok()?;
        Some((run.run_id.as_str(), setup))
    })
    .collect()
}

/// What was asked for a group; for rows of other origin, what ran.
fn setup_of(data: &Dataset, asked: &BTreeMap<&str, Setup>, stats: &GroupStats<'_>) -> Setup {
    let (key, scenario) = (&stats.group.key, &stats.group.key.scenario);
    let launches = stats.group.samples.iter().map(|sample| &*data.launches[sample.launch as usize].run_id);
    launches.into_iter().find_map(|run_id| asked.get(run_id).cloned()).unwrap_or_else(|| Setup {
        collective: scenario.collective.to_string(),
        n_ranks: scenario.n_ranks,
        backend: scenario.backend.to_string(),
        algorithm: key.config.algorithm.to_string(),
        protocol: key.config.protocol.to_string(),
        n_channels: key.config.n_channels,
        dtype: scenario.dtype.to_string(),
        operator: scenario.redop.to_string(),
    })
}

/// The next free `retest-N.csv`.
pub fn next_file(folder: &Path) -> PathBuf {
    let names = (1..).map(|number| folder.join(format!("retest-{number}.csv")));
    names.into_iter().find(|path| !path.exists()).expect("invariant: numbers do not end")
}

/// Where the sizes of a swept folder were cut; nothing where they were not, or where it is no sweep.
pub fn cut(folder: &Path) -> Option<Cut> {
    let manifest = Manifest::load(&folder.join(FILE_NAME)).ok()??;
    let at = manifest.extra.get("max_size")?.as_str()?.to_owned();
    let whole = Matrix::parse(manifest.extra.get("matrix")?.as_str()?).ok()?;
    let run = matrix_of(folder).ok()?.byte_sizes().ok()?.len();
    Some(Cut { at, run, all: whole.byte_sizes().ok()?.len() })
}

/// The matrix that a folder was made from.
///
/// # Errors
/// When the folder is no sweep.
pub fn matrix_of(folder: &Path) -> io::Result<Matrix> {
    let bad =
        |text: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {text}", folder.display()));
    let manifest = Manifest::load(&folder.join(FILE_NAME))?.ok_or_else(|| bad("no manifest.json".into()))?;
    let text = manifest.extra.get("matrix").and_then(|value| value.as_str());
    let text =
        text.ok_or_else(|| bad("its manifest has no matrix: it was not made by chorus sweep".into()))?;
    let mut matrix = Matrix::parse(text).map_err(bad)?;
    if let Some(cut) = manifest.extra.get("max_size").and_then(|value| value.as_str()) {
        let whole = matrix.sizes.to.clone();
        let size = |text: &str| crate::format::parse_size(text).unwrap_or(u64::MAX);
        if size(cut) < size(&whole) {
            cut.clone_into(&mut matrix.sizes.to);
        }
    }
    Ok(matrix)
}

/// Runs the launches, each plan [`LAUNCHES`] times. `show` hears each of them.
///
/// # Errors
/// When a launch cannot be started, or the folder cannot be written or is in use.
pub fn run(
    folder: &Path,
    plans: &[Again],
    (matrix, programs): (&Matrix, &str),
    (stop, show): (&AtomicBool, &mut dyn FnMut(&str)),
) -> io::Result<(Outcome, PathBuf)> {
    let _lock = folder::lock(folder)?;
    let file = next_file(folder);
    let mut manifest = Manifest::load(&folder.join(FILE_NAME))?.unwrap_or_default();
    folder::wait_for_orphans(folder, &manifest, stop, show)?;
    for repeat in 0..LAUNCHES {
        let mut order: Vec<&Again> = plans.iter().collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for (index, plan) in order.into_iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok((Outcome::Stopped, file));
            }
            let number = repeat as usize * plans.len() + index + 1;
            show(&format!("launch {number} of {}: {}", plans.len() * LAUNCHES as usize, plan.label()));
            let place = Place { folder, file: &file, repeat };
            let outcome = one(&place, plan, (matrix, programs), (&mut manifest, stop))?;
            if outcome != Outcome::Complete {
                return Ok((outcome, file));
            }
        }
    }
    Ok((Outcome::Complete, file))
}

/// Where a launch's rows go.
struct Place<'a> {
    folder: &'a Path,
    file: &'a Path,
    repeat: u32,
}

fn one(
    place: &Place<'_>,
    plan: &Again,
    (matrix, programs): (&Matrix, &str),
    (manifest, stop): (&mut Manifest, &AtomicBool),
) -> io::Result<Outcome> {
    let run_id = new_run_id();
    let matrix = Matrix { placements: plan.placements.clone(), ..matrix.clone() };
    let mut command = matrix.command(&plan.setup, programs);
    let (first, last) = (plan.sizes[0].to_string(), plan.sizes[plan.sizes.len() - 1].to_string());
    let (factor, cycles) = (matrix.sizes.factor.to_string(), CYCLES.to_string());
    command.extend(["-b", &first, "-e", &last, "-f", &factor, "-N", &cycles, "--csv"].map(str::to_owned));
    command.push(place.file.display().to_string());
    let log = place.folder.join(folder::log_of(&run_id));
    let environment = matrix.launch_environment();
    let launch = Launch { command, environment, run_id: run_id.clone(), repeat: place.repeat, log };
    drop(RowWriter::append(place.file)?);
    let before = fs::metadata(place.file).map_or(0, |data| data.len());
    let path = place.folder.join(FILE_NAME);
    let run = manifest.begin(&run_id);
    run.command_line = folder::publishable(&launch.command);
    run.detail = json!({ "retest": plan.setup.label(), "sizes": plan.sizes, "placements": plan.placements });
    manifest.save(&path)?;
    let looked = launch::run(&launch, stop).and_then(|ended| {
        let checked = check_rows(place.file, before, &run_id, &plan.setup, matrix.fewer_channels)?;
        Ok((ended, checked))
    });
    let (ended, checked) = match looked {
        Ok(both) => both,
        Err(error) => {
            manifest.finish(&run_id, RunStatus::Failed);
            manifest.save(&path)?;
            return Err(error);
        }
    };
    let told = |what: &str| format!("{}: {what}: {}", plan.label(), launch::reason(&launch.log));
    let expected = plan.n_groups() as u64 * u64::from(CYCLES);
    let (status, outcome) = match (checked.wrong, ended) {
        (Some(reason), _) => (RunStatus::Failed, Outcome::Wrong(reason)),
        (None, Ended::Status(0)) if checked.rows == expected => (RunStatus::Complete, Outcome::Complete),
        (None, Ended::Status(0)) => {
            let text = format!("{}: {} rows where {expected} were expected", plan.label(), checked.rows);
            (RunStatus::Failed, Outcome::Failed(text))
        }
        (None, Ended::Stopped) => (RunStatus::Interrupted, Outcome::Stopped),
        (None, Ended::Status(WRONG_DATA)) => (RunStatus::Failed, Outcome::Wrong(told("status 7"))),
        (None, Ended::Status(UNAVAILABLE)) => {
            (RunStatus::Failed, Outcome::Unavailable(told("not available")))
        }
        (None, other) => (RunStatus::Failed, Outcome::Failed(told(&other.to_string()))),
    };
    manifest.finish(&run_id, status);
    manifest.save(&path)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::{next_file, unstable};
    use crate::dataset::tests::row;
    use crate::record::RowWriter;

    #[test]
    fn only_groups_with_a_high_spread_are_measured_again_and_never_over_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = RowWriter::append(&dir.path().join("raw_measurements.csv")).unwrap();
        for (cycle, time) in [1.0, 1.01, 3.0].into_iter().enumerate() {
            for bytes in [8, 16, 64] {
                let mut noisy = row("a", "ring", bytes, time);
                noisy.cycle = cycle as u32;
                writer.write(&noisy).unwrap();
            }
            writer.write(&row("a", "tree", 8, 2.0)).unwrap();
        }
        let plans = unstable(dir.path(), 2).unwrap();
        let shape: Vec<_> =
            plans.iter().map(|plan| (plan.setup.algorithm.as_str(), plan.sizes.clone())).collect();
        assert_eq!(shape, [("ring", vec![8, 16]), ("ring", vec![64])]);
        assert_eq!(plans[0].placements, [crate::record::Placement::OutOfPlace]);
        assert!(next_file(dir.path()).ends_with("retest-1.csv"));
        std::fs::write(dir.path().join("retest-1.csv"), "").unwrap();
        assert!(next_file(dir.path()).ends_with("retest-2.csv"));
    }
}
