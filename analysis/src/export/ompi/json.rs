//! JSON, version 3. Worlds and sizes that no entry covers are left to the library; the first that matches counts.

use serde_json::{Value, json};

use crate::export::ompi::{COLLECTIVES, Choice, Meaning};

/// The file's text; each rule with the number of hosts it was measured on.
pub fn write(meant: &[(u32, Meaning)]) -> String {
    let mut sorted = meant.to_vec();
    sorted.sort_unstable_by_key(|(hosts, rule)| (rule.collective, rule.n_ranks, *hosts, rule.min_bytes));
    let mut collectives = serde_json::Map::new();
    for collective in sorted.chunk_by(|(_, a), (_, b)| a.collective == b.collective) {
        let known = COLLECTIVES.iter().find(|(.., number)| *number == collective[0].1.collective);
        let name = known.map_or("", |(_, name, _)| name);
        let worlds =
            collective.chunk_by(|(a_hosts, a), (b_hosts, b)| (a.n_ranks, a_hosts) == (b.n_ranks, b_hosts));
        let worlds: Vec<Value> = worlds.map(world).collect();
        collectives.insert(name.to_owned(), json!(worlds));
    }
    let document = json!({ "rule_file_version": 3, "module": "tuned", "collectives": collectives });
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn world(rules: &[(u32, Meaning)]) -> Value {
    let (n_hosts, first) = &rules[0];
    let rule = |(_, rule): &(u32, Meaning)| {
        let end = if rule.max_bytes == u64::MAX { json!("inf") } else { json!(rule.max_bytes) };
        let mut value =
            json!({ "msg_size_min": rule.min_bytes, "msg_size_max": end, "alg": rule.choice.number });
        if rule.choice.segment_bytes > 0 {
            value["seg_size"] = json!(rule.choice.segment_bytes);
        }
        value
    };
    json!({
        "comm_size_min": first.n_ranks,
        "comm_size_max": first.n_ranks,
        "comm_rank_distribution": distribution(*n_hosts, first.n_ranks),
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

/// How ranks must lie for a rule that was measured on so many hosts; the format knows no other shares.
fn distribution(n_hosts: u32, n_ranks: u32) -> &'static str {
    match n_hosts {
        1 => "single-node",
        n if n == n_ranks => "one-per-node",
        _ => "any",
    }
}

/// Reads the file; each rule with the number of hosts that its distribution stands for (2 for `any`).
///
/// # Errors
/// What is missing, unknown or not covered.
pub fn read(text: &str) -> Result<Vec<(u32, Meaning)>, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document["rule_file_version"] != 3 || document["module"] != "tuned" {
        return Err("it is no rule file of version 3 for tuned".into());
    }
    let mut all = Vec::new();
    for (name, worlds) in document["collectives"].as_object().ok_or("no collectives")? {
        let known = COLLECTIVES.iter().find(|(_, theirs, _)| theirs == name);
        let (.., collective) = known.ok_or_else(|| format!("unknown collective {name}"))?;
        for world in worlds.as_array().ok_or("no list of communicator sizes")? {
            read_world(world, *collective, &mut all)?;
        }
    }
    Ok(all)
}

fn read_world(world: &Value, collective: u32, all: &mut Vec<(u32, Meaning)>) -> Result<(), String> {
    known_keys(world, &["comm_size_min", "comm_size_max", "comm_rank_distribution", "rules"])?;
    let n_ranks = world["comm_size_min"].as_u64().ok_or("no comm_size_min")?;
    if world["comm_size_max"].as_u64() != Some(n_ranks) {
        return Err(format!("{n_ranks} ranks: comm_size_max is another size"));
    }
    let n_ranks = u32::try_from(n_ranks).map_err(|error| error.to_string())?;
    let n_hosts = match world["comm_rank_distribution"].as_str() {
        Some("single-node") => 1,
        Some("one-per-node") => n_ranks,
        Some("any") => 2,
        other => return Err(format!("{n_ranks} ranks: unknown distribution {other:?}")),
    };
    let mut next = Some(0);
    for rule in world["rules"].as_array().ok_or("no rules")? {
        known_keys(rule, &["msg_size_min", "msg_size_max", "alg", "seg_size"])?;
        let min_bytes = rule["msg_size_min"].as_u64().ok_or("no msg_size_min")?;
        if next != Some(min_bytes) {
            return Err(format!("{n_ranks} ranks: a gap or an overlap before {min_bytes} bytes"));
        }
        let max_bytes = match (&rule["msg_size_max"], rule["msg_size_max"].as_u64()) {
            (_, Some(bytes)) => bytes,
            (end, None) if end == "inf" => u64::MAX,
            (end, None) => return Err(format!("{n_ranks} ranks: msg_size_max {end}")),
        };
        next = max_bytes.checked_add(1);
        let small = |key: &str| rule[key].as_u64().and_then(|value| u32::try_from(value).ok());
        let number = small("alg").ok_or("no alg")?;
        let choice = Choice { number, segment_bytes: small("seg_size").unwrap_or(0) };
        all.push((n_hosts, Meaning { collective, n_ranks, min_bytes, max_bytes, choice }));
    }
    if next.is_some() {
        return Err(format!("{n_ranks} ranks: the rules do not reach inf"));
    }
    Ok(())
}

fn known_keys(value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or("an entry is no object")?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown key {key}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::export::ompi::tests::theirs;
    use crate::export::ompi::{Release, rules_file};

    #[test]
    fn gaps_unknown_words_and_other_versions_are_refused() {
        let good = rules_file(&theirs(), Release::Six).unwrap().text;
        assert!(read(&good).is_ok());
        for (from, to, word) in [
            ("\"inf\"", "99999", "reach inf"),
            ("5793", "5794", "gap"),
            ("\"allreduce\"", "\"all_reduce\"", "unknown collective"),
            ("\"single-node\"", "\"two\"", "distribution"),
            ("\"rule_file_version\": 3", "\"rule_file_version\": 2", "version 3"),
            ("\"seg_size\"", "\"segsize\"", "unknown key segsize"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = read(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
