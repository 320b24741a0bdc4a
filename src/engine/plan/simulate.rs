//! Plans played by simulated ranks over FIFOs that hold slot counts and numbers instead of memory.

use std::collections::{HashMap, VecDeque};

use super::chunk::SLOTS;
use super::{ChannelWork, Lane, Layout, Params, Request, Ring, Slicing, Step, Tree, build};
use crate::engine::graph::trees;
use crate::engine::tuning::host::Choice;
use crate::engine::types::{Algorithm, Collective, DataType, Protocol};

/// (channel, sender, receiver).
type Connection = (usize, usize, usize);

#[derive(Default)]
struct Fifo {
    slices: VecDeque<Vec<i64>>,
    slots_used: usize,
    slots_sent: usize,
    slots_received: usize,
}

struct Runner {
    rank: usize,
    channel: usize,
    slicing: Slicing,
    lane: Lane,
    step: Option<Step>,
    slice: usize,
    moved: usize,
}

#[derive(Default)]
struct World {
    fifos: HashMap<Connection, Fifo>,
    inputs: Vec<Vec<i64>>,
    outputs: Vec<Vec<i64>>,
}

impl Runner {
    /// Goes on by one slice; `None` when the lane has ended, `Some(false)` when it must wait.
    fn advance(&mut self, world: &mut World) -> Option<bool> {
        let step = match self.step {
            Some(step) => step,
            None => {
                let step = self.lane.next()?;
                (self.step, self.slice, self.moved) = (Some(step), 0, 0);
                step
            }
        };
        let (me, slots) = (self.rank, self.slicing.slice_steps);
        let froms: Vec<_> = self.lane.recv.as_slice().iter().map(|&p| (self.channel, p, me)).collect();
        let tos: Vec<_> = self.lane.send.as_slice().iter().map(|&p| (self.channel, me, p)).collect();
        let full =
            |world: &mut World, c: &Connection| world.fifos.entry(*c).or_default().slots_used + slots > SLOTS;
        if step.receives && froms.iter().any(|c| world.fifos.entry(*c).or_default().slices.is_empty())
            || step.sends && tos.iter().any(|c| full(world, c))
        {
            return Some(false);
        }
        let n = self.slicing.slice_elem(step.n_elem).min(step.n_elem - self.moved);
        let mut value = vec![0; n];
        if let Some(src) = step.src {
            value.copy_from_slice(&world.inputs[me][src + self.moved..][..n]);
        }
        for c in froms.iter().filter(|_| step.receives) {
            let fifo = world.fifos.get_mut(c).unwrap();
            let slice = fifo.slices.pop_front().unwrap();
            assert_eq!(slice.len(), n, "both ends of {c:?} cut alike");
            fifo.slots_used -= slots;
            fifo.slots_received += slots;
            value.iter_mut().zip(slice).for_each(|(v, s)| *v += s);
        }
        if let Some(dst) = step.dst {
            world.outputs[me][dst + self.moved..][..n].copy_from_slice(&value);
        }
        for c in tos.iter().filter(|_| step.sends) {
            let fifo = world.fifos.get_mut(c).unwrap();
            fifo.slices.push_back(value.clone());
            fifo.slots_used += slots;
            fifo.slots_sent += slots;
        }
        self.moved += n;
        self.slice += 1;
        if self.slice == self.slicing.n_slices {
            assert_eq!(self.moved, step.n_elem, "the slices of a chunk cover it");
            self.step = None;
        }
        Some(true)
    }
}

fn runners(rank: usize, channels: &[ChannelWork]) -> Vec<Runner> {
    let mut all = Vec::new();
    for work in channels {
        for lane in work.lanes().into_iter().flatten() {
            let (channel, slicing) = (work.channel, work.slicing);
            all.push(Runner { rank, channel, slicing, lane, step: None, slice: 0, moved: 0 });
        }
    }
    all
}

/// Runs the collective and compares with the sums or blocks it should leave. Returns the slots sent per connection.
fn check(
    collective: Collective,
    choice: Choice,
    layouts: &[Layout],
    dtype: DataType,
    count: usize,
) -> Vec<usize> {
    let n = layouts.len();
    let params = Params::nccl().with_buffers([Some(32768), Some(32768), Some(65536)]);
    let gather = collective == Collective::AllGather;
    let units = if gather { count * dtype.size() } else { count };
    let value = |rank: usize, i: usize| ((rank + 1) * 1_000_003 + i * 7919) as i64;
    let mut world = World {
        inputs: (0..n).map(|r| (0..units).map(|i| value(r, i)).collect()).collect(),
        outputs: vec![vec![-1; if gather { n * units } else { units }]; n],
        ..World::default()
    };
    let mut running: Vec<_> = (0..n)
        .flat_map(|rank| {
            let request = Request { collective, count, dtype, n_ranks: n, rank };
            runners(rank, &build(&request, &choice, &layouts[rank], &params).channels)
        })
        .collect();
    while !running.is_empty() {
        let mut moved = false;
        running.retain_mut(|runner| match runner.advance(&mut world) {
            None => false,
            Some(advanced) => {
                moved |= advanced;
                true
            }
        });
        assert!(moved || running.is_empty(), "{collective} {choice:?} {dtype} {count} on {n} ranks is stuck");
    }
    for (c, fifo) in &world.fifos {
        assert_eq!(fifo.slots_sent, fifo.slots_received, "{c:?}");
    }
    for (rank, output) in world.outputs.iter().enumerate() {
        for (i, &got) in output.iter().enumerate() {
            let want = if gather { value(i / units, i % units) } else { (0..n).map(|r| value(r, i)).sum() };
            assert_eq!(
                got, want,
                "{collective} {choice:?} {dtype} {count} on {n} ranks: rank {rank}, element {i}"
            );
        }
    }
    world.fifos.values().map(|f| f.slots_sent).collect()
}

/// Rings in different orders and double trees over hosts of `per_host` ranks each, for every rank.
fn layouts(n: usize, per_host: usize, n_channels: usize) -> Vec<Layout> {
    let n_hosts = n / per_host;
    let order = |channel: usize| -> Vec<usize> {
        let mut order: Vec<_> = (0..n).collect();
        if channel % 2 == 1 {
            order.reverse();
        }
        order.rotate_left(channel % n);
        order
    };
    (0..n)
        .map(|rank| {
            let (host, local) = (rank / per_host, rank % per_host);
            let trees = (0..n_channels).map(|channel| {
                let mut tree = Tree::default();
                if local + 1 < per_host {
                    tree.down.push(rank + 1);
                }
                if local > 0 {
                    tree.up = Some(rank - 1);
                } else {
                    let place = trees::double(n_hosts, host)[channel % 2];
                    tree.up = place.parent.map(|h| h * per_host);
                    tree.down.extend(place.children.iter().flatten().map(|h| h * per_host));
                }
                tree
            });
            Layout {
                rings: (0..n_channels).map(|c| Ring::new(&order(c), rank)).collect(),
                trees: trees.collect(),
                n_hosts,
            }
        })
        .collect()
}

const COUNTS: [usize; 9] = [0, 1, 2, 17, 1023, 4097, 8192, 20_001, 60_001];

fn sweep(collective: Collective, algorithm: Algorithm, n: usize, per_host: usize) {
    for n_channels in [1, 2, 5] {
        let layouts = layouts(n, per_host, n_channels);
        for &protocol in Protocol::ALL {
            let choice = Choice { algorithm, protocol, n_channels: n_channels as u32 };
            for (i, &count) in COUNTS.iter().enumerate() {
                if n * count > 200_000 && n_channels != 2 {
                    continue;
                }
                let dtype = [DataType::Int8, DataType::Half, DataType::Float, DataType::Double][(i + n) % 4];
                let count = if collective == Collective::AllGather { count / 4 } else { count };
                check(collective, choice, &layouts, dtype, count);
            }
        }
    }
}

const RANKS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16];

#[test]
fn ring_all_reduce_gives_the_sum_at_every_rank_count() {
    RANKS.iter().for_each(|&n| sweep(Collective::AllReduce, Algorithm::Ring, n, 1));
}

#[test]
fn ring_all_gather_gives_every_block_at_every_rank_count() {
    RANKS.iter().for_each(|&n| sweep(Collective::AllGather, Algorithm::Ring, n, 1));
}

#[test]
fn tree_all_reduce_gives_the_sum_on_a_chain() {
    RANKS.iter().for_each(|&n| sweep(Collective::AllReduce, Algorithm::Tree, n, n));
}

#[test]
fn tree_all_reduce_gives_the_sum_between_hosts() {
    for (n_hosts, per_host) in
        [(2, 1), (3, 1), (4, 1), (5, 1), (9, 1), (13, 1), (2, 2), (3, 2), (5, 3), (4, 4)]
    {
        sweep(Collective::AllReduce, Algorithm::Tree, n_hosts * per_host, per_host);
    }
}

#[test]
fn a_ring_sends_equally_much_over_all_its_connections() {
    let choice = Choice { algorithm: Algorithm::Ring, protocol: Protocol::Simple, n_channels: 1 };
    let slots = check(Collective::AllReduce, choice, &layouts(5, 1, 1), DataType::Float, 54_321);
    assert_eq!(slots.len(), 5);
    assert!(slots.iter().all(|s| *s == slots[0] && s.is_multiple_of(2 * 4 * 4)), "{slots:?}");
}
