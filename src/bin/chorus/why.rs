//! `chorus why`: why a call runs as it does. The cost of every combination, what is excluded and by which rule, the winner, its margin,
//! and the sizes at which the winner changes.

use std::io::Write;
use std::path::PathBuf;

use chorus::engine::tuning::filter::{ALGORITHM_NAMES, PROTOCOL_NAMES};
use chorus::engine::tuning::model::algorithms;
use chorus::engine::tuning::tuner::Rules;
use chorus::engine::tuning::{Model, Request};
use chorus::engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};
use chorus::units::Bytes;

use crate::Failure;
use crate::machine::{MAX_HOSTS, Machine, Options, read_rules};

/// Sizes searched for crossovers.
const FROM_BYTES: u64 = 8;
const TO_BYTES: u64 = 8 << 30;
/// Sizes looked at between one power of two and the next before bisecting.
const STEPS: u64 = 16;

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  chorus why dgx.xml --nodes 2 --collective all_reduce --bytes 1M
  chorus why dgx.xml --nodes 16 --collective all_gather --bytes 64K --env NCCL_PROTO=^LL128
  chorus why dgx.xml --nodes 4 --collective all_reduce --bytes 256K --tuner nccl_tuner.conf")]
pub(crate) struct Args {
    /// Topology file (NCCL's XML)
    file: PathBuf,
    /// Number of equal hosts
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_HOSTS as i64))]
    nodes: u32,
    /// all_reduce, all_gather, reduce_scatter, broadcast or reduce
    #[arg(long, value_parser = parse_collective)]
    collective: Collective,
    /// Bytes of the larger buffer (all blocks together for all_gather and reduce_scatter); K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: u64,
    /// Element type
    #[arg(long, default_value = "float", value_parser = parse_dtype)]
    dtype: DataType,
    /// sum, prod, min, max, avg or mulsum
    #[arg(long, default_value = "sum", value_parser = parse_op)]
    op: RedOp,
    /// Tuner file (NCCL's CSV) whose rules apply; NCCL_TUNER_CONFIG_FILE given through --env does the same
    #[arg(long, value_name = "FILE")]
    tuner: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

fn parse_collective(text: &str) -> Result<Collective, String> {
    let plain = |word: &str| word.replace(['_', '-'], "").to_ascii_lowercase();
    let found = Collective::ALL.iter().copied().find(|collective| plain(collective.name()) == plain(text));
    found.ok_or_else(|| format!("want one of {}", names(Collective::ALL.iter().map(|c| c.name()))))
}

fn parse_dtype(text: &str) -> Result<DataType, String> {
    DataType::from_name(text)
        .ok_or_else(|| format!("want one of {}", names(DataType::ALL.iter().map(|d| d.name()))))
}

fn parse_op(text: &str) -> Result<RedOp, String> {
    let ops = [RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg, RedOp::PreMulSum(1.0)];
    let found = ops.into_iter().find(|op| op.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("want one of {}", names(ops.iter().map(|op| op.name()))))
}

fn names<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// Reads `8`, `64K`, `1M`, `2G`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix('B').unwrap_or(&upper);
    let (digits, shift) = match upper.as_bytes().last() {
        Some(b'K') => (&upper[..upper.len() - 1], 10),
        Some(b'M') => (&upper[..upper.len() - 1], 20),
        Some(b'G') => (&upper[..upper.len() - 1], 30),
        _ => (upper, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "want a size such as 8, 64K, 1M or 2G".to_string())?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "want a size from 1 to 2^64-1 bytes".to_string())
}

/// Runs the verb.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let machine = Machine::open(&args.file, &args.options)?;
    let joined = machine.joined(args.nodes as usize)?;
    let model = &joined.model;
    let given = args.tuner.as_deref().map(read_rules).transpose()?;
    let rules = given.as_ref().or(machine.rules.as_ref());
    let base = Request { dtype: args.dtype, op: args.op, ..Request::plain(args.collective, args.bytes) };
    let reduces = !matches!(args.collective, Collective::AllGather | Collective::Broadcast);
    let what = if reduces { format!(" ({}, {})", args.dtype, args.op.name()) } else { String::new() };
    writeln!(
        out,
        "{}: {} of {}{what} on {} rank{}, {} host{}, {} channels\n",
        machine.name,
        args.collective,
        Bytes(args.bytes),
        model.facts.n_ranks,
        if model.facts.n_ranks == 1 { "" } else { "s" },
        model.facts.n_hosts,
        if model.facts.n_hosts == 1 { "" } else { "s" },
        model.facts.n_channels,
    )?;
    write_costs(model, &base, out)?;
    write_excluded(model, &base, out)?;
    write_winner(model, &base, rules, out)?;
    write_crossovers(model, &base, rules, out)?;
    Ok(0)
}

fn kernel(algorithm: Algorithm, protocol: Protocol) -> String {
    let name = ALGORITHM_NAMES.get(algorithm as usize).unwrap_or(&"");
    format!("{name}/{}", PROTOCOL_NAMES[protocol as usize])
}

/// Every combination that may run, cheapest first.
fn write_costs(model: &Model, request: &Request, out: &mut dyn Write) -> Result<(), Failure> {
    let table = model.cost_table(request);
    let mut rows: Vec<(f32, Algorithm, Protocol)> = Vec::new();
    for algorithm in algorithms() {
        for &protocol in Protocol::ALL {
            let time = table[algorithm as usize][protocol as usize];
            if time >= 0.0 {
                rows.push((time, algorithm, protocol));
            }
        }
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let least = rows.first().map_or(0.0, |row| row.0);
    writeln!(
        out,
        "{:<22}{:>12}{:>12}{:>12}{:>12}{:>10}{:>9}",
        "combination", "time us", "latency us", "GB/s", "x winner", "channels", "threads"
    )?;
    for (time, algorithm, protocol) in rows {
        let (c, a, p) = (request.collective as usize, algorithm as usize, protocol as usize);
        let (n_channels, n_threads) = model.channels_and_threads(algorithm, protocol, request.bytes);
        writeln!(
            out,
            "{:<22}{time:>12.2}{:>12.2}{:>12.2}{:>12.2}{n_channels:>10}{n_threads:>9}",
            kernel(algorithm, protocol),
            model.latencies[c][a][p],
            model.bandwidths[c][a][p],
            if least > 0.0 { time / least } else { 1.0 },
        )?;
    }
    Ok(())
}

fn write_excluded(model: &Model, request: &Request, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "\nexcluded")?;
    for algorithm in algorithms() {
        let reason = |&protocol: &Protocol| (protocol, model.exclusion(algorithm, protocol, request));
        let mut protocols = Protocol::ALL.iter().map(reason).peekable();
        while let Some((protocol, reason)) = protocols.next() {
            let Some(reason) = reason else { continue };
            let mut named = PROTOCOL_NAMES[protocol as usize].to_string();
            // Protocols that fall to the same rule share a line.
            while let Some((next, _)) = protocols.next_if(|(_, other)| *other == Some(reason)) {
                named = format!("{named},{}", PROTOCOL_NAMES[next as usize]);
            }
            let name = format!("{}/{named}", ALGORITHM_NAMES[algorithm as usize]);
            writeln!(out, "  {name:<30} {reason}")?;
        }
    }
    Ok(())
}

fn write_winner(
    model: &Model,
    request: &Request,
    rules: Option<&Rules>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let choice = match model.choose(request, rules) {
        Ok(choice) => choice,
        Err(nothing) => {
            writeln!(out, "\nwinner: none; {nothing}")?;
            return Ok(());
        }
    };
    writeln!(
        out,
        "\nwinner: {} with {} channel{} of {} threads",
        kernel(choice.algorithm, choice.protocol),
        choice.n_channels,
        if choice.n_channels == 1 { "" } else { "s" },
        choice.n_threads,
    )?;
    let table = model.cost_table(request);
    let own = table[choice.algorithm as usize][choice.protocol as usize];
    if rules.is_some() && choice.time_us == 0.0 && own > 0.0 {
        writeln!(out, "  set by the tuner file; the model gives it {own:.2} us")?;
    }
    let others = algorithms()
        .flat_map(|algorithm| Protocol::ALL.iter().map(move |&protocol| (algorithm, protocol)))
        .filter(|&(algorithm, protocol)| (algorithm, protocol) != (choice.algorithm, choice.protocol))
        .map(|(algorithm, protocol)| (table[algorithm as usize][protocol as usize], algorithm, protocol))
        .filter(|(time, ..)| *time >= 0.0);
    match others.min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((time, algorithm, protocol)) => {
            let margin = 100.0 * (time - own) / own;
            writeln!(out, "  next: {} at {time:.2} us, {margin:+.1} %", kernel(algorithm, protocol))?;
        }
        None => writeln!(out, "  nothing else may run")?,
    }
    Ok(())
}

/// What a call of that size runs.
fn winner(model: &Model, base: &Request, rules: Option<&Rules>, bytes: u64) -> Option<(Algorithm, Protocol)> {
    let choice = model.choose(&Request { bytes, ..*base }, rules).ok()?;
    Some((choice.algorithm, choice.protocol))
}

/// Sizes from which another combination wins, with that combination: the first entry is the smallest size.
fn crossovers(
    model: &Model,
    base: &Request,
    rules: Option<&Rules>,
) -> Vec<(u64, Option<(Algorithm, Protocol)>)> {
    let wins = |bytes| winner(model, base, rules, bytes);
    let mut found = vec![(FROM_BYTES, wins(FROM_BYTES))];
    let mut octave = FROM_BYTES;
    let mut last = FROM_BYTES;
    while octave < TO_BYTES {
        for step in 1..=STEPS {
            let next = octave + octave * step / STEPS;
            if next <= last {
                continue;
            }
            let (mut low, mut current) = (last, wins(last));
            // More than one change may hide between two sizes: find the first, then look again behind it.
            while wins(next) != current {
                let mut high = next;
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if wins(middle) == current { low = middle } else { high = middle }
                }
                current = wins(high);
                found.push((high, current));
                low = high;
            }
            last = next;
        }
        octave *= 2;
    }
    found
}

fn write_crossovers(
    model: &Model,
    base: &Request,
    rules: Option<&Rules>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(out, "\npredicted winner by size, {} to {}", Bytes(FROM_BYTES), Bytes(TO_BYTES))?;
    for (bytes, who) in crossovers(model, base, rules) {
        let who = who.map_or_else(
            || "nothing may run".to_string(),
            |(algorithm, protocol)| kernel(algorithm, protocol),
        );
        let rounded = Bytes(bytes).to_string();
        let exact = if rounded.ends_with(" B") { String::new() } else { format!(" ({bytes} B)") };
        writeln!(out, "  from {:>14}{exact:<14} {who}", rounded)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1MB"), Ok(1 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        for text in ["", "0", "K", "1T", "-1", "99999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn collectives_are_known_with_and_without_underscore() {
        assert_eq!(parse_collective("allreduce"), Ok(Collective::AllReduce));
        assert_eq!(parse_collective("Reduce_Scatter"), Ok(Collective::ReduceScatter));
        assert!(parse_collective("alltoall").is_err());
    }
}
