//! Our own rows again: a record's table, and its rows as JSON (a list, or one object a line). They keep their launches.

use crate::import::{Imported, shown};
use crate::record::{COLUMNS, Row, RowReader};

/// Whether a table's first line has every column of a record.
pub fn is_header(line: &str) -> bool {
    let words: Vec<&str> = line.split(',').map(|word| word.trim().trim_matches('"')).collect();
    COLUMNS.iter().all(|column| words.contains(column))
}

/// Reads a record's table.
pub fn csv(text: &str) -> Imported {
    let mut imported = Imported::default();
    let mut reader = match RowReader::new(text.as_bytes()) {
        Ok(reader) => reader,
        Err(error) => {
            imported.notes.push(error.to_string());
            return imported;
        }
    };
    while let Some(item) = reader.next_row() {
        match item {
            Ok(row) => imported.rows.push(row.to_row()),
            Err(problem) => imported.problems.push((problem.line(), problem.reason())),
        }
    }
    imported.rows.retain(is_possible);
    imported
}

/// Reads rows as JSON.
pub fn json(text: &str) -> Imported {
    let mut imported = Imported::default();
    if text.starts_with('[') {
        match serde_json::from_str::<Vec<serde_json::Value>>(text) {
            Ok(values) => {
                for (index, value) in values.into_iter().enumerate() {
                    take(&mut imported, index as u64 + 1, serde_json::from_value(value));
                }
                return imported;
            }
            Err(error) => {
                let reason = format!("not JSON from here on: {error}");
                imported.problems.push((error.line() as u64, reason));
            }
        }
    }
    // A cut list with one object a line is read like one without a list around it.
    for (index, line) in text.lines().enumerate() {
        let line = line.trim().trim_start_matches('[').trim_end_matches([',', ']']);
        if !line.is_empty() {
            take(&mut imported, index as u64 + 1, serde_json::from_str(line));
        }
    }
    imported
}

fn take(imported: &mut Imported, line: u64, row: serde_json::Result<Row>) {
    match row {
        Ok(row) if is_possible(&row) => imported.rows.push(row),
        Ok(row) => imported
            .problems
            .push((line, format!("a time of {} µs with {} ranks is none", row.time_us, row.n_ranks))),
        Err(error) => imported.problems.push((line, shown(&error.to_string()))),
    }
}

fn is_possible(row: &Row) -> bool {
    row.time_us.is_finite() && row.time_us > 0.0 && row.n_ranks > 0 && !row.collective.is_empty()
}

#[cfg(test)]
mod tests {
    use crate::dataset::tests::row;
    use crate::import::tests::hints;
    use crate::import::text;

    #[test]
    fn rows_come_back_from_lists_and_lines() {
        let rows = [row("a", "ring", 8, 1.5), row("b", "tree", 16, 2.5)];
        let list = serde_json::to_string(&rows).unwrap();
        assert_eq!(text(&list, &hints()).rows, rows);
        let lines: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
        assert_eq!(text(&lines, &hints()).rows, rows);
        let cut = &lines[..lines.len() - 20];
        let imported = text(cut, &hints());
        assert_eq!((imported.rows.len(), imported.problems[0].0), (1, 2));
    }

    #[test]
    fn a_record_table_is_a_log_too() {
        let header = crate::record::COLUMNS.join(",");
        let good = "r,0,0,t,engine,host,1,2,all_reduce,ring,ll,1,float,sum,-1,8,2,in_place,20,1.5,0,0,";
        let imported = text(&format!("{header}\n{good}\n{}\n", good.replace("1.5", "x")), &hints());
        assert_eq!((imported.rows.len(), imported.problems.len(), imported.problems[0].0), (1, 1, 3));
    }
}
