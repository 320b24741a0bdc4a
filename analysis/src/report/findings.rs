//! Sentences generated from the data. Each says how it is known, how many samples it rests on and from which record.

use crate::crossover::{Interval, Verdict, intervals, verdicts};
use crate::format::{about_size, capital, count, percent, share, size};
use crate::groups::{Lane, Scene};
use crate::report::{Context, Evidence, Finding};

/// Intervals beyond which a sentence sums up instead of listing.
const LISTED: usize = 5;

pub(crate) fn all(context: &Context<'_>) -> Vec<Finding> {
    let mut found = vec![correctness(context)];
    for scene in &context.scenes {
        let lanes = scene.lanes();
        let place = place(context, scene, None);
        match lanes.as_slice() {
            [only] => {
                found.push(winners(context, &place, only));
                found.extend(crossings(context, &place, only));
            }
            _ => {
                found.extend(best_of_each(context, &place, scene));
                found.extend(overall(context, &place, scene));
            }
        }
    }
    found.extend(not_measured(context));
    for scene in &context.scenes {
        let lanes = scene.lanes();
        for lane in lanes.iter().filter(|_| lanes.len() > 1) {
            let place = place(context, scene, Some(lane));
            let details =
                std::iter::once(winners(context, &place, lane)).chain(crossings(context, &place, lane));
            found.extend(details.map(|finding| Finding { is_detail: true, ..finding }));
        }
    }
    found
}

/// Algorithms against each other, each with its best protocol and channel count at every size.
fn best_of_each(context: &Context<'_>, place: &str, scene: &Scene<'_>) -> Vec<Finding> {
    let curves = scene.by_algorithm();
    if curves.len() < 2 {
        return Vec::new();
    }
    let lane = Lane { protocol: "best", n_channels: 0, curves };
    let place = format!("{}, each with its best protocol and channels,", place.trim_end_matches(','));
    let mut found = vec![winners(context, &place, &lane)];
    found.extend(crossings(context, &place, &lane));
    found
}

fn correctness(context: &Context<'_>) -> Finding {
    let data = context.data;
    let (checked, unchecked) = (data.checked_rows, data.unchecked_rows);
    let text = match (data.wrong_rows, checked, unchecked) {
        (0, 0, _) => format!("No result was checked ({unchecked} rows)."),
        (0, _, 0) => format!("All {checked} rows were checked and hold no wrong element."),
        (0, ..) => {
            format!("{checked} rows were checked and hold no wrong element; {unchecked} were not checked.")
        }
        (wrong, ..) => format!(
            "{wrong} rows hold WRONG elements; {checked} checked rows are right. Wrong rows are no samples."
        ),
    };
    let evidence = if checked + data.wrong_rows > 0 { Evidence::Measured } else { Evidence::NotMeasured };
    let launches = count(data.launches.len(), "launch");
    Finding {
        text,
        evidence,
        basis: format!("n = {} rows, {launches}", checked + unchecked + data.wrong_rows),
        record: context.record(),
        is_detail: false,
    }
}

/// `With 4 ranks, in place, simple, 2 channels`: only what differs within the data is said.
fn place(context: &Context<'_>, scene: &Scene<'_>, lane: Option<&Lane<'_>>) -> String {
    let scenarios = || context.scenes.iter().map(|scene| scene.scenario);
    let mut words = vec![format!("With {}", count(scene.scenario.n_ranks as usize, "rank"))];
    if scene.scenario.n_hosts != 1 {
        words[0].push_str(&format!(" on {} hosts", scene.scenario.n_hosts));
    }
    if scenarios().any(|other| other.collective != scene.scenario.collective) {
        words.push(scene.scenario.collective.to_string());
    }
    if scenarios().any(|other| other.placement != scene.scenario.placement) {
        words.push(scene.scenario.placement.name().replace('_', " "));
    }
    let suffix = crate::groups::Variants::of(&scenarios().collect::<Vec<_>>()).suffix(scene.scenario);
    if !suffix.is_empty() {
        words.push(suffix);
    }
    if let Some(lane) = lane {
        words.push(lane.protocol.to_owned());
        words.push(count(lane.n_channels as usize, "channel"));
    }
    let place = words.join(", ");
    if words.len() > 1 { place + "," } else { place }
}

fn lane_basis(lane: &Lane<'_>) -> String {
    let points = || lane.curves.iter().flat_map(|curve| curve.points.values());
    let samples: usize = points().map(|point| point.n).sum();
    let launches = points().map(|point| point.launches).max().unwrap_or(0);
    let mut sizes: Vec<u64> = lane.curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of = if launches == 1 { "1 launch" } else { &format!("up to {launches} launches") };
    format!("n = {} at {}, {of} each", count(samples, "sample"), count(sizes.len(), "size"))
}

fn span(interval: &Interval) -> String {
    match (interval.from_bytes(), interval.to_bytes()) {
        (from, to) if from == to => format!("at {}", size(from)),
        (from, to) => format!("from {} to {}", size(from), size(to)),
    }
}

/// Who wins where in one lane.
fn winners(context: &Context<'_>, place: &str, lane: &Lane<'_>) -> Finding {
    let tie = context.options.tie;
    let merged = intervals(&verdicts(&lane.curves, tie));
    let name = |index: usize| capital(&lane.curves[index].name);
    let mut clauses: Vec<String> = Vec::new();
    if merged.len() > LISTED {
        clauses.push(summary(&merged, &name, tie));
    } else {
        for interval in &merged {
            clauses.push(match interval.winner {
                Some(winner) => {
                    let middle = if interval.verdicts.len() > 1 { " (median)" } else { "" };
                    format!(
                        "{} wins {} by {}{middle}",
                        name(winner),
                        span(interval),
                        percent(interval.median_margin())
                    )
                }
                None => format!("nobody wins by {} or more {}", share(tie), span(interval)),
            });
        }
    }
    for (index, _) in lane.curves.iter().enumerate() {
        if merged.iter().all(|interval| interval.winner != Some(index)) {
            clauses.push(format!("there is no size where {} wins by {} or more", name(index), share(tie)));
        }
    }
    let all: Vec<&Verdict> = merged.iter().flat_map(|interval| &interval.verdicts).collect();
    let open = all.iter().filter(|verdict| verdict.open == Some(true)).count();
    if open > 0 {
        clauses.push(format!(
            "at {open} of {} the intervals leave the other verdict open",
            count(all.len(), "size")
        ));
    }
    if clauses.is_empty() {
        clauses.push("no size was measured with two algorithms".into());
    }
    let text = format!("{place} {}.", clauses.join("; "));
    Finding {
        text,
        evidence: Evidence::Measured,
        basis: lane_basis(lane),
        record: context.record(),
        is_detail: false,
    }
}

/// Many intervals: how often each wins instead of where.
fn summary(merged: &[Interval], name: &impl Fn(usize) -> String, tie: f64) -> String {
    let sizes: usize = merged.iter().map(|interval| interval.verdicts.len()).sum();
    let mut tally: std::collections::BTreeMap<usize, Vec<f64>> = std::collections::BTreeMap::new();
    let mut ties = 0;
    for interval in merged {
        match interval.winner {
            Some(winner) => {
                tally.entry(winner).or_default().extend(interval.verdicts.iter().map(|v| v.margin))
            }
            None => ties += interval.verdicts.len(),
        }
    }
    let mut parts: Vec<String> = tally
        .into_iter()
        .map(|(winner, margins)| {
            let median = percent(crate::stats::median_of(margins.iter().copied()));
            format!("{} wins at {} of {sizes} sizes by {median} (median)", name(winner), margins.len())
        })
        .collect();
    parts.push(format!("{ties} are ties below {}", share(tie)));
    format!("the winner changes {} times: {}", merged.len() - 1, parts.join(", "))
}

/// Where two curves cross, between the last size one wins and the first the other does.
fn crossings(context: &Context<'_>, place: &str, lane: &Lane<'_>) -> Vec<Finding> {
    if lane.curves.len() != 2 {
        return Vec::new();
    }
    let merged = intervals(&verdicts(&lane.curves, context.options.tie));
    let wins: Vec<&Interval> = merged.iter().filter(|interval| interval.winner.is_some()).collect();
    if wins.len() > LISTED {
        return Vec::new();
    }
    let changes = wins.windows(2).filter(|pair| pair[0].winner != pair[1].winner);
    let found = changes.filter_map(|pair| {
        let (before, after) = (pair[0].verdicts.last()?, pair[1].verdicts.first()?);
        let at = meeting(lane, before.bytes, after.bytes)?;
        let (first, second) = (&lane.curves[before.best].name, &lane.curves[after.best].name);
        let text = format!(
            "{place} {} and {second} cross at about {}: {} is ahead at {} by {}, {second} at {} by {} (straight line between \
             measured sizes, both axes logarithmic).",
            capital(first),
            about_size(at),
            first,
            size(before.bytes),
            percent(before.margin),
            size(after.bytes),
            percent(after.margin),
        );
        Some(Finding { text, evidence: Evidence::Inferred, basis: lane_basis(lane), record: context.record(), is_detail: false })
    });
    found.collect()
}

/// The size at which the logarithm of the ratio is 0, by the last change of sign between the two sizes.
pub(crate) fn meeting(lane: &Lane<'_>, from: u64, to: u64) -> Option<f64> {
    let (a, b) = (&lane.curves[0].points, &lane.curves[1].points);
    let inside = a
        .range(from..=to)
        .filter_map(|(bytes, point)| Some((*bytes, (b.get(bytes)?.time_us / point.time_us).ln())));
    let ratios: Vec<(u64, f64)> = inside.filter(|(bytes, _)| *bytes > 0).collect();
    let pair = ratios.windows(2).rev().find(|pair| pair[0].1.signum() != pair[1].1.signum())?;
    let (x, y) = ((pair[0].0 as f64).ln(), (pair[1].0 as f64).ln());
    let part = pair[0].1 / (pair[0].1 - pair[1].1);
    Some((x + (y - x) * part).exp())
}

/// The best of all configurations of one scenario.
fn overall(context: &Context<'_>, place: &str, scene: &Scene<'_>) -> Option<Finding> {
    let curves: Vec<_> = scene.curves(|config| config.label()).into_iter().map(|(_, curve)| curve).collect();
    if curves.len() < 3 {
        return None;
    }
    let verdicts: Vec<Verdict> =
        verdicts(&curves, context.options.tie).into_iter().filter_map(|(_, verdict)| verdict).collect();
    let mut wins = vec![0; curves.len()];
    verdicts.iter().for_each(|verdict| wins[verdict.best] += 1);
    let mut order: Vec<usize> = (0..curves.len()).filter(|&index| wins[index] > 0).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(wins[index]), index));
    let leaders: Vec<String> =
        order.iter().take(3).map(|&index| format!("{} at {}", curves[index].name, wins[index])).collect();
    let others = order.len().saturating_sub(3);
    let more = if others > 0 { format!(" and {}", count(others, "other")) } else { String::new() };
    let ties = verdicts.iter().filter(|verdict| verdict.tie).count();
    let text = format!(
        "{} the fastest of {} configurations is {}{more} of {} (algorithm/protocol/channels; {ties} of them by less than {}).",
        place,
        curves.len(),
        leaders.join(", "),
        count(verdicts.len(), "size"),
        share(context.options.tie),
    );
    let samples: usize = scene.stats.iter().map(|stats| stats.summary.n).sum();
    let basis = format!("n = {} in {} groups", count(samples, "sample"), scene.stats.len());
    Some(Finding { text, evidence: Evidence::Measured, basis, record: context.record(), is_detail: false })
}

/// What the data do not hold.
fn not_measured(context: &Context<'_>) -> Vec<Finding> {
    let mut texts: Vec<String> = Vec::new();
    let mut worlds: Vec<u32> = context.scenes.iter().map(|scene| scene.scenario.n_ranks).collect();
    worlds.sort_unstable();
    worlds.dedup();
    let list = worlds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if !worlds.is_empty() {
        texts.push(format!("Other numbers of ranks than {list} were not measured."));
    }
    if context.scenes.iter().all(|scene| scene.scenario.n_hosts <= 1) {
        texts.push("More than one host was not measured.".into());
    }
    let sizes = context.stats.iter().map(|stats| stats.group.key.bytes);
    if let (Some(low), Some(high)) = (sizes.clone().min(), sizes.max()) {
        texts.push(format!("Sizes below {} and above {} were not measured.", size(low), size(high)));
    }
    for scene in &context.scenes {
        for lane in scene.lanes() {
            let verdicts = verdicts(&lane.curves, context.options.tie);
            let gaps: Vec<String> = verdicts
                .iter()
                .filter(|(_, verdict)| verdict.is_none())
                .map(|(bytes, _)| size(*bytes))
                .collect();
            if !gaps.is_empty() {
                let shown = gaps.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
                let more = if gaps.len() > 6 { ", …" } else { "" };
                let place = place(context, scene, Some(&lane));
                texts.push(format!(
                    "{place} one side alone was measured at {shown}{more}; nothing is said there."
                ));
            }
        }
    }
    let finding = |text| Finding {
        text,
        evidence: Evidence::NotMeasured,
        basis: String::new(),
        record: context.record(),
        is_detail: false,
    };
    texts.into_iter().map(finding).collect()
}
