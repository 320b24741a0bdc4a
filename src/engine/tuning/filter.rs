//! The grammar of `NCCL_ALGO` and `NCCL_PROTO`: which algorithms and protocols a user allows, for all collectives or one by one.
//!
//! ```text
//! value  = entry *( ";" entry )
//! entry  = [ collective ":" ] list          only the first entry may leave the collective out: it then speaks for all
//! list   = [ "^" ] name *( "," name )       "^" turns the whole list round: everything but these
//! ```
//!
//! Letter case does not matter. An entry replaces what stood before for its collectives: names in the list are on, all others off.
//! Empty pieces (`;;`, `,,`) vanish. What the list does not cover keeps its default: every algorithm on, LL and Simple on, LL128 left
//! to the cost model, which trusts it only over some links. A list that switches LL128 on, by name or through `^`, overrules that.
//!
//! The symmetric kernels (one-shot, two-shot) have no names here: a user who sets `NCCL_ALGO` at all has chosen among the classic
//! algorithms, so they are off then.

use crate::engine::types::{Algorithm, Collective, Protocol};

/// Names of the collectives in the variables, in table order.
pub const COLLECTIVE_NAMES: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
/// Names of the algorithms in the variables, in table order.
pub const ALGORITHM_NAMES: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
/// Names of the protocols in the variables, in table order.
pub const PROTOCOL_NAMES: [&str; 3] = ["LL", "LL128", "Simple"];

/// What the user says about one entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Not allowed.
    Off,
    /// Allowed, also where the model would not take it.
    On,
    /// Nothing said: the model decides.
    Auto,
}

/// The parsed variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    algorithms: [[Switch; 7]; 5],
    protocols: [[Switch; 3]; 5],
    symmetric: bool,
    restricted: bool,
}

impl Default for Filter {
    fn default() -> Self {
        let protocols = [Switch::On, Switch::Auto, Switch::On];
        Self {
            algorithms: [[Switch::On; 7]; 5],
            protocols: [protocols; 5],
            symmetric: true,
            restricted: false,
        }
    }
}

impl Filter {
    /// Reads both variables; nothing means unset. The error names the variable and the piece that is wrong.
    pub fn parse(algo: Option<&str>, proto: Option<&str>) -> Result<Self, String> {
        let mut filter = Self {
            symmetric: algo.is_none(),
            restricted: algo.is_some() || proto.is_some(),
            ..Self::default()
        };
        if let Some(text) = proto {
            apply(text, &PROTOCOL_NAMES, &mut filter.protocols)
                .map_err(|what| format!("NCCL_PROTO={text}: {what}"))?;
        }
        if let Some(text) = algo {
            apply(text, &ALGORITHM_NAMES, &mut filter.algorithms)
                .map_err(|what| format!("NCCL_ALGO={text}: {what}"))?;
        }
        Ok(filter)
    }

    /// Whether the user lets this combination run. LL128 that is left to the model counts as allowed.
    pub fn allowed(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> bool {
        self.algorithm(collective, algorithm) != Switch::Off
            && self.protocol(collective, protocol) != Switch::Off
    }

    /// What the user says about an algorithm.
    pub fn algorithm(&self, collective: Collective, algorithm: Algorithm) -> Switch {
        match self.algorithms[collective as usize].get(algorithm as usize) {
            Some(&switch) => switch,
            None if self.symmetric => Switch::On,
            None => Switch::Off,
        }
    }

    /// What the user says about a protocol.
    pub fn protocol(&self, collective: Collective, protocol: Protocol) -> Switch {
        self.protocols[collective as usize][protocol as usize]
    }

    /// Whether either variable was set, so that finding nothing to run is the user's mistake and not ours.
    pub fn is_restricted(&self) -> bool {
        self.restricted
    }
}

/// Applies one variable to its table.
fn apply<const N: usize>(text: &str, names: &[&str; N], table: &mut [[Switch; N]; 5]) -> Result<(), String> {
    for (position, entry) in pieces(text, ';') {
        let mut parts = pieces(entry, ':').map(|(_, part)| part);
        let first = parts.next().ok_or_else(|| format!("entry \"{entry}\" has no list after its \":\""))?;
        let (prefix, list) = match parts.next() {
            Some(list) => (Some(first), list),
            None if position == 0 => (None, first),
            None => {
                return Err(format!(
                    "\"{entry}\" names no collective, which only the first entry may do (write allreduce:{entry})"
                ));
            }
        };
        let row = read_list(list, names)?;
        let rows = match prefix {
            None => 0..COLLECTIVE_NAMES.len(),
            Some(word) => {
                let index = find(&COLLECTIVE_NAMES, word)
                    .ok_or_else(|| unknown("collective", word, &COLLECTIVE_NAMES))?;
                index..index + 1
            }
        };
        table[rows].fill(row);
    }
    Ok(())
}

/// Reads `[^]name,name`.
fn read_list<const N: usize>(list: &str, names: &[&str; N]) -> Result<[Switch; N], String> {
    let (list, named, others) = match list.strip_prefix('^') {
        Some(rest) => (rest, Switch::Off, Switch::On),
        None => (list, Switch::On, Switch::Off),
    };
    let mut row = [others; N];
    for (_, word) in pieces(list, ',') {
        row[find(names, word).ok_or_else(|| unknown("name", word, names))?] = named;
    }
    Ok(row)
}

/// Non-empty pieces with their byte position, as C's `strtok` yields them.
fn pieces(text: &str, separator: char) -> impl Iterator<Item = (usize, &str)> {
    text.split(separator)
        .scan(0, move |position, piece| {
            let start = *position;
            *position += piece.len() + separator.len_utf8();
            Some((start, piece))
        })
        .filter(|(_, piece)| !piece.is_empty())
}

fn find(names: &[&str], word: &str) -> Option<usize> {
    names.iter().position(|name| name.eq_ignore_ascii_case(word))
}

fn unknown(what: &str, word: &str, names: &[&str]) -> String {
    format!("unknown {what} \"{word}\" (known: {})", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn algorithms(text: &str, collective: Collective) -> Vec<&'static str> {
        let filter = Filter::parse(Some(text), None).expect("parses");
        (0..7)
            .filter(|&a| filter.algorithm(collective, Algorithm::ALL[a]) != Switch::Off)
            .map(|a| ALGORITHM_NAMES[a])
            .collect()
    }

    #[test]
    fn nothing_set_allows_everything_and_leaves_ll128_to_the_model() {
        let filter = Filter::parse(None, None).expect("parses");
        assert!(!filter.is_restricted());
        for &c in Collective::ALL {
            assert_eq!(filter.protocol(c, Protocol::LL128), Switch::Auto);
            for &a in Algorithm::ALL {
                assert!(Protocol::ALL.iter().all(|&p| filter.allowed(c, a, p)));
            }
        }
    }

    #[test]
    fn a_list_without_collective_speaks_for_all() {
        for &c in Collective::ALL {
            assert_eq!(algorithms("rING", c), ["Ring"]);
        }
    }

    #[test]
    fn later_entries_replace_earlier_ones_for_their_collective() {
        let text = "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring";
        assert_eq!(algorithms(text, Collective::AllReduce), ["Tree", "CollNetDirect"]);
        assert_eq!(algorithms(text, Collective::Broadcast), ["Ring"]);
        assert_eq!(algorithms(text, Collective::Reduce), ["Ring", "CollNetDirect"]);
    }

    #[test]
    fn a_first_entry_with_collective_leaves_the_others_alone() {
        assert_eq!(algorithms("AllReduce:Tree", Collective::AllReduce), ["Tree"]);
        assert_eq!(algorithms("AllReduce:Tree", Collective::AllGather).len(), 7);
    }

    #[test]
    fn the_caret_turns_the_list_round() {
        let kept = algorithms("^Ring,PAT", Collective::AllReduce);
        assert_eq!(kept, ["Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"]);
    }

    #[test]
    fn ll128_is_forced_by_name_and_by_caret() {
        for text in ["LL128", "^LL", "allreduce:ll128"] {
            let filter = Filter::parse(None, Some(text)).expect("parses");
            assert_eq!(filter.protocol(Collective::AllReduce, Protocol::LL128), Switch::On, "{text}");
        }
        let filter = Filter::parse(None, Some("^LL128;allreduce:LL128")).expect("parses");
        assert_eq!(filter.protocol(Collective::Reduce, Protocol::LL128), Switch::Off);
        assert!(filter.allowed(Collective::AllReduce, Algorithm::Ring, Protocol::LL128));
        assert!(!filter.allowed(Collective::AllReduce, Algorithm::Ring, Protocol::Simple));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("tre", "unknown name \"tre\""),
            ("allreduc:tree", "unknown collective \"allreduc\""),
            ("ring;tree", "only the first entry"),
            (";ring", "only the first entry"),
            (":", "has no list"),
            (" ring", "unknown name"),
        ] {
            let error = Filter::parse(Some(text), None).expect_err(text);
            assert!(error.contains(part) && error.starts_with("NCCL_ALGO="), "{error}");
        }
    }

    #[test]
    fn empty_pieces_vanish() {
        assert_eq!(algorithms("ring,,tree;;", Collective::AllReduce), ["Tree", "Ring"]);
        assert_eq!(algorithms("", Collective::AllReduce).len(), 7);
    }

    #[test]
    fn symmetric_kernels_are_off_once_an_algorithm_is_named() {
        let filter = Filter::parse(Some("ring"), None).expect("parses");
        assert!(!filter.allowed(Collective::AllReduce, Algorithm::OneShot, Protocol::LL));
        let filter = Filter::parse(None, Some("LL")).expect("parses");
        assert!(filter.allowed(Collective::AllReduce, Algorithm::OneShot, Protocol::LL));
        assert!(!filter.allowed(Collective::AllReduce, Algorithm::TwoShot, Protocol::Simple));
    }
}
