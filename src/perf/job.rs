//! Who takes part: processes, groups, ranks and their devices, and what memory leaves them.

use crate::engine::error::Result;
use crate::perf::cli::config::SweepConfig;
use crate::perf::exit::{Failure, Status};
use crate::perf::memory;
use crate::perf::report::text::Device;
use crate::perf::sweep::Sizes;
use crate::rendezvous::World;

/// What a process tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Introduction {
    color: u64,
    pid: u32,
    first_device: u64,
    host: String,
    device: String,
}

impl Introduction {
    fn to_bytes(&self) -> Vec<u8> {
        let Self { color, pid, first_device, host, device } = self;
        format!("{color}\n{pid}\n{first_device}\n{host}\n{device}").into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.splitn(5, '\n');
        Some(Self {
            color: lines.next()?.parse().ok()?,
            pid: lines.next()?.parse().ok()?,
            first_device: lines.next()?.parse().ok()?,
            host: lines.next()?.to_owned(),
            device: lines.next()?.to_owned(),
        })
    }
}

/// The job as every process sees it.
#[derive(Clone, Debug)]
pub struct Job {
    introductions: Vec<Introduction>,
    process: usize,
    ranks_per_process: usize,
}

impl Job {
    /// Processes introduce themselves to each other.
    pub fn gather(world: &World, config: &SweepConfig, device: &str) -> Result<Self> {
        let ranks_per_process = config.ranks_per_process();
        let first = config.first_device.unwrap_or(world.local_process * ranks_per_process);
        let host = world.host.split('.').next().unwrap_or_default().replace('\n', " ");
        let mine = Introduction {
            color: config.split.color(world.process as u64),
            pid: std::process::id(),
            first_device: first as u64,
            host,
            device: config.device_name.as_deref().unwrap_or(device).replace(['\n', '[', ']'], ""),
        };
        let all = world.all_gather(&mine.to_bytes())?;
        let introductions =
            all.iter().map(|bytes| Introduction::from_bytes(bytes)).collect::<Option<Vec<_>>>();
        let introductions = introductions.ok_or_else(|| {
            crate::engine::error::Error::Internal("a process introduced itself in another form".into())
        })?;
        Ok(Self { introductions, process: world.process, ranks_per_process })
    }

    /// Every rank of the job, in order.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices = Vec::new();
        for (process, who) in self.introductions.iter().enumerate() {
            for i in 0..self.ranks_per_process {
                devices.push(Device {
                    rank: process * self.ranks_per_process + i,
                    group: who.color,
                    pid: who.pid,
                    host: who.host.clone(),
                    index: who.first_device as usize + i,
                    name: who.device.clone(),
                });
            }
        }
        devices
    }

    /// This process's introduction.
    fn me(&self) -> &Introduction {
        &self.introductions[self.process]
    }

    /// Processes of this process's group, in order.
    fn group(&self) -> impl Iterator<Item = usize> {
        let color = self.me().color;
        (0..self.introductions.len()).filter(move |&p| self.introductions[p].color == color)
    }

    /// The group's first process: it names the group.
    pub fn leader(&self) -> usize {
        self.group().next().expect("invariant: a process is in its own group")
    }

    /// Colour of this process's group.
    pub fn color(&self) -> u64 {
        self.me().color
    }

    /// Ranks of this process's group.
    pub fn n_ranks(&self) -> usize {
        self.group().count() * self.ranks_per_process
    }

    /// This process's ranks within its group.
    pub fn ranks(&self) -> Vec<usize> {
        let before = self.group().take_while(|&p| p != self.process).count();
        (before * self.ranks_per_process..(before + 1) * self.ranks_per_process).collect()
    }

    /// Name of this process's device.
    pub fn device_name(&self) -> &str {
        &self.me().device
    }

    /// Name of this process's host.
    pub fn host(&self) -> &str {
        &self.me().host
    }
}

/// Sizes and span after the memory cap, and whether it lowered the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capped {
    /// Sizes.
    pub sizes: Sizes,
    /// Bytes calls walk through.
    pub span: u64,
    /// Whether the maximum is lower than asked for.
    pub lowered: bool,
}

/// The largest buffers all ranks of the job can have. What the library holds per rank is taken off although it is resident already:
/// the buffers between ranks, made at first use, take about as much again.
pub fn cap(world: &World, config: &SweepConfig, library: u64) -> std::result::Result<Capped, Failure> {
    let ranks_on_host = world.n_local_processes * config.ranks_per_process();
    let mine = memory::available().map_or(u64::MAX, |available| {
        memory::limit(available, library * ranks_on_host as u64, ranks_on_host)
    });
    let all = world.all_gather(&mine.to_le_bytes())?;
    let limit = all.iter().filter_map(|b| Some(u64::from_le_bytes(b.as_slice().try_into().ok()?))).min();
    let limit = limit.unwrap_or(u64::MAX);
    if limit == 0 {
        let message =
            "too little memory: less than 1 GiB is available, nothing is left for buffers".to_owned();
        return Err(Failure::new(Status::Unavailable, message));
    }
    let sizes = config.sizes.capped(limit);
    let span = config.span.unwrap_or(sizes.max).min(limit);
    Ok(Capped { sizes, span, lowered: sizes.max < config.sizes.max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(colors: &[u64], process: usize) -> Job {
        let introduction = |&color: &u64| Introduction {
            color,
            pid: 1,
            first_device: 0,
            host: "h".into(),
            device: "a, b\nc".replace('\n', " "),
        };
        Job { introductions: colors.iter().map(introduction).collect(), process, ranks_per_process: 2 }
    }

    #[test]
    fn introductions_survive_the_way() {
        let job = job(&[3], 0);
        assert_eq!(Introduction::from_bytes(&job.me().to_bytes()).as_ref(), Some(job.me()));
        assert_eq!(Introduction::from_bytes(b"rubbish"), None);
    }

    #[test]
    fn ranks_follow_job_order_inside_their_group() {
        let colors = [0, 1, 0, 1, 0];
        let third = job(&colors, 4);
        assert_eq!((third.n_ranks(), third.ranks(), third.leader()), (6, vec![4, 5], 0));
        let second = job(&colors, 1);
        assert_eq!((second.n_ranks(), second.ranks(), second.leader()), (4, vec![0, 1], 1));
    }

    #[test]
    fn devices_are_numbered_through_the_job() {
        let devices = job(&[0, 1], 0).devices();
        let ranks: Vec<(usize, u64, usize)> = devices.iter().map(|d| (d.rank, d.group, d.index)).collect();
        assert_eq!(ranks, [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]);
    }
}
