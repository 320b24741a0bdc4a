//! `--plan`: what would run and the memory it needs, without running it.

use crate::engine::error::Result;
use crate::engine::types::{Collective, RedOp};
use crate::perf::backend::{Library, Steering};
use crate::perf::cli::config::SweepConfig;
use crate::perf::job::Capped;
use crate::perf::measure::buffer_bytes;
use crate::perf::report::row::Ran;
use crate::perf::sweep::{Forcing, Op, Shape};
use crate::units::Bytes;

/// The job in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Ranks of the group.
    pub n_ranks: usize,
    /// Ranks on this host.
    pub ranks_on_host: usize,
}

/// The text of a plan.
pub fn describe(
    config: &SweepConfig,
    library: &dyn Library,
    capped: &Capped,
    extent: Extent,
    tables: &[Forcing],
) -> Result<String> {
    let Extent { n_ranks, ranks_on_host } = extent;
    let mut text =
        format!("# Plan: {} over {n_ranks} ranks, {ranks_on_host} of them on this host\n", config.collective);
    let buffer = buffer_bytes(capped.sizes.max, capped.span, config.unalign);
    let engine = library.memory().library;
    let per_rank = 2 * buffer + engine;
    text.push_str(&format!(
        "# Memory: {} a rank (two buffers of {}, library {} now), {} on this host\n",
        rounded(per_rank),
        rounded(buffer),
        rounded(engine),
        rounded(per_rank * ranks_on_host as u64)
    ));
    let Some(steering) = library.steering() else {
        return Ok(text + "# The library chooses by itself\n");
    };
    text.push_str(&format!(
        "#\n# {:>12}  {:>12}  {:>8}  {:>6}  {:>13}  {:>8}  {:>8}\n",
        "size", "count", "type", "redop", "algorithm", "protocol", "channels"
    ));
    for &table in tables {
        steering.force(table);
        for &dtype in &config.dtypes {
            for &op in &config.ops {
                for size in capped.sizes.iter(dtype) {
                    let shape = Shape::of(config.collective, size, dtype, n_ranks);
                    let request = (config.collective, dtype, op.map_or(RedOp::Sum, |op| op.of_rank(0)));
                    let choice = steering.choice(request, shape.count)?;
                    text.push_str(&format!(
                        "# {:12}  {:12}  {:>8}  {:>6}  {}\n",
                        shape.bytes(dtype),
                        shape.count,
                        dtype.name(),
                        op.map_or("none", Op::name),
                        columns(&choice)
                    ));
                }
            }
        }
    }
    Ok(text)
}

fn columns(choice: &Forcing) -> String {
    let ran = Ran::of(choice);
    format!("{:>13}  {:>8}  {:>8}", ran.algorithm, ran.protocol, ran.n_channels)
}

/// To whole MiB above one, so that the line stays readable.
fn rounded(bytes: u64) -> Bytes {
    const MIB: u64 = 1 << 20;
    if bytes > MIB { Bytes(bytes.div_ceil(MIB) * MIB) } else { Bytes(bytes) }
}

/// The tables whose combination exists for every size of the sweep.
///
/// # Errors
/// When none does: the library's list of those that do.
pub fn existing(
    config: &SweepConfig,
    steering: &dyn Steering,
    capped: &Capped,
    n_ranks: usize,
) -> Result<Vec<Forcing>> {
    let mut tables = Vec::new();
    let mut refusal = None;
    for &table in &config.forced {
        steering.force(table);
        let tried = ends(config, capped, n_ranks)
            .into_iter()
            .try_for_each(|(request, count)| steering.choice(request, count).map(drop));
        match tried {
            Ok(()) => tables.push(table),
            Err(error @ crate::engine::error::Error::NoSuchCombination(_)) => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    steering.force(Forcing::default());
    match refusal {
        // Half of an alternation is none.
        Some(error) if tables.is_empty() || config.alternate => Err(error),
        _ => Ok(tables),
    }
}

type Request = (Collective, crate::engine::types::DataType, RedOp);

/// The smallest and the largest call of each type and operator.
fn ends(config: &SweepConfig, capped: &Capped, n_ranks: usize) -> Vec<(Request, u64)> {
    let mut calls = Vec::new();
    for &dtype in &config.dtypes {
        for &op in &config.ops {
            for size in [capped.sizes.min, capped.sizes.max] {
                let count = Shape::of(config.collective, size, dtype, n_ranks).count;
                let op = op.map_or(RedOp::Sum, |op| op.of_rank(0));
                calls.push(((config.collective, dtype, op), count.max(1)));
            }
        }
    }
    calls
}
