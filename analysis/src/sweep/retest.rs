//! Measures the unstable groups of a sweep again: only those, in new launches, into a file of its own beside the first.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::dataset::load;
use crate::groups::describe;
use crate::launch::{self, Ended, Launch};
use crate::record::manifest::{FILE_NAME, Manifest, RunStatus, new_run_id};
use crate::sweep::matrix::{Matrix, Setup};

/// Launches per group.
pub const LAUNCHES: u32 = 2;
/// Cycles per launch.
pub const CYCLES: u32 = 20;

/// Unstable groups of a sweep: setup and size, both placements together.
///
/// # Errors
/// When the folder holds no record.
pub fn unstable(folder: &Path, tie: f64) -> io::Result<BTreeSet<(Setup, u64)>> {
    let data = load(&[folder.to_owned()])?;
    let stats = describe(&data, tie);
    let unstable = stats.iter().filter(|stats| stats.is_unstable());
    let groups = unstable.map(|stats| {
        let (key, scenario) = (&stats.group.key, &stats.group.key.scenario);
        let setup = Setup {
            collective: scenario.collective.to_string(),
            n_ranks: scenario.n_ranks,
            backend: scenario.backend.to_string(),
            algorithm: key.config.algorithm.to_string(),
            protocol: key.config.protocol.to_string(),
            n_channels: key.config.n_channels,
            dtype: scenario.dtype.to_string(),
            operator: scenario.redop.to_string(),
        };
        (setup, key.bytes)
    });
    Ok(groups.collect())
}

/// The next free `retest-N.csv`.
pub fn next_file(folder: &Path) -> PathBuf {
    let names = (1..).map(|number| folder.join(format!("retest-{number}.csv")));
    names.into_iter().find(|path| !path.exists()).expect("invariant: numbers do not end")
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
        cut.clone_into(&mut matrix.sizes.to);
    }
    Ok(matrix)
}

/// Runs the launches. `show` hears each of them.
///
/// # Errors
/// When a launch cannot be started, or the folder cannot be written.
pub fn run(
    folder: &Path,
    groups: &BTreeSet<(Setup, u64)>,
    (matrix, programs): (&Matrix, &str),
    (stop, show): (&AtomicBool, &mut dyn FnMut(&str)),
) -> io::Result<Result<PathBuf, String>> {
    let path = folder.join(FILE_NAME);
    let file = next_file(folder);
    let mut manifest = Manifest::load(&path)?.unwrap_or_default();
    for repeat in 0..LAUNCHES {
        let mut order: Vec<&(Setup, u64)> = groups.iter().collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for (setup, bytes) in order {
            if stop.load(Ordering::Relaxed) {
                return Ok(Err("stopped".into()));
            }
            show(&format!("{} at {}, launch {}", setup.label(), crate::format::size(*bytes), repeat + 1));
            let run_id = new_run_id();
            let mut command = matrix.command(setup, programs);
            let size = bytes.to_string();
            command.extend(
                ["-b", &size, "-e", &size, "-f", "2", "-N", &CYCLES.to_string(), "--csv"].map(str::to_owned),
            );
            command.push(file.display().to_string());
            let environment =
                matrix.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let log = folder.join("logs").join(format!("{run_id}.log"));
            let launch = Launch { command, environment, run_id: run_id.clone(), repeat, log };
            let run = manifest.begin(&run_id);
            run.command_line = launch.command.clone();
            run.detail = json!({ "retest": setup.label(), "bytes": bytes });
            manifest.save(&path)?;
            let ended = launch::run(&launch, stop)?;
            let status = if ended == Ended::Status(0) { RunStatus::Complete } else { RunStatus::Failed };
            manifest.finish(&run_id, status);
            manifest.save(&path)?;
            if status != RunStatus::Complete {
                let tail = launch::tail(&launch.log, 4);
                return Ok(Err(format!(
                    "{}: {ended:?}; the log {} ends:\n{tail}",
                    setup.label(),
                    launch.log.display()
                )));
            }
        }
    }
    Ok(Ok(file))
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
            let mut noisy = row("a", "ring", 8, time);
            noisy.cycle = cycle as u32;
            writer.write(&noisy).unwrap();
            writer.write(&row("a", "tree", 8, 2.0)).unwrap();
        }
        let groups = unstable(dir.path(), 0.05).unwrap();
        assert_eq!(
            groups.iter().map(|(setup, bytes)| (setup.algorithm.as_str(), *bytes)).collect::<Vec<_>>(),
            [("ring", 8)]
        );
        assert!(next_file(dir.path()).ends_with("retest-1.csv"));
        std::fs::write(dir.path().join("retest-1.csv"), "").unwrap();
        assert!(next_file(dir.path()).ends_with("retest-2.csv"));
    }
}
