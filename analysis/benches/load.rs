//! A million rows in ten thousand groups: loaded and grouped, then everything up to the printed tables of a report without plots.
//!
//! `cargo bench -p analysis --bench load`; the record in `results/` also has the peak memory of `chorus report` on the same file, which a
//! benchmark inside one process cannot tell. `--keep FILE` writes that file and stops.

use std::hint::black_box;
use std::path::Path;

use analysis::dataset;
use analysis::record::{Placement, Row, RowWriter};
use analysis::report::{self, Extras, Options};
use criterion::Criterion;

const SIZES: u32 = 25;
const ALGORITHMS: [&str; 2] = ["ring", "tree"];
const PROTOCOLS: [&str; 2] = ["simple", "ll"];
const CHANNELS: [u32; 5] = [1, 2, 4, 8, 16];
const WORLDS: [u32; 10] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 64];
const LAUNCHES: u32 = 10;
const CYCLES: u32 = 10;

/// Writes the rows: 25 sizes x 2 algorithms x 2 protocols x 5 channel counts x 10 worlds x 2 placements = 10^4 groups of 100 rows.
fn write(path: &Path) -> std::io::Result<u64> {
    let mut writer = RowWriter::append(path)?;
    let mut written = 0u64;
    for launch in 0..LAUNCHES {
        for n_ranks in WORLDS {
            for algorithm in ALGORITHMS {
                for protocol in PROTOCOLS {
                    for n_channels in CHANNELS {
                        let run_id =
                            format!("20260102T0304{launch:02}-{n_ranks}-{algorithm}-{protocol}-{n_channels}");
                        let config = (n_ranks, algorithm, protocol, n_channels);
                        for cycle in 0..CYCLES {
                            for row in rows((&run_id, launch, cycle), config, written) {
                                writer.write(&row)?;
                                written += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(written)
}

fn rows(
    (run_id, launch, cycle): (&str, u32, u32),
    (n_ranks, algorithm, protocol, n_channels): (u32, &'static str, &'static str, u32),
    salt: u64,
) -> impl Iterator<Item = Row> {
    let run_id = run_id.to_owned();
    (0..2 * SIZES).map(move |index| {
        let bytes = 4u64 << (index / 2);
        let noise = 1.0 + 0.02 * (((salt + u64::from(index)) as f64) * 0.7).sin();
        let slow = if algorithm == "ring" { 4.0 } else { 6.0 };
        let time_us = (slow * f64::from(n_ranks) + bytes as f64 / 3000.0 / f64::from(n_channels)) * noise;
        let algbw = bytes as f64 / time_us / 1e3;
        Row {
            run_id: run_id.clone(),
            repeat: launch,
            cycle,
            timestamp: "2026-01-02T03:04:05.678+00:00".into(),
            backend: "engine".into(),
            device: "host".into(),
            n_hosts: 1,
            n_ranks,
            collective: "all_reduce".into(),
            algorithm: algorithm.into(),
            protocol: protocol.into(),
            n_channels,
            dtype: "float".into(),
            redop: "sum".into(),
            root: -1,
            bytes,
            count: bytes / 4,
            placement: if index % 2 == 0 { Placement::OutOfPlace } else { Placement::InPlace },
            iterations: 20,
            time_us,
            algbw,
            busbw: algbw * 2.0 * f64::from(n_ranks - 1) / f64::from(n_ranks),
            wrong: Some(0),
        }
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|word| word == "--keep") {
        let path = Path::new(arguments.get(at + 1).expect("--keep takes a file"));
        let written = write(path).expect("the file can be written");
        println!("{written} rows in {}", path.display());
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("raw_measurements.csv");
    let written = write(&file).expect("a temporary file");
    let paths = [file];
    let data = dataset::load(&paths).expect("the rows just written");
    println!("{written} rows, {} groups", data.groups.len());
    assert_eq!((written, data.groups.len()), (1_000_000, 10_000), "the load that is promised");
    let options = Options { plots: false, ..Options::default() };
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    criterion.bench_function("load and group 10^6 rows", |b| b.iter(|| black_box(dataset::load(&paths))));
    criterion.bench_function("load, group and print tables", |b| {
        b.iter(|| {
            let data = dataset::load(&paths).expect("the rows just written");
            let document = report::build(&data, &options, Extras::default());
            black_box(report::terminal::render(&document).len())
        });
    });
    criterion.final_summary();
}
