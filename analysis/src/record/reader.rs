//! Streams rows out of a CSV file: one line in memory at a time, every unusable line named by its number.
//!
//! Columns are found by name, so a file with more columns or another order is read too. A record never holds a line break inside a
//! field, hence a stray quote spoils its own line and no other. A last line without its newline is torn: its numbers may be cut.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use crate::record::{COLUMNS, Placement, Row};

/// Why a line gave no row.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The last line has no newline: its writer was stopped.
    #[error("line {line}: torn (no newline at its end), skipped")]
    Torn {
        /// Line number from 1.
        line: u64,
    },
    /// A field is missing or holds no value of its kind.
    #[error("line {line}: {text}")]
    Bad {
        /// Line number from 1.
        line: u64,
        /// What is wrong.
        text: String,
    },
    /// The file could not be read further.
    #[error("line {line}: {source}")]
    Io {
        /// Line number from 1.
        line: u64,
        /// The system's reason.
        source: io::Error,
    },
}

impl Problem {
    /// The line's number.
    pub fn line(&self) -> u64 {
        match self {
            Self::Torn { line } | Self::Bad { line, .. } | Self::Io { line, .. } => *line,
        }
    }

    /// What is wrong, without the number.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        text.split_once(": ").map_or(text.clone(), |(_, reason)| reason.to_owned())
    }
}

/// A row whose texts still lie in the reader's line buffer. Fields are those of [`Row`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "documented at Row")]
pub struct RowRef<'a> {
    pub run_id: &'a str,
    pub repeat: u32,
    pub cycle: u32,
    pub timestamp: &'a str,
    pub backend: &'a str,
    pub device: &'a str,
    pub n_hosts: u32,
    pub n_ranks: u32,
    pub collective: &'a str,
    pub algorithm: &'a str,
    pub protocol: &'a str,
    pub n_channels: u32,
    pub dtype: &'a str,
    pub redop: &'a str,
    pub root: i32,
    pub bytes: u64,
    pub count: u64,
    pub placement: Placement,
    pub iterations: u32,
    pub time_us: f64,
    pub algbw: f64,
    pub busbw: f64,
    pub wrong: Option<u64>,
}

impl RowRef<'_> {
    /// An owned copy.
    pub fn to_row(&self) -> Row {
        Row {
            run_id: self.run_id.into(),
            repeat: self.repeat,
            cycle: self.cycle,
            timestamp: self.timestamp.into(),
            backend: self.backend.into(),
            device: self.device.into(),
            n_hosts: self.n_hosts,
            n_ranks: self.n_ranks,
            collective: self.collective.into(),
            algorithm: self.algorithm.into(),
            protocol: self.protocol.into(),
            n_channels: self.n_channels,
            dtype: self.dtype.into(),
            redop: self.redop.into(),
            root: self.root,
            bytes: self.bytes,
            count: self.count,
            placement: self.placement,
            iterations: self.iterations,
            time_us: self.time_us,
            algbw: self.algbw,
            busbw: self.busbw,
            wrong: self.wrong,
        }
    }
}

impl Row {
    /// A view of this row, as a reader would give it.
    pub fn as_view(&self) -> RowRef<'_> {
        RowRef {
            run_id: &self.run_id,
            repeat: self.repeat,
            cycle: self.cycle,
            timestamp: &self.timestamp,
            backend: &self.backend,
            device: &self.device,
            n_hosts: self.n_hosts,
            n_ranks: self.n_ranks,
            collective: &self.collective,
            algorithm: &self.algorithm,
            protocol: &self.protocol,
            n_channels: self.n_channels,
            dtype: &self.dtype,
            redop: &self.redop,
            root: self.root,
            bytes: self.bytes,
            count: self.count,
            placement: self.placement,
            iterations: self.iterations,
            time_us: self.time_us,
            algbw: self.algbw,
            busbw: self.busbw,
            wrong: self.wrong,
        }
    }
}

/// Reads a record file line by line.
#[derive(Debug)]
pub struct RowReader<R> {
    source: R,
    raw: Vec<u8>,
    line: u64,
    /// The current line, unquoted.
    text: String,
    fields: Vec<Range<usize>>,
    /// Where each of [`COLUMNS`] stands in this file.
    places: [usize; COLUMNS.len()],
    failed: bool,
}

impl RowReader<BufReader<File>> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When the file cannot be opened or lacks a column of a record.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(named)?;
        Self::new(BufReader::with_capacity(1 << 18, file)).map_err(named)
    }
}

impl<R: BufRead> RowReader<R> {
    /// Reads the header of `source`.
    ///
    /// # Errors
    /// When reading fails or a column of a record is missing.
    pub fn new(mut source: R) -> io::Result<Self> {
        let mut raw = Vec::new();
        (&mut source).take(1 << 16).read_until(b'\n', &mut raw)?;
        let mut reader = Self {
            source,
            raw,
            line: 1,
            text: String::new(),
            fields: Vec::new(),
            places: [0; COLUMNS.len()],
            failed: false,
        };
        if reader.raw.starts_with(b"\xef\xbb\xbf") {
            reader.raw.drain(..3);
        }
        reader.split().map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
        for (place, column) in reader.places.iter_mut().zip(COLUMNS) {
            let found = reader.fields.iter().position(|field| reader.text[field.clone()].trim() == column);
            let text = format!("not a record: column `{column}` is missing in its first line");
            *place = found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text))?;
        }
        Ok(reader)
    }

    /// The next row, or why its line gives none; nothing at the end of the file.
    pub fn next_row(&mut self) -> Option<Result<RowRef<'_>, Problem>> {
        loop {
            if self.failed {
                return None;
            }
            self.raw.clear();
            self.line += 1;
            match self.source.read_until(b'\n', &mut self.raw) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(source) => {
                    self.failed = true;
                    return Some(Err(Problem::Io { line: self.line, source }));
                }
            }
            if self.raw.last() != Some(&b'\n') {
                return Some(Err(Problem::Torn { line: self.line }));
            }
            if !self.raw.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        let line = self.line;
        if let Err(text) = self.split() {
            return Some(Err(Problem::Bad { line, text }));
        }
        Some(self.parse().map_err(|text| Problem::Bad { line, text }))
    }

    /// Cuts the raw line into unquoted fields.
    fn split(&mut self) -> Result<(), String> {
        let mut end = self.raw.len();
        while end > 0 && matches!(self.raw[end - 1], b'\n' | b'\r') {
            end -= 1;
        }
        self.text.clear();
        self.fields.clear();
        let line = std::str::from_utf8(&self.raw[..end]).map_err(|_| "not UTF-8 text".to_owned())?;
        if !line.contains('"') {
            self.text.push_str(line);
            let mut start = 0;
            for (at, byte) in line.bytes().enumerate() {
                if byte == b',' {
                    self.fields.push(start..at);
                    start = at + 1;
                }
            }
            self.fields.push(start..end);
            return Ok(());
        }
        split_quoted((line, ','), &mut self.text, &mut self.fields)
    }

    fn parse(&self) -> Result<RowRef<'_>, String> {
        let words = Words { text: &self.text, fields: &self.fields, places: &self.places };
        let time_us: f64 = words.number(19)?;
        if !(time_us.is_finite() && time_us > 0.0) {
            return Err(format!("time_us: `{time_us}` is no time above 0"));
        }
        let wrong = words.get(22)?;
        Ok(RowRef {
            run_id: words.get(0)?,
            repeat: words.number(1)?,
            cycle: words.number(2)?,
            timestamp: words.get(3)?,
            backend: words.get(4)?,
            device: words.get(5)?,
            n_hosts: words.number(6)?,
            n_ranks: words.number(7)?,
            collective: words.get(8)?,
            algorithm: words.get(9)?,
            protocol: words.get(10)?,
            n_channels: words.number(11)?,
            dtype: words.get(12)?,
            redop: words.get(13)?,
            root: words.number(14)?,
            bytes: words.number(15)?,
            count: words.number(16)?,
            placement: Placement::from_name(words.get(17)?).ok_or_else(|| {
                format!("placement: `{}` is neither out_of_place nor in_place", words.word(17))
            })?,
            iterations: words.number(18)?,
            time_us,
            algbw: words.number(20)?,
            busbw: words.number(21)?,
            wrong: if wrong.is_empty() { None } else { Some(words.number(22)?) },
        })
    }
}

/// Cuts a line with quotes at a delimiter.
pub(crate) fn split_quoted(
    (line, delimiter): (&str, char),
    text: &mut String,
    fields: &mut Vec<Range<usize>>,
) -> Result<(), String> {
    let mut chars = line.chars().peekable();
    loop {
        let start = text.len();
        if chars.next_if_eq(&'"').is_some() {
            loop {
                match chars.next() {
                    None => return Err("a quote is never closed".into()),
                    Some('"') if chars.next_if_eq(&'"').is_some() => text.push('"'),
                    Some('"') => break,
                    Some(other) => text.push(other),
                }
            }
        }
        while let Some(other) = chars.next_if(|&c| c != delimiter) {
            text.push(other);
        }
        fields.push(start..text.len());
        if chars.next().is_none() {
            return Ok(());
        }
    }
}

struct Words<'a> {
    text: &'a str,
    fields: &'a [Range<usize>],
    places: &'a [usize; COLUMNS.len()],
}

impl<'a> Words<'a> {
    fn get(&self, column: usize) -> Result<&'a str, String> {
        let field = self.fields.get(self.places[column]).ok_or_else(|| {
            format!("{} fields where the header has more: {} is missing", self.fields.len(), COLUMNS[column])
        })?;
        Ok(&self.text[field.clone()])
    }

    fn word(&self, column: usize) -> &'a str {
        self.get(column).unwrap_or_default()
    }

    fn number<T: FromStr>(&self, column: usize) -> Result<T, String> {
        let word = self.get(column)?;
        word.parse().map_err(|_| format!("{}: `{word}` is no number of its kind", COLUMNS[column]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RowReader;
    use crate::record::COLUMNS;

    #[test]
    fn columns_are_found_by_name_and_bad_fields_are_named() {
        let header = format!("extra,{}", COLUMNS.join(","));
        let row = "x,r,0,0,t,engine,host,1,2,all_reduce,ring,ll,1,float,sum,-1,8,2,in_place,20,1.5,0,0,";
        let bad = row.replace("1.5", "fast");
        let zero = row.replace(",1.5,", ",0,");
        let quote = row.replace("host", "\"host");
        let text = format!("{header}\r\n{row}\r\n\n{bad}\n{zero}\n{quote}\nshort,line\n");
        let mut reader = RowReader::new(text.as_bytes()).unwrap();
        let first = reader.next_row().unwrap().unwrap();
        assert_eq!((first.n_ranks, first.time_us, first.wrong), (2, 1.5, None));
        let mut texts = Vec::new();
        while let Some(item) = reader.next_row() {
            texts.push(item.unwrap_err().to_string());
        }
        assert_eq!(texts[0], "line 4: time_us: `fast` is no number of its kind");
        assert_eq!(texts[1], "line 5: time_us: `0` is no time above 0");
        assert_eq!(texts[2], "line 6: a quote is never closed");
        assert!(texts[3].starts_with("line 7: 2 fields"));
        assert_eq!(texts.len(), 4);
    }

    #[test]
    fn a_missing_column_is_named() {
        let error = RowReader::new("run_id,repeat\n".as_bytes()).unwrap_err();
        assert!(error.to_string().contains("column `cycle` is missing"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut text = COLUMNS.join(",").into_bytes();
            text.push(b'\n');
            text.extend(bytes);
            let mut reader = RowReader::new(&text[..]).unwrap();
            let mut items = 0;
            while let Some(item) = reader.next_row() {
                prop_assert!(item.is_err());
                items += 1;
                prop_assert!(items <= 401);
            }
        }
    }
}
