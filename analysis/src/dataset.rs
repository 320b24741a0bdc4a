//! Rows become groups: all samples of one configuration at one size.
//!
//! Files stream through; of a row only time, bandwidth and launch stay. Whatever is skipped is counted and named, and the order of
//! files and rows leaves no trace in the result.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::count;
use crate::record::reader::Problem;
use crate::record::{Manifest, Placement, RowReader, RowRef};

/// What is being done: everything that is given, not chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scenario {
    /// Collective.
    pub collective: Arc<str>,
    /// Hosts.
    pub n_hosts: u32,
    /// Ranks.
    pub n_ranks: u32,
    /// Back end.
    pub backend: Arc<str>,
    /// Device kind and name.
    pub device: Arc<str>,
    /// Element type.
    pub dtype: Arc<str>,
    /// Operator.
    pub redop: Arc<str>,
    /// Root, -1 when there is none.
    pub root: i32,
    /// In place or out of place.
    pub placement: Placement,
}

/// How it is done: what a tuner chooses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Config {
    /// Algorithm.
    pub algorithm: Arc<str>,
    /// Protocol.
    pub protocol: Arc<str>,
    /// Channels.
    pub n_channels: u32,
}

impl Config {
    /// `ring/simple/4`.
    pub fn label(&self) -> String {
        format!("{}/{}/{}", self.algorithm, self.protocol, self.n_channels)
    }
}

/// Names a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// What.
    pub scenario: Arc<Scenario>,
    /// How.
    pub config: Config,
    /// Size.
    pub bytes: u64,
}

/// One measured row, reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Index into [`Dataset::launches`].
    pub launch: u32,
    /// Cycle within the launch.
    pub cycle: u32,
    /// Time, µs.
    pub time_us: f64,
    /// Bus bandwidth, GB/s.
    pub busbw: f64,
}

/// All samples of one configuration at one size, ordered by launch and cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub key: GroupKey,
    /// Its samples; never empty.
    pub samples: Vec<Sample>,
}

impl Group {
    /// Times of each launch, in launch order.
    pub fn times_by_launch(&self) -> Vec<Vec<f64>> {
        let runs = self.samples.chunk_by(|a, b| a.launch == b.launch);
        runs.map(|run| run.iter().map(|sample| sample.time_us).collect()).collect()
    }
}

/// A launch that left rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Launch {
    /// Its name.
    pub run_id: Arc<str>,
    /// Process repeat.
    pub repeat: u32,
    /// When its first row was written, milliseconds since 1970, where its rows say so.
    pub started: Option<i64>,
}

/// One file that was read.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Where it lies.
    pub path: PathBuf,
    /// Rows that were used.
    pub used: u64,
    /// Rows of launches that did not complete.
    pub incomplete_rows: u64,
    /// Those of them that hold wrong elements.
    pub incomplete_wrong: u64,
    /// Those launches.
    pub incomplete_launches: BTreeSet<String>,
    /// Lines that gave no row: the first few in words, and their number.
    pub problems: Vec<String>,
    /// Number of such lines.
    pub n_problems: u64,
    /// The manifest beside it.
    pub manifest: Option<Manifest>,
}

/// Everything that was read.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// Groups in the order of their keys.
    pub groups: Vec<Group>,
    /// Launches in the order of their names.
    pub launches: Vec<Launch>,
    /// Files in the order of their paths.
    pub sources: Vec<Source>,
    /// Rows with wrong elements. They are errors of the run, never samples.
    pub wrong_rows: u64,
    /// Such rows of launches that never came to their end; they are in no other count.
    pub wrong_unfinished_rows: u64,
    /// Rows whose result was checked and right.
    pub checked_rows: u64,
    /// Rows whose result nobody checked.
    pub unchecked_rows: u64,
}

impl Dataset {
    /// Number of samples.
    pub fn n_samples(&self) -> usize {
        self.groups.iter().map(|group| group.samples.len()).sum()
    }

    /// Sentences about what was skipped or is missing, for people.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for source in &self.sources {
            let name = source.path.display();
            if source.manifest.is_none() {
                all.push(format!(
                    "{name}: no manifest beside it: machine unknown, every launch is taken as complete"
                ));
            }
            if source.incomplete_rows > 0 {
                let launches = count(source.incomplete_launches.len(), "launch");
                let rows = count(source.incomplete_rows as usize, "row");
                let wrong = match source.incomplete_wrong {
                    0 => String::new(),
                    wrong => format!("; {} of them with WRONG elements", count(wrong as usize, "row")),
                };
                all.push(format!("{name}: {rows} of {launches} that did not complete skipped{wrong}"));
            }
            all.extend(source.problems.iter().map(|problem| format!("{name}: {problem}")));
            let more = source.n_problems - source.problems.len() as u64;
            if more > 0 {
                all.push(format!("{name}: {more} more lines give no row"));
            }
        }
        if self.wrong_rows > 0 {
            all.push(format!("{} rows hold wrong elements; they are no samples", self.wrong_rows));
        }
        all
    }

    /// Manifests of the sources, each machine once.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.sources.iter().filter_map(|source| source.manifest.as_ref())
    }
}

/// Lines kept in words per file.
const PROBLEMS_KEPT: usize = 20;

type ScenarioIds = (u32, u32, u32, u32, u32, u32, u32, i32, Placement);

/// Collects rows.
#[derive(Debug, Default)]
pub struct Loader {
    words: Words,
    scenarios: HashMap<ScenarioIds, u32>,
    scenario_list: Vec<Arc<Scenario>>,
    groups: HashMap<(u32, u32, u32, u32, u64), u32>,
    group_list: Vec<Group>,
    launch_ids: HashMap<u32, u32>,
    launches: Vec<Launch>,
    /// Earliest time stamp of each launch.
    first_times: Vec<String>,
    data: Dataset,
}

#[derive(Debug, Default)]
struct Words {
    ids: HashMap<Arc<str>, u32>,
    list: Vec<Arc<str>>,
}

impl Words {
    fn id(&mut self, word: &str) -> u32 {
        if let Some(&id) = self.ids.get(word) {
            return id;
        }
        let (word, id) = (Arc::<str>::from(word), self.list.len() as u32);
        self.list.push(word.clone());
        self.ids.insert(word, id);
        id
    }
}

impl Loader {
    /// Takes a row in. Rows with wrong elements are counted and left out.
    pub fn add(&mut self, row: &RowRef<'_>) {
        match row.wrong {
            Some(0) => self.data.checked_rows += 1,
            None => self.data.unchecked_rows += 1,
            Some(_) => {
                self.data.wrong_rows += 1;
                return;
            }
        }
        let scenario = self.scenario(row);
        let (algorithm, protocol) = (self.words.id(row.algorithm), self.words.id(row.protocol));
        let launch = self.launch(row);
        let key = (scenario, algorithm, protocol, row.n_channels, row.bytes);
        let next = self.group_list.len() as u32;
        let group = *self.groups.entry(key).or_insert(next);
        if group == next {
            let word = |id: u32| self.words.list[id as usize].clone();
            let config =
                Config { algorithm: word(algorithm), protocol: word(protocol), n_channels: row.n_channels };
            let scenario = self.scenario_list[scenario as usize].clone();
            self.group_list
                .push(Group { key: GroupKey { scenario, config, bytes: row.bytes }, samples: Vec::new() });
        }
        let sample = Sample { launch, cycle: row.cycle, time_us: row.time_us, busbw: row.busbw };
        self.group_list[group as usize].samples.push(sample);
    }

    fn scenario(&mut self, row: &RowRef<'_>) -> u32 {
        let words = &mut self.words;
        let ids = (
            words.id(row.collective),
            row.n_hosts,
            row.n_ranks,
            words.id(row.backend),
            words.id(row.device),
            words.id(row.dtype),
            words.id(row.redop),
            row.root,
            row.placement,
        );
        let next = self.scenario_list.len() as u32;
        let id = *self.scenarios.entry(ids).or_insert(next);
        if id == next {
            let word = |id: u32| words.list[id as usize].clone();
            self.scenario_list.push(Arc::new(Scenario {
                collective: word(ids.0),
                n_hosts: ids.1,
                n_ranks: ids.2,
                backend: word(ids.3),
                device: word(ids.4),
                dtype: word(ids.5),
                redop: word(ids.6),
                root: ids.7,
                placement: ids.8,
            }));
        }
        id
    }

    fn launch(&mut self, row: &RowRef<'_>) -> u32 {
        let word = self.words.id(row.run_id);
        let next = self.launches.len() as u32;
        let id = *self.launch_ids.entry(word).or_insert(next);
        if id == next {
            let run_id = self.words.list[word as usize].clone();
            self.launches.push(Launch { run_id, repeat: row.repeat, started: None });
            self.first_times.push(row.timestamp.to_owned());
        }
        let first = &mut self.first_times[id as usize];
        if row.timestamp < first.as_str() {
            row.timestamp.clone_into(first);
        }
        id
    }

    /// Reads one record file. Bad lines are noted; rows of launches that its manifest does not call complete are skipped.
    ///
    /// # Errors
    /// When the file cannot be opened or is no record, or when its manifest is broken.
    pub fn add_file(&mut self, path: &Path) -> io::Result<()> {
        let manifest = Manifest::load(&Manifest::path_beside(path))?;
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut reader = RowReader::new(open_text(path)?).map_err(named)?;
        let mut source = Source { path: path.to_owned(), ..Source::default() };
        let mut usable: HashMap<u32, bool> = HashMap::new();
        while let Some(item) = reader.next_row() {
            let row = match item {
                Ok(row) => row,
                Err(problem) => {
                    note(&mut source, &problem);
                    continue;
                }
            };
            if let Some(manifest) = &manifest {
                let id = self.words.id(row.run_id);
                if !*usable.entry(id).or_insert_with(|| manifest.is_complete(row.run_id)) {
                    source.incomplete_rows += 1;
                    source.incomplete_wrong += u64::from(row.wrong.is_some_and(|wrong| wrong > 0));
                    source.incomplete_launches.insert(row.run_id.to_owned());
                    continue;
                }
            }
            source.used += 1;
            self.add(&row);
        }
        source.manifest = manifest;
        self.data.sources.push(source);
        Ok(())
    }

    /// Ends collecting: everything gets its order.
    pub fn finish(mut self) -> Dataset {
        for (launch, time) in self.launches.iter_mut().zip(&self.first_times) {
            let time = chrono::DateTime::parse_from_rfc3339(time);
            launch.started = time.ok().map(|time| time.timestamp_millis());
        }
        let mut order: Vec<u32> = (0..self.launches.len() as u32).collect();
        order.sort_by(|&a, &b| self.launches[a as usize].cmp(&self.launches[b as usize]));
        let mut rank = vec![0u32; order.len()];
        for (place, &old) in order.iter().enumerate() {
            rank[old as usize] = place as u32;
        }
        for group in &mut self.group_list {
            for sample in &mut group.samples {
                sample.launch = rank[sample.launch as usize];
            }
            group.samples.sort_by(|a, b| {
                (a.launch, a.cycle).cmp(&(b.launch, b.cycle)).then(a.time_us.total_cmp(&b.time_us))
            });
            group.samples.shrink_to_fit();
        }
        self.group_list.sort_by(|a, b| a.key.cmp(&b.key));
        self.launches.sort();
        self.data.wrong_unfinished_rows =
            self.data.sources.iter().map(|source| source.incomplete_wrong).sum();
        self.data.groups = self.group_list;
        self.data.launches = self.launches;
        self.data.sources.sort_by(|a, b| a.path.cmp(&b.path));
        self.data
    }
}

fn note(source: &mut Source, problem: &Problem) {
    source.n_problems += 1;
    if source.problems.len() < PROBLEMS_KEPT {
        source.problems.push(problem.to_string());
    }
}

/// Opens a text file, unpacking it when its first bytes say gzip.
///
/// # Errors
/// When it cannot be opened or read; the error names it.
pub fn open_text(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(named)?);
    let packed = file.fill_buf().map_err(named)?.starts_with(&[0x1f, 0x8b]);
    if packed {
        let unpacked: Box<dyn Read> = Box::new(flate2::bufread::MultiGzDecoder::new(file));
        return Ok(Box::new(BufReader::with_capacity(1 << 18, unpacked)));
    }
    Ok(Box::new(file))
}

/// Record files that an argument of `report` and its like means: a file itself, or those of a folder. Re-measurements
/// (`retest-*.csv`) are listed apart, because nothing may mix them in silently.
///
/// # Errors
/// When the path is not there, or is a folder without records.
pub fn record_files(path: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if !fs::metadata(path).map_err(named)?.is_dir() {
        return Ok((vec![path.to_owned()], Vec::new()));
    }
    let (mut rows, mut retests) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(named)? {
        let file = entry?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !(name.ends_with(".csv") || name.ends_with(".csv.gz")) || !starts_like_a_record(&file) {
            continue;
        }
        if name.starts_with("retest-") { retests.push(file) } else { rows.push(file) }
    }
    rows.sort();
    retests.sort();
    if rows.is_empty() {
        let text = format!(
            "{}: no record in this folder (a CSV file with the columns run_id, repeat, …)",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok((rows, retests))
}

fn starts_like_a_record(file: &Path) -> bool {
    open_text(file).and_then(RowReader::new).is_ok()
}

/// Loads folders and files into one data set, re-measurements left out.
///
/// # Errors
/// When a path holds no record.
pub fn load(paths: &[PathBuf]) -> io::Result<Dataset> {
    let mut loader = Loader::default();
    for path in paths {
        for file in record_files(path)?.0 {
            loader.add_file(&file)?;
        }
    }
    Ok(loader.finish())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::{Dataset, Loader, load};
    use crate::record::{Manifest, Placement, Row, RowWriter, RunStatus};

    /// A row of a fixed scenario.
    pub(crate) fn row(run_id: &str, algorithm: &str, bytes: u64, time_us: f64) -> Row {
        Row {
            run_id: run_id.into(),
            repeat: 0,
            cycle: 0,
            timestamp: String::new(),
            backend: "engine".into(),
            device: "host".into(),
            n_hosts: 1,
            n_ranks: 4,
            collective: "all_reduce".into(),
            algorithm: algorithm.into(),
            protocol: "simple".into(),
            n_channels: 1,
            dtype: "float".into(),
            redop: "sum".into(),
            root: -1,
            bytes,
            count: bytes / 4,
            placement: Placement::OutOfPlace,
            iterations: 20,
            time_us,
            algbw: bytes as f64 / time_us / 1e3,
            busbw: 1.5 * bytes as f64 / time_us / 1e3,
            wrong: Some(0),
        }
    }

    /// Groups of rows, without files.
    pub(crate) fn dataset(rows: &[Row]) -> Dataset {
        let mut loader = Loader::default();
        rows.iter().for_each(|row| loader.add(&row.as_view()));
        loader.finish()
    }

    #[test]
    fn order_of_rows_leaves_no_trace() {
        let mut rows: Vec<Row> = Vec::new();
        for (i, run) in ["b", "a", "c"].iter().enumerate() {
            for algorithm in ["tree", "ring"] {
                for bytes in [8, 4096] {
                    rows.push(row(run, algorithm, bytes, 10.0 + i as f64));
                }
            }
        }
        let forward = dataset(&rows);
        rows.reverse();
        let backward = dataset(&rows);
        assert_eq!(forward.groups, backward.groups);
        assert_eq!(forward.launches, backward.launches);
        assert_eq!(forward.groups.len(), 4);
        assert_eq!(&*forward.groups[0].key.config.algorithm, "ring");
        assert_eq!(
            forward.launches.iter().map(|l| Arc::clone(&l.run_id)).collect::<Vec<_>>(),
            ["a".into(), "b".into(), "c".into()]
        );
    }

    #[test]
    fn unfinished_launches_and_wrong_rows_are_no_samples() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw_measurements.csv");
        let mut writer = RowWriter::append(&path).unwrap();
        writer.write(&row("good", "ring", 8, 1.0)).unwrap();
        writer.write(&row("cut", "ring", 8, 1.0)).unwrap();
        let mut wrong = row("good", "ring", 8, 9.0);
        wrong.wrong = Some(3);
        writer.write(&wrong).unwrap();
        let without = load(&[dir.path().to_owned()]).unwrap();
        assert_eq!((without.n_samples(), without.wrong_rows), (2, 1));
        assert!(without.warnings()[0].contains("no manifest"));
        let mut manifest = Manifest::new(Vec::new());
        manifest.begin("good");
        manifest.begin("cut");
        manifest.finish("good", RunStatus::Complete);
        manifest.save(&dir.path().join("manifest.json")).unwrap();
        let with = load(&[dir.path().to_owned()]).unwrap();
        assert_eq!(with.n_samples(), 1);
        assert!(
            with.warnings()
                .iter()
                .any(|text| text.contains("1 row of 1 launch that did not complete skipped"))
        );
    }

    #[test]
    fn a_folder_without_records_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("other.csv"), "a,b\n").unwrap();
        assert!(load(&[dir.path().to_owned()]).unwrap_err().to_string().contains("no record in this folder"));
    }
}
