//! `chorus import`: what other benchmarks wrote becomes a record.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use analysis::dataset::open_text;
use analysis::format::count;
use analysis::import::{self, Hints, Imported, csv_map::Map, debug_log};
use analysis::record::manifest::{FILE_NAME, Manifest, RunStatus};
use analysis::record::{Machine, RowWriter};

use crate::Failure;

/// Bad lines printed per file.
const SHOWN: usize = 20;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus import job-*.log --out imported            nccl-tests or rccl-tests output, text or JSON, also .gz
  chorus import osu.txt --ranks 8 --out imported    OSU does not print its ranks
  chorus import rows.json record.csv                our own rows, rccl-tests' CSV
  chorus import table.csv --map 'bytes=size,time_us=ms*1000,algorithm=algo,collective:all_reduce,n_ranks:8'
  chorus import job.log --debug-log nccl.*.log      library logs beside it tell algorithm, protocol and channels

Each file is a launch, and so is each program and each task's stream inside one. Bad lines are named by number; status 0 with warnings, 3 when nothing was usable.")]
pub(crate) struct Args {
    /// Logs and tables
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Folder of the new record
    #[arg(long, default_value = "imported")]
    out: PathBuf,
    /// Ranks, for formats that do not print them
    #[arg(long)]
    ranks: Option<u32>,
    /// Collective, for logs that do not name it
    #[arg(long)]
    collective: Option<String>,
    /// Columns of a CSV table: name=column[*factor] or name:value, separated by commas
    #[arg(long, value_parser = Map::parse)]
    map: Option<Map>,
    /// Library logs (NCCL_DEBUG=INFO, TUNING) of the same runs, or folders of them; those named %h.%p beside a log are found
    #[arg(long, num_args = 1..)]
    debug_log: Vec<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let rows_path = args.out.join(analysis::sweep::ROWS);
    if rows_path.exists() {
        return Err(Failure::Input(format!("{} is there already; take a new folder", rows_path.display())));
    }
    let mut choices = debug_log::Choices::default();
    for path in debug_logs(&args.debug_log)? {
        choices.add(&read(&path)?);
    }
    let mut all: Vec<Imported> = Vec::new();
    for (index, path) in args.files.iter().enumerate() {
        if args.files[..index].contains(path) {
            eprintln!("warning: {}: given twice, read once", path.display());
            continue;
        }
        let text = match read(path) {
            Ok(text) => text,
            Err(Failure::Input(what)) if args.files.len() > 1 => {
                eprintln!("warning: {what}; left out");
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let mut imported = import::text(&text, &hints(args, path));
        debug_log::fill(&mut imported, &choices);
        let neighbours = beside(path, &imported);
        debug_log::fill(&mut imported, &neighbours);
        report(path, &imported);
        all.push(imported);
    }
    let rows: usize = all.iter().map(|imported| imported.rows.len()).sum();
    if rows == 0 {
        return Err(Failure::Input(format!("no usable row in {}", count(all.len(), "file"))));
    }
    write_record(args, &rows_path, &all)
        .map_err(|error| Failure::Input(format!("{}: {error}", args.out.display())))?;
    let marked = all.iter().flat_map(|imported| &imported.rows).filter(|row| row.algorithm == "auto").count();
    let groups = analysis::dataset::load(std::slice::from_ref(&args.out))
        .map_err(|error| Failure::Input(error.to_string()))?;
    let single = groups.groups.iter().filter(|group| group.samples.len() == 1).count();
    writeln!(
        out,
        "{} in {} from {}: {}",
        count(rows, "row"),
        count(groups.groups.len(), "group"),
        count(all.len(), "file"),
        rows_path.display()
    )?;
    if single > 0 {
        writeln!(
            out,
            "{} hold a single sample (n = 1): no interval can be given for them",
            count(single, "group")
        )?;
    }
    if marked > 0 {
        writeln!(out, "{} do not say which algorithm ran: auto", count(marked, "row"))?;
    }
    Ok(0)
}

/// Files, and those of folders.
fn debug_logs(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path)
            .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        let inside = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
        files.extend(inside);
    }
    files.sort();
    Ok(files)
}

/// Library logs in the log's own folder, named after a host and process of its device list, as NCCL_DEBUG_FILE=….%h.%p makes them.
fn beside(path: &Path, imported: &Imported) -> debug_log::Choices {
    let mut choices = debug_log::Choices::default();
    let names: Vec<String> =
        imported.processes.values().flatten().map(|(host, pid)| format!("{host}.{pid}")).collect();
    if names.is_empty() || imported.rows.iter().all(|row| row.algorithm != "auto") {
        return choices;
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut logs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|other| other != path).collect();
    logs.sort();
    for log in logs {
        let name = log.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let stem = name.trim_end_matches(".gz").trim_end_matches(".log").trim_end_matches(".txt");
        let is_ours = |own: &String| {
            let front = stem.strip_suffix(own.as_str());
            front.is_some_and(|front| !front.ends_with(|c: char| c.is_ascii_alphanumeric()))
        };
        if names.iter().any(is_ours)
            && let Ok(text) = read(&log)
        {
            choices.add(&text);
        }
    }
    choices
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let mut source = open_text(path).map_err(|error| Failure::Input(error.to_string()))?;
    // A cut gzip file gives what was unpacked before the cut.
    if let Err(error) = source.read_to_end(&mut bytes) {
        eprintln!("warning: {}: {error}; what came before is used", path.display());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn hints(args: &Args, path: &Path) -> Hints {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Logs of several folders often share a name.
    let twins = args.files.iter().filter(|other| other.file_name() == path.file_name()).count() > 1;
    let run_id = if twins { path.display().to_string() } else { name };
    Hints { run_id, n_ranks: args.ranks, collective: args.collective.clone(), map: args.map.clone() }
}

fn report(path: &Path, imported: &Imported) {
    let name = path.display();
    for note in &imported.notes {
        eprintln!("warning: {name}: {note}");
    }
    for (line, reason) in imported.problems.iter().take(SHOWN) {
        eprintln!("warning: {name}, line {line}: {reason}");
    }
    if imported.problems.len() > SHOWN {
        eprintln!("warning: {name}: {} more such lines", imported.problems.len() - SHOWN);
    }
    if imported.rows.is_empty() {
        eprintln!("warning: {name}: no usable row");
    }
}

fn write_record(args: &Args, rows_path: &Path, all: &[Imported]) -> std::io::Result<()> {
    std::fs::create_dir_all(&args.out)?;
    let mut writer = RowWriter::append(rows_path)?;
    // The machine is where the logs came from, not this one.
    let mut manifest =
        Manifest { machine: Machine::default(), launcher: Some("import".into()), ..Manifest::default() };
    let mut known = std::collections::BTreeSet::new();
    for row in all.iter().flat_map(|imported| &imported.rows) {
        if known.insert(row.run_id.clone()) {
            manifest.begin(&row.run_id);
            manifest.finish(&row.run_id, RunStatus::Complete);
        }
        writer.write(row)?;
    }
    manifest.save(&args.out.join(FILE_NAME))
}
