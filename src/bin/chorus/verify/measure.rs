//! Launches of a rule: cycles that take turns between the automatic choice and the rule's.

use std::collections::BTreeMap;

use analysis::dataset::Loader;
use analysis::format::size;
use analysis::launch::{self, Ended, Launch};
use analysis::record::Placement;
use analysis::record::tuned::side_of_cycle;
use analysis::stats::median_of;

use super::subject::{File, Subject};
use super::{Args, Place};
use crate::Failure;

/// Launcher, program and sizes of a launch.
pub(super) fn command(args: &Args, file: &File, subject: &Subject) -> Result<Vec<String>, Failure> {
    let here = std::env::current_exe().map_err(|error| Failure::Internal(error.to_string()))?;
    let program = here.with_file_name(format!("{}_perf", subject.collective)).display().to_string();
    let usual = if file.is_open_mpi() { "mpirun -np {ranks}" } else { "local" };
    let launcher = args.launcher.as_deref().unwrap_or(usual).trim();
    let ranks = subject.n_ranks.to_string();
    let mut words: Vec<String> = Vec::new();
    if launcher == "local" {
        words.extend([program, "-g".into(), ranks, "--launch".into(), "local".into()]);
    } else {
        words.extend(launcher.split_whitespace().map(|word| word.replace("{ranks}", &ranks)));
        words.push(program);
    }
    if file.is_open_mpi() {
        words.extend(["--backend", "mpi"].map(str::to_owned));
    }
    let (first, last, factor) = subject.sizes(args.max_size);
    let sizes =
        ["-b".into(), first.to_string(), "-e".into(), last.to_string(), "-f".into(), factor.to_string()];
    words.extend(sizes);
    Ok(words)
}

/// Starts a launch and gives what it printed.
pub(super) fn start(
    command: Vec<String>,
    environment: &[(&str, String)],
    place: &Place,
) -> Result<(Ended, String), Failure> {
    let launch = Launch {
        command,
        environment: environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        run_id: "verify".into(),
        repeat: 0,
        log: place.folder.join("launch.log"),
    };
    let ended = launch::run(&launch, &place.stop).map_err(|error| Failure::Input(error.to_string()))?;
    let printed = std::fs::read(&launch.log).map_err(|error| Failure::Input(error.to_string()))?;
    Ok((ended, String::from_utf8_lossy(&printed).into_owned()))
}

/// What went wrong with a launch.
pub(super) fn failed(subject: &Subject, ended: Ended, place: &Place) -> Failure {
    let tail = launch::tail(&place.folder.join("launch.log"), 4);
    Failure::Input(format!("{subject}: {ended:?}\n{tail}"))
}

/// Time with the rule over time without, of one launch: the geometric mean over sizes of the median over pairs of cycles.
pub(super) fn ratio(args: &Args, file: &File, subject: &Subject, place: &Place) -> Result<f64, Failure> {
    let csv = place.folder.join("rows.csv");
    let _ = std::fs::remove_file(&csv);
    let mut command = command(args, file, subject)?;
    let pairs = args.pairs.to_string();
    command.extend(["-N", &pairs, "-c", "1", "--alternate", &subject.choice, "--csv"].map(str::to_owned));
    command.push(csv.display().to_string());
    // The automatic side is the one without the file.
    let environment = [
        ("NCCL_TUNER_CONFIG_FILE", String::new()),
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1".to_owned()),
        ("OMPI_MCA_coll_tuned_dynamic_rules_filename", String::new()),
    ];
    let (ended, _) = start(command, &environment, place)?;
    if ended != Ended::Status(0) {
        return Err(failed(subject, ended, place));
    }
    let mut loader = Loader::default();
    loader.add_file(&csv).map_err(|error| Failure::Input(error.to_string()))?;
    // Times by size, pair and side.
    let mut times: BTreeMap<u64, BTreeMap<u32, [Option<f64>; 2]>> = BTreeMap::new();
    for group in loader.finish().groups {
        if group.key.scenario.placement != Placement::OutOfPlace {
            continue;
        }
        for sample in &group.samples {
            let pair = times.entry(group.key.bytes).or_default().entry(sample.cycle / 2).or_default();
            pair[side_of_cycle(sample.cycle)] = Some(sample.time_us);
        }
    }
    geometric_mean(&times).ok_or_else(|| {
        let (first, last, _) = subject.sizes(args.max_size);
        Failure::Input(format!("{subject}: no pair of rows from {} to {}", size(first), size(last)))
    })
}

fn geometric_mean(times: &BTreeMap<u64, BTreeMap<u32, [Option<f64>; 2]>>) -> Option<f64> {
    let median = |pairs: &BTreeMap<u32, [Option<f64>; 2]>| {
        let logs: Vec<f64> = pairs.values().filter_map(|[off, on]| Some(((*on)? / (*off)?).ln())).collect();
        (!logs.is_empty()).then(|| median_of(logs))
    };
    let logs: Vec<f64> = times.values().filter_map(median).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::geometric_mean;

    #[test]
    fn a_launch_gives_the_mean_over_sizes_of_the_median_over_pairs() {
        let pairs = |ratios: &[f64]| -> BTreeMap<u32, [Option<f64>; 2]> {
            ratios.iter().zip(0..).map(|(ratio, pair)| (pair, [Some(2.0), Some(2.0 * ratio)])).collect()
        };
        let mut times = BTreeMap::from([(8, pairs(&[0.5, 0.5, 9.0])), (16, pairs(&[2.0, 2.0, 0.1]))]);
        assert!((geometric_mean(&times).unwrap() - 1.0).abs() < 1e-12);
        times.get_mut(&8).unwrap().insert(7, [Some(1.0), None]);
        assert!((geometric_mean(&times).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&BTreeMap::new()), None);
    }
}
