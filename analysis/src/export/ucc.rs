//! UCC's score string: `allreduce:0-5793:@dbt#allreduce:5793-inf:@ring`, one section of `ucc.conf` a world.

use crate::export::{ExportError, Exported, Rule};

/// Names UCC uses for collectives.
const COLLECTIVES: [(&str, &str); 6] = [
    ("all_reduce", "allreduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reduce_scatter"),
    ("broadcast", "bcast"),
    ("reduce", "reduce"),
    ("alltoall", "alltoall"),
];

/// Algorithms of its UCP layer by our names. Our tree is a double binary tree.
const ALGORITHMS: [(&str, &str, &str); 10] = [
    ("all_reduce", "tree", "dbt"),
    ("all_reduce", "ring", "ring"),
    ("all_reduce", "knomial", "knomial"),
    ("all_reduce", "sra_knomial", "sra_knomial"),
    ("all_reduce", "dbt", "dbt"),
    ("all_gather", "ring", "ring"),
    ("all_gather", "knomial", "knomial"),
    ("all_gather", "bruck", "bruck"),
    ("all_gather", "neighbor", "neighbor"),
    ("reduce_scatter", "ring", "ring"),
];

/// A part of the string: collective, first and last byte count, algorithm.
type Part = (String, u64, u64, String);

/// Whether UCC has a word for an algorithm of a record; `alg3` is its third by number.
pub fn knows(collective: &str, algorithm: &str) -> bool {
    COLLECTIVES.iter().any(|(ours, _)| *ours == collective) && word(collective, algorithm).is_some()
}

fn word(collective: &str, algorithm: &str) -> Option<String> {
    let named = ALGORITHMS.iter().find(|(of, ours, _)| (*of, *ours) == (collective, algorithm));
    let by_number = || algorithm.strip_prefix("alg")?.parse::<u32>().ok().map(|number| number.to_string());
    named.map(|(.., theirs)| (*theirs).to_owned()).or_else(by_number)
}

fn part(rule: &Rule) -> Result<Part, ExportError> {
    let no_word = |what: String| ExportError::NoWord(format!("UCC has no word for {what}"));
    let name = rule.scope.collective.as_str();
    let collective = COLLECTIVES.iter().find(|(ours, _)| *ours == name);
    let (_, collective) = collective.ok_or_else(|| no_word(name.to_owned()))?;
    let algorithm = word(name, &rule.algorithm)
        .ok_or_else(|| no_word(format!("the algorithm {} of {name}", rule.algorithm)))?;
    Ok(((*collective).to_owned(), rule.min_bytes, rule.max_bytes, algorithm))
}

/// One section per world: the string holds no world. Neighbours that differ only in protocol or channels, for which there is no word,
/// become one part.
///
/// # Errors
/// When a word is missing there, or the string would not mean the same.
pub fn score(rules: &[Rule]) -> Result<Exported, ExportError> {
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_by_key(|rule| {
        (rule.scope.n_ranks, rule.scope.n_hosts, rule.scope.collective.clone(), rule.min_bytes)
    });
    let mut text = String::new();
    for world in
        sorted.chunk_by(|a, b| (a.scope.n_ranks, a.scope.n_hosts) == (b.scope.n_ranks, b.scope.n_hosts))
    {
        let mut meant: Vec<Part> = Vec::new();
        for rule in world {
            let next = part(rule)?;
            match meant.last_mut() {
                Some(last)
                    if (&last.0, &last.3) == (&next.0, &next.3) && last.2.checked_add(1) == Some(next.1) =>
                {
                    last.2 = next.2;
                }
                _ => meant.push(next),
            }
        }
        let parts: Vec<String> = meant.iter().map(write).collect();
        let string = parts.join("#");
        let read = read(&string).map_err(ExportError::Mismatch)?;
        if read != meant {
            return Err(ExportError::Mismatch(string));
        }
        let scope = &world[0].scope;
        text.push_str(&format!(
            "[team_size={} nnodes={}]\nUCC_TL_UCP_TUNE={string}\n",
            scope.n_ranks, scope.n_hosts
        ));
    }
    let notes =
        vec!["UCC's string has no word for protocols and channels: it names algorithms only".to_owned()];
    Ok(Exported { text, notes })
}

fn write((collective, low, high, algorithm): &Part) -> String {
    // The upper end is exclusive in the library's ranges.
    let end = high.checked_add(1).map_or("inf".to_owned(), |end| end.to_string());
    format!("{collective}:{low}-{end}:@{algorithm}")
}

/// Reads a string strictly.
///
/// # Errors
/// The part that UCC would not read so.
pub fn read(string: &str) -> Result<Vec<Part>, String> {
    let mut all: Vec<Part> = Vec::new();
    for part in string.split('#') {
        let bad = || format!("`{part}` is no `collective:low-high:@algorithm`");
        let fields: Vec<&str> = part.split(':').collect();
        let [collective, range, algorithm] = fields.as_slice() else { return Err(bad()) };
        let (low, high) = range.split_once('-').ok_or_else(bad)?;
        let low: u64 = low.parse().map_err(|_| bad())?;
        let high = match high {
            "inf" => u64::MAX,
            high => high.parse::<u64>().ok().filter(|end| *end > low).ok_or_else(bad)? - 1,
        };
        let algorithm = algorithm.strip_prefix('@').filter(|word| !word.is_empty()).ok_or_else(bad)?;
        if !COLLECTIVES.iter().any(|(_, theirs)| theirs == collective) {
            return Err(format!("`{collective}` is no collective of UCC"));
        }
        if all.iter().any(|(of, from, to, _)| of == collective && *from <= high && low <= *to) {
            return Err(format!("`{part}` overlaps an earlier part"));
        }
        all.push(((*collective).to_owned(), low, high, algorithm.to_owned()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{knows, read, score};
    use crate::export::rules::tests::rules;

    #[test]
    fn each_world_has_a_section_of_its_own() {
        let mut all = rules();
        all.extend(rules().into_iter().map(|mut rule| {
            rule.scope.n_ranks = 8;
            rule.algorithm = "ring".into();
            rule
        }));
        let expected = "[team_size=4 nnodes=1]\nUCC_TL_UCP_TUNE=allreduce:0-5793:@dbt#allreduce:5793-inf:@ring\n\
                        [team_size=8 nnodes=1]\nUCC_TL_UCP_TUNE=allreduce:0-inf:@ring\n";
        assert_eq!(score(&all).unwrap().text, expected);
    }

    #[test]
    fn what_has_no_word_is_refused() {
        assert!(knows("all_reduce", "alg1") && !knows("all_reduce", "oneshot") && !knows("sendrecv", "ring"));
        for bad in [
            "allreduce:0-4",
            "allreduce:4-4:@1",
            "allreduce:0-inf:1",
            "sum:0-inf:@1",
            "reduce:0-9:@0#reduce:5-inf:@1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
