//! `chorus report`: where which algorithm wins, from recordings.

mod predicted;

use std::io::Write;
use std::path::{Path, PathBuf};

use analysis::dataset::{self, Dataset, Loader};
use analysis::format::{parse_fraction, parse_size};
use analysis::graph_log::{Communicator, Reader};
use analysis::report::{self, Extras, Finding, Options};
use analysis::sweep::predict::{self, Knowledge};
use analysis::sweep::retest;

use crate::Failure;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus report results/2026-05-01-box-allreduce          findings and tables on the terminal
  chorus report sweep/ --out sweep/report                 report.html, report.md, CSV tables, plots/
  chorus report a.csv b.csv --tie 3% --points 8,64K,16M
  chorus report sweep/ --tty                              charts of characters
  chorus report sweep/ --model machine.xml                predicted against measured crossovers

A folder's manifest.json says which launches came to their end; rows of others are skipped. The same rows give the same bytes.")]
pub(crate) struct Args {
    /// Record folders or CSV files (also .gz)
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Folder for report.html, report.md, crossover.csv, selected_points.csv, groups.csv and plots/
    #[arg(long)]
    out: Option<PathBuf>,
    /// Margin below which nobody wins
    #[arg(long, default_value = "5%", value_parser = parse_fraction)]
    tie: f64,
    /// Largest loss that a small rule set may cost at any size
    #[arg(long, default_value = "2.5%", value_parser = parse_fraction)]
    max_penalty: f64,
    /// Sizes of the selected points table, such as 8,64K,16M [default: ends, extremes, changes of winner]
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    points: Vec<u64>,
    /// Topology file (NCCL's XML): the cost model's crossovers on that machine beside the measured ones
    #[arg(long, value_name = "FILE.xml")]
    model: Option<PathBuf>,
    /// Tables only
    #[arg(long)]
    no_plots: bool,
    /// Charts in the terminal
    #[arg(long)]
    tty: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let (data, retests) = load(&args.paths)?;
    if data.n_samples() == 0 {
        let warnings = data.warnings().join("; ");
        return Err(Failure::Input(format!("no usable row in {} ({warnings})", args.paths[0].display())));
    }
    let plots = args.out.is_some() && !args.no_plots;
    let options =
        Options { tie: args.tie, max_penalty: args.max_penalty, points: args.points.clone(), plots };
    let mut findings = predictions(&args.paths, &data, args.tie);
    let mut sections = Vec::new();
    if let Some(file) = &args.model {
        let (section, said) = predicted::compare(file, &data, &options)?;
        sections.push(section);
        findings.extend(said);
    }
    let document = report::build(&data, &options, Extras { retests, findings, sections });
    if args.tty {
        write!(out, "{}", report::terminal::plots(&data, &options))?;
    }
    let Some(folder) = &args.out else {
        write!(out, "{}", report::terminal::render(&document))?;
        return Ok(0);
    };
    report::write(&document, &data, &options, folder)
        .map_err(|error| Failure::Input(format!("{}: {error}", folder.display())))?;
    for warning in &document.warnings {
        eprintln!("warning: {warning}");
    }
    for finding in document.findings.iter().filter(|finding| !finding.is_detail) {
        writeln!(out, "{} [{}]", finding.text, finding.evidence.label())?;
    }
    writeln!(out, "written: {}", folder.join("report.html").display())?;
    Ok(0)
}

/// Answers to what the matrix files of swept folders predict.
fn predictions(paths: &[PathBuf], data: &Dataset, tie: f64) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in paths.iter().filter(|path| path.is_dir()) {
        let Ok(matrix) = retest::matrix_of(folder) else { continue };
        let graphs: Vec<_> = matrix
            .ranks
            .iter()
            .map(|n_ranks| (*n_ranks, graph_logs(&folder.join("graph").join(format!("{n_ranks}-ranks")))))
            .filter(|(_, communicators)| !communicators.is_empty())
            .collect();
        let known = Knowledge {
            graphs: &graphs,
            shared_inner: &|n_hosts| chorus::engine::graph::trees::shared_inner(n_hosts).len(),
            tie,
            cut: retest::cut(folder),
            record: folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        findings.extend(predict::answer(&matrix.prediction, data, &known));
    }
    findings
}

/// Graphs of all logs in a folder; none when it is not there.
fn graph_logs(folder: &Path) -> Vec<Communicator> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let mut reader = Reader::default();
    for file in files {
        let text = std::fs::read(&file).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().for_each(|line| reader.line(line));
    }
    reader.finish()
}

/// Rows of the paths, and re-measurements beside them, each apart.
fn load(paths: &[PathBuf]) -> Result<(Dataset, Vec<(String, Dataset)>), Failure> {
    let unusable = |error: std::io::Error| Failure::Input(error.to_string());
    let data = dataset::load(paths).map_err(unusable)?;
    let mut retests = Vec::new();
    for path in paths {
        for file in dataset::record_files(path).map_err(unusable)?.1 {
            let mut loader = Loader::default();
            loader.add_file(&file).map_err(unusable)?;
            let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            retests.push((name, loader.finish()));
        }
    }
    Ok((data, retests))
}
