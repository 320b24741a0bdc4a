//! `chorus trees`: the double binary tree, drawn for one number of hosts, tabulated for several.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;

use chorus::engine::graph::trees::{Construction, Tree, shared_inner};

use crate::Failure;

/// Widest drawing in hosts; beyond it trees are listed by level.
const DRAWN_HOSTS: usize = 64;
/// Most hosts of one tree.
const MAX_HOSTS: usize = 1 << 20;
/// Most hosts of all trees together.
const MAX_TOTAL: usize = 1 << 24;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus trees 8            both trees drawn
  chorus trees 1-16         a table
  chorus trees 2,4,8 --csv  every host's parent, children and slot in both trees")]
pub(crate) struct Args {
    /// Number of hosts, a range or a list: 8, 1-16, 2,4,8
    hosts: String,
    /// One line per host: parent, children and slot in both trees, -1 for none
    #[arg(long)]
    csv: bool,
    /// One JSON object per number of hosts
    #[arg(long, conflicts_with = "csv")]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let numbers = parse_numbers(&args.hosts).map_err(Failure::Usage)?;
    if args.csv {
        write_csv(&numbers, out)?;
    } else if args.json {
        for &n_hosts in &numbers {
            writeln!(out, "{}", as_json(n_hosts))?;
        }
    } else if let [n_hosts] = numbers[..] {
        write_drawing(n_hosts, out)?;
    } else {
        write_table(&numbers, out)?;
    }
    Ok(0)
}

/// Reads `8`, `1-16`, `2,4,8` and mixtures.
pub(crate) fn parse_numbers(text: &str) -> Result<Vec<usize>, String> {
    let number = |word: &str| match word.trim().parse::<usize>() {
        Ok(n) if (1..=MAX_HOSTS).contains(&n) => Ok(n),
        _ => Err(format!("\"{word}\" is not a number of hosts from 1 to {MAX_HOSTS}")),
    };
    let mut numbers = Vec::new();
    let mut total = 0_usize;
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("\"{part}\" runs backwards, want {last}-{first}"));
        }
        for n in first..=last {
            total += n;
            if total > MAX_TOTAL {
                return Err(format!("\"{text}\" asks for more than {MAX_TOTAL} hosts together"));
            }
            numbers.push(n);
        }
    }
    Ok(numbers)
}

fn write_csv(numbers: &[usize], out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "nnodes,node,s0,d0_0,d0_1,type0,s1,d1_0,d1_1,type1")?;
    let none = |place: Option<usize>| place.map_or(-1, |host| host as i64);
    for &n_hosts in numbers {
        let [first, second] = Tree::pair(n_hosts);
        for (host, places) in first.places.iter().zip(&second.places).enumerate() {
            write!(out, "{n_hosts},{host}")?;
            for place in [places.0, places.1] {
                let [left, right] = place.children.map(none);
                write!(out, ",{},{left},{right},{}", none(place.parent), none(place.slot))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn as_json(n_hosts: usize) -> serde_json::Value {
    let tree = |tree: &Tree| {
        json!({
            "root": tree.root(),
            "depth": tree.depth(),
            "inner": tree.inner(),
            "parent": tree.places.iter().map(|place| place.parent).collect::<Vec<_>>(),
            "children": tree.places.iter().map(|place| place.children).collect::<Vec<_>>(),
        })
    };
    json!({
        "hosts": n_hosts,
        "construction": Construction::of(n_hosts).name(),
        "trees": Tree::pair(n_hosts).iter().map(tree).collect::<Vec<_>>(),
        "sharedInner": shared_inner(n_hosts),
    })
}

fn write_drawing(n_hosts: usize, out: &mut dyn Write) -> Result<(), Failure> {
    let construction = Construction::of(n_hosts);
    let how = match construction {
        Construction::Trivial => "one host is both trees".to_string(),
        Construction::Mirror => format!("second tree by mirror: host h becomes {} - h", n_hosts - 1),
        Construction::Shift => {
            format!("second tree by shift: host h becomes h + 1, {} becomes 0", n_hosts - 1)
        }
    };
    let hosts = if n_hosts == 1 { "host" } else { "hosts" };
    writeln!(out, "{n_hosts} {hosts}, construction {}: {how}", construction.name())?;
    let trees = Tree::pair(n_hosts);
    for (tree, (name, shift)) in trees.iter().zip([("first", 0), ("second", 1)]) {
        tree.check().map_err(Failure::Internal)?;
        let inner = tree.inner();
        writeln!(
            out,
            "\n{name} tree: root {}, depth {}, {} inner host{}{}",
            tree.root().unwrap_or(0),
            tree.depth(),
            inner.len(),
            if inner.len() == 1 { "" } else { "s" },
            if inner.is_empty() { String::new() } else { format!(" ({})", ranges(&inner)) },
        )?;
        if n_hosts <= DRAWN_HOSTS {
            let shifted = construction == Construction::Shift && shift == 1;
            let column = |host: usize| if shifted { (host + n_hosts - 1) % n_hosts } else { host };
            for row in draw(tree, &column) {
                writeln!(out, "  {row}")?;
            }
        } else {
            for (level, hosts) in levels(tree) {
                writeln!(out, "  level {level}: {}", ranges(&hosts))?;
            }
        }
    }
    writeln!(out, "\n{}", overlap(n_hosts))?;
    Ok(())
}

fn overlap(n_hosts: usize) -> String {
    match shared_inner(n_hosts)[..] {
        [] if n_hosts == 1 => "a single host is a leaf".to_string(),
        [] => "no host is inner in both trees".to_string(),
        [one] => format!("host {one} is inner in both trees"),
        ref several => format!("hosts {} are inner in both trees", ranges(several)),
    }
}

/// Rows of a drawing in which every host has its own column and a parent stands between its children.
fn draw(tree: &Tree, column: &dyn Fn(usize) -> usize) -> Vec<String> {
    let n_hosts = tree.places.len();
    let step = (n_hosts - 1).to_string().len().max(1) + 1;
    let mut rows = Vec::new();
    for (_, hosts) in levels(tree) {
        let mut row = vec![' '; n_hosts * step + 1];
        for host in hosts {
            let label = host.to_string();
            let at = column(host) * step;
            for child in tree.places[host].children.into_iter().flatten() {
                let end = column(child) * step;
                let (line, corner) = if end < at { (end + 1..at, '┌') } else { (at + 1..end, '┐') };
                row[line].fill('─');
                row[end] = corner;
            }
            for (cell, character) in row[at..].iter_mut().zip(label.chars()) {
                *cell = character;
            }
        }
        rows.push(row.into_iter().collect::<String>().trim_end().to_string());
    }
    rows
}

/// Hosts by their distance from the root.
fn levels(tree: &Tree) -> BTreeMap<usize, Vec<usize>> {
    let mut levels: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for host in 0..tree.places.len() {
        levels.entry(tree.level(host)).or_default().push(host);
    }
    levels
}

/// Ascending numbers as `0-6 by 2` or `1 3 4`, at most a line's worth.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    if let [first, second, .., last] = *numbers {
        let step = second - first;
        if numbers.len() > 8 && numbers.windows(2).all(|pair| pair[1] - pair[0] == step) {
            return if step == 1 { format!("{first}-{last}") } else { format!("{first}-{last} by {step}") };
        }
    }
    let shown: Vec<String> = numbers.iter().take(24).map(ToString::to_string).collect();
    let dots =
        if numbers.len() > 24 { format!(" … {}", numbers[numbers.len() - 1]) } else { String::new() };
    shown.join(" ") + &dots
}

fn write_table(numbers: &[usize], out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "                        first tree            second tree")?;
    writeln!(out, "   hosts  construction   root  depth  inner    root  depth  inner  inner in both")?;
    let mut by_overlap: BTreeMap<(bool, String), Vec<usize>> = BTreeMap::new();
    for &n_hosts in numbers {
        let trees = Tree::pair(n_hosts);
        write!(out, "{n_hosts:8}  {:12}", Construction::of(n_hosts).name())?;
        for (tree, gap) in trees.iter().zip(["  ", "   "]) {
            tree.check().map_err(Failure::Internal)?;
            let root = tree.root().unwrap_or(0);
            write!(out, "{gap}{root:5}  {:5}  {:5}", tree.depth(), tree.inner().len())?;
        }
        let shared = shared_inner(n_hosts);
        let shared = if shared.is_empty() { "none".to_string() } else { ranges(&shared) };
        writeln!(out, "  {shared}")?;
        if n_hosts > 1 {
            by_overlap.entry((n_hosts % 2 == 1, shared)).or_default().push(n_hosts);
        }
    }
    writeln!(out)?;
    for ((odd, shared), hosts) in by_overlap {
        let which =
            if shared == "none" { "no inner host".to_string() } else { format!("inner host {shared}") };
        writeln!(
            out,
            "{} numbers of hosts ({}): both trees share {which}",
            if odd { "odd" } else { "even" },
            ranges(&hosts)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(n_hosts: usize) -> String {
        let mut out = Vec::new();
        write_drawing(n_hosts, &mut out).expect("draws");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn eight_hosts_are_drawn_whole() {
        let expected = "\
8 hosts, construction mirror: second tree by mirror: host h becomes 7 - h

first tree: root 0, depth 3, 4 inner hosts (0 2 4 6)
  0───────┐
      ┌───4───┐
    ┌─2─┐   ┌─6─┐
    1   3   5   7

second tree: root 7, depth 3, 4 inner hosts (1 3 5 7)
        ┌───────7
    ┌───3───┐
  ┌─1─┐   ┌─5─┐
  0   2   4   6

no host is inner in both trees
";
        assert_eq!(drawn(8), expected);
    }

    #[test]
    fn five_hosts_share_host_zero() {
        assert!(drawn(5).ends_with("host 0 is inner in both trees\n"));
        assert!(drawn(5).contains("  1───────┐\n      ┌───0\n    ┌─3─┐\n    2   4\n"), "{}", drawn(5));
    }

    #[test]
    fn number_lists_are_read_and_mistakes_named() {
        assert_eq!(parse_numbers("1-3,8"), Ok(vec![1, 2, 3, 8]));
        for (text, part) in
            [("0", "from 1"), ("4-2", "want 2-4"), ("x", "\"x\""), ("", "\"\""), ("1-1048576", "together")]
        {
            assert!(parse_numbers(text).expect_err(text).contains(part), "{text}");
        }
    }
}
