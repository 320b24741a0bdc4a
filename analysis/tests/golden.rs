//! Whole reports of small fixed recordings. When a change is meant, copy the files from the folder that the failure names.

use std::fs;
use std::path::{Path, PathBuf};

use analysis::dataset::{Dataset, load};
use analysis::report::{self, Extras, Options};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn write(data: &Dataset, folder: &Path, plots: bool) {
    let options = Options { plots, ..Options::default() };
    let document = report::build(data, &options, Extras::default());
    report::write(&document, data, &options, folder).unwrap();
}

#[test]
fn the_report_of_two_worlds_is_the_golden_one() {
    let data = load(&[here().join("recordings/two-worlds")]).unwrap();
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden-two-worlds");
    write(&data, &made, false);
    for name in ["report.md", "crossover.csv", "selected_points.csv", "groups.csv"] {
        let golden = fs::read_to_string(here().join("golden/two-worlds").join(name)).unwrap_or_default();
        let text = fs::read_to_string(made.join(name)).unwrap();
        assert!(
            text == golden,
            "{name} differs from the golden file; compare it with {}",
            made.join(name).display()
        );
    }
}

#[test]
fn the_same_rows_in_another_order_give_the_same_bytes() {
    let recording = here().join("recordings/two-worlds");
    let text = fs::read_to_string(recording.join("raw_measurements.csv")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1..].reverse();
    lines[1..].sort_by_key(|line| line.len());
    let dir = tempfile::tempdir().unwrap();
    let shuffled = dir.path().join("two-worlds");
    fs::create_dir(&shuffled).unwrap();
    fs::write(shuffled.join("raw_measurements.csv"), lines.join("\n") + "\n").unwrap();
    fs::copy(recording.join("manifest.json"), shuffled.join("manifest.json")).unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    write(&load(&[recording]).unwrap(), &first, true);
    write(&load(&[shuffled]).unwrap(), &second, true);
    let mut compared = 0;
    for folder in ["", "plots"] {
        for entry in fs::read_dir(first.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let other = second.join(path.strip_prefix(&first).unwrap());
                assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap(), "{} differs", path.display());
                compared += 1;
            }
        }
    }
    assert!(compared >= 15, "only {compared} files were compared");
}
