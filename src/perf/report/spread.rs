//! `--stats`: a second table over the cycles of the run. Its lines are comments, so readers of rows do not meet them.

use analysis::record::Placement;

use crate::perf::report::fit::{fit, general};
use crate::perf::report::row::Row;
use crate::perf::statistic::Spread;

#[derive(Clone, Debug, PartialEq)]
struct Key {
    bytes: u64,
    dtype: &'static str,
    redop: &'static str,
    ran: String,
    placement: Placement,
}

/// Times per size and placement, in order of first appearance.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreads {
    groups: Vec<(Key, Vec<f64>)>,
}

impl Spreads {
    /// Adds both placements of a row.
    pub(super) fn add(&mut self, row: &Row) {
        for (placement, cell) in row.cells() {
            let ran = format!("{}/{}/{}", row.ran.algorithm, row.ran.protocol, row.ran.n_channels);
            let key = Key { bytes: row.bytes, dtype: row.dtype.name(), redop: row.redop, ran, placement };
            match self.groups.iter_mut().find(|(k, _)| *k == key) {
                Some((_, times)) => times.push(cell.time_us),
                None => self.groups.push((key, vec![cell.time_us])),
            }
        }
    }

    /// The table, or nothing without rows.
    pub(super) fn table(&self) -> String {
        if self.groups.is_empty() {
            return String::new();
        }
        let mut text = String::from("# Statistics of time over cycles (us per operation)\n");
        text.push_str(&format!(
            "# {:>12}  {:>8}  {:>6}  {:>12}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {}\n",
            "size", "type", "redop", "placement", "samples", "median", "p95", "min", "max", "cv%", "ran"
        ));
        for (key, times) in &self.groups {
            let s = Spread::of(times);
            text.push_str(&format!(
                "# {:12}  {:>8}  {:>6}  {:>12}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>7}  {}\n",
                key.bytes,
                key.dtype,
                key.redop,
                key.placement.name(),
                s.samples,
                fit(s.median, 9),
                fit(s.p95, 9),
                fit(s.min, 9),
                fit(s.max, 9),
                general((s.cv_percent * 100.0).round() / 100.0),
                key.ran
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::DataType;
    use crate::perf::report::row::{Cell, Ran};

    #[test]
    fn cycles_of_a_size_and_placement_are_one_line() {
        let mut spreads = Spreads::default();
        for time_us in [10.0, 30.0, 20.0] {
            let cell = Cell { time_us, ..Cell::default() };
            spreads.add(&Row {
                bytes: 8,
                count: 2,
                dtype: DataType::Float,
                redop: "sum",
                root: -1,
                out_of_place: cell.clone(),
                in_place: Cell { time_us: 1.0, ..cell },
                cycle: 0,
                ran: Ran { algorithm: "oneshot".into(), protocol: "ll".into(), n_channels: 1 },
            });
        }
        let table = spreads.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|l| l.starts_with("# ")));
        let words: Vec<&str> = lines[2].split_whitespace().skip(1).collect();
        assert_eq!(
            words,
            [
                "8",
                "float",
                "sum",
                "out_of_place",
                "3",
                "20.00",
                "29.00",
                "10.00",
                "30.00",
                "40.82",
                "oneshot/ll/1"
            ]
        );
        assert_eq!(Spreads::default().table(), "");
    }
}
