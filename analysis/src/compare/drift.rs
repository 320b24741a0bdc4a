//! How far apart in time two recordings lie.
//!
//! A machine changes its own speed between two hours: neighbours on a shared host, temperature, memory placement. Launches of both sides that
//! alternate share that, recordings made one after the other do not, and no number of launches inside them shows it. So a comparison of
//! sides that lie apart must leave room for it before it calls a difference one of the program.

use crate::dataset::Dataset;

/// Sides closer than this count as one session.
pub const SESSION_MINUTES: f64 = 15.0;

/// Minutes between the last launch of one side and the first of the other; nothing where their launches overlap, or where a side does not
/// say when it was recorded.
pub fn minutes_between(baseline: &Dataset, current: &Dataset) -> Option<f64> {
    let (first, second) = (extent(baseline)?, extent(current)?);
    let gap = if first.1 < second.0 { second.0 - first.1 } else { first.0 - second.1 };
    (gap > 0).then(|| gap as f64 / 60_000.0)
}

/// Whether the two sides are different sessions.
pub fn lie_apart(baseline: &Dataset, current: &Dataset) -> bool {
    minutes_between(baseline, current).is_some_and(|minutes| minutes > SESSION_MINUTES)
}

fn extent(data: &Dataset) -> Option<(i64, i64)> {
    let times = || data.launches.iter().filter_map(|launch| launch.started);
    Some((times().min()?, times().max()?))
}

#[cfg(test)]
mod tests {
    use super::{lie_apart, minutes_between};
    use crate::dataset::Dataset;
    use crate::dataset::tests::{dataset, row};

    fn at(times: &[&str]) -> Dataset {
        let rows: Vec<_> = times
            .iter()
            .map(|time| {
                let mut row = row(time, "ring", 8, 1.0);
                row.timestamp = format!("2026-01-02T{time}:00.000+00:00");
                row
            })
            .collect();
        dataset(&rows)
    }

    #[test]
    fn overlapping_recordings_have_no_gap_and_others_a_length() {
        assert_eq!(minutes_between(&at(&["03:00", "03:10"]), &at(&["03:05", "03:15"])), None);
        assert_eq!(minutes_between(&at(&["03:00", "03:10"]), &at(&["04:10", "04:20"])), Some(60.0));
        assert_eq!(minutes_between(&at(&["04:10", "04:20"]), &at(&["03:00", "03:10"])), Some(60.0));
        assert!(lie_apart(&at(&["03:00"]), &at(&["04:00"])) && !lie_apart(&at(&["03:00"]), &at(&["03:10"])));
        assert_eq!(minutes_between(&at(&["03:00"]), &dataset(&[row("a", "ring", 8, 1.0)])), None);
    }
}
