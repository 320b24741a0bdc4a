//! The timed loop, in its four ways of waiting, and its replay as a captured plan.

use std::time::{Duration, Instant};

use super::{Bench, Job};
use crate::fault;
use crate::perf::backend::Capture;
use crate::perf::cli::config::Blocking;
use crate::perf::exit::Result;

/// What one thread measured, per operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Timed {
    /// Until everything was done, microseconds.
    pub elapsed_us: f64,
    /// Until everything was issued, microseconds.
    pub issue_us: f64,
    /// Each iteration's, with `-I`: the slowest of this thread's ranks.
    pub iterations_us: Vec<f64>,
}

impl Bench<'_> {
    /// Hands call number `k` of every rank over.
    pub(super) fn issue(&mut self, job: &Job, k: u64) -> Result<()> {
        self.issue_together(job, k, 1)
    }

    /// Hands `n` consecutive calls of every rank over, in one group when there is more than one.
    fn issue_together(&mut self, job: &Job, first: u64, n: u64) -> Result<()> {
        let seats = &mut self.seats;
        let is_group = n > 1 || seats.len() > 1;
        let mut launch = || {
            for k in first..first + n {
                for seat in seats.iter_mut() {
                    seat.lane.launch(&job.call(seat.rank, k))?;
                }
            }
            Ok(())
        };
        if is_group {
            self.setting.library.group(&mut launch)?
        } else {
            launch()?
        }
        Ok(())
    }

    /// Returns when this thread's ranks have done everything.
    pub(super) fn wait(&mut self) -> Result<()> {
        for seat in &mut self.seats {
            seat.lane.wait()?;
        }
        Ok(())
    }

    /// `iterations` times the aggregated calls, timed.
    pub(super) fn time(&mut self, job: &Job, iterations: u32) -> Result<Timed> {
        if iterations == 0 {
            return Ok(Timed::default());
        }
        let config = self.setting.config;
        let calls = f64::from(iterations) * f64::from(config.aggregated);
        if config.graph_launches > 0 {
            return self.time_replays(job, iterations, calls);
        }
        let start = Instant::now();
        let within = self.loop_through(job, iterations)?;
        let issued = start.elapsed();
        self.wait()?;
        fault::delay(start);
        let elapsed = start.elapsed();
        let (issued, elapsed) = match within {
            Some(sum) => (sum, sum),
            None => (issued, elapsed),
        };
        Ok(Timed {
            elapsed_us: micros(elapsed) / calls,
            issue_us: micros(issued) / calls,
            iterations_us: if config.per_iteration { self.iteration_times() } else { Vec::new() },
        })
    }

    /// The loop itself. With barriers outside the measured time it gives the sum of what was measured.
    fn loop_through(&mut self, job: &Job, iterations: u32) -> Result<Option<Duration>> {
        let config = self.setting.config;
        let aggregated = u64::from(config.aggregated);
        let mut sum = Duration::ZERO;
        for iteration in 0..u64::from(iterations) {
            let first = iteration * aggregated;
            self.stamp()?;
            match config.blocking {
                Blocking::None => self.issue_together(job, first, aggregated)?,
                Blocking::PerIteration => {
                    let start = Instant::now();
                    self.issue_together(job, first, aggregated)?;
                    self.stamp()?;
                    self.wait()?;
                    sum += start.elapsed();
                    self.barrier()?;
                }
                // Waiting inside an open group would wait for calls not handed over yet, so each call goes by itself.
                Blocking::Wait | Blocking::WaitAndBarrier => {
                    for k in first..first + aggregated {
                        self.issue(job, k)?;
                        self.wait()?;
                        if config.blocking == Blocking::WaitAndBarrier {
                            self.barrier()?;
                        }
                    }
                }
            }
        }
        if config.blocking == Blocking::PerIteration {
            return Ok(Some(sum));
        }
        self.stamp()?;
        Ok(None)
    }

    /// The loop captured once and replayed; the capture is not timed.
    fn time_replays(&mut self, job: &Job, iterations: u32, calls: f64) -> Result<Timed> {
        let config = self.setting.config;
        let aggregated = u64::from(config.aggregated);
        self.capture(Capture::Begin)?;
        for iteration in 0..u64::from(iterations) {
            self.issue_together(job, iteration * aggregated, aggregated)?;
        }
        self.capture(Capture::End)?;
        self.barrier()?;
        let start = Instant::now();
        for _ in 0..config.graph_launches {
            self.capture(Capture::Replay)?;
            if matches!(config.blocking, Blocking::Wait | Blocking::WaitAndBarrier) {
                self.wait()?;
            }
            if config.blocking == Blocking::WaitAndBarrier {
                self.barrier()?;
            }
        }
        let issued = start.elapsed();
        self.wait()?;
        fault::delay(start);
        let elapsed = start.elapsed();
        let calls = calls * f64::from(config.graph_launches);
        Ok(Timed {
            elapsed_us: micros(elapsed) / calls,
            issue_us: micros(issued) / calls,
            iterations_us: Vec::new(),
        })
    }

    fn capture(&mut self, step: Capture) -> Result<()> {
        for seat in &mut self.seats {
            seat.lane.capture(step)?;
        }
        Ok(())
    }

    fn stamp(&mut self) -> Result<()> {
        if self.setting.config.per_iteration {
            for seat in &mut self.seats {
                seat.lane.stamp()?;
            }
        }
        Ok(())
    }

    /// Times of the single iterations from the stamps: pairs where barriers lie between, boundaries otherwise.
    fn iteration_times(&mut self) -> Vec<f64> {
        let config = self.setting.config;
        let step = if config.blocking == Blocking::PerIteration { 2 } else { 1 };
        let per_lane: Vec<Vec<f64>> = self
            .seats
            .iter_mut()
            .map(|seat| {
                let stamps = seat.lane.stamps();
                let differences = stamps.windows(2).step_by(step).map(|pair| pair[1] - pair[0]);
                differences.map(|us| us / f64::from(config.aggregated)).collect()
            })
            .collect();
        super::slowest(&per_lane)
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
