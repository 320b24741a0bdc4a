//! A communicator as the watch sees it: the progress lines of every rank whose control pages are mapped here.

use std::sync::{Arc, Weak};

use crate::engine::device::host::control::Control;
use crate::engine::device::host::process;
use crate::engine::device::host::rank::RankCore;
use crate::engine::error::Error;
use crate::engine::sync::Ordering;
use crate::engine::watch::{self, Attachment, ProgressProbe, RankProgress};

/// One rank of this process and what it can see of the others.
#[derive(Debug)]
struct Watched {
    core: Weak<RankCore>,
    /// Control pages, by rank.
    controls: Vec<Control>,
}

/// Shows a rank to the watch until the returned value is dropped.
pub(super) fn attach(core: &Arc<RankCore>, controls: Vec<Control>) -> Attachment {
    watch::attach(Arc::new(Watched { core: Arc::downgrade(core), controls }))
}

impl ProgressProbe for Watched {
    fn snapshot(&self) -> Vec<RankProgress> {
        if let Some(core) = self.core.upgrade() {
            core.publish_progress();
        }
        self.controls.iter().enumerate().map(|(rank, control)| read(rank, control)).collect()
    }

    fn thread_of(&self, rank: usize) -> Option<String> {
        self.core.upgrade().filter(|core| core.rank == rank)?.launcher().map(str::to_owned)
    }

    fn abort(&self, error: &Error) {
        process::abort(error.clone());
        if let Some(core) = self.core.upgrade() {
            core.ring();
        }
    }
}

fn read(rank: usize, control: &Control) -> RankProgress {
    let line = control.progress();
    let completed = line.completed.load(Ordering::Relaxed);
    let is_running = line.launched.load(Ordering::Relaxed) > completed;
    let waiting = line.waiting_for.load(Ordering::Relaxed).checked_sub(1).map(|peer| peer as usize);
    RankProgress {
        rank,
        op_seq: completed + u64::from(is_running),
        step: line.step.load(Ordering::Relaxed),
        waiting_for: waiting.filter(|&peer| is_running && peer != rank),
    }
}
