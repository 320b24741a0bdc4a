//! JSON of nccl-tests (versions 1 to 3) and rccl-tests. A file that was cut off gives its complete results.

use serde_json::Value;

use crate::import::{Hints, Imported, collective_name, number_cycles};
use crate::record::{Placement, Row};

/// Reads a file.
pub fn read(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let clean = without_bare_numbers(text);
    let document: Value = match serde_json::from_str(&clean) {
        Ok(document) => document,
        Err(error) => {
            imported.problems.push((error.line() as u64, format!("not JSON from here on: {error}")));
            match serde_json::from_str(&closed_after_last_result(&clean)) {
                Ok(document) => document,
                Err(_) => return imported,
            }
        }
    };
    match &document {
        Value::Array(results) => rccl(results, hints, &mut imported),
        _ => nccl(&document, hints, &mut imported),
    }
    number_cycles(&mut imported.rows);
    imported
}

fn nccl(document: &Value, hints: &Hints, imported: &mut Imported) {
    let config = &document["config"];
    let n_ranks = ranks_of_first_group(config);
    let program = document["args"][0].as_str().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let collective = collective_name(program)
        .or_else(|| collective_name(hints.collective.as_deref()?))
        .or_else(|| collective_name(&hints.run_id));
    let Some(collective) = collective else {
        imported.notes.push("the file does not say which collective it is: give --collective".into());
        return;
    };
    let mut hosts: Vec<&str> =
        config["devices"].as_array().into_iter().flatten().filter_map(|d| d["hostname"].as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut base = crate::import::blank(hints);
    base.n_ranks = if config.is_object() { n_ranks } else { hints.n_ranks.unwrap_or(n_ranks) };
    base.n_hosts = hosts.len().max(1) as u32;
    base.collective = collective.into();
    base.timestamp = document["start_time"].as_str().unwrap_or_default().replace(' ', "T");
    if let Some(name) = config["devices"][0]["device_info"].as_str() {
        base.device = name.to_owned();
    }
    let processes: std::collections::BTreeSet<(String, u32)> = config["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|d| {
            Some((d["hostname"].as_str()?.split('.').next()?.to_owned(), d["pid"].as_u64()?.try_into().ok()?))
        })
        .collect();
    imported.processes.insert(base.run_id.clone(), processes);
    let results = || document["results"].as_array().into_iter().flatten();
    if results().any(|result| result["out_of_place"]["cpu_time"].is_number()) {
        imported.notes.push("the file holds CPU time (-C); times are computed from the bandwidth".into());
    }
    for (index, result) in results().enumerate() {
        for (key, placement) in [("out_of_place", Placement::OutOfPlace), ("in_place", Placement::InPlace)] {
            if result[key].is_object() {
                match placement_row(&base, result, (key, placement)) {
                    Ok(row) => imported.rows.push(row),
                    Err(reason) => imported
                        .problems
                        .push((index as u64 + 1, format!("result {}, {key}: {reason}", index + 1))),
                }
            }
        }
    }
}

/// nccl-tests lists one device per process, each standing for threads x devices ranks; a list of all ranks has them one after the other.
/// With groups, rows describe the first one.
fn ranks_of_first_group(config: &Value) -> u32 {
    let whole = |value: &Value| value.as_u64().unwrap_or(0).clamp(1, 1 << 20);
    let each = whole(&config["nthreads"]) * whole(&config["ngpus"]);
    let devices = config["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let group = devices.first().map(|device| &device["group"]);
    let ranks: Vec<u64> = devices.iter().filter_map(|device| device["rank"].as_u64()).collect();
    let is_per_rank = ranks.len() > 1 && ranks.windows(2).any(|pair| pair[1] < pair[0].saturating_add(each));
    let members = devices.iter().filter(|device| Some(&device["group"]) == group).count().max(1) as u64;
    u32::try_from(if is_per_rank { members } else { members * each }).unwrap_or(u32::MAX)
}

fn placement_row(base: &Row, result: &Value, (key, placement): (&str, Placement)) -> Result<Row, String> {
    let cells = &result[key];
    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    let mut row = base.clone();
    row.placement = placement;
    row.bytes = result["size"].as_u64().ok_or("size is missing")?;
    row.count = result["count"].as_u64().unwrap_or(0);
    row.dtype = result["type"].as_str().unwrap_or("unknown").trim().to_owned();
    row.redop =
        result["redop"].as_str().map(str::trim).filter(|word| !word.is_empty()).unwrap_or("none").to_owned();
    row.root = number(&result["root"]).map_or(-1, |root| root as i32);
    let tuning = &result["tuning"];
    if let (Some(algo), Some(proto)) = (tuning["algo"].as_str(), tuning["proto"].as_str()) {
        row.algorithm = algo.trim().to_ascii_lowercase().replace('_', "");
        row.protocol = proto.trim().to_ascii_lowercase();
        row.n_channels = number(&tuning["#channels"]).map_or(0, |channels| channels as u32);
    }
    row.iterations = result["actual_iterations"].as_u64().unwrap_or(0) as u32;
    row.algbw = number(&cells["alg_bw"]).unwrap_or(0.0);
    row.busbw = number(&cells["bus_bw"]).unwrap_or(0.0);
    row.wrong = number(&cells["nwrong"]).filter(|wrong| *wrong >= 0.0).map(|wrong| wrong as u64);
    row.time_us = match number(&cells["time"]) {
        Some(time) => time,
        None => row.bytes as f64 / row.algbw / 1e3,
    };
    if row.time_us.is_finite() && row.time_us > 0.0 { Ok(row) } else { Err("no time above 0".into()) }
}

/// Whether a table's first line is that of rccl-tests' CSV output.
pub fn is_rccl_header(line: &str) -> bool {
    let words: Vec<&str> = line.split(',').map(str::trim).collect();
    ["size", "inPlace", "time", "busBw"].iter().all(|word| words.contains(word))
}

/// rccl-tests' CSV output: the keys of its JSON as columns.
pub fn rccl_csv(text: &str, hints: &Hints) -> Imported {
    let mut imported = Imported::default();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let names: Vec<&str> =
        lines.next().map(|(_, line)| line.split(',').map(str::trim).collect()).unwrap_or_default();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        let row = if words.len() == names.len() {
            let pairs = names.iter().zip(&words);
            let object = pairs.map(|(name, word)| ((*name).to_owned(), Value::from(*word))).collect();
            rccl_row(&Value::Object(object), hints)
        } else {
            Err(format!("{} fields where the header has {}", words.len(), names.len()))
        };
        match row {
            Ok(row) => imported.rows.push(row),
            Err(reason) => imported.problems.push((index as u64 + 1, reason)),
        }
    }
    number_cycles(&mut imported.rows);
    imported
}

/// rccl-tests: one object per row, its own keys.
fn rccl(results: &[Value], hints: &Hints, imported: &mut Imported) {
    for (index, result) in results.iter().enumerate() {
        match rccl_row(result, hints) {
            Ok(row) => imported.rows.push(row),
            Err(reason) => {
                imported.problems.push((index as u64 + 1, format!("result {}: {reason}", index + 1)))
            }
        }
    }
}

fn rccl_row(result: &Value, hints: &Hints) -> Result<Row, String> {
    let number = |key: &str| result[key].as_f64().or_else(|| result[key].as_str()?.trim().parse().ok());
    let mut row = crate::import::blank(hints);
    let name = result["name"].as_str().or(hints.collective.as_deref()).unwrap_or_default();
    row.collective = collective_name(name).ok_or("its name is no collective")?.to_owned();
    row.n_ranks = number("ranks").map(|ranks| ranks as u32).or(hints.n_ranks).unwrap_or(0);
    if row.n_ranks == 0 {
        return Err("the file does not say how many ranks there are: give --ranks".into());
    }
    row.n_hosts = number("nodes").map_or(1, |nodes| nodes as u32);
    row.bytes = number("size").ok_or("size is missing")? as u64;
    row.dtype = result["type"].as_str().unwrap_or("unknown").to_owned();
    row.redop = result["redop"].as_str().unwrap_or("none").to_owned();
    row.placement = match number("inPlace") {
        Some(flag) if flag != 0.0 => Placement::InPlace,
        _ if result["inPlace"].as_bool() == Some(true) => Placement::InPlace,
        _ => Placement::OutOfPlace,
    };
    row.algbw = number("algBw").unwrap_or(0.0);
    row.busbw = number("busBw").unwrap_or(0.0);
    row.wrong = number("wrong").or(number("#wrong")).filter(|wrong| *wrong >= 0.0).map(|wrong| wrong as u64);
    row.time_us = number("time").filter(|time| time.is_finite() && *time > 0.0).ok_or("no time above 0")?;
    Ok(row)
}

/// Bare `inf` and `nan`, which some releases write and JSON does not know, become null.
fn without_bare_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(c) = rest.chars().next() {
        if in_string && c == '\\' {
            let end = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        in_string ^= c == '"';
        let word =
            ["-inf", "inf", "-nan", "nan"].into_iter().find(|word| !in_string && rest.starts_with(word));
        match word {
            Some(word) => {
                out.push_str("null");
                rest = &rest[word.len()..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// The text up to the last complete element of its list of results, closed.
fn closed_after_last_result(text: &str) -> String {
    let (mut stack, mut in_string, mut escaped) = (Vec::new(), false, false);
    let mut end = None;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' | '[' => stack.push(c),
            '}' | ']' => {
                stack.pop();
                // An object directly inside the list of results, or inside a top-level list.
                if c == '}' && (stack == ['{', '['] || stack == ['[']) {
                    end = Some((at + 1, stack.len()));
                }
            }
            _ => {}
        }
    }
    end.map_or(String::new(), |(at, depth)| format!("{}{}", &text[..at], if depth == 2 { "]}" } else { "]" }))
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::import::tests::hints;
    use crate::import::{Hints, text};

    pub(crate) const JSON: &str = r#"{"version":3,"start_time":"2026-01-02 03:04:05","args":["build\/all_reduce_perf","-g","8"],"config":{"nthreads":1,"ngpus":4,
"devices":[{"rank":0,"hostname":"a","device_info":"GPU"},{"rank":4,"hostname":"b","device_info":"GPU"}]},"results":[
{"size":8,"count":2,"type":"float","redop":"sum","root":"    -1","out_of_place":{"time":12.5,"alg_bw":0.1,"bus_bw":inf,"nwrong":0.000000},
"in_place":{"time":12.75,"alg_bw":0.1,"bus_bw":0.175,"nwrong":null},"actual_iterations":20,"experiment_name":"inf \" nan"},
{"size":16,"count":4,"type":"float","redop":"sum","root":"    -1","out_of_place":{"time":0,"alg_bw":0,"bus_bw":0,"nwrong":0},
"in_place":{"time":13.0,"alg_bw":0.1,"bus_bw":0.175,"nwrong":0},"actual_iterations":20}],"out_of_bounds":{"count":0,"okay":"true"}}"#;

    #[test]
    fn results_become_rows_and_impossible_ones_are_named() {
        let imported = text(JSON, &hints());
        assert_eq!(imported.rows.len(), 3);
        let row = &imported.rows[0];
        assert_eq!((row.n_ranks, row.n_hosts, row.collective.as_str(), row.root), (8, 2, "all_reduce", -1));
        assert_eq!((row.time_us, row.wrong, row.iterations), (12.5, Some(0), 20));
        assert_eq!(imported.rows[1].wrong, None);
        assert_eq!(imported.problems, [(2, "result 2, out_of_place: no time above 0".to_owned())]);
    }

    #[test]
    fn a_cut_file_gives_its_complete_results() {
        let cut = &JSON[..JSON.find("\"size\":16").unwrap() + 40];
        let imported = text(cut, &hints());
        assert_eq!(imported.rows.len(), 2);
        assert!(imported.problems[0].1.starts_with("not JSON from here on"));
    }

    pub(crate) const RCCL_CSV: &str = "numCycle,name,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inPlace,time,algBw,busBw,#wrong\n\
        0,AllReduce,1,8,8,1,1024,float,sum,0,10.5,0.1,0.2,0\n0,AllReduce,1,8,8,1,1024,float,sum,1,9.5,0.1,0.2,N/A\n0,AllReduce,1\n";

    #[test]
    fn the_table_of_rccl_tests_is_understood() {
        let imported = text(RCCL_CSV, &hints());
        assert_eq!((imported.rows.len(), imported.problems.len(), imported.problems[0].0), (2, 1, 4));
        let row = &imported.rows[1];
        assert_eq!((row.n_ranks, row.bytes, row.placement.name(), row.wrong), (8, 1024, "in_place", None));
    }

    #[test]
    fn devices_are_counted_whether_listed_by_process_or_by_rank() {
        let of = |devices: &str, each: u32| {
            let config = format!("{{\"nthreads\":1,\"ngpus\":{each},\"devices\":[{devices}]}}");
            super::ranks_of_first_group(&serde_json::from_str(&config).unwrap())
        };
        assert_eq!(of("{\"rank\":0,\"group\":0}", 8), 8);
        assert_eq!(of("{\"rank\":0,\"group\":0},{\"rank\":4,\"group\":0}", 4), 8);
        assert_eq!(of("{\"rank\":0,\"group\":0},{\"rank\":1,\"group\":0}", 2), 2);
        assert_eq!(of("{\"rank\":0,\"group\":0},{\"rank\":1,\"group\":1}", 1), 1);
    }

    #[test]
    fn the_rows_of_rccl_tests_are_understood() {
        let json = r#"[{"name":"AllReduce","size":"1024","type":"float","redop":"sum","inPlace":"1","time":"10.5","algBw":0.1,"busBw":"0.2","wrong":"0"},{"name":"x"}]"#;
        let imported = text(json, &Hints { n_ranks: Some(8), ..hints() });
        assert_eq!((imported.rows.len(), imported.problems.len()), (1, 1));
        assert_eq!((imported.rows[0].time_us, imported.rows[0].placement.name()), (10.5, "in_place"));
        assert!(text(json, &hints()).problems[0].1.contains("--ranks"));
    }
}
