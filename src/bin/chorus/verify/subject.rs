//! The rules of a file as things that can be measured, and the file without some of them.

use std::fmt;

use analysis::export::nccl::{self, Line};
use analysis::export::ompi::{Meaning, Release, text};
use analysis::format::size;

/// A file of either kind.
#[derive(Debug)]
pub(super) enum File {
    /// NCCL's CSV: rules with their lines.
    Nccl(Vec<String>, Vec<Subject>),
    /// Open MPI's text.
    OpenMpi(Release, Vec<Meaning>, Vec<Subject>),
}

/// A rule.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Our name.
    pub collective: &'static str,
    pub n_ranks: u32,
    pub min_bytes: u64,
    pub max_bytes: u64,
    /// The other side of `--alternate`.
    pub choice: String,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.max_bytes == u64::MAX { "no end".into() } else { size(self.max_bytes) };
        let Self { collective, n_ranks, choice, min_bytes, .. } = self;
        write!(f, "{collective} {n_ranks} ranks {choice} from {} to {end}", size(*min_bytes))
    }
}

impl Subject {
    /// Powers of two inside the range: first, about the middle, last; as first, last and factor.
    pub(super) fn sizes(&self, max_size: u64) -> (u64, u64, u64) {
        let inside: Vec<u32> = (2..40)
            .filter(|power| (self.min_bytes..=self.max_bytes.min(max_size)).contains(&(1u64 << power)))
            .collect();
        // All-gather cuts a size into parts of 16 bytes a rank; below that there is nothing to move.
        let least = if self.collective == "all_gather" { 16 * u64::from(self.n_ranks) } else { 4 };
        let inside: Vec<u32> = inside.into_iter().filter(|power| 1u64 << power >= least).collect();
        match (inside.first(), inside.last()) {
            (Some(first), Some(last)) => {
                let step = (last - first).div_ceil(2).max(1);
                (1 << first, 1 << last, 1 << step)
            }
            _ => {
                let bytes = self.min_bytes.max(least).next_multiple_of(least);
                (bytes, bytes, 2)
            }
        }
    }
}

impl File {
    /// Reads either kind by what the first word is.
    pub(super) fn read(text: &str, ranks: Option<u32>) -> Result<Self, String> {
        let first = text.lines().find(|line| !line.starts_with('#') && !line.trim().is_empty()).unwrap_or("");
        if first.trim_start().starts_with('{') {
            return Err(
                "rules in JSON are read by Open MPI 6 only; export them with --ompi 4 or 5 to verify them"
                    .into(),
            );
        }
        if first.contains(',') || first.is_empty() { Self::nccl(text, ranks) } else { Self::open_mpi(text) }
    }

    fn nccl(text: &str, ranks: Option<u32>) -> Result<Self, String> {
        let rules = nccl::read_csv(text)?;
        let is_rule = |line: &&str| !line.starts_with('#') && !line.is_empty();
        let lines: Vec<String> = text.lines().filter(is_rule).map(str::to_owned).collect();
        let subjects = rules.iter().map(|rule| subject_of(rule, ranks)).collect::<Result<_, _>>()?;
        Ok(Self::Nccl(lines, subjects))
    }

    fn open_mpi(text: &str) -> Result<Self, String> {
        let five = text.starts_with("rule-file-version-2");
        let rules = text::meanings(&text::read(text)?);
        let mut subjects = Vec::new();
        for rule in &rules {
            let known = rule.algorithm().ok_or_else(|| {
                format!("algorithm {} of collective {} has no word here", rule.choice.number, rule.collective)
            })?;
            if rule.choice.segment_bytes != known.segment_bytes {
                return Err(format!(
                    "{} is measured with segments of {} bytes, not {}",
                    known.word(),
                    known.segment_bytes,
                    rule.choice.segment_bytes
                ));
            }
            if rule.n_ranks < 2 {
                return Err(format!("rules for {} ranks cannot be measured", rule.n_ranks));
            }
            subjects.push(Subject {
                collective: measured(known.collective)?,
                n_ranks: rule.n_ranks,
                min_bytes: rule.min_bytes,
                max_bytes: rule.max_bytes,
                choice: known.word(),
            });
        }
        let release = if five { Release::Five } else { Release::Four };
        Ok(Self::OpenMpi(release, rules, subjects))
    }

    /// The rules, in the order of the file.
    pub(super) fn subjects(&self) -> &[Subject] {
        match self {
            Self::Nccl(_, subjects) | Self::OpenMpi(_, _, subjects) => subjects,
        }
    }

    /// Whether Open MPI reads it.
    pub(super) fn is_open_mpi(&self) -> bool {
        matches!(self, Self::OpenMpi(..))
    }

    /// The file without the others.
    pub(super) fn surviving(&self, keep: &[bool]) -> String {
        match self {
            Self::Nccl(lines, _) => {
                let mut text =
                    "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n".to_owned();
                for (line, _) in lines.iter().zip(keep).filter(|(_, keep)| **keep) {
                    text.push_str(line);
                    text.push('\n');
                }
                text
            }
            Self::OpenMpi(release, rules, _) => {
                let kept: Vec<Meaning> =
                    rules.iter().zip(keep).filter(|(_, keep)| **keep).map(|(rule, _)| *rule).collect();
                text::write(&kept, *release)
            }
        }
    }
}

fn subject_of(rule: &Line, ranks: Option<u32>) -> Result<Subject, String> {
    let collective = nccl::collective_name(&rule.collective).unwrap_or("nothing");
    if rule.n_nodes > 1 {
        return Err(format!("only rules for one host can be measured here, not for {}", rule.n_nodes));
    }
    let n_ranks = match (u32::try_from(rule.n_ranks), ranks) {
        (Ok(n), _) if n >= 1 => n,
        (_, Some(n)) => n,
        _ => return Err("a rule for any number of ranks: say with how many to measure it (--ranks)".into()),
    };
    let algorithm = nccl::algorithm_name(&rule.algorithm).unwrap_or("nothing");
    Ok(Subject {
        collective: measured(collective)?,
        n_ranks,
        min_bytes: rule.min_bytes,
        max_bytes: rule.max_bytes,
        choice: format!("{algorithm}/{}/{}", rule.protocol, rule.channels),
    })
}

fn measured(collective: &str) -> Result<&'static str, String> {
    let known = ["all_reduce", "all_gather"];
    let found = known.iter().find(|name| **name == collective).copied();
    found.ok_or_else(|| format!("no program measures {collective}, only {}", known.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::File;

    const CSV: &str = "# head\nallreduce,0,65536,tree,ll,2,1,4,-1,-1\nallgather,65537,18446744073709551615,ring,simple,1,-1,-1\n";
    const TEXT: &str = "1\n2\n2\n4\n2\n0 3 0 0\n4096 4 0 0\n5\n1\n0 0 0 0\n";

    #[test]
    fn rules_of_either_kind_become_things_to_measure() {
        assert!(File::read(CSV, None).unwrap_err().contains("--ranks"));
        let csv = File::read(CSV, Some(3)).unwrap();
        let words: Vec<String> = csv.subjects().iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "all_reduce 4 ranks tree/ll/2 from 0 B to 64 KiB",
                "all_gather 3 ranks ring/simple/1 from 65537 B to no end"
            ]
        );
        let text = File::read(TEXT, None).unwrap();
        assert_eq!(text.subjects()[1].to_string(), "all_reduce 4 ranks ompi:ring from 4 KiB to no end");
        for (bad, word) in [
            ("broadcast,0,1,ring,ll,1,1,2", "no program measures broadcast"),
            ("allreduce,0,1,ring,ll,1,2,2", "one host"),
            ("{}", "--ompi 4 or 5"),
            ("1 2 1 4 1 0 5 0 0", "segments of 1048576"),
            ("1 3 1 4 1 0 1 0 0", "no word"),
        ] {
            let error = File::read(bad, None).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn what_survives_is_the_file_without_the_others() {
        let csv = File::read(CSV, Some(3)).unwrap();
        assert!(
            csv.surviving(&[false, true])
                .ends_with("regBuff\nallgather,65537,18446744073709551615,ring,simple,1,-1,-1\n")
        );
        let text = File::read(TEXT, None).unwrap();
        let kept = text.surviving(&[false, true]);
        assert!(kept.contains("4 # ranks\n2 # rules\n0 0 0 0\n4096 4 0 0\n"), "{kept}");
        assert!(File::read(&text.surviving(&[false, false]), None).unwrap().subjects().is_empty());
    }

    #[test]
    fn three_sizes_inside_the_range_are_measured() {
        let csv = File::read(CSV, Some(3)).unwrap();
        assert_eq!(csv.subjects()[0].sizes(1 << 24), (4, 65536, 128));
        assert_eq!(csv.subjects()[1].sizes(1 << 24), (131_072, 1 << 24, 16));
        let narrow = File::read("allreduce,9,15,ring,ll,1,1,2", None).unwrap();
        assert_eq!(narrow.subjects()[0].sizes(1 << 24), (12, 12, 2));
    }
}
