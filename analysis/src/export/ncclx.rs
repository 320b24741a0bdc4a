//! NCCLX's rules: NCCL's keyed on bytes per rank, as CSV with intervals or as JSON. A bad file stops communicator creation there, so the
//! reader here is at least as strict.
//!
//! The library divides the byte count of the whole buffer by the number of ranks and drops the rest, for every collective. A rule so
//! narrow that no whole count per rank lies in it can never match and is left out.

use serde_json::{Value, json};

use crate::export::nccl::{ALGORITHMS, COLLECTIVES, PROTOCOLS, known, line_of};
use crate::export::{ExportError, Exported, Rule};

/// Which of its two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Comma-separated.
    Csv,
    /// JSON.
    Json,
}

/// A rule as the library means it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Collective, in its spelling.
    pub collective: String,
    /// First byte count per rank.
    pub low: u64,
    /// Last byte count per rank.
    pub high: u64,
    /// Algorithm, in its spelling.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub channels: u64,
    /// Nodes.
    pub n_nodes: u64,
    /// Ranks a node.
    pub n_local: u64,
}

fn meaning(rule: &Rule) -> Result<Line, ExportError> {
    let line = line_of(rule)?;
    let (ranks, hosts) = (u64::from(rule.scope.n_ranks.max(1)), u64::from(rule.scope.n_hosts.max(1)));
    if !ranks.is_multiple_of(hosts) {
        let what = format!("NCCLX counts ranks a node: {ranks} ranks on {hosts} hosts cannot be said");
        return Err(ExportError::NoWord(what));
    }
    Ok(Line {
        collective: line.collective,
        // A rule starts at the first whole count whose total reaches its minimum.
        low: rule.min_bytes.div_ceil(ranks),
        high: if rule.max_bytes == u64::MAX { u64::MAX } else { rule.max_bytes / ranks },
        algorithm: line.algorithm,
        protocol: line.protocol,
        channels: u64::from(rule.n_channels),
        n_nodes: hosts,
        n_local: ranks / hosts,
    })
}

/// Writes the file and reads it back.
///
/// # Errors
/// When a word is missing there, or the file would not mean the same.
pub fn file(rules: &[Rule], form: Form) -> Result<Exported, ExportError> {
    let mut meant = Vec::new();
    let mut notes = Vec::new();
    for rule in rules {
        let line = meaning(rule)?;
        if line.low > line.high {
            notes.push(format!(
                "{}: the rule from {} to {} bytes holds no whole count per rank and is left out",
                rule.scope, rule.min_bytes, rule.max_bytes
            ));
            continue;
        }
        meant.push(line);
    }
    let (text, read) = match form {
        Form::Csv => {
            let text = write_csv(&meant);
            let read = read_csv(&text);
            (text, read)
        }
        Form::Json => {
            let text = write_json(&meant);
            let read = read_json(&text);
            (text, read)
        }
    };
    match read {
        Ok(read) if read == meant => Ok(Exported { text, notes }),
        Ok(read) => Err(ExportError::Mismatch(format!("{read:?} where {meant:?} was meant"))),
        Err(reason) => Err(ExportError::Mismatch(reason)),
    }
}

fn interval_of(line: &Line) -> String {
    match line.high {
        u64::MAX => format!("[{},)", line.low),
        high => format!("[{},{high}]", line.low),
    }
}

fn write_csv(lines: &[Line]) -> String {
    let mut text = String::from("# collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks\n");
    for line in lines {
        text.push_str(&format!(
            "{},{},{},{},{},{},{}\n",
            line.collective,
            interval_of(line),
            line.algorithm,
            line.protocol,
            line.channels,
            line.n_nodes,
            line.n_local
        ));
    }
    text
}

fn write_json(lines: &[Line]) -> String {
    let rule = |line: &Line| {
        json!({
            "filter": { "collective": line.collective, "bytesPerRank": interval_of(line), "nNodes": line.n_nodes, "nLocalRanks": line.n_local },
            "config": { "algorithm": line.algorithm, "protocol": line.protocol, "channels": line.channels },
        })
    };
    let document = json!({ "rules": lines.iter().map(rule).collect::<Vec<_>>() });
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// Reads the CSV; commas inside brackets belong to the interval.
///
/// # Errors
/// The line that the library would refuse.
pub fn read_csv(text: &str) -> Result<Vec<Line>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|(index, line)| csv_line(line).map_err(|reason| format!("line {}: {reason}", index + 1)))
        .collect()
}

fn csv_line(line: &str) -> Result<Line, String> {
    let open = line.find(['[', '(']).ok_or("no interval")?;
    let close = open + line[open..].find([']', ')']).ok_or("an open interval")?;
    let (before, after) = (&line[..open], &line[close + 1..]);
    let collective = before.strip_suffix(',').ok_or("the interval is not the second field")?;
    let fields: Vec<&str> =
        after.strip_prefix(',').ok_or("nothing behind the interval")?.split(',').collect();
    let [algorithm, protocol, channels, n_nodes, n_local] = fields.as_slice() else {
        return Err(format!("{} fields where 7 are read", fields.len() + 2));
    };
    let number = |word: &str| word.parse::<u64>().map_err(|_| format!("`{word}` is no count"));
    checked(
        (collective, &line[open..=close]),
        (algorithm, protocol),
        [number(channels)?, number(n_nodes)?, number(n_local)?],
    )
}

/// Reads the JSON.
///
/// # Errors
/// What is missing.
pub fn read_json(text: &str) -> Result<Vec<Line>, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rule = |rule: &Value| {
        let (filter, config) = (&rule["filter"], &rule["config"]);
        let word = |value: &'_ Value, key: &str| {
            value[key].as_str().map(str::to_owned).ok_or_else(|| format!("no {key}"))
        };
        let number = |value: &Value, key: &str| value[key].as_u64().ok_or_else(|| format!("no {key}"));
        checked(
            (&word(filter, "collective")?, &word(filter, "bytesPerRank")?),
            (&word(config, "algorithm")?, &word(config, "protocol")?),
            [number(config, "channels")?, number(filter, "nNodes")?, number(filter, "nLocalRanks")?],
        )
    };
    document["rules"].as_array().ok_or("no list of rules")?.iter().map(rule).collect()
}

fn checked(
    (collective, bytes): (&str, &str),
    (algorithm, protocol): (&str, &str),
    [channels, n_nodes, n_local]: [u64; 3],
) -> Result<Line, String> {
    let (low, high) = interval(bytes)?;
    if !PROTOCOLS.contains(&protocol) {
        return Err(format!("`{protocol}` is no protocol"));
    }
    if channels == 0 || n_nodes == 0 || n_local == 0 {
        return Err("channels, nodes and local ranks are at least 1".into());
    }
    Ok(Line {
        collective: known(collective, &COLLECTIVES, "nothing")?,
        low,
        high,
        algorithm: known(algorithm, &ALGORITHMS, "nothing")?,
        protocol: protocol.to_owned(),
        channels,
        n_nodes,
        n_local,
    })
}

/// `[a,b]`, `(a,b]`, `[a,)`: both ends inclusive here.
fn interval(text: &str) -> Result<(u64, u64), String> {
    let bad = || format!("`{text}` is no interval");
    let inside = text.get(1..text.len().saturating_sub(1)).ok_or_else(bad)?;
    let (low, high) = inside.split_once(',').ok_or_else(bad)?;
    let low: u64 = low.trim().parse().map_err(|_| bad())?;
    let low = if text.starts_with('(') { low.checked_add(1).ok_or_else(bad)? } else { low };
    let high = match high.trim() {
        "" => u64::MAX,
        high if text.ends_with(']') => high.parse().map_err(|_| bad())?,
        high => high.parse::<u64>().ok().and_then(|high| high.checked_sub(1)).ok_or_else(bad)?,
    };
    if low > high { Err(format!("`{text}` is empty")) } else { Ok((low, high)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Form, file, interval, read_csv, read_json};
    use crate::export::nccl::tests::many;
    use crate::export::rules::tests::rules;

    #[test]
    fn bytes_are_counted_per_rank() {
        let text = file(&rules(), Form::Csv).unwrap().text;
        assert!(text.contains("allreduce,[0,1448],tree,simple,1,1,4\n"), "{text}");
        assert!(text.contains("allreduce,[1449,),ring,simple,1,1,4\n"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&file(&rules(), Form::Json).unwrap().text).unwrap();
        assert_eq!(json["rules"][1]["filter"]["bytesPerRank"], "[1449,)");
    }

    #[test]
    fn a_rule_between_two_counts_per_rank_is_left_out() {
        let mut rules = rules();
        (rules[0].min_bytes, rules[0].max_bytes) = (9, 10);
        let exported = file(&rules, Form::Csv).unwrap();
        assert_eq!(exported.text.lines().count(), 2);
        assert!(exported.notes[0].contains("9 to 10 bytes"), "{:?}", exported.notes);
    }

    #[test]
    fn what_the_library_would_refuse_is_refused() {
        let good = "allreduce,[0,5],tree,simple,1,1,4";
        assert!(read_csv(good).is_ok());
        for (from, to) in [
            ("[0,5]", "[6,5]"),
            ("[0,5]", "0"),
            ("tree", "Tree"),
            (",4", ""),
            (",1,1,4", ",0,1,4"),
            ("simple", "fast"),
        ] {
            assert!(read_csv(&good.replace(from, to)).is_err(), "{to}");
        }
        assert_eq!((interval("(3,9)"), interval("[0,)")), (Ok((4, 8)), Ok((0, u64::MAX))));
    }

    proptest! {
        #[test]
        fn every_total_finds_the_rule_of_its_share(rules in many()) {
            for form in [Form::Csv, Form::Json] {
                let text = file(&rules, form).unwrap().text;
                let lines = if form == Form::Csv { read_csv(&text) } else { read_json(&text) }.unwrap();
                for rule in &rules {
                    let ranks = u64::from(rule.scope.n_ranks);
                    // Totals that are whole counts per rank, which is all that a collective moves.
                    let first = rule.min_bytes.div_ceil(ranks) * ranks;
                    let meant = rules.iter().find(|other| other.scope == rule.scope && (other.min_bytes..=other.max_bytes).contains(&first)).unwrap();
                    let found = lines.iter().find(|line| {
                        (line.low..=line.high).contains(&(first / ranks))
                            && line.collective == rule.scope.collective.replace('_', "")
                            && (line.n_nodes, line.n_nodes * line.n_local) == (u64::from(rule.scope.n_hosts), ranks)
                    }).unwrap();
                    prop_assert_eq!((&found.protocol, found.channels), (&meant.protocol, u64::from(meant.n_channels)));
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9,\\-#\\[\\]() \n]{0,120}") {
            let _ = read_csv(&text);
        }
    }
}
