//! Counted text: numbers in order, `#` to the end of the line ignored.
//!
//! The library takes, of a collective's communicator sizes, the last that is not above the communicator, and the first where all are
//! above; so a file that is to hold for measured worlds only names 0 and the size behind each with algorithm 0. Of the byte counts it
//! takes the last that is not above the message.

use crate::export::ompi::{COLLECTIVE_COUNT, COLLECTIVES, Choice, Meaning, Release, exists};

const VERSION_LINE: &str = "rule-file-version-2";

/// One collective of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The library's number.
    pub collective: u32,
    /// Communicator sizes, ascending, with their byte counts from 0 up.
    pub worlds: Vec<(u32, Vec<(u64, Choice)>)>,
}

/// The file's text. Sizes that no rule covers are left to the library.
pub fn write(meant: &[Meaning], release: Release) -> String {
    let tables = tables(meant);
    let mut text = String::new();
    if release == Release::Five {
        text.push_str(VERSION_LINE);
        text.push('\n');
    }
    text.push_str(&format!("{} # collectives\n", tables.len()));
    for table in &tables {
        let name = COLLECTIVES.iter().find(|(.., number)| *number == table.collective);
        let name = name.map_or("collective", |(_, theirs, _)| theirs);
        text.push_str(&format!(
            "{} # {name}\n{} # communicator sizes\n",
            table.collective,
            table.worlds.len()
        ));
        for (n_ranks, steps) in &table.worlds {
            text.push_str(&format!("{n_ranks} # ranks\n{} # rules\n", steps.len()));
            for (bytes, choice) in steps {
                // Fan-out 0; version 2 adds the number of requests.
                let more = if release == Release::Five { " 0" } else { "" };
                text.push_str(&format!("{bytes} {} 0 {}{more}\n", choice.number, choice.segment_bytes));
            }
        }
    }
    text
}

fn tables(meant: &[Meaning]) -> Vec<Table> {
    let mut sorted = meant.to_vec();
    sorted.sort_unstable();
    let of_collective = |rules: &[Meaning]| {
        let mut worlds = vec![(0, vec![(0, Choice::default())])];
        for world in rules.chunk_by(|a, b| a.n_ranks == b.n_ranks) {
            let n_ranks = world[0].n_ranks;
            worlds.retain(|(known, _)| *known != n_ranks);
            worlds.push((n_ranks, steps(world)));
            worlds.push((n_ranks + 1, vec![(0, Choice::default())]));
        }
        Table { collective: rules[0].collective, worlds }
    };
    sorted.chunk_by(|a, b| a.collective == b.collective).map(of_collective).collect()
}

/// Ascending byte counts from 0, with the built-in table in the gaps.
fn steps(world: &[Meaning]) -> Vec<(u64, Choice)> {
    let mut steps: Vec<(u64, Choice)> = Vec::new();
    let mut next = Some(0);
    for rule in world {
        if next.is_some_and(|next| next < rule.min_bytes) {
            steps.push((next.unwrap_or(0), Choice::default()));
        }
        steps.push((rule.min_bytes, rule.choice));
        next = rule.max_bytes.checked_add(1);
    }
    steps.extend(next.map(|next| (next, Choice::default())));
    steps
}

/// Reads a file as the library does, but refuses what it would misread or pass over.
///
/// # Errors
/// What is missing or out of order, with the line number.
pub fn read(text: &str) -> Result<Vec<Table>, String> {
    let five = text.lines().next().is_some_and(|line| line.trim_end() == VERSION_LINE);
    let mut numbers = Numbers::of(text, usize::from(five))?;
    let mut tables: Vec<Table> = Vec::new();
    for _ in 0..numbers.next("the number of collectives")? {
        let collective = numbers.small("a collective")?;
        if collective >= COLLECTIVE_COUNT || tables.iter().any(|table| table.collective == collective) {
            return Err(numbers.here(&format!("collective {collective} is unknown or there twice")));
        }
        let mut worlds: Vec<(u32, Vec<(u64, Choice)>)> = Vec::new();
        for _ in 0..numbers.next("the number of communicator sizes")? {
            let n_ranks = numbers.small("a communicator size")?;
            if worlds.last().is_some_and(|(last, _)| *last >= n_ranks) {
                return Err(numbers
                    .here("communicator sizes must ascend: the library stops at the first above its own"));
            }
            worlds.push((n_ranks, read_steps(&mut numbers, collective, five)?));
        }
        tables.push(Table { collective, worlds });
    }
    numbers.end()?;
    Ok(tables)
}

fn read_steps(numbers: &mut Numbers, collective: u32, five: bool) -> Result<Vec<(u64, Choice)>, String> {
    let name = COLLECTIVES.iter().find(|(.., number)| *number == collective).map_or("", |(ours, ..)| ours);
    let mut steps: Vec<(u64, Choice)> = Vec::new();
    for index in 0..numbers.next("the number of rules")? {
        let bytes = numbers.next("a byte count")?;
        let number = numbers.small("an algorithm")?;
        numbers.next("a fan-out")?;
        let segment_bytes = numbers.small("a segment size")?;
        if five {
            numbers.next("a number of requests")?;
        }
        if (index == 0 && bytes != 0) || steps.last().is_some_and(|(last, _)| bytes <= *last) {
            return Err(
                numbers.here(&format!("rules must start at 0 bytes and ascend, not go on with {bytes}"))
            );
        }
        if !exists(name, number, if five { 5 } else { 4 }) {
            return Err(numbers.here(&format!("algorithm {number} of {name} came with release 5")));
        }
        steps.push((bytes, Choice { number, segment_bytes }));
    }
    Ok(steps)
}

/// Every rule that is not left to the library's table; a world without an end behind it holds for that size only here.
pub fn meanings(tables: &[Table]) -> Vec<Meaning> {
    let mut all = Vec::new();
    for table in tables {
        for (n_ranks, steps) in &table.worlds {
            for (at, (bytes, choice)) in steps.iter().enumerate() {
                let max_bytes = steps.get(at + 1).map_or(u64::MAX, |(next, _)| next - 1);
                let (collective, n_ranks, min_bytes, choice) = (table.collective, *n_ranks, *bytes, *choice);
                all.push(Meaning { collective, n_ranks, min_bytes, max_bytes, choice });
            }
        }
    }
    all.retain(|rule| rule.choice.number != 0);
    all
}

/// What the library runs.
pub fn lookup(tables: &[Table], collective: u32, n_ranks: u32, bytes: u64) -> Choice {
    let table = tables.iter().find(|table| table.collective == collective);
    let steps = table.and_then(|table| {
        let not_above = table.worlds.iter().rfind(|(size, _)| *size <= n_ranks);
        not_above.or(table.worlds.first())
    });
    let step = steps.and_then(|(_, steps)| steps.iter().rfind(|(from, _)| *from <= bytes));
    step.map_or(Choice::default(), |(_, choice)| *choice)
}

/// Numbers of a file with their lines.
#[derive(Debug)]
struct Numbers {
    words: std::vec::IntoIter<(usize, u64)>,
    line: usize,
}

impl Numbers {
    fn of(text: &str, skipped: usize) -> Result<Self, String> {
        let mut words = Vec::new();
        for (index, line) in text.lines().enumerate().skip(skipped) {
            for word in line.split('#').next().unwrap_or_default().split_whitespace() {
                let number = index + 1;
                if word.len() > 1 && word.starts_with('0') {
                    return Err(format!("line {number}: `{word}` would be read as octal or hexadecimal"));
                }
                let value = word.parse::<u64>().ok().filter(|value| i64::try_from(*value).is_ok());
                words.push((number, value.ok_or_else(|| format!("line {number}: `{word}` is no number"))?));
            }
        }
        Ok(Self { words: words.into_iter(), line: skipped + 1 })
    }

    fn next(&mut self, what: &str) -> Result<u64, String> {
        let (line, value) = self.words.next().ok_or_else(|| format!("the file ends before {what}"))?;
        self.line = line;
        Ok(value)
    }

    fn small(&mut self, what: &str) -> Result<u32, String> {
        let value = self.next(what)?;
        let small = u32::try_from(value).ok().filter(|value| i32::try_from(*value).is_ok());
        small.ok_or_else(|| self.here(&format!("{value} is too large for {what}")))
    }

    fn here(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }

    fn end(&mut self) -> Result<(), String> {
        match self.words.next() {
            None => Ok(()),
            Some((line, value)) => Err(format!("line {line}: {value} is left over at the end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{lookup, meanings, read, write};
    use crate::export::ompi::Release;

    #[test]
    fn short_unordered_and_long_files_are_refused() {
        for (text, word) in [
            ("1 2 1 4 1 0 3 0", "segment size"),
            ("1 2 1 4 1 8 3 0 0", "start at 0"),
            ("1 2 1 4 2 0 3 0 0 0 4 0 0", "ascend"),
            ("1 2 2 4 1 0 3 0 0 2 1 0 3 0 0", "communicator sizes must ascend"),
            ("1 2 1 4 1 0 3 0 0\n9", "line 2: 9 is left over"),
            ("1 x", "`x`"),
            ("1 010", "octal"),
            ("1 40 1 4 1 0 3 0 0", "collective 40"),
            ("1 2 1 4 1 0 7 0 0", "release 5"),
            ("rule-file-version-2\n1 2 1 4 1 0 3 0 0", "number of requests"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_size_holds_upwards_and_the_first_one_downwards() {
        let tables = read("1 # one\n2\n2\n4\n1\n0 3 0 0\n8\n2\n0 0 0 0\n100 4 0 0\n").unwrap();
        let found = [(2, 50), (4, 50), (7, 50), (8, 99), (8, 100), (99, 100)]
            .map(|(n, b)| lookup(&tables, 2, n, b).number);
        assert_eq!(found, [3, 3, 3, 0, 4, 4]);
    }

    #[test]
    fn what_is_not_covered_is_left_to_the_library() {
        let tables = read("1 2 1 4 2 0 3 0 0 100 4 0 0").unwrap();
        let mut rules = meanings(&tables);
        rules.remove(0);
        rules[0].max_bytes = 199;
        let again = read(&write(&rules, Release::Four)).unwrap();
        assert_eq!(meanings(&again), rules);
        let found = [(4, 99), (4, 100), (4, 199), (4, 200), (3, 150), (5, 150)]
            .map(|(n, b)| lookup(&again, 2, n, b).number);
        assert_eq!(found, [0, 4, 4, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9# \n]{0,120}") {
            let _ = read(&text);
        }
    }
}
