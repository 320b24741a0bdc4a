//! Tuner files: the CSV that NCCL's example tuner reads (`NCCL_TUNER_CONFIG_FILE`).
//!
//! ```text
//! collective,min_bytes,max_bytes,algorithm,protocol,channels,hosts,ranks[,pipe_ops[,registered]]
//! allreduce,0,65536,tree,ll,2,-1,-1
//! ```
//!
//! -1 means any (channels: keep). The first line that matches a call and names a combination that may run sets its cost to 0. Two
//! habits of the original are kept, because files are written for them: words it does not know read as `allreduce`, `ring` and
//! `simple`, and a call that no line matches, or whose line leaves the channels open, gets one channel. Lines that cannot mean what
//! they say are reported as warnings.

use crate::engine::tuning::choose::{Request, UNAVAILABLE};
use crate::engine::tuning::constants::nccl::PerKernel;
use crate::engine::tuning::model::Facts;
use crate::engine::types::{Algorithm, Collective, Protocol};

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Collective it speaks about.
    pub collective: Collective,
    /// Least bytes, inclusive.
    pub min_bytes: u64,
    /// Most bytes, inclusive.
    pub max_bytes: u64,
    /// Algorithm to prefer.
    pub algorithm: Algorithm,
    /// Protocol to prefer.
    pub protocol: Protocol,
    /// Channels to use; nothing leaves the original's single one.
    pub n_channels: Option<usize>,
    /// Hosts it holds for; nothing is any.
    pub n_hosts: Option<i64>,
    /// Ranks it holds for; nothing is any.
    pub n_ranks: Option<i64>,
    /// Collectives launched together it holds for; nothing is any.
    pub n_pipe_ops: Option<i64>,
    /// Buffer registration it holds for; nothing is any.
    pub registered: Option<i64>,
}

/// A file's rules in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The lines that were read.
    pub rules: Vec<Rule>,
    /// What is odd about the file, each with its line number.
    pub warnings: Vec<String>,
}

const COLLECTIVES: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
const ALGORITHMS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];
/// The original reads lines into a buffer of this size, terminator included.
const LINE_BYTES: usize = 256;

impl Rules {
    /// Reads a file's text. Lines that the original would pass over are passed over with a warning.
    pub fn parse(text: &str) -> Self {
        let mut rules = Self::default();
        for (number, line) in pieces(text) {
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            if line.len() == LINE_BYTES - 1 {
                rules.warnings.push(format!(
                    "line {number} is longer than {} characters; NCCL reads the rest as a line of its own",
                    LINE_BYTES - 2
                ));
            }
            // Like strtok: empty fields vanish and later ones move up.
            let fields: Vec<&str> =
                line.split(',').filter(|field| !field.is_empty()).map(str::trim).take(10).collect();
            if fields.len() < 8 {
                rules
                    .warnings
                    .push(format!("line {number} has {} fields, want 8 to 10: left out", fields.len()));
                continue;
            }
            let rule = rules.read(number, &fields);
            rules.rules.push(rule);
        }
        rules
    }

    fn read(&mut self, number: usize, fields: &[&str]) -> Rule {
        let mut word = |field: usize, known: &[&str], fallback: usize| {
            known.iter().position(|name| *name == fields[field]).unwrap_or_else(|| {
                let meant = known[fallback];
                self.warnings
                    .push(format!("line {number}: \"{}\" is unknown and reads as {meant}", fields[field]));
                fallback
            })
        };
        let collective = Collective::ALL[word(0, &COLLECTIVES, 4)];
        let algorithm = Algorithm::ALL[word(3, &ALGORITHMS, 1)];
        let protocol = Protocol::ALL[word(4, &PROTOCOLS, 2)];
        let open = |field: usize| fields.get(field).map_or(-1, |text| leading_integer(text));
        let limit = |field: usize| Some(open(field)).filter(|&n| n != -1);
        let rule = Rule {
            collective,
            min_bytes: leading_integer(fields[1]) as u64,
            max_bytes: leading_integer(fields[2]) as u64,
            algorithm,
            protocol,
            n_channels: limit(5).map(|n| usize::try_from(n).unwrap_or(0)),
            n_hosts: limit(6),
            n_ranks: limit(7),
            n_pipe_ops: limit(8),
            registered: limit(9),
        };
        if rule.min_bytes > rule.max_bytes {
            self.warnings
                .push(format!("line {number}: {} to {} bytes matches nothing", fields[1], fields[2]));
        }
        if rule.n_channels.is_none() {
            self.warnings.push(format!("line {number}: channels -1 gives one channel"));
        }
        rule
    }

    /// Applies the first rule that matches and may run, and returns the channels to use.
    pub fn apply(&self, request: &Request, facts: &Facts, table: &mut PerKernel<f32>) -> usize {
        let found = self.rules.iter().find(|rule| {
            rule.matches(request, facts)
                && table[rule.algorithm as usize][rule.protocol as usize] != UNAVAILABLE
        });
        let Some(rule) = found else { return 1 };
        table[rule.algorithm as usize][rule.protocol as usize] = 0.0;
        rule.n_channels.unwrap_or(1)
    }
}

impl Rule {
    /// Whether the rule speaks about this call.
    pub fn matches(&self, request: &Request, facts: &Facts) -> bool {
        self.collective == request.collective
            && (self.min_bytes..=self.max_bytes).contains(&request.bytes)
            && self.n_hosts.is_none_or(|n| n == facts.n_hosts as i64)
            && self.n_ranks.is_none_or(|n| n == facts.n_ranks as i64)
            && self.n_pipe_ops.is_none_or(|n| n == i64::from(request.n_pipe_ops))
            && self.registered.is_none_or(|n| n == i64::from(request.registered))
    }
}

/// Lines as `fgets` cuts them: what does not fit into its buffer is the next line.
fn pieces(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_inclusive('\n').zip(1..).flat_map(|(mut rest, number)| {
        let mut cut = Vec::new();
        while !rest.is_empty() {
            let limit = rest.len().min(LINE_BYTES - 1);
            let end = (1..=limit).rfind(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let (piece, more) = rest.split_at(end);
            cut.push((number, piece.trim_end_matches(['\n', '\r'])));
            rest = more;
        }
        cut
    })
}

/// C's `atoi` and `strtoull`: a sign and digits in front, the rest ignored, nothing reads as 0. Negative sizes wrap to huge ones.
fn leading_integer(text: &str) -> i64 {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let value = digits[..end]
        .bytes()
        .fold(0_i64, |value, digit| value.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    if negative { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_line_is_read_field_by_field() {
        let rules = Rules::parse("# comment\n\nreducescatter, 0 ,1048576,nvls_tree,ll128,4,2,16,1,0\n");
        assert_eq!(rules.warnings, Vec::<String>::new());
        assert_eq!(
            rules.rules,
            [Rule {
                collective: Collective::ReduceScatter,
                min_bytes: 0,
                max_bytes: 1 << 20,
                algorithm: Algorithm::NvlsTree,
                protocol: Protocol::LL128,
                n_channels: Some(4),
                n_hosts: Some(2),
                n_ranks: Some(16),
                n_pipe_ops: Some(1),
                registered: Some(0),
            }]
        );
    }

    #[test]
    fn unknown_words_read_as_the_defaults_and_are_reported() {
        let rules = Rules::parse("sum,0,1,star,fast,2,-1,-1");
        let rule = rules.rules[0];
        assert_eq!(
            (rule.collective, rule.algorithm, rule.protocol),
            (Collective::AllReduce, Algorithm::Ring, Protocol::Simple)
        );
        assert_eq!(rules.warnings.len(), 3);
        assert!(rules.warnings[0].contains("line 1: \"sum\" is unknown"));
    }

    #[test]
    fn short_lines_are_left_out_and_empty_fields_move_the_rest() {
        let rules = Rules::parse("allreduce,0,1,ring\nallreduce,,0,9,tree,ll,1,-1,-1\n");
        assert_eq!(rules.rules.len(), 1);
        assert_eq!(rules.rules[0].max_bytes, 9);
        assert!(rules.warnings[0].contains("has 4 fields"));
    }

    #[test]
    fn what_is_behind_a_full_buffer_is_a_line_of_its_own() {
        let comment = format!("#{}", "x".repeat(254));
        assert_eq!(comment.len(), LINE_BYTES - 1);
        let rules =
            Rules::parse(&format!("{comment}allreduce,0,9,ring,ll,2,-1,-1\nallreduce,0,9,tree,ll,1,-1,-1\n"));
        assert_eq!(
            rules.rules.iter().map(|rule| rule.algorithm).collect::<Vec<_>>(),
            [Algorithm::Ring, Algorithm::Tree]
        );
        let long = Rules::parse(&format!("allreduce,0,9,ring,ll,2,-1,-1,-1,-1{},tree\n", " ".repeat(300)));
        assert_eq!(long.rules.len(), 1);
        assert!(long.warnings.iter().any(|w| w.contains("line 1 is longer than 254")), "{:?}", long.warnings);
    }

    #[test]
    fn open_channels_and_reversed_ranges_are_reported() {
        let rules = Rules::parse("allreduce,9,1,ring,ll,-1,-1,-1");
        assert!(rules.warnings.iter().any(|w| w.contains("matches nothing")));
        assert!(rules.warnings.iter().any(|w| w.contains("one channel")));
    }

    #[test]
    fn minus_one_as_upper_size_means_no_limit() {
        assert_eq!(Rules::parse("allreduce,0,-1,ring,ll,1,-1,-1").rules[0].max_bytes, u64::MAX);
    }
}
