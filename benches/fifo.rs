//! Throughput of connections: AllReduce over a ring of two ranks, a thread each, by protocol, slot size and message size.
//!
//! The time is that of the slower rank. Consecutive calls walk through buffers of 64 MiB, so that caches see what a sweep shows them.
//! `CARGO_BENCH` arguments select as usual: `cargo bench --bench fifo -- simple/slot_65536`.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use chorus::engine::device::host::cta::{ChannelTask, Operands, Place, Progress};
use chorus::engine::device::host::fifo::{self, FifoMemory};
use chorus::engine::device::host::reduce::Reducer;
use chorus::engine::error::Result;
use chorus::engine::plan::{Layout, Params, Plan, Request, Ring, build};
use chorus::engine::tuning::host::Choice;
use chorus::engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SPAN: usize = 64 << 20;
const SEGMENT: usize = 16 << 20;

#[repr(C, align(4096))]
#[derive(Clone, Debug)]
struct Page([u8; 4096]);

/// Memory of both ranks: segments, then arenas (input, result).
#[derive(Debug)]
struct Memory {
    bases: [usize; 4],
    used: [AtomicUsize; 2],
    is_direct: bool,
    non_temporal: bool,
    _segments: [Vec<Page>; 2],
}

#[derive(Debug)]
struct RankMemory {
    rank: usize,
    all: Arc<Memory>,
}

fn pages(bytes: usize) -> Vec<Page> {
    vec![Page([1; 4096]); bytes / 4096]
}

impl Memory {
    fn new(is_direct: bool, non_temporal: bool) -> Arc<Self> {
        static ARENAS: OnceLock<[usize; 2]> = OnceLock::new();
        let arenas = ARENAS.get_or_init(|| [0, 1].map(|_| pages(2 * SPAN).leak().as_mut_ptr() as usize));
        let segments = [0, 1].map(|_| vec![Page([0; 4096]); SEGMENT / 4096]);
        let bases = [
            segments[0].as_ptr().expose_provenance(),
            segments[1].as_ptr().expose_provenance(),
            arenas[0],
            arenas[1],
        ];
        let table = fifo::table_bytes(1, 2).next_multiple_of(4096);
        Arc::new(Self {
            bases,
            used: [table, table].map(AtomicUsize::new),
            is_direct,
            non_temporal,
            _segments: segments,
        })
    }
}

impl FifoMemory for RankMemory {
    fn segment(&self, rank: usize) -> Option<*mut u8> {
        Some(self.all.bases[rank] as *mut u8)
    }

    fn arena(&self, rank: usize) -> Option<*mut u8> {
        self.all.is_direct.then(|| self.all.bases[2 + rank] as *mut u8)
    }

    fn table_offset(&self) -> usize {
        0
    }

    fn alloc(&self, bytes: usize) -> Result<usize> {
        let at = self.all.used[self.rank].fetch_add(bytes.next_multiple_of(4096), Ordering::Relaxed);
        assert!(at + bytes <= SEGMENT);
        Ok(at)
    }

    fn populate(&self, _rank: usize, _offset: usize, _bytes: usize) {}
}

struct Rank {
    task: ChannelTask,
    plan: Plan,
    operands: Vec<Operands>,
}

impl Rank {
    fn new(rank: usize, memory: &Arc<Memory>, params: &Params, protocol: Protocol, bytes: usize) -> Self {
        let buffer_bytes = [Protocol::LL, Protocol::LL128, Protocol::Simple].map(|p| params.buffer_bytes(p));
        let own = Arc::new(RankMemory { rank, all: memory.clone() });
        let layout = Layout { rings: vec![Ring::new(&[0, 1], rank)], trees: Vec::new(), n_hosts: 1 };
        let (collective, dtype) = (Collective::AllReduce, DataType::Float);
        let request = Request { collective, count: bytes / 4, dtype, n_ranks: 2, rank };
        let choice = Choice { algorithm: Algorithm::Ring, protocol, n_channels: 1 };
        let base = memory.bases[2 + rank] as *mut u8;
        let operands = (0..SPAN / bytes).map(|i| Operands {
            send: base.wrapping_add(i * bytes),
            recv: base.wrapping_add(SPAN + i * bytes),
            recv_in_arena: Some(SPAN + i * bytes),
            reducer: Reducer::new(dtype, RedOp::Sum, 2),
            non_temporal: memory.non_temporal,
        });
        Self {
            task: ChannelTask::new(own, Place { rank, n_ranks: 2, channel: 0, n_channels: 1, buffer_bytes }),
            plan: build(&request, &choice, &layout, params),
            operands: operands.collect(),
        }
    }

    fn run(&mut self, iterations: u64) -> Duration {
        let start = Instant::now();
        for i in 0..iterations {
            let operands = self.operands[i as usize % self.operands.len()];
            self.task.start(&self.plan.channels[0], operands).expect("both ranks are in this process");
            let mut looks = 0;
            loop {
                match self.task.poll() {
                    Progress::Done => break,
                    Progress::Advanced => looks = 0,
                    Progress::Blocked { .. } if looks < 10_000 => {
                        looks += 1;
                        std::hint::spin_loop();
                    }
                    Progress::Blocked { .. } => std::thread::yield_now(),
                }
            }
        }
        start.elapsed()
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Where that CPU is not ours the threads stay where they are.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Both ranks run that many calls; the slower one's time.
fn measure(ranks: &[Mutex<Rank>; 2], iterations: u64) -> Duration {
    let arrived = AtomicU64::new(0);
    let run = |rank: usize| {
        pin(rank);
        let mut rank = ranks[rank].lock().expect("no rank panics");
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < 2 {
            std::hint::spin_loop();
        }
        black_box(rank.run(iterations))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        run(0).max(other.join().expect("no rank panics"))
    })
}

fn throughput(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let slots = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10];
    let kinds = [
        ("ll", Protocol::LL, false, false),
        ("ll128", Protocol::LL128, false, false),
        ("simple", Protocol::Simple, false, false),
        ("simple_nt", Protocol::Simple, false, true),
        ("simple_direct", Protocol::Simple, true, false),
        ("simple_direct_nt", Protocol::Simple, true, true),
    ];
    for (name, protocol, is_direct, non_temporal) in kinds {
        for slot in slots {
            let mut buffers = [None; 3];
            buffers[protocol as usize] = Some(slot * 8);
            let params = Params::nccl().with_buffers(buffers);
            for bytes in [64 << 10, 1 << 20, 16 << 20] {
                let memory = Memory::new(is_direct, non_temporal);
                let ranks = [0, 1].map(|rank| Mutex::new(Rank::new(rank, &memory, &params, protocol, bytes)));
                let name = format!("{name}/slot_{slot}");
                group.throughput(Throughput::Bytes(bytes as u64));
                group
                    .bench_function(BenchmarkId::new(name, bytes), |b| b.iter_custom(|n| measure(&ranks, n)));
            }
        }
    }
}

criterion_group!(benches, throughput);
criterion_main!(benches);
