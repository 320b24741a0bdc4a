//! Who is late: from what the ranks' progress words and the other processes' answers say. Pure.

use std::fmt::Write;
use std::ops::Range;

use crate::engine::watch::board::{Activity, RankProgress};

/// A process, as it introduced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) process: usize,
    pub(super) pid: u32,
    pub(super) host: String,
    pub(super) ranks: Range<usize>,
}

impl Identity {
    /// `rank 2 (process 2, pid 4711 on vm)`.
    pub(super) fn describe(&self) -> String {
        let Range { start, end } = self.ranks;
        let ranks = match end.saturating_sub(start) {
            0 => "no rank".to_owned(),
            1 => format!("rank {start}"),
            _ => format!("rank {start} to {}", end - 1),
        };
        format!("{ranks} (process {}, pid {} on {})", self.process, self.pid, self.host)
    }
}

/// The line about a wait that lasts too long: who, in what, how large, at which step, and who waits.
pub(super) fn describe(
    activity: Activity,
    snapshot: &[RankProgress],
    silent: &[&Identity],
    name_of: &dyn Fn(usize) -> Option<String>,
) -> String {
    let late: Vec<usize> = if silent.is_empty() {
        last_in_chain(snapshot).into_iter().collect()
    } else {
        silent.iter().flat_map(|identity| identity.ranks.clone()).collect()
    };
    let mut text = if silent.is_empty() {
        match late.first() {
            Some(&rank) => {
                format!("rank {rank}{} is late", name_of(rank).map_or(String::new(), |n| format!(" ({n})")))
            }
            None => "no rank moves".to_owned(),
        }
    } else {
        let names: Vec<String> = silent.iter().map(|identity| identity.describe()).collect();
        format!("{} does not answer", names.join(", "))
    };
    let _ = write!(text, " in {activity}");
    if let Some(progress) = snapshot.iter().find(|progress| late.contains(&progress.rank)) {
        let _ = write!(text, ", operation {}, step {}", progress.op_seq, progress.step);
    } else {
        text.push_str(", before its first step");
    }
    let waits: Vec<String> = snapshot
        .iter()
        .filter(|progress| !late.contains(&progress.rank))
        .filter_map(|progress| {
            let peer = progress.waiting_for?;
            Some(format!("rank {} for rank {peer} at step {}", progress.rank, progress.step))
        })
        .take(SHOWN_WAITS)
        .collect();
    if !waits.is_empty() {
        let _ = write!(text, "; waiting: {}", waits.join(", "));
    }
    text
}

/// Waits that are spelled out; a line must stay readable with hundreds of ranks.
const SHOWN_WAITS: usize = 8;

/// Follows who waits for whom from the rank that is furthest behind, until somebody waits for nobody, or the chain closes.
fn last_in_chain(snapshot: &[RankProgress]) -> Option<usize> {
    let behind = snapshot.iter().min_by_key(|progress| (progress.op_seq, progress.step, progress.rank))?;
    let mut at = behind.rank;
    for _ in 0..snapshot.len() {
        let next =
            snapshot.iter().find(|progress| progress.rank == at).and_then(|progress| progress.waiting_for);
        match next {
            Some(peer) => at = peer,
            None => return Some(at),
        }
    }
    Some(behind.rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::types::Collective;
    use crate::engine::watch::board::Phase;
    use crate::engine::watch::board::tests::progress;

    const ACTIVITY: Activity =
        Activity { phase: Phase::Timing, collective: Some(Collective::AllReduce), bytes: 4096 };

    fn identity(process: usize, ranks: Range<usize>) -> Identity {
        Identity { process, pid: 100 + process as u32, host: "vm".into(), ranks }
    }

    #[test]
    fn a_silent_process_is_late_whatever_its_counters_say() {
        let snapshot = [progress(0, 9, Some(2)), progress(1, 8, Some(0)), progress(2, 5, None)];
        let text = describe(ACTIVITY, &snapshot, &[&identity(2, 2..3)], &|_| None);
        assert_eq!(
            text,
            "rank 2 (process 2, pid 102 on vm) does not answer in all_reduce of 4096 bytes (timing), operation 7, \
             step 5; waiting: rank 0 for rank 2 at step 9, rank 1 for rank 0 at step 8"
        );
    }

    #[test]
    fn the_end_of_the_chain_of_waits_is_late() {
        let snapshot =
            [progress(0, 3, Some(1)), progress(1, 4, Some(2)), progress(2, 6, None), progress(3, 5, Some(0))];
        let text = describe(ACTIVITY, &snapshot, &[], &|rank| Some(format!("thread r{rank}")));
        assert!(text.starts_with("rank 2 (thread r2) is late in all_reduce of 4096 bytes"), "{text}");
        assert!(text.contains("step 6; waiting: rank 0 for rank 1 at step 3"), "{text}");
    }

    #[test]
    fn a_circle_of_waits_blames_the_rank_furthest_behind() {
        let snapshot = [progress(0, 3, Some(1)), progress(1, 2, Some(0))];
        assert!(describe(ACTIVITY, &snapshot, &[], &|_| None).starts_with("rank 1 is late"));
    }

    #[test]
    fn before_any_operation_there_is_still_a_line() {
        let activity = Activity { phase: Phase::StartUp, collective: None, bytes: 0 };
        let text = describe(activity, &[], &[], &|_| None);
        assert_eq!(text, "no rank moves in start-up (0 bytes), before its first step");
        let text = describe(activity, &[], &[&identity(1, 2..4)], &|_| None);
        assert_eq!(
            text,
            "rank 2 to 3 (process 1, pid 101 on vm) does not answer in start-up (0 bytes), before its first step"
        );
    }
}
