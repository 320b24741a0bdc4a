//! Ring and tree: one persistent task a channel, run from plans.

use std::sync::Arc;

use super::Progress;
use super::collectives::Team;
use super::cta::{self, ChannelTask, Operands};
use super::fifo::FifoMemory;
use crate::engine::error::Result;
use crate::engine::plan::Plan;

/// The channels of one rank and what they share.
#[derive(Debug)]
pub struct Classic {
    memory: Arc<dyn FifoMemory>,
    place: cta::Place,
    /// Tasks by channel, made at the channel's first use.
    tasks: Vec<Option<ChannelTask>>,
}

impl Classic {
    /// Channels whose connections lie in `memory`; `place.channel` is ignored.
    pub fn new(memory: Arc<dyn FifoMemory>, place: cta::Place) -> Self {
        let tasks = (0..place.n_channels).map(|_| None).collect();
        Self { memory, place, tasks }
    }

    fn task(&mut self, channel: usize) -> &mut ChannelTask {
        let (memory, place) = (&self.memory, &self.place);
        self.tasks[channel]
            .get_or_insert_with(|| ChannelTask::new(memory.clone(), cta::Place { channel, ..place.clone() }))
    }
}

/// One running ring or tree operation of one rank.
#[derive(Debug)]
pub struct ClassicRun {
    plan: Arc<Plan>,
    operands: Operands,
    is_started: bool,
    /// Works of the plan that are still running.
    running: u64,
}

impl ClassicRun {
    /// A call that has not started. A plan has at most 64 channels.
    pub fn new(plan: Arc<Plan>, operands: Operands) -> Self {
        debug_assert!(plan.channels.len() <= 64);
        Self { plan, operands, is_started: false, running: 0 }
    }

    /// Moves every channel that can move by about one slice.
    pub fn poll(&mut self, classic: &mut Classic, team: &Team) -> Result<Progress> {
        if !self.is_started {
            for (i, work) in self.plan.channels.iter().enumerate() {
                classic.task(work.channel).start(work, self.operands)?;
                self.running |= 1 << i;
            }
            self.is_started = true;
        }
        let mut advanced = false;
        let mut waiting = None;
        for (i, work) in self.plan.channels.iter().enumerate() {
            if self.running & (1 << i) == 0 {
                continue;
            }
            match classic.task(work.channel).poll() {
                cta::Progress::Done => {
                    self.running &= !(1 << i);
                    advanced = true;
                }
                cta::Progress::Advanced => advanced = true,
                cta::Progress::Blocked { peer, .. } => waiting = waiting.or(Some(peer)),
            }
        }
        if advanced {
            team.ring();
        }
        Ok(match (self.running, advanced) {
            (0, _) => Progress::Done,
            (_, true) => Progress::Advanced,
            (_, false) => Progress::Blocked { peer: waiting },
        })
    }

    /// The peer the first unfinished channel waits for, and the step it is at.
    pub fn waits_for(&self, classic: &mut Classic) -> (Option<usize>, u64) {
        let first = self.plan.channels.iter().enumerate().find(|(i, _)| self.running & (1 << i) != 0);
        first.map_or((None, 0), |(_, work)| {
            let position = classic.task(work.channel).position();
            (position.peer, position.steps)
        })
    }
}
