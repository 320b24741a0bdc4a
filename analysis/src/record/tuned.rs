//! Words of records for algorithms inside Open MPI's tuned component, and the order of alternating cycles.
//!
//! An `mpi` row whose library was left alone says `mpi`. One whose library was locked to an algorithm says `ompi:` and the library's own
//! name for it, such as `ompi:ring`; one under a rules file says `ompi:rules`. The word names the library's setting: for few elements some
//! of its algorithms hand over to another inside (ring to recursive doubling below one element a rank, rabenseifner to linear).

/// What every such word begins with.
pub const PREFIX: &str = "ompi:";

/// An algorithm of the tuned component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// Collective, in the words of records.
    pub collective: &'static str,
    /// The library's name.
    pub name: &'static str,
    /// The library's number, in parameters and rule files.
    pub number: u32,
    /// Segment that it is run with, bytes; 0 for none.
    pub segment_bytes: u32,
    /// First major release that has it.
    pub since: u32,
}

/// The algorithm is looked up in a file of rules.
pub const RULES: Tuned = Tuned { collective: "", name: "rules", number: 0, segment_bytes: 0, since: 1 };

const fn of(collective: &'static str, name: &'static str, number: u32) -> Tuned {
    Tuned { collective, name, number, segment_bytes: 0, since: 4 }
}

/// Every algorithm that can be asked for. Without segments the segmented ring is the plain one, so it gets the 1 MiB that the
/// library's own table gives it.
pub const TUNED: [Tuned; 13] = [
    of("all_reduce", "basic_linear", 1),
    of("all_reduce", "nonoverlapping", 2),
    of("all_reduce", "recursive_doubling", 3),
    of("all_reduce", "ring", 4),
    Tuned { segment_bytes: 1 << 20, ..of("all_reduce", "segmented_ring", 5) },
    of("all_reduce", "rabenseifner", 6),
    Tuned { since: 5, ..of("all_reduce", "allgather_reduce", 7) },
    of("all_gather", "linear", 1),
    of("all_gather", "bruck", 2),
    of("all_gather", "recursive_doubling", 3),
    of("all_gather", "ring", 4),
    of("all_gather", "neighbor", 5),
    of("all_gather", "two_proc", 6),
];

impl Tuned {
    /// The algorithm of that word, such as `ompi:ring`.
    pub fn named(collective: &str, word: &str) -> Option<&'static Self> {
        let name = word.strip_prefix(PREFIX)?;
        TUNED.iter().find(|known| known.collective == collective && known.name == name)
    }

    /// The algorithm of that number.
    pub fn numbered(collective: &str, number: u32) -> Option<&'static Self> {
        TUNED.iter().find(|known| known.collective == collective && known.number == number)
    }

    /// Its word in records.
    pub fn word(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Whether the library runs it with that many ranks, rather than another in its place.
    pub fn runs_with(&self, n_ranks: usize) -> bool {
        match (self.collective, self.name) {
            ("all_gather", "recursive_doubling") => n_ranks.is_power_of_two(),
            ("all_gather", "neighbor") => n_ranks.is_multiple_of(2),
            ("all_gather", "two_proc") => n_ranks == 2,
            _ => true,
        }
    }

    /// Words of a collective, for messages.
    pub fn words(collective: &str, n_ranks: Option<usize>) -> String {
        let fits =
            |known: &&Self| known.collective == collective && n_ranks.is_none_or(|n| known.runs_with(n));
        TUNED.iter().filter(fits).map(Self::word).collect::<Vec<_>>().join(", ")
    }
}

/// Which side a cycle of an alternating launch belongs to: 0 the automatic choice, 1 the forced one. Two cycles are a pair, and every
/// second pair runs in mirrored order, so that a drift hits both alike.
pub fn side_of_cycle(cycle: u32) -> usize {
    usize::from(matches!(cycle % 4, 1 | 2))
}

#[cfg(test)]
mod tests {
    use super::{TUNED, Tuned, side_of_cycle};

    #[test]
    fn words_and_numbers_lead_back_to_the_algorithm() {
        for known in &TUNED {
            assert_eq!(Tuned::named(known.collective, &known.word()), Some(known));
            assert_eq!(Tuned::numbered(known.collective, known.number), Some(known));
        }
        assert_eq!(Tuned::named("all_reduce", "ring"), None);
        assert_eq!(Tuned::named("all_gather", "ompi:rabenseifner"), None);
    }

    #[test]
    fn worlds_that_the_library_sends_elsewhere_are_known() {
        assert!(Tuned::words("all_gather", Some(3)).ends_with("ompi:bruck, ompi:ring"));
        assert!(Tuned::words("all_gather", Some(2)).ends_with("ompi:neighbor, ompi:two_proc"));
    }

    #[test]
    fn every_pair_of_cycles_has_both_sides_in_alternating_order() {
        let sides: Vec<usize> = (0..8).map(side_of_cycle).collect();
        assert_eq!(sides, [0, 1, 1, 0, 0, 1, 1, 0]);
    }
}
