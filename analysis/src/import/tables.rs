//! OSU and IMB tables. Their sizes are per rank where ours are per buffer: those of gathers and all-to-alls are multiplied by the ranks.

use crate::import::{Hints, Imported, bus_factor, collective_name, number_cycles, tags};
use crate::record::Row;

/// OSU micro-benchmarks, latency of collectives. The number of ranks is not in the log.
pub fn osu(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let mut collective = None;
    let mut launch = 0;
    for (index, raw) in text.lines().enumerate() {
        let line = tags::strip(raw);
        if let Some(title) = line.strip_prefix("# OSU ") {
            launch += 1;
            collective = collective_name(title);
            if collective.is_none() {
                imported.notes.push(format!("`{title}` is no collective; its rows are left out"));
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit())
            && let Some(name) = collective
        {
            match osu_row(line, name, hints) {
                Ok(mut row) => {
                    if launch > 1 {
                        row.run_id = format!("{}-{launch}", hints.run_id);
                    }
                    imported.rows.push(row);
                }
                Err(reason) => imported.problems.push((index as u64 + 1, reason)),
            }
        }
    }
    number_cycles(&mut imported.rows);
    imported
}

/// `size  average [min max iterations]`.
fn osu_row(line: &str, collective: &str, hints: &Hints) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [bytes, time, more @ ..] = words.as_slice() else {
        return Err("a size and a latency are expected".into());
    };
    let n_ranks = hints.n_ranks.ok_or("the log does not say how many ranks there are: give --ranks")?;
    let bytes = bytes.parse().map_err(|_| format!("size: `{bytes}` is no number"))?;
    let time = time.parse().map_err(|_| format!("latency: `{time}` is no number"))?;
    let iterations = more.last().and_then(|word| word.parse().ok()).unwrap_or(0);
    row((collective, n_ranks, iterations), (bytes, time), hints)
}

/// Intel MPI benchmarks.
pub fn imb(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let (mut collective, mut n_ranks) = (None, hints.n_ranks);
    let mut columns: Vec<&str> = Vec::new();
    let mut blocks = 0;
    for (index, raw) in text.lines().enumerate() {
        let line = tags::strip(raw);
        if let Some(title) = line.strip_prefix("# Benchmarking ") {
            blocks += 1;
            collective = collective_name(title);
            (columns, n_ranks) = (Vec::new(), hints.n_ranks);
        } else if let Some(count) = line.strip_prefix("# #processes =") {
            n_ranks = count.split_whitespace().next().and_then(|word| word.parse().ok()).or(n_ranks);
        } else if line.starts_with("#bytes") {
            columns = line.split_whitespace().collect();
        } else if line.starts_with(|c: char| c.is_ascii_digit())
            && !columns.is_empty()
            && let Some(name) = collective
        {
            match imb_row(line, &columns, (name, n_ranks), hints) {
                Ok(row) => imported.rows.push(row),
                Err(reason) => imported.problems.push((index as u64 + 1, reason)),
            }
        }
    }
    if blocks == 0 {
        imported.notes.push("no `# Benchmarking` line names what was measured".into());
    }
    number_cycles(&mut imported.rows);
    imported
}

fn imb_row(
    line: &str,
    columns: &[&str],
    (collective, n_ranks): (&str, Option<u32>),
    hints: &Hints,
) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() != columns.len() {
        return Err(format!("{} fields where {} are expected", words.len(), columns.len()));
    }
    let value = |name: &str| columns.iter().position(|column| *column == name).map(|at| words[at]);
    let time = value("t_avg[usec]").or(value("t[usec]")).ok_or("the table has no average time")?;
    let n_ranks = n_ranks.ok_or("the log does not say how many ranks there are: give --ranks")?;
    let bytes = words[0].parse().map_err(|_| format!("#bytes: `{}` is no number", words[0]))?;
    let time = time.parse().map_err(|_| format!("time: `{time}` is no number"))?;
    let iterations = value("#repetitions").and_then(|word| word.parse().ok()).unwrap_or(0);
    row((collective, n_ranks, iterations), (bytes, time), hints)
}

fn row(
    (collective, n_ranks, iterations): (&str, u32, u32),
    (bytes, time): (u64, f64),
    hints: &Hints,
) -> Result<Row, String> {
    if !(time.is_finite() && time > 0.0) {
        return Err(format!("a time of {time} µs is none"));
    }
    if n_ranks == 0 {
        return Err("a world of 0 ranks does not exist".into());
    }
    let per_rank = matches!(collective, "all_gather" | "alltoall" | "alltoallv" | "gather" | "scatter");
    let total =
        if per_rank { bytes.checked_mul(u64::from(n_ranks)).ok_or("size: too large")? } else { bytes };
    let mut row = crate::import::blank(hints);
    row.backend = "mpi".into();
    row.n_ranks = n_ranks;
    row.collective = collective.to_owned();
    row.iterations = iterations;
    row.bytes = total;
    row.count = bytes;
    row.time_us = time;
    row.algbw = total as f64 / time / 1e3;
    row.busbw = row.algbw * bus_factor(collective, n_ranks);
    Ok(row)
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::import::tests::hints;
    use crate::import::{Hints, text};

    pub(crate) const OSU: &str = "\n# OSU MPI Allreduce Latency Test v7.1\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n\
                                  4                       1.52              1.40              1.70        1000\n\
                                  8                       1.61              1.40              1.70        1000\n";
    pub(crate) const IMB: &str = "#---\n# Benchmarking Allgather \n# #processes = 4 \n#---\n       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n\
                                  \x20           0         1000         0.05         0.07         0.06\n            4         1000         1.51         1.63         1.55\n\n\
                                  # Benchmarking Barrier\n# #processes = 4\n  #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n 1000 1 2 3\n";

    #[test]
    fn osu_needs_the_number_of_ranks_and_says_so() {
        let imported = text(OSU, &hints());
        assert!(imported.rows.is_empty());
        assert_eq!(imported.problems[0].0, 5);
        assert!(imported.problems[0].1.contains("--ranks"));
        let imported = text(OSU, &Hints { n_ranks: Some(4), ..hints() });
        assert_eq!(imported.rows.len(), 2);
        assert_eq!(
            (imported.rows[1].bytes, imported.rows[1].time_us, imported.rows[1].iterations),
            (8, 1.61, 1000)
        );
        assert!((imported.rows[1].busbw / imported.rows[1].algbw - 1.5).abs() < 1e-12);
    }

    #[test]
    fn imb_sizes_of_gathers_become_totals() {
        let imported = text(IMB, &hints());
        assert_eq!(imported.rows.len(), 2, "{imported:?}");
        assert_eq!(
            (imported.rows[1].bytes, imported.rows[1].n_ranks, imported.rows[1].time_us),
            (16, 4, 1.55)
        );
        assert_eq!(imported.rows[1].backend, "mpi");
    }
}
