//! Continuous byte distribution: which channel takes which elements of which task.
//!
//! The tasks of one launch are laid end to end and the channels cut the line into pieces of equal traffic. Cuts fall on **cells**, so
//! that a piece is worth a channel's while (32 KiB of traffic) and starts aligned. A task covers a run of channels: a low part that
//! fills up the channel where the previous task ended, equal middle parts, and a high part with the rest.
//!
//! All arithmetic is on integers exactly as written: ranks that divide in another order would disagree about who sends what.

use super::Part;
use crate::engine::types::{Collective, Protocol};

/// Least traffic of a cell, bytes.
const MIN_CELL_TRAFFIC: usize = 32768;

/// One task to distribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Elements.
    pub count: usize,
    /// Bytes of an element.
    pub elem_bytes: usize,
    /// Bytes on the wire per byte of the count, see [`traffic_per_byte`].
    pub traffic_per_byte: usize,
    /// Most channels the task may use.
    pub n_channels_max: usize,
}

/// The channels and elements of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// First channel.
    pub channel_lo: usize,
    /// Last channel.
    pub channel_hi: usize,
    /// Elements of the first channel.
    pub count_lo: usize,
    /// Elements of each channel between.
    pub count_mid: usize,
    /// Elements of the last channel, when it is not the first.
    pub count_hi: usize,
}

impl Share {
    /// What `channel`, one of the share's, takes.
    pub fn part(&self, channel: usize) -> Part {
        let mid = self.count_mid;
        if channel == self.channel_lo {
            Part { offset: 0, count: self.count_lo }
        } else if channel == self.channel_hi {
            Part { offset: self.count_lo + (channel - self.channel_lo - 1) * mid, count: self.count_hi }
        } else {
            Part { offset: self.count_lo + (channel - self.channel_lo - 1) * mid, count: mid }
        }
    }
}

/// A launch's tasks over its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Traffic every channel should carry, bytes.
    pub traffic_per_channel: usize,
    /// One share per task, in order.
    pub shares: Vec<Share>,
}

/// Bytes on the wire per byte of a task's count. LL sends a flag with every word and is weighed double for it, twice.
pub fn traffic_per_byte(collective: Collective, n_ranks: usize, protocol: Protocol) -> usize {
    let traffic = match collective {
        Collective::AllReduce => 2,
        Collective::AllGather | Collective::ReduceScatter => n_ranks,
        Collective::Broadcast | Collective::Reduce => 1,
    };
    if protocol == Protocol::LL { 4 * traffic } else { traffic }
}

/// Distributes `loads` (none of them empty) over at most `limit` channels.
pub fn partition(loads: &[Load], limit: usize) -> Distribution {
    let traffic: usize =
        loads.iter().map(|l| (l.count * l.elem_bytes * l.traffic_per_byte).max(MIN_CELL_TRAFFIC)).sum();
    let n_channels = loads.iter().map(|l| l.n_channels_max).sum::<usize>().min(limit);
    let mut line = Line {
        limit,
        traffic_per_channel: 16 * traffic.div_ceil(n_channels).div_ceil(16),
        channel: 0,
        filled: 0,
    };
    let shares = loads.iter().map(|load| line.take(load)).collect();
    Distribution { traffic_per_channel: line.traffic_per_channel, shares }
}

/// Where the next task starts.
struct Line {
    limit: usize,
    traffic_per_channel: usize,
    channel: usize,
    /// Traffic already on `channel`.
    filled: usize,
}

impl Line {
    fn take(&mut self, load: &Load) -> Share {
        let cell_bytes = 16 * MIN_CELL_TRAFFIC.div_ceil(load.traffic_per_byte).div_ceil(16);
        let cell_elem = cell_bytes / load.elem_bytes;
        let cell_traffic = cell_bytes * load.traffic_per_byte;
        let cells = (load.count * load.elem_bytes).div_ceil(cell_bytes);
        let mut per_channel = cells.min(self.traffic_per_channel.div_ceil(cell_traffic));

        let free = self.traffic_per_channel.saturating_sub(self.filled);
        let mut lo =
            if self.channel + 1 == self.limit { cells } else { cells.min(free.div_ceil(cell_traffic)) };
        let mut mid = (cells - lo) / per_channel;
        let mut hi = (cells - lo) % per_channel;
        let mut n = usize::from(lo != 0) + mid + usize::from(hi != 0);
        if self.channel + n > self.limit {
            // What is left over goes to the last channel rather than to one that does not exist.
            mid = self.limit - self.channel - 2;
            per_channel = (cells - lo) / (mid + 1);
            hi = per_channel + (cells - lo) % (mid + 1);
            n = usize::from(lo != 0) + mid + usize::from(hi != 0);
        }
        if hi == 0 && mid != 0 {
            hi = per_channel;
            mid -= 1;
        }
        if lo == 0 {
            // Nothing fits into the channel the line stands on.
            self.channel += 1;
            (lo, hi, mid) = if mid == 0 { (hi, 0, 0) } else { (per_channel, hi, mid - 1) };
        }

        let excess = cells * cell_elem - load.count;
        let (mut count_lo, mut count_hi) = (lo * cell_elem, hi * cell_elem);
        if hi != 0 {
            count_hi -= excess;
        } else {
            count_lo -= excess;
        }
        let count_mid = if mid != 0 { per_channel * cell_elem } else { 0 };
        let share = Share {
            channel_lo: self.channel,
            channel_hi: self.channel + n - 1,
            count_lo,
            count_mid,
            count_hi,
        };
        self.advance(n, [lo, mid, hi], cell_traffic);
        share
    }

    fn advance(&mut self, n: usize, [lo, mid, hi]: [usize; 3], cell_traffic: usize) {
        if hi != 0 {
            self.channel += n - 1;
            self.filled = hi * cell_traffic;
        } else if mid != 0 {
            self.channel += n;
            self.filled = 0;
        } else {
            self.filled += lo * cell_traffic;
        }
        if self.filled >= self.traffic_per_channel && self.channel + 1 < self.limit {
            self.channel += 1;
            self.filled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(count: usize, traffic_per_byte: usize, n_channels_max: usize) -> Load {
        Load { count, elem_bytes: 4, traffic_per_byte, n_channels_max }
    }

    fn numbers(share: &Share) -> (usize, usize, usize, usize, usize) {
        (share.channel_lo, share.channel_hi, share.count_lo, share.count_mid, share.count_hi)
    }

    #[test]
    fn single_tasks_are_cut_as_upstream_cuts_them() {
        let cases = [
            (load(1048576, 2, 4), 4, 2097152, (0, 3, 262144, 262144, 262144)),
            (load(1000000, 2, 4), 4, 2000000, (0, 3, 253952, 253952, 238144)),
            (load(5000, 8, 2), 2, 80000, (0, 1, 3072, 0, 1928)),
            (load(16777216, 2, 12), 12, 11184816, (0, 11, 1400832, 1400832, 1368064)),
        ];
        for (load, limit, traffic, want) in cases {
            let got = partition(&[load], limit);
            assert_eq!(got.traffic_per_channel, traffic, "{load:?}");
            assert_eq!(numbers(&got.shares[0]), want, "{load:?}");
        }
    }

    #[test]
    fn several_tasks_continue_where_the_last_one_ended() {
        let got = partition(&[load(65536, 2, 4), load(262144, 2, 4)], 4);
        assert_eq!(got.traffic_per_channel, 655360);
        assert_eq!(numbers(&got.shares[0]), (0, 0, 65536, 0, 0));
        assert_eq!(numbers(&got.shares[1]), (0, 3, 16384, 81920, 81920));

        let got = partition(&[load(10, 2, 1), load(3000, 2, 1), load(1000000, 2, 8)], 8);
        assert_eq!(got.traffic_per_channel, 1008192);
        let counts: Vec<_> = got.shares.iter().map(numbers).collect();
        assert_eq!(counts, [(0, 0, 10, 0, 0), (0, 0, 3000, 0, 0), (0, 7, 118784, 126976, 119360)]);
    }

    #[test]
    fn parts_cover_every_element_once() {
        let counts = [1, 2, 7, 4095, 4096, 4097, 65537, 1_000_003, 33_554_433];
        for (count, elem_bytes) in counts.iter().flat_map(|&c| [1, 2, 4, 8].map(|e| (c, e))) {
            for limit in [1, 2, 3, 5, 32] {
                for traffic_per_byte in [2, 3, 8, 13] {
                    let first = Load { count: 777, elem_bytes, traffic_per_byte, n_channels_max: 2 };
                    let load = Load { count, elem_bytes, traffic_per_byte, n_channels_max: limit };
                    for share in
                        partition(&[first, load, first, load], limit).shares.iter().skip(1).step_by(2)
                    {
                        assert!(share.channel_hi < limit, "{load:?} {share:?}");
                        let mut next = 0;
                        for channel in share.channel_lo..=share.channel_hi {
                            let part = share.part(channel);
                            assert_eq!(part.offset, next, "{load:?} {share:?}");
                            assert!(part.count > 0, "{load:?} {share:?}");
                            next += part.count;
                        }
                        assert_eq!(next, count, "{load:?} {share:?}");
                    }
                }
            }
        }
    }
}
