//! nccl-tests' and rccl-tests' tables. The header says which columns there are: -I, -S, -C, -O, -U, old releases without root or with
//! `error`.
//!
//! Lines of several tasks may interleave in one log (mpirun and srun put the task before each line): every task is a stream of its own, with
//! its own header and its own launches. What looks like a row, and what stands inside a table without being a row, a comment or a library's
//! line, is named.

use std::collections::{BTreeMap, BTreeSet};

use crate::import::{CUT_OFF, Hints, Imported, bus_factor, collective_name, number_cycles, shown, tags};
use crate::record::{Placement, Row};

/// What was said above a table.
#[derive(Clone, Debug, Default)]
struct Frame {
    columns: Vec<Column>,
    collective: Option<&'static str>,
    /// Group of each rank.
    ranks: BTreeMap<u32, u32>,
    hosts: BTreeSet<String>,
    processes: BTreeSet<(String, u32)>,
    device: String,
    iterations: u32,
    single: Option<Placement>,
    /// Number of the launch in the file, once it has a row.
    launch: Option<u32>,
    /// Between a header and the lines that end its table.
    is_open: bool,
    /// What our own programs say above a table that they force.
    forced: Option<Forced>,
    next_forced: Option<Forced>,
}

#[derive(Clone, Debug, Default)]
struct Forced {
    algorithm: String,
    protocol: String,
    n_channels: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Size,
    Count,
    Type,
    Redop,
    Root,
    Time,
    CpuTime,
    Algbw,
    Busbw,
    Wrong,
    Timestamp,
    Algorithm,
    Protocol,
    Channels,
    Other,
}

/// Reads a log.
pub fn read(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let mut frames: BTreeMap<String, Frame> = BTreeMap::new();
    let (mut launches, mut is_cpu_time) = (0, false);
    let last = if text.ends_with('\n') { usize::MAX } else { text.lines().count().wrapping_sub(1) };
    for (index, raw) in text.lines().enumerate() {
        let (task, line) = tags::split(raw);
        if !frames.contains_key(task) {
            frames.insert(task.to_owned(), Frame::default());
        }
        let Some(frame) = frames.get_mut(task) else { continue };
        if let Some(comment) = line.strip_prefix('#') {
            frame.comment(comment.trim());
            continue;
        }
        let mut number = || {
            launches += 1;
            launches
        };
        match frame.line(line, hints, index == last) {
            Ok(rows) if rows.is_empty() => {}
            Ok(mut rows) => {
                let launch = *frame.launch.get_or_insert_with(&mut number);
                let run_id =
                    if launch > 1 { format!("{}-{launch}", hints.run_id) } else { hints.run_id.clone() };
                imported.processes.entry(run_id.clone()).or_insert_with(|| frame.processes.clone());
                rows.iter_mut().for_each(|row| row.run_id.clone_from(&run_id));
                is_cpu_time |= frame.columns.contains(&Column::CpuTime);
                imported.rows.extend(rows);
            }
            Err(reason) => imported.problems.push((index as u64 + 1, reason)),
        }
    }
    if is_cpu_time {
        let text = "the log shows CPU time (-C); times are computed from the bandwidth and as rough as its printed figures";
        imported.notes.push(text.into());
    }
    if imported.rows.is_empty() && frames.values().all(|frame| frame.columns.is_empty()) {
        imported.notes.push("no table of a known benchmark in it".into());
    }
    number_cycles(&mut imported.rows);
    imported
}

impl Frame {
    fn comment(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        if let Some((_, program)) = text.split_once("Collective test starting:") {
            self.start(collective_name(program));
        } else if words.first() == Some(&"nThread") {
            if self.launch.is_some() {
                self.start(None);
            }
            let after = |name: &str| {
                words.windows(2).find(|pair| pair[0] == name).and_then(|pair| pair[1].parse().ok())
            };
            // `warmup iters: 5 iters: 20`: the second one counts timed iterations.
            let iterations = words
                .windows(2)
                .filter(|pair| pair[0] == "iters:")
                .nth(1)
                .and_then(|pair| pair[1].parse().ok());
            self.iterations = iterations.or_else(|| after("iters:")).unwrap_or(0);
        } else if text.starts_with("Using devices") {
            self.ranks.clear();
            self.hosts.clear();
            self.processes.clear();
        } else if words.first() == Some(&"Rank") {
            self.device_line(text, &words);
        } else if words.first() == Some(&"size") && words.contains(&"busbw") {
            self.columns = words.iter().map(|word| column(word)).collect();
            self.is_open = true;
            self.forced = self.next_forced.take();
        } else if let Some(forced) = text.strip_prefix("Forced:") {
            self.next_forced = Forced::parse(forced);
        } else if text.starts_with("Out of bounds") || text.starts_with("Avg bus") {
            self.is_open = false;
        } else if text.contains("out-of-place") || text.contains("in-place") {
            self.single = match (
                text.contains("out-of-place"),
                text.replace("out-of-place", "").contains("in-place"),
            ) {
                (true, true) => None,
                (true, false) => Some(Placement::OutOfPlace),
                _ => Some(Placement::InPlace),
            };
        }
    }

    /// Another program begins in the same stream: another launch.
    fn start(&mut self, collective: Option<&'static str>) {
        *self = Self { collective, ..Self::default() };
    }

    /// Rows of a line that is no comment; none for one that has nothing to do with a table.
    fn line(&self, line: &str, hints: &Hints, is_torn: bool) -> Result<Vec<Row>, String> {
        if self.columns.is_empty() || line.is_empty() || line.contains("NCCL ") && !is_row_inside(line) {
            return Ok(Vec::new());
        }
        if !line.starts_with(|c: char| c.is_ascii_digit()) {
            return match (is_row_inside(line), self.is_open) {
                (true, _) => Err("a row with other text in or before it".into()),
                (false, true) => Err(format!("neither a row nor a comment: `{}`", shown(line))),
                (false, false) => Ok(Vec::new()),
            };
        }
        let rows = match self.row(line, hints) {
            Err(_) if !self.is_open => return Ok(Vec::new()),
            Err(_) if is_torn => return Err(CUT_OFF.into()),
            other => other?,
        };
        // A last number may be the start of a longer one; a 0 and a whole time stamp are not.
        let last = line.split_whitespace().next_back().unwrap_or_default();
        let is_whole = matches!(last, "0" | "N/A") || (last.len() == 8 && last.matches(':').count() == 2);
        if is_torn && !is_whole { Err(CUT_OFF.into()) } else { Ok(rows) }
    }

    /// `Rank 0 Group 0 Pid 4711 on node1 device 0 [0000:0f:00] name`; old releases lack Group.
    fn device_line(&mut self, text: &str, words: &[&str]) {
        let after = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        let (Some(rank), Some(host)) = (after("Rank").and_then(|word| word.parse().ok()), after("on")) else {
            return;
        };
        let group = after("Group").and_then(|word| word.parse().ok()).unwrap_or(0);
        self.ranks.insert(rank, group);
        self.hosts.insert(host.to_owned());
        if let Some(pid) = after("Pid").and_then(|word| word.parse().ok()) {
            self.processes.insert((host.split('.').next().unwrap_or(host).to_owned(), pid));
        }
        if let Some((_, name)) = text.split_once(']') {
            self.device = name.trim().to_owned();
        }
    }

    /// Ranks of rank 0's group: a row describes that communicator.
    fn n_ranks(&self) -> u32 {
        let group = self.ranks.values().next().copied();
        self.ranks.values().filter(|other| Some(**other) == group).count() as u32
    }

    fn row(&self, line: &str, hints: &Hints) -> Result<Vec<Row>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let columns = self.fitting(words.len())?;
        let mut base = crate::import::blank(hints);
        if let Some(forced) = &self.forced {
            forced.fill(&mut base);
        }
        if !self.ranks.is_empty() {
            base.n_ranks = self.n_ranks();
            base.n_hosts = self.hosts.len() as u32;
        }
        base.iterations = self.iterations;
        if !self.device.is_empty() {
            base.device.clone_from(&self.device);
        }
        let mut parts: Vec<Cells> = Vec::new();
        let mut at = 0;
        for column in &columns {
            let word = words[at];
            at += 1;
            match column {
                Column::Size => base.bytes = parse(word, "size")?,
                Column::Count => base.count = parse(word, "count")?,
                Column::Type => base.dtype = word.to_owned(),
                Column::Redop => base.redop = word.to_owned(),
                Column::Root => base.root = parse(word, "root")?,
                Column::Time => parts.push(Cells { time: Some(parse(word, "time")?), ..Cells::default() }),
                Column::CpuTime => parts.push(Cells::default()),
                Column::Algbw => last(&mut parts)?.algbw = parse(word, "algbw")?,
                Column::Busbw => last(&mut parts)?.busbw = parse(word, "busbw")?,
                Column::Wrong => last(&mut parts)?.wrong = wrong(word)?,
                Column::Timestamp => {
                    base.timestamp = format!("{word}T{}", words.get(at).copied().unwrap_or_default());
                    at += 1;
                }
                Column::Algorithm => base.algorithm = word.to_ascii_lowercase().replace('_', ""),
                Column::Protocol => base.protocol = word.to_ascii_lowercase(),
                Column::Channels => base.n_channels = parse(word, "#channels")?,
                Column::Other => {}
            }
        }
        self.name(&mut base, &parts, hints)?;
        parts.iter().enumerate().map(|(index, cells)| self.finish(&base, index, cells)).collect()
    }

    /// Columns of a row with so many words: the operator may be blank, a time stamp takes two words.
    fn fitting(&self, words: usize) -> Result<Vec<Column>, String> {
        let expected =
            self.columns.len() + self.columns.iter().filter(|column| **column == Column::Timestamp).count();
        if words == expected {
            return Ok(self.columns.clone());
        }
        if words + 1 == expected && self.columns.contains(&Column::Redop) {
            return Ok(self.columns.iter().copied().filter(|column| *column != Column::Redop).collect());
        }
        Err(format!("{words} fields where {expected} are expected"))
    }

    fn name(&self, base: &mut Row, parts: &[Cells], hints: &Hints) -> Result<(), String> {
        if base.n_ranks == 0 {
            return Err("the log does not say how many ranks there are: give --ranks".into());
        }
        let by_factor = || {
            let cells = parts.iter().find(|cells| cells.algbw > 0.1)?;
            let factor = bus_factor("all_reduce", base.n_ranks);
            ((cells.busbw / cells.algbw - factor).abs() < 0.02 && base.n_ranks > 2).then_some("all_reduce")
        };
        let name = self
            .collective
            .or_else(|| collective_name(hints.collective.as_deref()?))
            .or_else(|| collective_name(&hints.run_id));
        let name = name
            .or_else(by_factor)
            .ok_or("the log does not say which collective it is: give --collective")?;
        base.collective = name.to_owned();
        Ok(())
    }

    fn finish(&self, base: &Row, index: usize, cells: &Cells) -> Result<Row, String> {
        let mut row = base.clone();
        row.placement =
            self.single.unwrap_or(if index == 0 { Placement::OutOfPlace } else { Placement::InPlace });
        row.time_us = cells.time.unwrap_or_else(|| base.bytes as f64 / cells.algbw / 1e3);
        (row.algbw, row.busbw, row.wrong) = (cells.algbw, cells.busbw, cells.wrong);
        if cells.time.is_none() && !(row.time_us.is_finite() && row.time_us > 0.0) {
            return Err("-C shows CPU time and the bandwidth rounds to 0: no elapsed time is known".into());
        }
        if !(row.time_us.is_finite() && row.time_us > 0.0) {
            return Err(format!("a time of {} µs is none", row.time_us));
        }
        Ok(row)
    }
}

impl Forced {
    /// `algorithm ring, protocol ll, channels 1`, with `auto` for what is left to the library.
    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut parts = text.split(',').map(str::trim);
            parts.find_map(|part| part.strip_prefix(name)).map(|value| value.trim().to_owned())
        };
        Some(Self {
            algorithm: value("algorithm ")?,
            protocol: value("protocol ")?,
            n_channels: value("channels ")?.parse().unwrap_or(0),
        })
    }

    fn fill(&self, row: &mut Row) {
        row.algorithm.clone_from(&self.algorithm);
        row.protocol.clone_from(&self.protocol);
        row.n_channels = self.n_channels;
    }
}

/// Whether a line holds what only rows hold: two counts and a type.
fn is_row_inside(line: &str) -> bool {
    const TYPES: [&str; 14] = [
        "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16",
        "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2",
    ];
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_count = |word: &&str| word.parse::<u64>().is_ok();
    words.windows(3).any(|three| is_count(&three[0]) && is_count(&three[1]) && TYPES.contains(&three[2]))
}

#[derive(Clone, Copy, Debug, Default)]
struct Cells {
    time: Option<f64>,
    algbw: f64,
    busbw: f64,
    wrong: Option<u64>,
}

fn last(parts: &mut [Cells]) -> Result<&mut Cells, String> {
    parts.last_mut().ok_or_else(|| "bandwidth stands before any time".to_owned())
}

fn column(word: &str) -> Column {
    match word {
        "size" => Column::Size,
        "count" => Column::Count,
        "type" => Column::Type,
        "redop" => Column::Redop,
        "root" => Column::Root,
        "time" => Column::Time,
        "cputime" => Column::CpuTime,
        "algbw" => Column::Algbw,
        "busbw" => Column::Busbw,
        "#wrong" => Column::Wrong,
        "timestamp" => Column::Timestamp,
        "algo" => Column::Algorithm,
        "proto" => Column::Protocol,
        "#channels" => Column::Channels,
        _ => Column::Other,
    }
}

fn parse<T: std::str::FromStr>(word: &str, name: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{name}: `{}` is no number", shown(word)))
}

fn wrong(word: &str) -> Result<Option<u64>, String> {
    if word == "N/A" {
        return Ok(None);
    }
    let value: f64 = parse(word, "#wrong")?;
    Ok((value.is_finite() && value >= 0.0).then_some(value as u64))
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::import::tests::hints;
    use crate::import::{Hints, text};
    use crate::record::Placement;

    pub(crate) const LOG: &str = "\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0000:0f:00] Some GPU
#  Rank  1 Group  0 Pid   4711 on      node1 device  1 [0000:10:00] Some GPU
#  Rank  2 Group  0 Pid   4712 on      node2 device  0 [0000:0f:00] Some GPU
#  Rank  3 Group  0 Pid   4712 on      node2 device  1 [0000:10:00] Some GPU
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
           8             2     float     sum      -1    12.34    0.00    0.00       0    12.00    0.00    0.00    N/A
        1024           256     float     sum      -1    13.50    0.08    0.11       0    13.10    0.08    0.12       0
           8             2     float     sum      -1    12.44    0.00    0.00       0    12.10    0.00    0.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.0575 
#
# Collective test concluded: all_reduce_perf
#
";

    #[test]
    fn a_plain_log_gives_both_placements_and_cycles() {
        let imported = text(LOG, &hints());
        assert_eq!((imported.rows.len(), imported.problems.len()), (6, 0));
        let row = &imported.rows[1];
        assert_eq!((row.n_ranks, row.n_hosts, row.collective.as_str()), (4, 2, "all_reduce"));
        assert_eq!(
            (row.placement, row.time_us, row.wrong, row.iterations),
            (Placement::InPlace, 12.0, None, 20)
        );
        assert_eq!((row.device.as_str(), row.algorithm.as_str()), ("Some GPU", "auto"));
        assert_eq!(imported.rows.iter().map(|row| row.cycle).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn tags_and_times_change_nothing_and_interleaved_lines_are_named() {
        let tagged: String =
            LOG.lines().map(|line| format!("2026-01-02 03:04:05 [1,0]<stdout>:{line}\n")).collect();
        assert_eq!(text(&tagged, &hints()).rows, text(LOG, &hints()).rows);
        let cut = LOG.replace("13.50    0.08    0.11", "13.50 node1:1:2 [0] NCCL INFO x");
        let imported = text(&cut, &hints());
        assert_eq!(imported.rows.len(), 4);
        assert_eq!(imported.problems.len(), 1);
        assert_eq!(imported.problems[0].0, 15);
    }

    #[test]
    fn per_iteration_columns_time_stamps_and_cpu_time_are_understood() {
        let wide = "# Collective test starting: reduce_perf\n#  Rank  0 Group  0 Pid 1 on a device 0 [0000:0f:00] g\n\
                    # out-of-place (+ per-iteration)  in-place (+ per-iteration)\n\
                    # size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% timestamp\n\
                    8 2 float sum 0 1.5 0.01 0.01 0 1 2 3 4 1.6 0.01 0.01 0 1 2 3 4 2026-01-02 03:04:05\n";
        let imported = text(wide, &hints());
        assert_eq!(imported.rows.iter().map(|row| row.time_us).collect::<Vec<_>>(), [1.5, 1.6]);
        assert_eq!((imported.rows[0].timestamp.as_str(), imported.rows[0].root), ("2026-01-02T03:04:05", 0));
        let cpu = wide.replace(" time algbw", " cputime algbw");
        let imported = text(&cpu, &hints());
        assert!((imported.rows[0].time_us - 8.0 / 0.01 / 1e3).abs() < 1e-9);
        assert!(imported.notes[0].contains("CPU time"));
    }

    #[test]
    fn interleaved_tasks_are_streams_of_their_own() {
        let other = LOG.replace("all_reduce", "all_gather").replace("12.34", "99.00");
        let mixed: String = LOG
            .lines()
            .zip(other.lines())
            .map(|(a, b)| format!("[1,0]<stdout>:{a}\n[1,1]<stdout>:{b}\n"))
            .collect();
        let imported = text(&mixed, &hints());
        assert_eq!((imported.rows.len(), imported.problems.len()), (12, 0), "{imported:?}");
        let mut launches: Vec<(&str, &str)> =
            imported.rows.iter().map(|row| (row.run_id.as_str(), row.collective.as_str())).collect();
        launches.dedup();
        launches.sort_unstable();
        launches.dedup();
        assert_eq!(launches, [("log", "all_reduce"), ("log-2", "all_gather")]);
    }

    #[test]
    fn what_stands_inside_a_table_and_is_no_row_is_named() {
        let rubbish = LOG
            .replace("        1024 ", "@@@ rubbish @@@\nnode1:4711:1 [0] NCCL INFO fine\n        1024 ")
            .replace(
                "           8             2     float     sum      -1    12.44",
                "warn: x           8             2     float     sum      -1    12.44",
            )
            + "2 more processes have sent a message\n";
        let imported = text(&rubbish, &hints());
        assert_eq!(imported.rows.len(), 4);
        let lines: Vec<u64> = imported.problems.iter().map(|problem| problem.0).collect();
        assert_eq!(lines, [15, 18], "{:?}", imported.problems);
    }

    #[test]
    fn a_row_without_its_newline_is_kept_only_when_it_is_whole() {
        let end = LOG.find("# Out of bounds").unwrap();
        assert_eq!(text(&LOG[..end - 1], &hints()).rows.len(), 6);
        let cut = text(&LOG[..end - 3], &hints());
        assert_eq!((cut.rows.len(), cut.problems[0].0), (4, 16));
        assert!(cut.problems[0].1.starts_with("cut off"), "{:?}", cut.problems);
    }

    #[test]
    fn forced_tables_of_our_own_programs_and_tuning_columns_name_what_ran() {
        let header =
            LOG.find("#                                                              out-of-place").unwrap();
        let forced = format!(
            "{}# Forced: algorithm ring, protocol ll128, channels 4\n#\n{}",
            &LOG[..header],
            &LOG[header..]
        );
        let row = &text(&forced, &hints()).rows[0];
        assert_eq!((row.algorithm.as_str(), row.protocol.as_str(), row.n_channels), ("ring", "ll128", 4));
        let tuned = LOG
            .replace("#wrong \n", "#wrong algo proto #channels\n")
            .replace("N/A\n", "N/A RING LL 2\n")
            .replace("       0\n", "       0 NVLS_TREE SIMPLE 16\n");
        let rows = text(&tuned, &hints()).rows;
        assert_eq!((rows[0].algorithm.as_str(), rows[0].n_channels), ("ring", 2));
        assert_eq!((rows[2].algorithm.as_str(), rows[2].protocol.as_str()), ("nvlstree", "simple"));
    }

    #[test]
    fn several_programs_in_one_log_are_several_launches_and_groups_count_apart() {
        let second = LOG
            .replace("all_reduce", "all_gather")
            .replace("Rank  2 Group  0", "Rank  2 Group  1")
            .replace("Rank  3 Group  0", "Rank  3 Group  1");
        let imported = text(&(LOG.to_owned() + &second), &hints());
        assert_eq!(imported.rows.len(), 12);
        let last = &imported.rows[11];
        assert_eq!(
            (last.run_id.as_str(), last.collective.as_str(), last.n_ranks),
            ("log-2", "all_gather", 2)
        );
    }

    #[test]
    fn old_logs_without_names_use_hints_or_the_bandwidth_factor() {
        let old = LOG
            .replace("# Collective test starting: all_reduce_perf\n", "")
            .replace("0.08    0.11", "80.0   120.0")
            .replace("0.08    0.12", "80.0   120.0");
        assert_eq!(text(&old, &hints()).rows.len(), 2, "only the rows whose factor shows");
        let named = text(&old, &Hints { collective: Some("AllReduce".into()), ..hints() });
        assert_eq!(named.rows.len(), 6);
        let errors = LOG.replace("#wrong", "error").replace("       0    12.00", "   0e+00    12.00");
        let imported = text(&errors, &hints());
        assert_eq!((imported.rows.len(), imported.rows[0].wrong), (6, None));
    }
}
