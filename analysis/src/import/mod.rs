//! What other benchmarks wrote becomes rows: nccl-tests and rccl-tests (text and JSON), OSU and IMB tables, any CSV.
//!
//! A file is a launch; a second start line inside it begins another. Every good row is kept and every line that looks like a row but is
//! none is named by its number. What a log does not say stays `auto`, 0 or unchecked; nothing is guessed that a number depends on.

pub mod csv_map;
pub mod debug_log;
pub mod nccl_json;
pub mod nccl_text;
pub mod records;
pub mod tables;
pub mod tags;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::record::{Placement, Row};

/// What the caller knows and a log may not say.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Name of the launch: the file's.
    pub run_id: String,
    /// Ranks, for formats that do not print them.
    pub n_ranks: Option<u32>,
    /// Collective, for logs that do not name it.
    pub collective: Option<String>,
    /// Column mapping, for `csv_map`.
    pub map: Option<csv_map::Map>,
}

/// What a file gave.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Good rows, in order.
    pub rows: Vec<Row>,
    /// Lines that look like rows and are none: number and reason. A JSON file counts results instead.
    pub problems: Vec<(u64, String)>,
    /// Remarks about the file as a whole.
    pub notes: Vec<String>,
    /// Host and process ids of each launch, where the file lists them: library logs name the same ones.
    pub processes: BTreeMap<String, BTreeSet<(String, u32)>>,
}

/// Reads a whole file's text in whatever format it is.
pub fn text(text: &str, hints: &Hints) -> Imported {
    if hints.map.is_some() {
        return csv_map::read(text, hints);
    }
    let head = text.trim_start_matches('\u{feff}').trim_start();
    if head.starts_with('{') || (head.starts_with('[') && head[1..].trim_start().starts_with('{')) {
        let looks_like_rows = head.get(..4096).unwrap_or(head);
        if looks_like_rows.contains("\"run_id\"") && looks_like_rows.contains("\"time_us\"") {
            return records::json(head);
        }
        return nccl_json::read(head, hints);
    }
    let first = head.lines().next().unwrap_or_default();
    if records::is_header(first) {
        return records::csv(text);
    }
    if nccl_json::is_rccl_header(first) {
        return nccl_json::rccl_csv(text, hints);
    }
    let lines = || text.lines().map(tags::strip);
    if lines().any(|line| line.starts_with("# OSU ")) {
        return tables::osu(text, hints);
    }
    if lines().any(|line| line.starts_with("# Benchmarking ") || line.starts_with("#bytes")) {
        return tables::imb(text, hints);
    }
    let mut imported = nccl_text::read(text, hints);
    debug_log::fill(&mut imported, &debug_log::Choices::of(text));
    imported
}

/// A word of a log for a message: no control characters, not longer than a line.
pub(crate) fn shown(word: &str) -> String {
    const LONGEST: usize = 40;
    let mut text: String =
        word.chars().take(LONGEST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if word.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    text
}

/// Why the last line of a file without a newline at its end gives no row.
pub(crate) const CUT_OFF: &str = "cut off (the file ends without a newline)";

/// A row with everything unknown.
pub(crate) fn blank(hints: &Hints) -> Row {
    Row {
        run_id: hints.run_id.clone(),
        repeat: 0,
        cycle: 0,
        timestamp: String::new(),
        backend: "nccl".into(),
        device: "unknown".into(),
        n_hosts: 1,
        n_ranks: hints.n_ranks.unwrap_or(0),
        collective: hints.collective.clone().unwrap_or_default(),
        algorithm: "auto".into(),
        protocol: "auto".into(),
        n_channels: 0,
        dtype: "unknown".into(),
        redop: "none".into(),
        root: -1,
        bytes: 0,
        count: 0,
        placement: Placement::OutOfPlace,
        iterations: 0,
        time_us: 0.0,
        algbw: 0.0,
        busbw: 0.0,
        wrong: None,
    }
}

/// Bus bandwidth over algorithm bandwidth.
pub fn bus_factor(collective: &str, n_ranks: u32) -> f64 {
    let n = f64::from(n_ranks.max(1));
    match collective {
        "all_reduce" => 2.0 * (n - 1.0) / n,
        "all_gather" | "reduce_scatter" | "alltoall" | "alltoallv" | "gather" | "scatter" => (n - 1.0) / n,
        _ => 1.0,
    }
}

/// The name records use for a collective of any spelling (`AllReduce`, `osu_allreduce`, `all_reduce_perf_mpi`).
pub fn collective_name(word: &str) -> Option<&'static str> {
    let plain: String =
        word.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let names = [
        ("allreduce", "all_reduce"),
        ("allgather", "all_gather"),
        ("reducescatter", "reduce_scatter"),
        ("alltoallv", "alltoallv"),
        ("alltoall", "alltoall"),
        ("broadcast", "broadcast"),
        ("bcast", "broadcast"),
        ("sendrecv", "sendrecv"),
        ("hypercube", "hypercube"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("reduce", "reduce"),
    ];
    names.iter().find(|(spelling, _)| plain.contains(spelling)).map(|(_, name)| *name)
}

/// Gives every row its cycle: how often the same configuration and size was seen before in its launch.
pub(crate) fn number_cycles(rows: &mut [Row]) {
    type Key = (String, String, String, i32, u64, Placement);
    let mut seen: HashMap<Key, u32> = HashMap::new();
    for row in rows {
        let launch = format!("{} {} {}", row.run_id, row.collective, row.n_ranks);
        let key = (launch, row.dtype.clone(), row.redop.clone(), row.root, row.bytes, row.placement);
        let next = seen.entry(key).or_insert(0);
        row.cycle = *next;
        *next += 1;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::{Hints, collective_name, text};

    pub(crate) fn hints() -> Hints {
        Hints { run_id: "log".into(), ..Hints::default() }
    }

    #[test]
    fn collectives_of_any_spelling_have_one_name() {
        let words =
            ["AllReduce", "osu_allreduce", "all_reduce_perf_mpi", "Reduce_scatter", "Bcast", "Alltoall", "x"];
        let names = words.map(|word| collective_name(word).unwrap_or("-"));
        assert_eq!(
            names,
            ["all_reduce", "all_reduce", "all_reduce", "reduce_scatter", "broadcast", "alltoall", "-"]
        );
    }

    proptest! {
        #[test]
        fn rubbish_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = text(&String::from_utf8_lossy(&bytes), &hints());
        }

        #[test]
        fn rubbish_behind_a_sound_start_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..3000) {
            let samples = [super::nccl_text::tests::LOG, super::nccl_json::tests::JSON, super::tables::tests::IMB, super::tables::tests::OSU];
            for sample in samples {
                let mut mixed = sample.as_bytes().to_vec();
                let at = at.min(mixed.len());
                mixed.splice(at..at, bytes.iter().copied());
                let _ = text(&String::from_utf8_lossy(&mixed), &hints());
            }
            let map = super::csv_map::Map::parse("bytes=a,time_us=b*2,collective:all_reduce,n_ranks:2").unwrap();
            let table = format!("a,b\n8,1\n{}\n16,2\n", String::from_utf8_lossy(&bytes));
            let _ = text(&table, &Hints { map: Some(map), ..hints() });
            let _ = super::debug_log::Choices::of(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn broken_logs_keep_only_sound_rows(cut in 0usize..4000, noise in "[ -~\n]{0,30}", at in 0usize..4000) {
            let tagged: String = super::nccl_text::tests::LOG.lines().map(|line| format!("[1,{}]<stdout>:{line}\r\n", line.len() % 2)).collect();
            let rccl = super::nccl_json::tests::RCCL_CSV;
            for sample in [super::nccl_text::tests::LOG, &tagged, super::nccl_json::tests::JSON, rccl, super::tables::tests::OSU, super::tables::tests::IMB] {
                let mut broken: String = sample.chars().take(cut).collect();
                let at = broken.char_indices().map(|(i, _)| i).nth(at.min(broken.chars().count())).unwrap_or(broken.len());
                broken.insert_str(at, &noise);
                let imported = text(&broken, &Hints { n_ranks: Some(4), ..hints() });
                for row in imported.rows {
                    prop_assert!(row.time_us.is_finite() && row.time_us > 0.0);
                    prop_assert!(!row.collective.is_empty() && row.n_ranks > 0);
                }
            }
        }
    }
}
