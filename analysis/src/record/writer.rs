//! Appends rows to a CSV file: header only into an empty file, one write and no buffer per row, nothing ever rewritten.
//!
//! A launch that was killed may leave half a line. The next writer closes it with a mark that no reader takes for a value, so two
//! launches never share a line and the torn one is never taken for a row.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::record::{COLUMNS, Row};

/// Ends a torn line. The text is no number and no word of any column.
const TORN_MARK: &[u8] = b"#torn\n";

/// An open record file.
#[derive(Debug)]
pub struct RowWriter {
    file: File,
    line: Vec<u8>,
}

impl RowWriter {
    /// Opens `path` for appending, creating it when absent.
    ///
    /// # Errors
    /// When the file cannot be opened, or when it holds something else than a record of these columns.
    pub fn append(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let header = COLUMNS.join(",");
        let length = file.seek(SeekFrom::End(0))?;
        if length == 0 {
            file.write_all(format!("{header}\n").as_bytes())?;
        } else {
            file.seek(SeekFrom::Start(0))?;
            let mut first = Vec::new();
            (&mut file).take(header.len() as u64 + 2).read_to_end(&mut first)?;
            // Spreadsheets end lines with CR LF; readers take both.
            let after = first.strip_prefix(header.as_bytes());
            if !after.is_some_and(|rest| rest.starts_with(b"\n") || rest == b"\r\n") {
                let text = format!("{}: not a record: its first line should be `{header}`", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(TORN_MARK)?;
            }
        }
        Ok(Self { file, line: Vec::with_capacity(512) })
    }

    /// Appends one row in one write; when this returns, the row survives the end of the process.
    ///
    /// # Errors
    /// When the write fails (a full disk, say).
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        self.line.clear();
        encode(row, &mut self.line)?;
        self.file.write_all(&self.line)
    }
}

/// The CSV line of a row, newline included. Line breaks inside texts become blanks: one row is one line.
///
/// # Errors
/// Never for a `Vec`; the signature is that of its writer.
pub fn encode(row: &Row, line: &mut Vec<u8>) -> io::Result<()> {
    text(line, &row.run_id);
    write!(line, ",{},{},", row.repeat, row.cycle)?;
    text(line, &row.timestamp);
    for word in [&row.backend, &row.device] {
        line.push(b',');
        text(line, word);
    }
    write!(line, ",{},{}", row.n_hosts, row.n_ranks)?;
    for word in [&row.collective, &row.algorithm, &row.protocol] {
        line.push(b',');
        text(line, word);
    }
    write!(line, ",{}", row.n_channels)?;
    for word in [&row.dtype, &row.redop] {
        line.push(b',');
        text(line, word);
    }
    write!(line, ",{},{},{},{},{}", row.root, row.bytes, row.count, row.placement.name(), row.iterations)?;
    write!(line, ",{},{},{},", row.time_us, row.algbw, row.busbw)?;
    if let Some(wrong) = row.wrong {
        write!(line, "{wrong}")?;
    }
    line.push(b'\n');
    Ok(())
}

/// A field, quoted when it must be.
fn text(line: &mut Vec<u8>, word: &str) {
    let quoted = word.contains([',', '"', '\n', '\r']);
    if !quoted {
        line.extend_from_slice(word.as_bytes());
        return;
    }
    line.push(b'"');
    for byte in word.bytes() {
        match byte {
            b'"' => line.extend_from_slice(b"\"\""),
            b'\n' | b'\r' => line.push(b' '),
            other => line.push(other),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::RowWriter;
    use crate::record::reader::{Problem, RowReader};
    use crate::record::{Placement, Row};

    pub(crate) fn sample(run_id: &str, time_us: f64) -> Row {
        Row {
            run_id: run_id.into(),
            repeat: 0,
            cycle: 1,
            timestamp: "2026-01-02T03:04:05Z".into(),
            backend: "engine".into(),
            device: "host, \"Zen 3\"".into(),
            n_hosts: 1,
            n_ranks: 4,
            collective: "all_reduce".into(),
            algorithm: "ring".into(),
            protocol: "simple".into(),
            n_channels: 2,
            dtype: "float".into(),
            redop: "sum".into(),
            root: -1,
            bytes: 1024,
            count: 256,
            placement: Placement::InPlace,
            iterations: 20,
            time_us,
            algbw: 0.5,
            busbw: 0.75,
            wrong: Some(0),
        }
    }

    fn read(path: &std::path::Path) -> (Vec<Row>, Vec<Problem>) {
        let mut reader = RowReader::open(path).unwrap();
        let (mut rows, mut problems) = (Vec::new(), Vec::new());
        while let Some(item) = reader.next_row() {
            match item {
                Ok(row) => rows.push(row.to_row()),
                Err(problem) => problems.push(problem),
            }
        }
        (rows, problems)
    }

    #[test]
    fn rows_come_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw.csv");
        let mut unchecked = sample("b", 0.1 + 0.2);
        unchecked.wrong = None;
        unchecked.device = "two\nlines".into();
        RowWriter::append(&path).unwrap().write(&sample("a", 12.5)).unwrap();
        RowWriter::append(&path).unwrap().write(&unchecked).unwrap();
        let (rows, problems) = read(&path);
        unchecked.device = "two lines".into();
        assert_eq!(rows, [sample("a", 12.5), unchecked]);
        assert!(problems.is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap().matches("run_id").count(), 1);
    }

    #[test]
    fn any_cut_of_the_last_line_costs_that_row_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw.csv");
        RowWriter::append(&path).unwrap().write(&sample("a", 12.5)).unwrap();
        let whole = fs::read(&path).unwrap();
        RowWriter::append(&path).unwrap().write(&sample("b", 1234.5)).unwrap();
        let both = fs::read(&path).unwrap();
        for cut in whole.len() + 1..both.len() {
            fs::write(&path, &both[..cut]).unwrap();
            let (rows, problems) = read(&path);
            assert_eq!((rows.len(), problems.len()), (1, 1), "cut at {cut}, before resuming");
            assert!(matches!(problems[0], Problem::Torn { line: 3 }));
            RowWriter::append(&path).unwrap().write(&sample("c", 3.0)).unwrap();
            let (rows, problems) = read(&path);
            assert_eq!(rows, [sample("a", 12.5), sample("c", 3.0)], "cut at {cut}");
            assert_eq!(problems.len(), 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_record_that_went_through_a_spreadsheet_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw.csv");
        RowWriter::append(&path).unwrap().write(&sample("a", 12.5)).unwrap();
        let text = fs::read_to_string(&path).unwrap().replace('\n', "\r\n");
        fs::write(&path, text).unwrap();
        RowWriter::append(&path).unwrap().write(&sample("b", 3.0)).unwrap();
        let (rows, problems) = read(&path);
        assert_eq!(rows, [sample("a", 12.5), sample("b", 3.0)]);
        assert!(problems.is_empty());
    }

    #[test]
    fn other_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other.csv");
        fs::write(&path, "a,b\n1,2\n").unwrap();
        assert!(RowWriter::append(&path).unwrap_err().to_string().contains("not a record"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a,b\n1,2\n");
    }
}
