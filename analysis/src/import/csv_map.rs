//! Any CSV table, with a map that says which column means what.
//!
//! `bytes=msg_size,time_us=latency_ms*1000,algorithm=algo,collective:all_reduce,n_ranks:8`: a name, then `=` and a column (a factor may
//! follow), or `:` and a fixed value.

use crate::import::{CUT_OFF, Hints, Imported, bus_factor, collective_name, number_cycles, shown};
use crate::record::reader::split_quoted;
use crate::record::{COLUMNS, Placement, Row};

/// Where one value comes from.
#[derive(Clone, Debug, PartialEq)]
enum Origin {
    Column { name: String, factor: f64 },
    Fixed(String),
}

/// The whole map.
#[derive(Clone, Debug, PartialEq)]
pub struct Map(Vec<(&'static str, Origin)>);

impl Map {
    /// Reads a map.
    ///
    /// # Errors
    /// A sentence that names the part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let cut = part
                .find(['=', ':'])
                .ok_or_else(|| format!("`{part}` is neither name=column nor name:value"))?;
            let (name, value) = (part[..cut].trim(), part[cut + 1..].trim());
            let known = COLUMNS.iter().find(|column| **column == name);
            let known =
                known.ok_or_else(|| format!("`{name}` is no column of a record ({})", COLUMNS.join(", ")))?;
            let origin = if part[cut..].starts_with(':') {
                Origin::Fixed(value.to_owned())
            } else {
                let (name, factor) = match value.rsplit_once('*') {
                    Some((name, factor)) => {
                        (name.trim(), factor.trim().parse().map_err(|_| format!("`{factor}` is no factor"))?)
                    }
                    None => (value, 1.0),
                };
                Origin::Column { name: name.to_owned(), factor }
            };
            parts.push((*known, origin));
        }
        for needed in ["bytes", "time_us", "collective", "n_ranks"] {
            if parts.iter().all(|(name, _)| *name != needed) {
                return Err(format!("the map says nothing about {needed}"));
            }
        }
        Ok(Self(parts))
    }
}

/// Reads a table, one line a record. Its delimiter is the one of comma, semicolon and tab that the first line has most of.
pub fn read(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let Some(Map(parts)) = &hints.map else { return imported };
    let mut lines =
        text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, first)) = lines.next() else { return imported };
    let delimiter =
        [',', ';', '\t'].into_iter().max_by_key(|&c| (first.matches(c).count(), c == ',')).unwrap_or(',');
    let headers = match fields(first, delimiter) {
        Ok(headers) => headers,
        Err(reason) => {
            imported.problems.push((1, reason));
            return imported;
        }
    };
    let mut places = Vec::new();
    for (name, origin) in parts {
        let place = match origin {
            Origin::Column { name: column, .. } => match headers.iter().position(|header| header == column) {
                Some(place) => Some(place),
                None => {
                    imported.notes.push(format!("{name}: the table has no column `{column}`"));
                    return imported;
                }
            },
            Origin::Fixed(_) => None,
        };
        places.push((*name, origin, place));
    }
    let is_torn = !text.ends_with('\n');
    let n_lines = text.lines().count();
    for (index, line) in lines {
        let record = fields(line, delimiter).and_then(|record| match record.len().cmp(&headers.len()) {
            std::cmp::Ordering::Less if is_torn && index + 1 == n_lines => Err(CUT_OFF.into()),
            std::cmp::Ordering::Equal => Ok(record),
            _ => Err(format!("{} fields where the header has {}", record.len(), headers.len())),
        });
        match record.and_then(|record| one(&record, &places, hints)) {
            Ok(row) => imported.rows.push(row),
            Err(reason) => imported.problems.push((index as u64 + 1, reason)),
        }
    }
    number_cycles(&mut imported.rows);
    imported
}

fn fields(line: &str, delimiter: char) -> Result<Vec<String>, String> {
    let (mut text, mut ranges) = (String::new(), Vec::new());
    split_quoted((line, delimiter), &mut text, &mut ranges)?;
    Ok(ranges.into_iter().map(|range| text[range].trim().to_owned()).collect())
}

fn one(record: &[String], places: &[(&str, &Origin, Option<usize>)], hints: &Hints) -> Result<Row, String> {
    let mut row = crate::import::blank(hints);
    row.backend = "other".into();
    for (name, origin, place) in places {
        let (word, factor) = match (origin, place) {
            (Origin::Fixed(value), _) => (value.as_str(), 1.0),
            (Origin::Column { name, factor }, place) => {
                let word = place
                    .and_then(|place| record.get(place))
                    .ok_or_else(|| format!("column `{name}` is missing"))?;
                (word.as_str(), *factor)
            }
        };
        set(&mut row, name, word, factor)?;
    }
    if row.collective.is_empty() {
        return Err("collective: the name is empty".into());
    }
    if row.n_ranks == 0 {
        return Err("n_ranks: a world of 0 ranks does not exist".into());
    }
    if !(row.time_us.is_finite() && row.time_us > 0.0) {
        return Err(format!("time_us: {} is no time above 0", row.time_us));
    }
    if row.algbw == 0.0 {
        row.algbw = row.bytes as f64 / row.time_us / 1e3;
    }
    if row.busbw == 0.0 {
        row.busbw = row.algbw * bus_factor(&row.collective, row.n_ranks);
    }
    Ok(row)
}

fn set(row: &mut Row, name: &str, word: &str, factor: f64) -> Result<(), String> {
    let number = || -> Result<f64, String> {
        let value = word
            .parse::<f64>()
            .ok()
            .or_else(|| crate::format::parse_size(word).ok().map(|bytes| bytes as f64));
        let value = value.map(|value| value * factor).filter(|value| value.is_finite());
        value.ok_or_else(|| format!("{name}: `{}` is no number", shown(word)))
    };
    // Rounding of a factor leaves traces; a count of half a rank is another thing.
    let whole = |most: f64| -> Result<f64, String> {
        let value = number()?;
        let is_whole = (value - value.round()).abs() <= 1e-6 * value.abs().max(1.0);
        let fits = is_whole && (0.0..=most).contains(&value);
        if fits { Ok(value.round()) } else { Err(format!("{name}: `{}` is no count", shown(word))) }
    };
    let (short, long) = (f64::from(u32::MAX), 9e15);
    match name {
        "run_id" => row.run_id = word.to_owned(),
        "repeat" => row.repeat = whole(short)? as u32,
        "timestamp" => row.timestamp = word.to_owned(),
        "backend" => row.backend = word.to_owned(),
        "device" => row.device = word.to_owned(),
        "n_hosts" => row.n_hosts = whole(short)? as u32,
        "n_ranks" => row.n_ranks = whole(short)? as u32,
        "collective" => row.collective = collective_name(word).map_or_else(|| word.to_owned(), str::to_owned),
        "algorithm" => row.algorithm = word.to_ascii_lowercase(),
        "protocol" => row.protocol = word.to_ascii_lowercase(),
        "n_channels" => row.n_channels = whole(short)? as u32,
        "dtype" => row.dtype = word.to_owned(),
        "redop" => row.redop = word.to_owned(),
        "root" => row.root = number()? as i32,
        "bytes" => row.bytes = whole(long)? as u64,
        "count" => row.count = whole(long)? as u64,
        "placement" => {
            let plain = word.to_ascii_lowercase().replace(['-', ' '], "_");
            row.placement = Placement::from_name(&plain)
                .ok_or_else(|| format!("placement: `{word}` is neither in nor out of place"))?;
        }
        "iterations" => row.iterations = whole(short)? as u32,
        "time_us" => row.time_us = number()?,
        "algbw" => row.algbw = number()?,
        "busbw" => row.busbw = number()?,
        "wrong" => row.wrong = if word.is_empty() { None } else { Some(whole(long)? as u64) },
        // Cycles are counted.
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Map;
    use crate::import::tests::hints;
    use crate::import::{Hints, text};

    #[test]
    fn columns_factors_and_fixed_values_make_rows() {
        let map =
            Map::parse("bytes=msg,time_us=ms*1000,algorithm=algo,collective:AllReduce,n_ranks:4").unwrap();
        let table = "msg,ms,algo\n1K,0.5,RING\n8,oops,Ring\n8,0.25,Tree\n";
        let imported = text(table, &Hints { map: Some(map), ..hints() });
        assert_eq!(imported.rows.len(), 2);
        let row = &imported.rows[0];
        assert_eq!(
            (row.bytes, row.time_us, row.algorithm.as_str(), row.collective.as_str()),
            (1024, 500.0, "ring", "all_reduce")
        );
        assert!((row.busbw - 1024.0 / 500.0 / 1e3 * 1.5).abs() < 1e-12);
        assert_eq!(imported.problems, [(3, "time_us: `oops` is no number".to_owned())]);
    }

    #[test]
    fn bad_lines_are_named_and_a_stray_quote_spoils_its_own_line_only() {
        let map = Map::parse("bytes=a,time_us=b,n_ranks=n,collective:all_reduce").unwrap();
        let table = "a;b;n\n8;1;2\n\"8;1;2\n8;1;-3\n8;1;2.5\n8;inf;2\n8;1\n16;2;2\n8;1";
        let imported = text(table, &Hints { map: Some(map), ..hints() });
        assert_eq!(imported.rows.iter().map(|row| row.bytes).collect::<Vec<_>>(), [8, 16]);
        let lines: Vec<u64> = imported.problems.iter().map(|problem| problem.0).collect();
        assert_eq!(lines, [3, 4, 5, 6, 7, 9]);
        assert!(imported.problems[5].1.starts_with("cut off"), "{:?}", imported.problems);
    }

    #[test]
    fn maps_are_checked() {
        assert!(Map::parse("bytes=a").unwrap_err().contains("time_us"));
        assert!(Map::parse("size=a").unwrap_err().contains("`size` is no column"));
        assert!(Map::parse("bytes").unwrap_err().contains("neither"));
        let map = Map::parse("bytes=a,time_us=b,collective:all_reduce,n_ranks:2").unwrap();
        let imported = text("x,y\n1,2\n", &Hints { map: Some(map), ..hints() });
        assert!(imported.rows.is_empty() && imported.notes[0].contains("no column `a`"));
    }
}
