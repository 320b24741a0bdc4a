//! Open MPI's tuned component: dynamic rules as counted text (4, and 5 with its version line) or as JSON (6).
//!
//! Its algorithms are its own, so rules come from sweeps over them (`--backend mpi`), named as the library names them. The byte count of
//! allgather and alltoall there is the communicator's size times what a rank sends: our whole buffer.

use serde_json::json;

use crate::export::{ExportError, Rule};

/// Collective: our name, JSON name, number in text files.
const COLLECTIVES: [(&str, &str, u32); 6] = [
    ("all_gather", "allgather", 0),
    ("all_reduce", "allreduce", 2),
    ("alltoall", "alltoall", 3),
    ("broadcast", "bcast", 7),
    ("reduce", "reduce", 11),
    ("reduce_scatter", "reduce_scatter_block", 13),
];

/// Algorithms of allreduce by the names of its parameter.
const ALLREDUCE: [(&str, u32); 7] = [
    ("basic_linear", 1),
    ("nonoverlapping", 2),
    ("recursive_doubling", 3),
    ("ring", 4),
    ("segmented_ring", 5),
    ("rabenseifner", 6),
    ("allgather_reduce", 7),
];

/// A rule as the library means it: collective number, communicator size, first byte count, algorithm.
pub type Meaning = (u32, u32, u64, u32);

/// Which major release reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Counted text.
    Four,
    /// Counted text behind a version line.
    Five,
    /// JSON, version 3.
    Six,
}

fn meaning(rule: &Rule) -> Result<Meaning, ExportError> {
    let no_word =
        |what: String| ExportError::NoWord(format!("Open MPI's rule file has no number for {what}"));
    let collective = COLLECTIVES.iter().find(|(ours, ..)| *ours == rule.scope.collective);
    let (_, _, number) =
        collective.ok_or_else(|| no_word(format!("the collective {}", rule.scope.collective)))?;
    let named = (rule.scope.collective == "all_reduce")
        .then(|| ALLREDUCE.iter().find(|(name, _)| *name == rule.algorithm));
    let by_number = rule.algorithm.strip_prefix("alg").and_then(|number| number.parse().ok());
    let algorithm = named.flatten().map(|(_, number)| *number).or(by_number);
    let algorithm = algorithm
        .ok_or_else(|| no_word(format!("the algorithm {} of {}", rule.algorithm, rule.scope.collective)))?;
    Ok((*number, rule.scope.n_ranks, rule.min_bytes, algorithm))
}

/// Writes the file for a release and reads it back.
///
/// # Errors
/// When a number is missing there, or the file would not mean the same.
pub fn rules_file(rules: &[Rule], release: Release) -> Result<String, ExportError> {
    let mut meant: Vec<Meaning> = rules.iter().map(meaning).collect::<Result<_, _>>()?;
    meant.sort_unstable();
    let text = match release {
        Release::Six => json_file(&meant),
        _ => counted_text(&meant, release),
    };
    let read = match release {
        Release::Six => read_json(&text),
        _ => read_text(&text),
    };
    match read {
        Ok(read) if read == meant => Ok(text),
        Ok(_) => Err(ExportError::Mismatch("rules differ".into())),
        Err(reason) => Err(ExportError::Mismatch(reason)),
    }
}

fn counted_text(meant: &[Meaning], release: Release) -> String {
    let mut text = String::new();
    if release == Release::Five {
        text.push_str("rule-file-version-2\n");
    }
    let collectives: Vec<&[Meaning]> = meant.chunk_by(|a, b| a.0 == b.0).collect();
    text.push_str(&format!("{} # collectives\n", collectives.len()));
    for collective in collectives {
        let sizes: Vec<&[Meaning]> = collective.chunk_by(|a, b| a.1 == b.1).collect();
        text.push_str(&format!("{} # collective\n{} # communicator sizes\n", collective[0].0, sizes.len()));
        for rules in sizes {
            text.push_str(&format!("{} # ranks\n{} # rules\n", rules[0].1, rules.len()));
            for (_, _, bytes, algorithm) in rules {
                // topology 0, no segmentation; version 2 adds the number of requests.
                let more = if release == Release::Five { " 0" } else { "" };
                text.push_str(&format!("{bytes} {algorithm} 0 0{more}\n"));
            }
        }
    }
    text
}

/// Reads counted text as the library does: numbers in order, `#` to the end of the line ignored.
///
/// # Errors
/// What is missing or out of order.
pub fn read_text(text: &str) -> Result<Vec<Meaning>, String> {
    let mut lines = text.lines();
    let five = text.starts_with("rule-file-version-2");
    if five {
        lines.next();
    }
    let words: Vec<u64> = lines
        .flat_map(|line| {
            line.split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|word| word.parse().map_err(|_| format!("`{word}` is no number")))
        .collect::<Result<_, _>>()?;
    let mut at = words.into_iter();
    let mut next = |what: &str| at.next().ok_or_else(|| format!("the file ends before {what}"));
    let mut all = Vec::new();
    for _ in 0..next("the number of collectives")? {
        let collective = next("a collective")? as u32;
        for _ in 0..next("the number of communicator sizes")? {
            let ranks = next("a communicator size")? as u32;
            let mut last = None;
            for index in 0..next("the number of rules")? {
                let bytes = next("a byte count")?;
                let algorithm = next("an algorithm")? as u32;
                next("a topology")?;
                next("a segment size")?;
                if five {
                    next("a number of requests")?;
                }
                if (index == 0 && bytes != 0) || last.is_some_and(|last| bytes <= last) {
                    return Err(format!(
                        "rules for {ranks} ranks must start at 0 and ascend, not go on with {bytes}"
                    ));
                }
                last = Some(bytes);
                all.push((collective, ranks, bytes, algorithm));
            }
        }
    }
    if at.next().is_some() {
        return Err("numbers are left over at the end".into());
    }
    Ok(all)
}

fn json_file(meant: &[Meaning]) -> String {
    let mut collectives = serde_json::Map::new();
    for collective in meant.chunk_by(|a, b| a.0 == b.0) {
        let name = COLLECTIVES
            .iter()
            .find(|(_, _, number)| *number == collective[0].0)
            .map_or("", |(_, name, _)| name);
        let mut sizes = Vec::new();
        for rules in collective.chunk_by(|a, b| a.1 == b.1) {
            let mut list = Vec::new();
            for (index, (_, _, bytes, algorithm)) in rules.iter().enumerate() {
                let end = rules.get(index + 1).map_or(json!("inf"), |next| json!(next.2 - 1));
                list.push(json!({ "msg_size_min": bytes, "msg_size_max": end, "alg": algorithm }));
            }
            sizes.push(json!({
                "comm_size_min": rules[0].1, "comm_size_max": rules[0].1, "comm_rank_distribution": "any", "rules": list,
            }));
        }
        collectives.insert(name.to_owned(), json!(sizes));
    }
    let document = json!({ "rule_file_version": 3, "module": "tuned", "collectives": collectives });
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// Reads JSON of version 3.
///
/// # Errors
/// What is missing.
pub fn read_json(text: &str) -> Result<Vec<Meaning>, String> {
    let document: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document["rule_file_version"] != 3 || document["module"] != "tuned" {
        return Err("it is no rule file of version 3 for tuned".into());
    }
    let mut all = Vec::new();
    for (name, sizes) in document["collectives"].as_object().ok_or("no collectives")? {
        let number = COLLECTIVES
            .iter()
            .find(|(_, theirs, _)| theirs == name)
            .ok_or_else(|| format!("unknown collective {name}"))?
            .2;
        for size in sizes.as_array().ok_or("no list of sizes")? {
            let ranks = size["comm_size_min"].as_u64().ok_or("no comm_size_min")? as u32;
            let mut end = None;
            for rule in size["rules"].as_array().ok_or("no rules")? {
                let low = rule["msg_size_min"].as_u64().ok_or("no msg_size_min")?;
                if end.unwrap_or(0) != low {
                    return Err(format!("a gap before {low} bytes"));
                }
                end = Some(rule["msg_size_max"].as_u64().map_or(u64::MAX, |high| high + 1));
                all.push((number, ranks, low, rule["alg"].as_u64().ok_or("no alg")? as u32));
            }
            if end != Some(u64::MAX) {
                return Err(format!("the rules for {ranks} ranks do not reach inf"));
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{Release, read_text, rules_file};
    use crate::export::Rule;
    use crate::export::rules::tests::rules;

    fn theirs() -> Vec<Rule> {
        let mut rules = rules();
        rules[0].algorithm = "recursive_doubling".into();
        rules
    }

    #[test]
    fn every_release_reads_back_what_was_meant() {
        let four = rules_file(&theirs(), Release::Four).unwrap();
        let expected = "1 # collectives\n2 # collective\n1 # communicator sizes\n4 # ranks\n2 # rules\n0 3 0 0\n5793 4 0 0\n";
        assert_eq!(four, expected);
        let five = rules_file(&theirs(), Release::Five).unwrap();
        assert!(
            five.starts_with("rule-file-version-2\n1 # collectives\n") && five.ends_with("5793 4 0 0 0\n")
        );
        let six: serde_json::Value =
            serde_json::from_str(&rules_file(&theirs(), Release::Six).unwrap()).unwrap();
        assert_eq!(six["collectives"]["allreduce"][0]["rules"][0]["msg_size_max"], 5792);
        assert_eq!(six["collectives"]["allreduce"][0]["rules"][1]["msg_size_max"], "inf");
    }

    #[test]
    fn algorithms_the_library_lacks_are_named() {
        assert!(
            rules_file(&rules(), Release::Four)
                .unwrap_err()
                .to_string()
                .contains("the algorithm tree of all_reduce")
        );
    }

    #[test]
    fn short_unordered_and_long_files_are_refused() {
        assert!(read_text("1 2 1 4 1 0 3 0").unwrap_err().contains("segment size"));
        assert!(read_text("1 2 1 4 1 8 3 0 0").unwrap_err().contains("start at 0"));
        assert!(read_text("1 2 1 4 1 0 3 0 0 9").unwrap_err().contains("left over"));
        assert!(read_text("1 x").unwrap_err().contains("`x`"));
    }
}
