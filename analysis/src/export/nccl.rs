//! Tuner CSV of NCCL's example plugin and RCCL's built-in tuner, and NCCLX's rules keyed on bytes per rank.
//!
//! The NCCL parser forgives wrong words by reading them as something else (an unknown collective is allreduce, an unknown algorithm ring, an
//! unknown protocol simple), drops empty fields, knows comments only in column 0 and reads at most 255 characters of a line. The reader
//! here refuses all of that, so a file that it accepts means what it says.

use serde_json::json;

use crate::export::{ExportError, Rule};

const COLLECTIVES: [(&str, &str); 5] = [
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reducescatter"),
    ("all_reduce", "allreduce"),
];
const ALGORITHMS: [(&str, &str); 7] = [
    ("tree", "tree"),
    ("ring", "ring"),
    ("collnetdirect", "collnet_direct"),
    ("collnetchain", "collnet_chain"),
    ("nvls", "nvls"),
    ("nvlstree", "nvls_tree"),
    ("pat", "pat"),
];
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
/// A line with its newline must fit into the consumer's buffer of 256.
const LINE_LIMIT: usize = 254;

/// Whether the consumer has a word for that algorithm.
pub fn knows(algorithm: &str) -> bool {
    ALGORITHMS.iter().any(|(ours, _)| *ours == algorithm)
}

fn word(list: &[(&str, &'static str)], ours: &str, what: &str) -> Result<&'static str, ExportError> {
    let found = list.iter().find(|(name, _)| *name == ours).map(|(_, theirs)| *theirs);
    found.ok_or_else(|| ExportError::NoWord(format!("NCCL's tuner file has no word for the {what} {ours}")))
}

/// One line as the consumer means it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Collective, in its spelling.
    pub collective: String,
    /// First byte count.
    pub min_bytes: u64,
    /// Last byte count.
    pub max_bytes: u64,
    /// Algorithm, in its spelling.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub channels: i64,
    /// Nodes.
    pub n_nodes: i64,
    /// Ranks.
    pub n_ranks: i64,
}

fn line_of(rule: &Rule) -> Result<Line, ExportError> {
    if !PROTOCOLS.contains(&rule.protocol.as_str()) {
        return Err(ExportError::NoWord(format!(
            "NCCL's tuner file has no word for the protocol {}",
            rule.protocol
        )));
    }
    Ok(Line {
        collective: word(&COLLECTIVES, &rule.scope.collective, "collective")?.into(),
        min_bytes: rule.min_bytes,
        max_bytes: rule.max_bytes,
        algorithm: word(&ALGORITHMS, &rule.algorithm, "algorithm")?.into(),
        protocol: rule.protocol.clone(),
        channels: i64::from(rule.n_channels),
        n_nodes: i64::from(rule.scope.n_hosts),
        n_ranks: i64::from(rule.scope.n_ranks),
    })
}

/// Writes the CSV and reads it back.
///
/// # Errors
/// When a word is missing there, or the file would not mean the same.
pub fn csv(rules: &[Rule]) -> Result<String, ExportError> {
    let mut text = String::from(
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n",
    );
    let mut meant = Vec::new();
    for rule in rules {
        let line = line_of(rule)?;
        if let Some(note) = &rule.note {
            let note: String = note.chars().take(LINE_LIMIT - 2).collect();
            text.push_str(&format!("# {note}\n"));
        }
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},-1,-1\n",
            line.collective,
            line.min_bytes,
            line.max_bytes,
            line.algorithm,
            line.protocol,
            line.channels,
            line.n_nodes,
            line.n_ranks
        ));
        meant.push(line);
    }
    let read = read_csv(&text).map_err(ExportError::Mismatch)?;
    if read == meant { Ok(text) } else { Err(ExportError::Mismatch("lines differ".into())) }
}

/// Reads a tuner CSV strictly.
///
/// # Errors
/// The line number and what the consumer would make of it.
pub fn read_csv(text: &str) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.len() > LINE_LIMIT {
            return Err(format!("line {number}: {} characters; the consumer reads 255", line.len()));
        }
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        lines.push(parse(line).map_err(|reason| format!("line {number}: {reason}"))?);
    }
    Ok(lines)
}

fn parse(line: &str) -> Result<Line, String> {
    let fields: Vec<&str> = line.split(',').collect();
    if !(8..=10).contains(&fields.len()) {
        return Err(format!("{} fields where 8 to 10 are read", fields.len()));
    }
    if fields.iter().any(|field| field.is_empty() || field.trim() != *field) {
        return Err("an empty field would shift the others, a blank would spoil a word".into());
    }
    let known = |word: &str, list: &[(&str, &str)], becomes: &str| match list
        .iter()
        .any(|(_, theirs)| *theirs == word)
    {
        true => Ok(word.to_owned()),
        false => Err(format!("`{word}` would be read as {becomes}")),
    };
    let bytes = |word: &str| word.parse::<u64>().map_err(|_| format!("`{word}` is no byte count"));
    let number = |word: &str| match word.parse::<i64>() {
        Ok(value) if value >= -1 => Ok(value),
        _ => Err(format!("`{word}` is neither a count nor -1")),
    };
    let channels = number(fields[5])?;
    if channels < 1 {
        return Err("channels of -1 would stay at 1: they must be written".into());
    }
    let protocol = match PROTOCOLS.contains(&fields[4]) {
        true => fields[4].to_owned(),
        false => return Err(format!("`{}` would be read as simple", fields[4])),
    };
    let line = Line {
        collective: known(fields[0], &COLLECTIVES, "allreduce")?,
        min_bytes: bytes(fields[1])?,
        max_bytes: bytes(fields[2])?,
        algorithm: known(fields[3], &ALGORITHMS, "ring")?,
        protocol,
        channels,
        n_nodes: number(fields[6])?,
        n_ranks: number(fields[7])?,
    };
    if line.min_bytes > line.max_bytes {
        return Err(format!("{} is above {}", line.min_bytes, line.max_bytes));
    }
    fields[8..].iter().try_for_each(|field| number(field).map(|_| ()))?;
    Ok(line)
}

/// NCCLX: the same rules keyed on bytes per rank, as CSV with intervals or as JSON.
///
/// # Errors
/// When a word is missing there.
pub fn ncclx(rules: &[Rule], as_json: bool) -> Result<String, ExportError> {
    let mut csv = String::from("# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks\n");
    let mut objects = Vec::new();
    for rule in rules {
        let line = line_of(rule)?;
        let ranks = u64::from(rule.scope.n_ranks.max(1));
        let local = rule.scope.n_ranks / rule.scope.n_hosts.max(1);
        // Whole bytes per rank: a rule starts at the first count whose total reaches its minimum.
        let low = rule.min_bytes.div_ceil(ranks);
        let interval = match rule.max_bytes {
            u64::MAX => format!("[{low},)"),
            high => format!("[{low},{}]", high / ranks),
        };
        csv.push_str(&format!(
            "{},{interval},{},{},{},{},{local}\n",
            line.collective, line.algorithm, line.protocol, line.channels, line.n_nodes
        ));
        objects.push(json!({
            "filter": { "collective": line.collective, "bytesPerRank": interval, "nNodes": line.n_nodes, "nLocalRanks": local },
            "config": { "algorithm": line.algorithm, "protocol": line.protocol, "channels": line.channels },
        }));
    }
    let text = if as_json {
        serde_json::to_string_pretty(&json!({ "rules": objects })).unwrap_or_default() + "\n"
    } else {
        csv
    };
    let read = if as_json { ncclx_json_intervals(&text) } else { ncclx_csv_intervals(&text) }
        .map_err(ExportError::Mismatch)?;
    let meant: Vec<(u64, u64)> = rules
        .iter()
        .map(|rule| {
            let ranks = u64::from(rule.scope.n_ranks.max(1));
            (
                rule.min_bytes.div_ceil(ranks),
                if rule.max_bytes == u64::MAX { u64::MAX } else { rule.max_bytes / ranks },
            )
        })
        .collect();
    if read == meant {
        Ok(text)
    } else {
        Err(ExportError::Mismatch(format!("{read:?} where {meant:?} was meant")))
    }
}

/// Intervals of a CSV; commas inside brackets belong to the interval.
fn ncclx_csv_intervals(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let open = line.find(['[', '(']).ok_or_else(|| format!("no interval in `{line}`"))?;
        let close =
            open + line[open..].find([']', ')']).ok_or_else(|| format!("an open interval in `{line}`"))?;
        if line[..open].matches(',').count() != 1 || line[close + 1..].matches(',').count() != 5 {
            return Err(format!("wrong number of fields in `{line}`"));
        }
        all.push(interval(&line[open..=close])?);
    }
    Ok(all)
}

fn ncclx_json_intervals(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let document: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rules = document["rules"].as_array().ok_or("no list of rules")?;
    rules
        .iter()
        .map(|rule| interval(rule["filter"]["bytesPerRank"].as_str().ok_or("no bytesPerRank")?))
        .collect()
}

/// `[a,b]`, `(a,b]`, `[a,)`: both ends inclusive here.
fn interval(text: &str) -> Result<(u64, u64), String> {
    let bad = || format!("`{text}` is no interval");
    let inside = text.get(1..text.len().saturating_sub(1)).ok_or_else(bad)?;
    let (low, high) = inside.split_once(',').ok_or_else(bad)?;
    let low: u64 = low.trim().parse().map_err(|_| bad())?;
    let low = if text.starts_with('(') { low.saturating_add(1) } else { low };
    let high = match high.trim() {
        "" => u64::MAX,
        high if text.ends_with(']') => high.parse().map_err(|_| bad())?,
        high => high.parse::<u64>().map_err(|_| bad())?.saturating_sub(1),
    };
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{csv, ncclx, read_csv};
    use crate::export::rules::tests::rules;

    #[test]
    fn the_csv_says_what_was_meant() {
        let text = csv(&rules()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "allreduce,0,5792,tree,simple,1,1,4,-1,-1");
        assert_eq!(lines[2], "allreduce,5793,18446744073709551615,ring,simple,1,1,4,-1,-1");
    }

    #[test]
    fn what_the_consumer_would_misread_is_refused() {
        let good = "allreduce,0,5,tree,simple,1,1,4,-1,-1";
        assert!(read_csv(good).is_ok());
        for (from, to, word) in [
            ("allreduce", "all_reduce", "allreduce"),
            ("tree", "Tree", "ring"),
            ("simple", "fast", "simple"),
            (",1,1,4", ",-1,1,4", "channels"),
            (",tree", ",,tree", "fields"),
            ("0,5", "6,5", "above"),
            ("0,5", "0, 5", "blank"),
            (",4,-1,-1", "", "fields"),
        ] {
            let error = read_csv(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(word), "{to}: {error}");
        }
        assert!(read_csv(&format!("{good}{}", " ".repeat(300))).unwrap_err().contains("255"));
    }

    #[test]
    fn unknown_algorithms_cannot_be_exported() {
        let mut rules = rules();
        rules[0].algorithm = "oneshot".into();
        assert!(csv(&rules).unwrap_err().to_string().contains("oneshot"));
    }

    #[test]
    fn ncclx_counts_bytes_per_rank() {
        let text = ncclx(&rules(), false).unwrap();
        assert!(text.contains("allreduce,[0,1448],tree,simple,1,1,4\n"), "{text}");
        assert!(text.contains("allreduce,[1449,),ring,simple,1,1,4\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&ncclx(&rules(), true).unwrap()).unwrap();
        assert_eq!(json["rules"][1]["filter"]["bytesPerRank"], "[1449,)");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9,\\-# \n]{0,120}") {
            let _ = read_csv(&text);
        }
    }
}
