//! nccl-tests' standard output, to the byte. Functions return text; nothing here prints.

use crate::perf::cli::config::{Blocking, SweepConfig};
use crate::perf::report::fit::{fit, general, memory};
use crate::perf::report::row::{Cell, Row};
use crate::perf::{LIBRARY_CODE, NCCL_TESTS_VERSION};

/// Which optional columns a table has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// `-C`.
    pub cpu_time: bool,
    /// `-S`.
    pub timestamps: bool,
    /// `-I`.
    pub per_iteration: bool,
}

impl Style {
    /// The style a run asks for.
    pub fn of(config: &SweepConfig) -> Self {
        Self {
            cpu_time: config.report_cpu_time,
            timestamps: config.report_timestamps,
            per_iteration: config.per_iteration,
        }
    }
}

/// One rank's device line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Global rank.
    pub rank: usize,
    /// Split colour.
    pub group: u64,
    /// Process id.
    pub pid: u32,
    /// Host name up to its first dot.
    pub host: String,
    /// Index on its host.
    pub index: usize,
    /// Name for people.
    pub name: String,
}

/// PCI address shown for a device that has none.
pub const HOST_BUS_ID: &str = "0000:00:00";

/// The lines before the devices.
pub fn banner(config: &SweepConfig) -> String {
    let mut text = format!(
        "# nccl-tests version {NCCL_TESTS_VERSION} nccl-headers={LIBRARY_CODE} nccl-library={LIBRARY_CODE}\n\
         # Collective test starting: {}\n",
        config.program
    );
    text.push_str(&format!(
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {} warmup iters: {} iters: {} agg iters: {} \
         validation: {} graph: {} unalign: {}\n",
        config.n_threads,
        config.n_devices,
        config.sizes.min,
        config.sizes.max,
        config.sizes.step,
        config.warmup,
        config.iterations.count,
        config.aggregated,
        config.check,
        config.graph_launches,
        config.unalign
    ));
    text.push_str(match config.blocking {
        Blocking::None => "",
        Blocking::WaitAndBarrier => "# Blocking Enabled: wait and barrier after each inner iteration (-m) \n",
        Blocking::Wait => "# Blocking Enabled: wait after each inner iteration (-m), no barrier \n",
        Blocking::PerIteration => {
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier \n"
        }
    });
    if config.per_iteration {
        text.push_str("# Per-Iteration Report: CUDA event timing; i_* uses max over process rows");
        if config.skip > 0 {
            text.push_str(&format!("; summary skips first {} iterations", config.skip));
        }
        text.push_str(" \n");
    }
    if config.parallel_init {
        text.push_str("# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
    }
    text + "#\n# Using devices\n"
}

/// One device line.
pub fn device(d: &Device) -> String {
    format!(
        "#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{HOST_BUS_ID}] {}\n",
        d.rank, d.group, d.pid, d.host, d.index, d.name
    )
}

/// The two lines that tell of a lowered maximum.
pub fn memory_cap(max_bytes: u64) -> String {
    format!("#\n# Reducing maxBytes to {max_bytes} due to memory limitation\n")
}

const LEAD: [usize; 5] = [10, 12, 8, 6, 6];

/// The blank comment and the three header lines.
pub fn header(style: Style) -> String {
    let time = if style.cpu_time { "cputime" } else { "time" };
    let mut placement_widths = vec![7, 6, 6, 6];
    let mut words = vec![time, "algbw", "busbw", "#wrong"];
    let mut units = vec!["(us)", "(GB/s)", "(GB/s)", ""];
    if style.per_iteration {
        placement_widths.extend([7; 4]);
        words.extend(["i_min", "i_max", "i_p99", "i_cv%"]);
        units.extend(["(us)", "(us)", "(us)", "(%)"]);
    }
    let label = |text: &str| if style.timestamps { format!("{text:>19}") } else { String::new() };
    let line = |lead: [&str; 5], cells: &[&str], last: &str| {
        let widths = LEAD.iter().chain(&placement_widths).chain(&placement_widths);
        let texts = lead.iter().chain(cells).chain(cells);
        let fields: Vec<String> = widths.zip(texts).map(|(width, text)| format!("{text:>width$}")).collect();
        format!("# {} {}\n", fields.join("  "), label(last))
    };
    let blanks: Vec<String> = LEAD.iter().map(|width| " ".repeat(*width)).collect();
    let blanks = blanks.join("  ");
    let first = if style.per_iteration {
        format!("# {blanks}{:14}out-of-place (+ per-iteration){:32}in-place (+ per-iteration)\n", "", "")
    } else {
        format!("# {blanks}{:11}out-of-place{:23}in-place{:10}\n", "", "", "")
    };
    let second = line(["size", "count", "type", "redop", "root"], &words, "timestamp");
    let third = line(["(B)", "(elements)", "", "", ""], &units, "%Y-%m-%d %H:%M:%S");
    format!("#\n{first}{second}{third}")
}

/// One row; `timestamp` is shown with -S.
pub fn row(style: Style, row: &Row, timestamp: &str) -> String {
    let mut text = format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:6}",
        row.bytes,
        row.count,
        row.dtype.name(),
        row.redop,
        row.root
    );
    for cell in [&row.out_of_place, &row.in_place] {
        text.push_str(&placement(style, cell));
    }
    if style.timestamps {
        text.push_str(&format!("{timestamp:>21}"));
    }
    text + "\n"
}

fn placement(style: Style, cell: &Cell) -> String {
    let time = if style.cpu_time { cell.cpu_time_us } else { cell.time_us };
    let mut text =
        format!("  {}  {}  {}", fit(time, 7), fit(cell.bandwidth.algorithm, 6), fit(cell.bandwidth.bus, 6));
    // The unchecked piece is one character shorter than the checked one; parsers by column have met it for years.
    text.push_str(&match cell.wrong {
        Some(wrong) => format!("  {:>6}", general(wrong as f64)),
        None => "    N/A".into(),
    });
    if style.per_iteration {
        let s = cell.per_iteration.as_ref().map(|p| p.summary).unwrap_or_default();
        for value in [s.min, s.max, s.p99, s.cv_percent] {
            text.push_str(&format!("  {}", fit(value, 7)));
        }
    }
    text
}

/// Maxima over processes, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLine {
    /// The engine's after set-up.
    pub initialization: i64,
    /// Buffers.
    pub user: i64,
    /// The engine's growth since.
    pub collective: i64,
    /// All of it.
    pub total: i64,
}

/// What the footer says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footer {
    /// Checks that found a wrong element.
    pub failed_checks: u64,
    /// Mean bus bandwidth; NaN without rows.
    pub average_busbw: f64,
    /// Whether it reached NCCL_TESTS_MIN_BW, when that is set.
    pub fast_enough: Option<bool>,
    /// With -M.
    pub memory: Option<MemoryLine>,
}

/// The lines after the rows, all but the last.
pub fn footer(program: &str, f: &Footer) -> String {
    let verdict = |good: bool| if good { "OK" } else { "FAILED" };
    let mut text =
        format!("# {:<20} : {} {}\n", "Out of bounds values", f.failed_checks, verdict(f.failed_checks == 0));
    let speed = f.fast_enough.map_or("", verdict);
    text.push_str(&format!("# {:<20} : {} {speed}\n", "Avg bus bandwidth", general(f.average_busbw)));
    text.push_str(&format!("#\n# Collective test concluded: {program}\n"));
    if let Some(m) = f.memory {
        text.push_str(&format!(
            "# {:<20} : Initialization {} | User-Allocated {} | Collective {} | Total  {}\n",
            "GPU memory usage",
            memory(m.initialization),
            memory(m.user),
            memory(m.collective),
            memory(m.total)
        ));
    }
    text + "#\n"
}

/// The very last line: blank, or the library's last error.
pub fn last_line(error: &str) -> String {
    if error.is_empty() { "\n".into() } else { format!("# error: {error}\n") }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
