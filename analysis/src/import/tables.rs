//! OSU and IMB tables. Their sizes are per rank where ours are per buffer: those of gathers and all-to-alls are multiplied by the ranks.

use crate::import::{CUT_OFF, Hints, Imported, bus_factor, collective_name, number_cycles, shown, tags};
use crate::record::Row;

/// OSU micro-benchmarks, latency of collectives. The number of ranks is not in the log.
pub fn osu(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let mut collective = None;
    let mut launch = 0;
    let mut backend = "mpi";
    let mut columns: Vec<String> = Vec::new();
    let last = last_torn_line(text);
    for (index, raw) in text.lines().enumerate() {
        let line = tags::strip(raw);
        if let Some(title) = line.strip_prefix("# OSU ") {
            launch += 1;
            collective = collective_name(title);
            backend = if title.split_whitespace().any(|word| word == "NCCL") { "nccl" } else { "mpi" };
            columns.clear();
            if collective.is_none() {
                imported.notes.push(format!("`{title}` is no collective; its rows are left out"));
            }
        } else if line.starts_with("# Size") {
            // Names of one or two words stand two blanks or more apart.
            let names = line[1..].split("  ").map(str::trim).filter(|name| !name.is_empty());
            columns = names.map(str::to_owned).collect();
        } else if line.starts_with(|c: char| c.is_ascii_digit())
            && let Some(name) = collective
        {
            let row = osu_row(line, (name, &columns), hints);
            match if index == last { Err(CUT_OFF.into()) } else { row } {
                Ok(mut row) => {
                    row.backend = backend.into();
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

/// The last line, where the file ends in the middle of one.
fn last_torn_line(text: &str) -> usize {
    if text.ends_with('\n') { usize::MAX } else { text.lines().count().wrapping_sub(1) }
}

/// `size  average [min max iterations] [validation]`.
fn osu_row(line: &str, (collective, columns): (&str, &[String]), hints: &Hints) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if columns.len() > 1 && words.len() != columns.len() {
        return Err(format!("{} fields where {} are expected", words.len(), columns.len()));
    }
    let value = |name: &str| columns.iter().position(|column| column == name).map(|at| words[at]);
    let [bytes, time, more @ ..] = words.as_slice() else {
        return Err("a size and a latency are expected".into());
    };
    let n_ranks = hints.n_ranks.ok_or("the log does not say how many ranks there are: give --ranks")?;
    let bytes = bytes.parse().map_err(|_| format!("size: `{}` is no number", shown(bytes)))?;
    let time = time.parse().map_err(|_| format!("latency: `{}` is no number", shown(time)))?;
    let iterations = value("Iterations").or(more.last().copied().filter(|_| columns.is_empty()));
    let iterations = iterations.and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut row = row((collective, n_ranks, iterations), (bytes, time), hints)?;
    row.wrong = value("Validation").map(|word| u64::from(word != "Pass"));
    Ok(row)
}

/// Intel MPI benchmarks.
pub fn imb(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let (mut collective, mut n_ranks) = (None, hints.n_ranks);
    let mut columns: Vec<&str> = Vec::new();
    let mut blocks = 0;
    let last = last_torn_line(text);
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
            let row = imb_row(line, &columns, (name, n_ranks), hints);
            match if index == last { Err(CUT_OFF.into()) } else { row } {
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
    let bytes = words[0].parse().map_err(|_| format!("#bytes: `{}` is no number", shown(words[0])))?;
    let time = time.parse().map_err(|_| format!("time: `{}` is no number", shown(time)))?;
    let iterations = value("#repetitions").and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut row = row((collective, n_ranks, iterations), (bytes, time), hints)?;
    row.wrong =
        value("defects").and_then(|word| word.parse::<f64>().ok()).map(|defects| defects.ceil() as u64);
    Ok(row)
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
    fn validation_and_cut_lines_of_osu_are_noticed() {
        let log = "# OSU NCCL Allreduce Latency Test v7.5\n# Size       Avg Latency(us)  Validation\n\
                   4                       1.52        Pass\n8                       1.61        Fail\n16     1.7\n32   1.80  Pa";
        let imported = text(log, &Hints { n_ranks: Some(4), ..hints() });
        let wrong: Vec<Option<u64>> = imported.rows.iter().map(|row| row.wrong).collect();
        assert_eq!((wrong.as_slice(), imported.rows[0].backend.as_str()), (&[Some(0), Some(1)][..], "nccl"));
        assert_eq!(imported.problems.iter().map(|problem| problem.0).collect::<Vec<_>>(), [5, 6]);
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
