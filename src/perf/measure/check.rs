//! Filling buffers with data whose result is known, and comparing results, guard zones included.

use std::num::NonZero;

use analysis::record::Placement;

use super::{Bench, Job, Seat};
use crate::engine::types::Collective;
use crate::perf::backend::Side;
use crate::perf::exit::Result;
use crate::perf::verify::{Guard, Pattern, Verdict};
use crate::watch;

/// Bytes behind the result that must come back untouched.
pub(super) const GUARD_BYTES: u64 = 256;

/// Bytes handled between two signs of life.
const PIECE: usize = 1 << 20;

/// Work below this is not worth a thread.
const WORTH_A_THREAD: u64 = 256 << 10;

/// What the checks of one placement found, over the whole job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Wrong elements of the last round.
    pub wrong: u64,
    /// Checks of single threads that found one.
    pub failed_checks: u64,
}

impl Bench<'_> {
    /// Writes this measurement's input where the calls will read it.
    pub(super) fn fill(&mut self, job: &Job) -> Result<()> {
        let pattern = self.pattern(job);
        self.for_all_seats(job, &|seat| fill_input(seat, job, &pattern));
        Ok(())
    }

    /// The check rounds: fill, one call at the start of the buffers, compare; new data each round, the first bad one ends them.
    pub(super) fn check(&mut self, job: &Job) -> Result<Found> {
        let mut found = Found::default();
        for round in 0..self.setting.config.check {
            if round > 0 {
                self.rep += 1;
            }
            let pattern = self.pattern(job);
            // The timed calls read their input and, out of place, left it as it was: using it again also shows if they did not.
            let refill = round > 0 || job.placement == Placement::InPlace;
            self.for_all_seats(job, &|seat| prepare(seat, job, &pattern, refill));
            self.barrier()?;
            self.issue(job, 0)?;
            self.wait()?;
            self.barrier()?;
            let wrong = self.for_all_seats(job, &|seat| compare(seat, job, &pattern)).iter().sum::<u64>();
            let all = self.setting.crew.exchange(self.thread, vec![wrong as f64])?;
            let threads = || all.iter().flatten().map(|values| values[0]);
            found.wrong = threads().sum::<f64>() as u64;
            found.failed_checks += threads().filter(|wrong| *wrong > 0.0).count() as u64;
            if found.wrong > 0 {
                break;
            }
        }
        Ok(found)
    }

    fn pattern(&self, job: &Job) -> Pattern {
        Pattern::new(job.collective, self.rep, self.setting.n_ranks, job.dtype, job.op_of(0))
    }

    /// Runs `work` on every rank of this thread, on as many threads as help; gives what each returned.
    fn for_all_seats(&mut self, job: &Job, work: &(dyn Fn(&mut Seat) -> u64 + Sync)) -> Vec<u64> {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let helpers = cpus.div_ceil(self.setting.config.n_threads).min(self.seats.len());
        if helpers < 2 || job.block * self.seats.len() as u64 <= WORTH_A_THREAD {
            return self.seats.iter_mut().map(work).collect();
        }
        let share = self.seats.len().div_ceil(helpers);
        std::thread::scope(|scope| {
            let parts: Vec<_> = self
                .seats
                .chunks_mut(share)
                .map(|part| scope.spawn(move || part.iter_mut().map(work).collect::<Vec<u64>>()))
                .collect();
            parts
                .into_iter()
                .flat_map(|part| part.join().expect("invariant: checking does not panic"))
                .collect()
        })
    }
}

fn fill_input(seat: &mut Seat, job: &Job, pattern: &Pattern) -> u64 {
    let call = job.call(seat.rank, 0);
    let (side, offset) = call.send;
    let bytes = job.shape.send as usize * job.dtype.size();
    let rank = seat.rank;
    seat.lane.host(side, &mut |buffer| {
        let input = &mut buffer[offset as usize..][..bytes];
        for (piece, first) in input.chunks_mut(PIECE).zip((0..).step_by(PIECE / job.dtype.size())) {
            pattern.fill(rank, first, piece);
            watch::tick();
        }
    });
    0
}

/// Clears the result, sets the guard zones, and writes the input again where it is needed.
fn prepare(seat: &mut Seat, job: &Job, pattern: &Pattern, refill: bool) -> u64 {
    let (start, end) = result_range(job);
    seat.lane.host(Side::Recv, &mut |buffer| {
        let (before, rest) = buffer.split_at_mut(start);
        let (result, after) = rest.split_at_mut(end - start);
        for piece in result.chunks_mut(PIECE) {
            piece.fill(0);
        }
        let zone = GUARD_BYTES as usize;
        let near = before.len().saturating_sub(zone);
        Guard.fill(&mut before[near..]);
        Guard.fill(&mut after[..zone]);
    });
    if refill { fill_input(seat, job, pattern) } else { 0 }
}

/// Wrong elements of a rank's result; a damaged guard zone counts like them.
fn compare(seat: &mut Seat, job: &Job, pattern: &Pattern) -> u64 {
    let (start, end) = result_range(job);
    let rank = seat.rank;
    let mut wrong = 0;
    #[cfg(feature = "fault-hooks")]
    flip(seat, start);
    seat.lane.host(Side::Recv, &mut |buffer| {
        let (before, rest) = buffer.split_at(start);
        let (result, after) = rest.split_at(end - start);
        let part = part_bytes(job, result.len());
        let mut first_bad = None;
        for (source, block) in result.chunks(part.max(1)).enumerate() {
            let whose = if job.collective == Collective::AllGather { source } else { rank };
            for (piece, first) in block.chunks(PIECE).zip((0..).step_by(PIECE / job.dtype.size())) {
                let Verdict { wrong: bad, first: mismatch } = pattern.check(whose, first, piece);
                wrong += bad;
                watch::tick();
                first_bad = first_bad.take().or(mismatch.map(|m| (whose, m)));
            }
        }
        if let Some((whose, mismatch)) = first_bad {
            let part = if job.collective == Collective::AllGather {
                format!(", part of rank {whose}")
            } else {
                String::new()
            };
            eprintln!(
                "wrong data: {} of {} bytes on rank {rank}{part}: {mismatch}",
                job.collective, job.block
            );
        }
        let zone = GUARD_BYTES as usize;
        let near = before.len().saturating_sub(zone);
        let damaged = Guard.check(&before[near..]) + Guard.check(&after[..zone]);
        if damaged > 0 {
            eprintln!(
                "wrong data: {} of {} bytes on rank {rank} changed {damaged} bytes outside its result",
                job.collective, job.block
            );
        }
        wrong += damaged;
    });
    wrong
}

/// Damages one bit of a result where CHORUS_FAULT_FLIP=RANK:BYTE says so. Absent from release builds.
#[cfg(feature = "fault-hooks")]
fn flip(seat: &mut Seat, start: usize) {
    let fault = crate::env::text("CHORUS_FAULT_FLIP").unwrap_or_default();
    let Some((rank, byte)) = fault.split_once(':') else { return };
    let (Ok(rank), Ok(byte)) = (rank.parse::<usize>(), byte.parse::<usize>()) else { return };
    if rank == seat.rank {
        seat.lane.host(Side::Recv, &mut |buffer| buffer[start + byte] ^= 1);
    }
}

/// Bytes of the parts that are compared one by one.
fn part_bytes(job: &Job, whole: usize) -> usize {
    if job.collective == Collective::AllGather { job.shape.send as usize * job.dtype.size() } else { whole }
}

fn result_range(job: &Job) -> (usize, usize) {
    let start = job.shift as usize;
    (start, start + job.shape.recv as usize * job.dtype.size())
}
