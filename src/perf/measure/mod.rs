//! Measuring: what one thread does with its ranks, from the warm-up to the finished row.
//!
//! Every thread of every process runs [`Bench::run`] and meets the others in its [`Crew`]; thread 0 of process 0 also holds the
//! report. [`timing`] is the timed loop, [`check`] fills and verifies.

mod check;
mod timing;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use analysis::record::Placement;
use analysis::record::tuned::side_of_cycle;

use crate::engine::types::{Collective, DataType, RedOp};
use crate::perf::backend::{Call, Lane, Library, Side};
use crate::perf::bandwidth::Bandwidth;
use crate::perf::cli::config::{Average, SweepConfig};
use crate::perf::crew::Crew;
use crate::perf::exit::Result;
use crate::perf::report::Report;
use crate::perf::report::row::{Cell, PerIteration, Ran, Row};
use crate::perf::sweep::{Forcing, Op, Shape, Sizes};
use crate::watch::{self, Activity, ActivityGuard, Phase};
use timing::Timed;

/// Time one placement of a row may take when `-n` was not given.
const ROW_LIMIT_S: f64 = 5.0;
/// Iterations that are timed even when they take longer.
const LEAST_ITERATIONS: u32 = 3;

/// A rank of this thread.
#[derive(Debug)]
pub struct Seat {
    /// Rank in its group.
    pub rank: usize,
    /// Its buffers and stream.
    pub lane: Box<dyn Lane>,
}

/// The part of the plan that does not change while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The command line's plan.
    pub config: &'a SweepConfig,
    /// Sizes after the memory cap.
    pub sizes: Sizes,
    /// Bytes of buffer that consecutive calls walk through.
    pub span: u64,
    /// Tables to measure.
    pub tables: &'a [Forcing],
    /// Ranks of the group.
    pub n_ranks: usize,
    /// The library.
    pub library: &'a dyn Library,
    /// The other threads and processes.
    pub crew: &'a Crew,
    /// The report, where rank 0 is.
    pub report: Option<&'a Mutex<Report>>,
}

/// One thread's work.
#[derive(Debug)]
pub struct Bench<'a> {
    setting: Setting<'a>,
    thread: usize,
    seats: Vec<Seat>,
    rep: u64,
}

/// What a row measures.
#[derive(Clone, Copy, Debug)]
struct Task {
    dtype: DataType,
    op: Option<Op>,
    shape: Shape,
    cycle: u32,
}

/// One placement of a task as calls.
#[derive(Clone, Copy, Debug)]
struct Job {
    collective: Collective,
    dtype: DataType,
    op: Option<Op>,
    shape: Shape,
    placement: Placement,
    /// Bytes both buffers are shifted by.
    shift: u64,
    /// Bytes between the buffers of consecutive calls.
    block: u64,
    /// Blocks in the span.
    n_blocks: u64,
}

impl Job {
    /// Call number `k` of a rank: consecutive calls walk through the buffers, so that caches do not flatter.
    fn call(&self, rank: usize, k: u64) -> Call {
        let start = self.shift + k % self.n_blocks * self.block;
        let send = match self.placement {
            Placement::OutOfPlace => (Side::Send, start),
            Placement::InPlace => (Side::Recv, start + self.own_part(rank)),
        };
        Call {
            collective: self.collective,
            dtype: self.dtype,
            op: self.op_of(rank),
            send,
            recv: start,
            count: self.shape.count,
        }
    }

    /// Where a rank's own input lies in a receive buffer, bytes.
    fn own_part(&self, rank: usize) -> u64 {
        rank as u64 * self.shape.stride * self.dtype.size() as u64
    }

    fn op_of(&self, rank: usize) -> RedOp {
        self.op.map_or(RedOp::Sum, |op| op.of_rank(rank))
    }
}

/// Bytes both buffers of a rank need: the span or the largest size, and room for the shift (eight bytes an element, as
/// nccl-tests has it) and for the guard zone behind the largest result.
pub fn buffer_bytes(max: u64, span: u64, unalign: u64) -> u64 {
    max.max(span) + 8 * unalign + check::GUARD_BYTES
}

impl<'a> Bench<'a> {
    /// The work of `thread` with its ranks.
    pub fn new(setting: Setting<'a>, thread: usize, seats: Vec<Seat>) -> Self {
        Self { setting, thread, seats, rep: 0 }
    }

    /// All tables, types and operators.
    pub fn run(&mut self) -> Result<()> {
        if self.setting.config.alternate {
            return self.alternation();
        }
        for table in self.setting.tables {
            self.force(*table)?;
            if let Some(mut report) = self.report() {
                let title = format!("Forced: {table}");
                report.table((!table.is_automatic()).then_some(title.as_str()));
            }
            if !self.goes_on()? {
                return Ok(());
            }
            let config = self.setting.config;
            for &dtype in &config.dtypes {
                for &op in &config.ops {
                    if !self.sweep(dtype, op)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Two tables that take turns, cycle by cycle; [`side_of_cycle`] says which a cycle belongs to.
    fn alternation(&mut self) -> Result<()> {
        let (config, tables) = (self.setting.config, self.setting.tables);
        for (&dtype, &op) in config.dtypes.iter().flat_map(|d| config.ops.iter().map(move |op| (d, op))) {
            for table in tables {
                self.force(*table)?;
                self.warm_up(dtype, op)?;
            }
            let mut cycle = 0;
            loop {
                let table = tables[side_of_cycle(cycle)];
                self.force(table)?;
                if let Some(mut report) = self.report() {
                    let title =
                        if table.is_automatic() { "Automatic".into() } else { format!("Forced: {table}") };
                    report.table(Some(&title));
                }
                if !self.cycle(dtype, op, cycle)? {
                    return Ok(());
                }
                cycle += 1;
                if cycle == 2 * config.cycles {
                    break;
                }
            }
        }
        Ok(())
    }

    fn report(&self) -> Option<MutexGuard<'a, Report>> {
        let report = self.setting.report.filter(|_| self.thread == 0)?;
        Some(report.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn barrier(&self) -> Result<()> {
        let _activity = self.enter(Phase::Barrier, 0);
        self.setting.crew.barrier(self.thread)
    }

    /// Tells the watch what this process does; its first thread speaks for it.
    fn enter(&self, phase: Phase, bytes: u64) -> Option<ActivityGuard> {
        let collective = Some(self.setting.config.collective);
        (self.thread == 0).then(|| watch::enter(Activity { phase, collective, bytes }))
    }

    /// Every rank of the process is fixed by its first thread, with nothing in flight anywhere.
    fn force(&self, table: Forcing) -> Result<()> {
        self.barrier()?;
        if self.thread == 0
            && let Some(steering) = self.setting.library.steering()
        {
            steering.force(table);
        }
        self.barrier()
    }

    /// One type and operator: warm-up, then all cycles. False when nobody reads the table any more.
    fn sweep(&mut self, dtype: DataType, op: Option<Op>) -> Result<bool> {
        self.barrier()?;
        self.warm_up(dtype, op)?;
        let mut cycle = 0;
        loop {
            if !self.cycle(dtype, op, cycle)? {
                return Ok(false);
            }
            cycle += 1;
            if cycle == self.setting.config.cycles {
                return Ok(true);
            }
        }
    }

    /// Every size once. False when nobody reads the table any more.
    fn cycle(&mut self, dtype: DataType, op: Option<Op>, cycle: u32) -> Result<bool> {
        for size in self.setting.sizes.iter(dtype) {
            let shape = self.shape(size, dtype);
            if !self.row(Task { dtype, op, shape, cycle })? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn shape(&self, size: u64, dtype: DataType) -> Shape {
        Shape::of(self.setting.config.collective, size, dtype, self.setting.n_ranks)
    }

    fn warm_up(&mut self, dtype: DataType, op: Option<Op>) -> Result<()> {
        for size in self.setting.sizes.warm_up(dtype) {
            let task = Task { dtype, op, shape: self.shape(size, dtype), cycle: 0 };
            let job = self.job(&task, Placement::OutOfPlace);
            let _activity = self.enter(Phase::Warmup, job.block);
            for k in 0..self.setting.config.warmup {
                self.issue(&job, u64::from(k))?;
            }
            self.wait()?;
        }
        Ok(())
    }

    fn job(&self, task: &Task, placement: Placement) -> Job {
        let element = task.dtype.size() as u64;
        let block = task.shape.bytes(task.dtype);
        Job {
            collective: self.setting.config.collective,
            dtype: task.dtype,
            op: task.op,
            shape: task.shape,
            placement,
            shift: self.setting.config.unalign * element,
            block,
            n_blocks: self.setting.span.checked_div(block).unwrap_or(1).max(1),
        }
    }

    /// Both placements of a size. False when nobody reads the table any more.
    fn row(&mut self, task: Task) -> Result<bool> {
        let bytes = task.shape.bytes(task.dtype);
        if let Some(report) = self.report() {
            report.measuring(format!("{} {}", crate::units::Bytes(bytes), task.dtype));
        }
        let ran = self.ran(&task)?;
        let (out_of_place, failed_out) = self.placement(&task, Placement::OutOfPlace, None)?;
        let (in_place, failed_in) =
            self.placement(&task, Placement::InPlace, Some(out_of_place.iterations))?;
        if let Some(mut report) = self.report() {
            let row = Row {
                bytes,
                count: task.shape.count,
                dtype: task.dtype,
                redop: task.op.map_or("none", Op::name),
                root: -1,
                out_of_place,
                in_place,
                cycle: task.cycle,
                ran,
            };
            report.row(&row, failed_out + failed_in);
        }
        self.goes_on()
    }

    /// Whether somebody still reads the table, agreed by all.
    fn goes_on(&self) -> Result<bool> {
        let is_read = self.report().is_none_or(|report| !report.pipe_closed());
        Ok(self.setting.crew.combine(self.thread, f64::from(u8::from(is_read)), Average::Min)? > 0.0)
    }

    /// What the library runs for this task, in the words of records.
    fn ran(&self, task: &Task) -> Result<Ran> {
        let Some(steering) = self.setting.library.steering() else {
            return Ok(Ran::of(&Forcing::default()));
        };
        let op = task.op.map_or(RedOp::Sum, |op| op.of_rank(0));
        let request = (self.setting.config.collective, task.dtype, op);
        let choice = steering.choice(request, task.shape.count)?;
        Ok(Ran::of(&choice))
    }

    /// One measurement: fill, one untimed call, the timed loop, the check. Gives the cell and how many checks failed.
    fn placement(
        &mut self,
        task: &Task,
        placement: Placement,
        iterations: Option<u32>,
    ) -> Result<(Cell, u64)> {
        let config = self.setting.config;
        let job = self.job(task, placement);
        if config.check > 0 {
            let _activity = self.enter(Phase::Checking, job.block);
            self.rep += 1;
            self.fill(&job)?;
        }
        let timing = self.enter(Phase::Timing, job.block);
        let start = Instant::now();
        self.issue(&job, 0)?;
        self.wait()?;
        let once_s = start.elapsed().as_secs_f64();
        let iterations = match iterations {
            Some(iterations) => iterations,
            None => self.iterations(once_s)?,
        };
        self.barrier()?;
        let timed = self.time(&job, iterations)?;
        let mut cell = self.cell(task, &timed, iterations)?;
        drop(timing);
        self.barrier()?;
        let mut failed = 0;
        if config.check > 0 {
            let _activity = self.enter(Phase::Checking, job.block);
            let verdict = self.check(&job)?;
            cell.wrong = Some(verdict.wrong);
            failed = verdict.failed_checks;
        }
        Ok((cell, failed))
    }

    /// Iterations of this row, the same everywhere: as asked for, or as many as fit.
    fn iterations(&self, once_s: f64) -> Result<u32> {
        let config = self.setting.config;
        if !config.iterations.shrinks {
            return Ok(config.iterations.count);
        }
        let slowest = self.setting.crew.combine(self.thread, once_s, Average::Max)?;
        let calls = f64::from(config.aggregated) * f64::from(config.graph_launches.max(1));
        Ok(fitting(config.iterations.count, slowest * calls))
    }

    /// Combines what all threads measured.
    fn cell(&self, task: &Task, timed: &Timed, iterations: u32) -> Result<Cell> {
        let config = self.setting.config;
        let crew = self.setting.crew;
        let time_us = crew.combine(self.thread, timed.elapsed_us, config.average)?;
        let per_iteration = if config.per_iteration {
            let all = crew.exchange(self.thread, timed.iterations_us.clone())?;
            Some(PerIteration::of(all.iter().map(|threads| slowest(threads)).collect(), config.skip))
        } else {
            None
        };
        let n_ranks = self.setting.n_ranks;
        Ok(Cell {
            time_us,
            cpu_time_us: timed.issue_us,
            bandwidth: Bandwidth::of(config.collective, &task.shape, task.dtype, n_ranks, time_us),
            wrong: None,
            iterations,
            per_iteration,
        })
    }
}

/// Iterations of `iteration_s` each that fit into the row's limit.
fn fitting(asked: u32, iteration_s: f64) -> u32 {
    let fit = (ROW_LIMIT_S / iteration_s.max(1e-9)) as u32;
    fit.clamp(LEAST_ITERATIONS.min(asked), asked)
}

/// Element by element the longest of several lists.
fn slowest(lists: &[Vec<f64>]) -> Vec<f64> {
    let n = lists.iter().map(Vec::len).min().unwrap_or(0);
    (0..n).map(|i| lists.iter().map(|list| list[i]).fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests;
