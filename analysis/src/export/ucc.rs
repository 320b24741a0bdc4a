//! UCC's score string: `allreduce:0-5792:@ring#allreduce:5793-inf:@knomial`.

use crate::export::{ExportError, Rule};

/// Names UCC uses for collectives.
const COLLECTIVES: [(&str, &str); 6] = [
    ("all_reduce", "allreduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reduce_scatter"),
    ("broadcast", "bcast"),
    ("reduce", "reduce"),
    ("alltoall", "alltoall"),
];

/// One section per world: the string holds no world, so each belongs into its own `[team_size=N]` section of `ucc.conf`.
///
/// # Errors
/// When a word is missing there, or the string would not mean the same.
pub fn score(rules: &[Rule]) -> Result<Vec<(u32, String)>, ExportError> {
    let mut worlds: Vec<(u32, Vec<String>)> = Vec::new();
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_by(|a, b| {
        (a.scope.n_ranks, &a.scope, a.min_bytes).cmp(&(b.scope.n_ranks, &b.scope, b.min_bytes))
    });
    for rule in sorted {
        let name = COLLECTIVES.iter().find(|(ours, _)| *ours == rule.scope.collective);
        let (_, name) = name
            .ok_or_else(|| ExportError::NoWord(format!("UCC has no word for {}", rule.scope.collective)))?;
        // The upper end is exclusive in the library's ranges.
        let end =
            if rule.max_bytes == u64::MAX { "inf".to_owned() } else { (rule.max_bytes + 1).to_string() };
        let part = format!("{name}:{}-{end}:@{}", rule.min_bytes, rule.algorithm);
        let expected = (rule.min_bytes, rule.max_bytes, rule.algorithm.clone());
        if read_part(&part) != Some(expected) {
            return Err(ExportError::Mismatch(part));
        }
        match worlds.last_mut() {
            Some((ranks, parts)) if *ranks == rule.scope.n_ranks => parts.push(part),
            _ => worlds.push((rule.scope.n_ranks, vec![part])),
        }
    }
    Ok(worlds.into_iter().map(|(ranks, parts)| (ranks, parts.join("#"))).collect())
}

/// Range and algorithm of one part.
fn read_part(part: &str) -> Option<(u64, u64, String)> {
    let fields: Vec<&str> = part.split(':').collect();
    let [_, range, algorithm] = fields.as_slice() else { return None };
    let (low, high) = range.split_once('-')?;
    let high = if high == "inf" { u64::MAX } else { high.parse::<u64>().ok()?.checked_sub(1)? };
    Some((low.parse().ok()?, high, algorithm.strip_prefix('@')?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::score;
    use crate::export::rules::tests::rules;

    #[test]
    fn each_world_has_a_string_of_its_own() {
        let all = score(&rules()).unwrap();
        assert_eq!(all, [(4, "allreduce:0-5793:@tree#allreduce:5793-inf:@ring".to_owned())]);
    }
}
