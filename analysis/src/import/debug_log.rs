//! What a library's TUNING lines say it chose: algorithm, protocol and channels per collective and size.

use std::collections::BTreeMap;

use crate::import::{Imported, collective_name};

/// Choice by collective and bytes.
pub type Choices = BTreeMap<(String, u64), Choice>;

/// One choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Algorithm, as records spell it.
    pub algorithm: String,
    /// Protocol.
    pub protocol: String,
    /// Channels.
    pub n_channels: u32,
}

/// Choices of every line `AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}`. Contradicting lines cancel each other.
pub fn choices(text: &str) -> Choices {
    let mut found: BTreeMap<(String, u64), Option<Choice>> = BTreeMap::new();
    for line in text.lines() {
        let Some((key, choice)) = parse(line) else { continue };
        let known = found.entry(key).or_insert_with(|| Some(choice.clone()));
        if known.as_ref().is_some_and(|known| *known != choice) {
            *known = None;
        }
    }
    found.into_iter().filter_map(|(key, choice)| Some((key, choice?))).collect()
}

fn parse(line: &str) -> Option<((String, u64), Choice)> {
    let (_, text) = line.split_once("NCCL INFO ")?;
    let (name, rest) = text.split_once(':')?;
    let (bytes, rest) = rest.split_once(" Bytes -> Algo ")?;
    let (algorithm, rest) = rest.split_once(" proto ")?;
    let (protocol, range) = rest.split_once(" channel{Lo..Hi}={")?;
    let (low, high) = range.split_once('}')?.0.split_once("..")?;
    let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    let choice = Choice {
        algorithm: algorithm.trim().to_ascii_lowercase().replace('_', ""),
        protocol: protocol.trim().to_ascii_lowercase(),
        n_channels: high.checked_sub(low)?.checked_add(1)?,
    };
    Some(((collective_name(name)?.to_owned(), bytes.trim().parse().ok()?), choice))
}

/// Fills in what rows do not say themselves.
pub fn fill(imported: &mut Imported, choices: &Choices) {
    for row in &mut imported.rows {
        let Some(choice) =
            choices.get(&(row.collective.clone(), row.bytes)).filter(|_| row.algorithm == "auto")
        else {
            continue;
        };
        row.algorithm.clone_from(&choice.algorithm);
        row.protocol.clone_from(&choice.protocol);
        row.n_channels = choice.n_channels;
    }
}

#[cfg(test)]
mod tests {
    use super::choices;
    use crate::import::tests::hints;
    use crate::import::text;

    const LINE: &str =
        "node1:1:2 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}\n";

    #[test]
    fn tuning_lines_fill_rows_of_their_size() {
        let log = LINE.to_owned() + crate::import::nccl_text::tests::LOG;
        let imported = text(&log, &hints());
        let of = |bytes: u64| imported.rows.iter().find(|row| row.bytes == bytes).unwrap();
        assert_eq!(
            (of(1024).algorithm.as_str(), of(1024).protocol.as_str(), of(1024).n_channels),
            ("ring", "ll", 4)
        );
        assert_eq!(of(8).algorithm, "auto");
    }

    #[test]
    fn contradicting_lines_say_nothing() {
        assert_eq!(choices(LINE).len(), 1);
        assert!(choices(&(LINE.to_owned() + &LINE.replace("RING", "TREE"))).is_empty());
        assert_eq!(
            choices(&LINE.replace("RING", "NVLS_TREE")).values().next().unwrap().algorithm,
            "nvlstree"
        );
    }
}
