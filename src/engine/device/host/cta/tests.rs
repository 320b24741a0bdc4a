//! Channels of several ranks in one process, on plain memory, polled in turn or by a thread each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use super::*;
use crate::engine::graph::trees;
use crate::engine::plan::{Layout, Params, Plan, Request, Ring, Tree, build};
use crate::engine::tuning::host::Choice;
use crate::engine::types::{Algorithm, Collective, DataType, RedOp};

/// Zeroed memory on a 4096-byte grid, handed out front to back.
#[derive(Debug)]
struct Block {
    pages: *mut Page,
    n_pages: usize,
    used: AtomicUsize,
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; 4096]);

// SAFETY: the block only hands out addresses; who touches what is the connections' protocol.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Self {
        let pages = vec![Page([0; 4096]); bytes.div_ceil(4096)].into_boxed_slice();
        let n_pages = pages.len();
        Self { pages: Box::into_raw(pages).cast(), n_pages, used: AtomicUsize::new(0) }
    }

    fn base(&self) -> *mut u8 {
        self.pages.cast()
    }

    fn alloc(&self, bytes: usize) -> usize {
        let at = self.used.fetch_add(bytes.next_multiple_of(4096), Ordering::Relaxed);
        assert!(at + bytes <= self.n_pages * 4096, "the test's block is too small");
        at
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` of a slice of that length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.pages, self.n_pages)) });
    }
}

#[derive(Debug)]
struct Memory {
    rank: usize,
    segments: Arc<Vec<Block>>,
    arenas: Arc<Vec<Block>>,
    is_direct: bool,
}

impl FifoMemory for Memory {
    fn segment(&self, rank: usize) -> Option<*mut u8> {
        Some(self.segments[rank].base())
    }

    fn arena(&self, rank: usize) -> Option<*mut u8> {
        self.is_direct.then(|| self.arenas[rank].base())
    }

    fn table_offset(&self) -> usize {
        0
    }

    fn alloc(&self, bytes: usize) -> Result<usize> {
        Ok(self.segments[self.rank].alloc(bytes))
    }

    fn populate(&self, rank: usize, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.segments[rank].used.load(Ordering::Relaxed));
    }
}

/// Ranks with connected channels.
struct World {
    n: usize,
    n_channels: usize,
    params: Params,
    layouts: Vec<Layout>,
    segments: Arc<Vec<Block>>,
    arenas: Arc<Vec<Block>>,
    /// By rank, then channel.
    tasks: Vec<Vec<ChannelTask>>,
}

const ARENA: usize = 8 << 20;

impl World {
    fn new(n: usize, per_host: usize, n_channels: usize, is_direct: bool) -> Self {
        let params = Params::nccl().with_buffers([Some(32768), Some(65536), Some(65536)]);
        let table = fifo::table_bytes(n_channels, n);
        // Every connection a ring and a tree can want, in three protocols.
        let segment = table + n_channels * 6 * (32768 + 65536 + 65536);
        let segments: Arc<Vec<_>> = Arc::new((0..n).map(|_| Block::new(segment)).collect());
        for segment in segments.iter() {
            segment.alloc(table);
        }
        let arenas: Arc<Vec<_>> = Arc::new((0..n).map(|_| Block::new(ARENA)).collect());
        let buffer_bytes = [Protocol::LL, Protocol::LL128, Protocol::Simple].map(|p| params.buffer_bytes(p));
        let tasks = (0..n)
            .map(|rank| {
                let (segments, arenas) = (segments.clone(), arenas.clone());
                let memory = Arc::new(Memory { rank, segments, arenas, is_direct });
                (0..n_channels)
                    .map(|channel| {
                        let place = Place { rank, n_ranks: n, channel, n_channels, buffer_bytes };
                        ChannelTask::new(memory.clone(), place)
                    })
                    .collect()
            })
            .collect();
        let layouts = (0..n).map(|rank| layout(n, per_host, n_channels, rank)).collect();
        Self { n, n_channels, params, layouts, segments, arenas, tasks }
    }

    /// Runs a collective and checks every element. `threads`: one thread per rank instead of going on in turn as far as possible.
    fn check(&mut self, call: Call, threads: bool) {
        let in_bytes = call.count * call.dtype.size();
        let gather = call.collective == Collective::AllGather;
        let out_bytes = if gather { self.n * in_bytes } else { in_bytes };
        let (send_at, recv_at) = (0, if call.in_place { 0 } else { ARENA / 2 });
        assert!(out_bytes + 256 <= ARENA / 2);
        for rank in 0..self.n {
            let base = self.arenas[rank].base();
            let send_at = if gather && call.in_place { rank * in_bytes } else { send_at };
            let input: Vec<u8> = (0..in_bytes).map(|i| value(rank, i)).collect();
            // SAFETY: nothing runs; the arena is longer than what is written.
            unsafe {
                base.add(recv_at).write_bytes(0xa5, out_bytes + 256);
                base.add(send_at).copy_from_nonoverlapping(input.as_ptr(), in_bytes);
            }
        }
        let reducer = Reducer::new(if gather { DataType::Int8 } else { call.dtype }, RedOp::Sum, self.n);
        let plans: Vec<Plan> = (0..self.n)
            .map(|rank| {
                let Call { collective, count, dtype, .. } = call;
                let choice = Choice {
                    algorithm: call.algorithm,
                    protocol: call.protocol,
                    n_channels: self.n_channels as u32,
                };
                build(
                    &Request { collective, count, dtype, n_ranks: self.n, rank },
                    &choice,
                    &self.layouts[rank],
                    &self.params,
                )
            })
            .collect();
        let operands: Vec<_> = (0..self.n)
            .map(|rank| {
                let base = self.arenas[rank].base();
                let send_at = if gather && call.in_place { rank * in_bytes } else { send_at };
                let (send, recv) = (base.wrapping_add(send_at).cast_const(), base.wrapping_add(recv_at));
                Operands { send, recv, recv_in_arena: Some(recv_at), reducer, non_temporal: threads }
            })
            .collect();
        if threads {
            run_on_threads(&mut self.tasks, &plans, &operands);
        } else {
            run_in_turns(&mut self.tasks, &plans, &operands);
        }
        let sums: Vec<u8> = if gather { Vec::new() } else { self.sums(in_bytes, call.dtype.size()) };
        for rank in 0..self.n {
            // SAFETY: nothing runs any more.
            let got =
                unsafe { std::slice::from_raw_parts(self.arenas[rank].base().add(recv_at), out_bytes + 256) };
            for (i, &got) in got[..out_bytes].iter().enumerate() {
                let want = if gather { value(i / in_bytes, i % in_bytes) } else { sums[i] };
                assert_eq!(got, want, "{call:?} on {} ranks: rank {rank}, byte {i}", self.n);
            }
            assert!(
                got[out_bytes..].iter().all(|&b| b == 0xa5),
                "{call:?}: rank {rank} wrote beyond its result"
            );
        }
    }

    /// Sums of everybody's input as little-endian integers of the type's size.
    fn sums(&self, bytes: usize, size: usize) -> Vec<u8> {
        let element =
            |rank, at: usize| (0..size).fold(0u64, |v, b| v | u64::from(value(rank, at + b)) << (8 * b));
        let sum = |at| (0..self.n).fold(0u64, |sum, rank| sum.wrapping_add(element(rank, at)));
        (0..bytes).step_by(size).flat_map(|at| sum(at).to_le_bytes().into_iter().take(size)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    dtype: DataType,
    count: usize,
    in_place: bool,
}

fn value(rank: usize, byte: usize) -> u8 {
    ((rank * 131 + byte).wrapping_mul(0x9e37_79b9) >> 11) as u8
}

fn layout(n: usize, per_host: usize, n_channels: usize, rank: usize) -> Layout {
    let order =
        |channel: usize| (0..n).map(|i| if channel % 2 == 1 { n - 1 - i } else { i }).collect::<Vec<_>>();
    let (host, local) = (rank / per_host, rank % per_host);
    let tree = |channel: usize| {
        let mut tree = Tree::default();
        if local + 1 < per_host {
            tree.down.push(rank + 1);
        }
        if local > 0 {
            tree.up = Some(rank - 1);
        } else {
            let place = trees::double(n / per_host, host)[channel % 2];
            tree.up = place.parent.map(|h| h * per_host);
            tree.down.extend(place.children.iter().flatten().map(|h| h * per_host));
        }
        tree
    };
    Layout {
        rings: (0..n_channels).map(|c| Ring::new(&order(c), rank)).collect(),
        trees: (0..n_channels).map(tree).collect(),
        n_hosts: n / per_host,
    }
}

fn run_in_turns(tasks: &mut [Vec<ChannelTask>], plans: &[Plan], operands: &[Operands]) {
    for (rank, plan) in plans.iter().enumerate() {
        for work in &plan.channels {
            tasks[rank][work.channel].start(work, operands[rank]).unwrap();
        }
    }
    let mut idle = 0;
    loop {
        let (mut all_done, mut moved) = (true, false);
        // Backwards: in the test of old flags rank 1 must look before rank 0 has sent.
        for (rank, plan) in plans.iter().enumerate().rev() {
            for work in &plan.channels {
                let task = &mut tasks[rank][work.channel];
                let before = task.position().steps;
                let mut progress = task.poll();
                while progress == Progress::Advanced {
                    progress = task.poll();
                }
                moved |= task.position().steps != before;
                if let Progress::Blocked { peer, .. } = progress {
                    assert_eq!(task.position().peer, Some(peer));
                    all_done = false;
                }
            }
        }
        if all_done {
            return;
        }
        idle = if moved { 0 } else { idle + 1 };
        assert!(idle < 3, "all ranks wait for each other");
    }
}

fn run_on_threads(tasks: &mut [Vec<ChannelTask>], plans: &[Plan], operands: &[Operands]) {
    let barrier = Barrier::new(tasks.len());
    std::thread::scope(|scope| {
        for ((tasks, plan), operands) in tasks.iter_mut().zip(plans).zip(operands.to_vec()) {
            let barrier = &barrier;
            scope.spawn(move || {
                let operands = { operands };
                barrier.wait();
                for work in &plan.channels {
                    tasks[work.channel].start(work, operands).unwrap();
                }
                let mut left: Vec<usize> = plan.channels.iter().map(|work| work.channel).collect();
                while !left.is_empty() {
                    let mut moved = false;
                    left.retain(|&channel| {
                        let progress = tasks[channel].poll();
                        moved |= !matches!(progress, Progress::Blocked { .. });
                        progress != Progress::Done
                    });
                    if !moved {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

const COUNTS: [usize; 8] = [1, 2, 15, 241, 1000, 4099, 30_000, 70_001];
const TYPES: [DataType; 4] = [DataType::Uint8, DataType::Uint32, DataType::Int64, DataType::Int32];

/// Every algorithm, protocol and placement, one after the other on the same connections.
fn sweep(world: &mut World, threads: bool) {
    let combinations = [
        (Collective::AllReduce, Algorithm::Ring),
        (Collective::AllReduce, Algorithm::Tree),
        (Collective::AllGather, Algorithm::Ring),
    ];
    let mut turn = 0;
    for &count in &COUNTS {
        for (collective, algorithm) in combinations {
            for &protocol in Protocol::ALL {
                turn += 1;
                let dtype = TYPES[turn % TYPES.len()];
                let count = if collective == Collective::AllGather { count / 8 + 1 } else { count };
                let in_place = turn % 2 == 0;
                world.check(Call { collective, algorithm, protocol, dtype, count, in_place }, threads);
            }
        }
    }
}

#[test]
fn every_algorithm_and_protocol_is_right_at_every_rank_count() {
    for (n, n_channels) in
        [(1, 1), (2, 1), (3, 2), (4, 1), (5, 3), (6, 1), (7, 2), (8, 2), (9, 1), (13, 1), (16, 1)]
    {
        for is_direct in [false, true] {
            sweep(&mut World::new(n, n, n_channels, is_direct), false);
        }
    }
}

#[test]
fn trees_between_hosts_are_right() {
    for (n_hosts, per_host) in [(2, 1), (3, 1), (4, 2), (5, 3), (7, 1)] {
        sweep(&mut World::new(n_hosts * per_host, per_host, 2, n_hosts % 2 == 0), false);
    }
}

#[test]
fn ranks_on_threads_of_their_own_agree() {
    for (n, per_host, is_direct) in [(2, 2, false), (2, 2, true), (3, 1, false), (4, 2, true)] {
        sweep(&mut World::new(n, per_host, 2, is_direct), true);
    }
}

#[test]
fn final_values_of_a_ring_go_straight_into_registered_results() {
    let call = Call {
        collective: Collective::AllGather,
        algorithm: Algorithm::Ring,
        protocol: Protocol::Simple,
        dtype: DataType::Uint32,
        count: 5000,
        in_place: false,
    };
    for is_direct in [false, true] {
        let mut world = World::new(3, 3, 1, is_direct);
        world.check(call, false);
        let table = fifo::table_bytes(1, 3).next_multiple_of(4096);
        for segment in world.segments.iter() {
            // SAFETY: nothing runs; the slots lie behind the table.
            let slots = unsafe { std::slice::from_raw_parts(segment.base().add(table), 65536) };
            assert_eq!(slots.iter().all(|&b| b == 0), is_direct, "slots are used only without direct access");
        }
    }
}

#[test]
fn flags_of_long_ago_are_not_taken_for_new_ones() {
    for wrap in [0x8000_0000_u64, 0x1_0000_0000] {
        let mut world = World::new(2, 2, 1, false);
        let call = |count| Call {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            protocol: Protocol::LL,
            dtype: DataType::Uint32,
            count,
            in_place: false,
        };
        // The first call makes the slots; two steps a call.
        world.check(call(1), false);
        let start = wrap - 32;
        for task in world.tasks.iter_mut().flatten() {
            task.connectors.recv.iter_mut().flatten().for_each(|end| end.resume_at(start));
            task.connectors.send.iter_mut().flatten().for_each(|sender| sender.end.resume_at(start));
        }
        // What steps behind the wrap would have left 2^32 steps ago.
        let table = fifo::table_bytes(1, 2).next_multiple_of(4096);
        for segment in world.segments.iter() {
            // SAFETY: nothing runs; the eight LL slots of 4096 bytes lie right behind the table.
            let words =
                unsafe { std::slice::from_raw_parts_mut(segment.base().add(table).cast::<u32>(), 8192) };
            for (i, word) in words.iter_mut().enumerate() {
                *word = if i % 2 == 0 { 0xbad } else { (wrap as u32).wrapping_add(i as u32 / 1024 + 1) };
            }
        }
        (0..16).for_each(|_| world.check(call(1), false));
        world.check(call(3000), false);
    }
}
