//! The threads of a process and the processes of the job, meeting at barriers and exchanging numbers.
//!
//! Protocol: every thread of every process calls [`Crew::exchange`] (or [`Crew::barrier`]) the same number of times in the same
//! order. The last thread of a process to arrive speaks with the other processes for all of them. A thread that fails calls
//! [`Crew::fail`]; from then on every meeting returns that failure, so that nobody waits for a thread that is gone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::perf::cli::config::Average;
use crate::perf::exit::{Failure, Result, Status};
use crate::rendezvous::World;

/// Numbers of everybody: one list per thread, per process.
pub type Everybody = Vec<Vec<Vec<f64>>>;

/// What a meeting is for.
enum Meeting {
    Barrier,
    Exchange,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    arrived: usize,
    values: Vec<Vec<f64>>,
    result: Arc<Everybody>,
    broken: Option<Failure>,
}

/// All threads of this process; shared by them.
#[derive(Debug)]
pub struct Crew {
    world: Arc<World>,
    n_threads: usize,
    state: Mutex<State>,
    turn: Condvar,
}

impl Crew {
    /// A crew of `n_threads` in one of the world's processes.
    pub fn new(world: Arc<World>, n_threads: usize) -> Self {
        let state = State { values: vec![Vec::new(); n_threads], ..State::default() };
        Self { world, n_threads, state: Mutex::new(state), turn: Condvar::new() }
    }

    /// The processes.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns when every thread of every process is here.
    pub fn barrier(&self, thread: usize) -> Result<()> {
        self.meet(thread, Vec::new(), &Meeting::Barrier).map(drop)
    }

    /// Everybody's numbers.
    pub fn exchange(&self, thread: usize, values: Vec<f64>) -> Result<Arc<Everybody>> {
        self.meet(thread, values, &Meeting::Exchange)
    }

    /// One number of all threads of all processes.
    pub fn combine(&self, thread: usize, value: f64, how: Average) -> Result<f64> {
        let all = self.exchange(thread, vec![value])?;
        let numbers = || all.iter().flatten().map(|values| values[0]);
        Ok(match how {
            Average::RankZero => all[0][0][0],
            Average::Mean => numbers().sum::<f64>() / numbers().count() as f64,
            Average::Min => numbers().fold(f64::INFINITY, f64::min),
            Average::Max => numbers().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Ends all meetings with this failure.
    pub fn fail(&self, failure: Failure) {
        self.lock().broken.get_or_insert(failure);
        self.turn.notify_all();
    }

    /// Meetings so far.
    #[cfg(test)]
    pub(super) fn n_meetings(&self) -> u64 {
        self.lock().generation
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, thread: usize, values: Vec<f64>, meeting: &Meeting) -> Result<Arc<Everybody>> {
        let mut state = self.lock();
        if let Some(failure) = &state.broken {
            return Err(failure.clone());
        }
        state.values[thread] = values;
        state.arrived += 1;
        if state.arrived < self.n_threads {
            let generation = state.generation;
            while state.generation == generation && state.broken.is_none() {
                state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            return match &state.broken {
                Some(failure) => Err(failure.clone()),
                None => Ok(state.result.clone()),
            };
        }
        match self.speak(&state.values, meeting) {
            Ok(result) => {
                state.result = Arc::new(result);
                state.arrived = 0;
                state.generation += 1;
            }
            Err(failure) => state.broken = Some(failure),
        }
        self.turn.notify_all();
        match &state.broken {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.result.clone()),
        }
    }

    /// The part between processes.
    fn speak(&self, values: &[Vec<f64>], meeting: &Meeting) -> Result<Everybody> {
        if matches!(meeting, Meeting::Barrier) {
            self.world.barrier()?;
            return Ok(Vec::new());
        }
        if self.world.n_processes == 1 {
            return Ok(vec![values.to_vec()]);
        }
        let mine = encode(values);
        self.world.all_gather(&mine)?.iter().map(|bytes| decode(bytes)).collect()
    }
}

/// Threads, then per thread a length and its numbers; everything as 8 bytes.
fn encode(values: &[Vec<f64>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for list in values {
        bytes.extend_from_slice(&(list.len() as u64).to_le_bytes());
        bytes.extend(list.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}

fn decode(bytes: &[u8]) -> Result<Vec<Vec<f64>>> {
    let uneven = || Failure::new(Status::Internal, "a process sent numbers of another form");
    let words: Vec<[u8; 8]> = bytes.as_chunks().0.to_vec();
    let mut words = words.into_iter();
    let mut lists = Vec::new();
    while let Some(length) = words.next() {
        let length = u64::from_le_bytes(length) as usize;
        let list: Vec<f64> = words.by_ref().take(length).map(f64::from_le_bytes).collect();
        if list.len() != length {
            return Err(uneven());
        }
        lists.push(list);
    }
    Ok(lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_way_between_processes() {
        let values = vec![vec![1.5, f64::INFINITY], vec![], vec![-0.0]];
        assert_eq!(decode(&encode(&values)).unwrap(), values);
        assert!(decode(&encode(&values)[..16]).is_err());
    }

    #[test]
    fn threads_combine_their_numbers() {
        let crew = Crew::new(Arc::new(World::alone()), 3);
        let run = |how| {
            std::thread::scope(|scope| {
                let crew = &crew;
                let threads: Vec<_> = [4.0, 1.0, 7.0]
                    .into_iter()
                    .enumerate()
                    .map(|(thread, value)| {
                        scope.spawn(move || {
                            crew.barrier(thread).unwrap();
                            crew.combine(thread, value, how).unwrap()
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<f64>>()
            })
        };
        assert_eq!(run(Average::Mean), [4.0; 3]);
        assert_eq!(run(Average::Min), [1.0; 3]);
        assert_eq!(run(Average::Max), [7.0; 3]);
        assert_eq!(run(Average::RankZero), [4.0; 3]);
    }

    #[test]
    fn a_failed_thread_lets_nobody_wait() {
        let crew = Crew::new(Arc::new(World::alone()), 2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| crew.barrier(0));
            crew.fail(Failure::new(Status::Internal, "gone"));
            assert_eq!(waiting.join().unwrap().unwrap_err().message, "gone");
        });
        assert!(crew.barrier(1).is_err());
    }
}
