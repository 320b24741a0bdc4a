//! Reduction kernels: sources at memory and at cache size, by element type, operator and vector level.
//!
//! Throughput counts every byte read and written once. `copy` is the same number of bytes through the same stores with nothing
//! to compute: what memory gives.

use std::hint::black_box;
use std::time::Duration;

use chorus::engine::device::host::reduce::{Job, Level, Reducer, Source};
use chorus::engine::types::{DataType, RedOp};
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};

/// Bytes of one source: one that stays in the second-level cache with its siblings, one that fits in no cache.
const CACHED: usize = 32 << 10;
const UNCACHED: usize = 32 << 20;

struct Arena {
    inputs: Vec<Vec<u8>>,
    output: Vec<u8>,
}

impl Arena {
    fn new(n_sources: usize, bytes: usize) -> Self {
        // Small integers repeated: no type meets subnormals or NaN.
        let input = |rank: usize| {
            (0..bytes).map(|i| if i % 8 == 7 { 0x40 } else { (i + rank) as u8 & 0x3f }).collect()
        };
        Self { inputs: (0..n_sources).map(input).collect(), output: vec![0; bytes] }
    }

    fn run(&mut self, reducer: Reducer, n_sources: usize, bytes: usize, non_temporal: bool) {
        let scale = reducer.own_scale();
        let sources: Vec<Source> =
            self.inputs[..n_sources].iter().map(|input| Source { ptr: input.as_ptr(), scale }).collect();
        let n_elem = bytes / reducer.elem_bytes();
        let destinations = [self.output.as_mut_ptr()];
        let job = Job { sources: &sources, destinations: &destinations, n_elem, post: true, non_temporal };
        // SAFETY: every buffer has `bytes` bytes and all are apart.
        unsafe { reducer.run(black_box(&job)) };
        black_box(&self.output);
    }
}

fn settings(group: &mut BenchmarkGroup<'_, WallTime>) {
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
}

fn sizes() -> [(&'static str, usize); 2] {
    [("cached", CACHED), ("uncached", UNCACHED)]
}

fn float_sum_by_sources(c: &mut Criterion) {
    let mut arena = Arena::new(8, UNCACHED);
    for (place, bytes) in sizes() {
        let mut group = c.benchmark_group(format!("float-sum/{place}"));
        settings(&mut group);
        for n_sources in [1, 2, 4, 8] {
            group.throughput(Throughput::Bytes((bytes * (n_sources + 1)) as u64));
            for &level in Level::ALL.iter().filter(|level| level.is_available()) {
                let reducer = Reducer::at_level(DataType::Float, RedOp::Sum, n_sources, level);
                group.bench_function(BenchmarkId::new(format!("{level:?}"), n_sources), |b| {
                    b.iter(|| arena.run(reducer, n_sources, bytes, place == "uncached"));
                });
            }
        }
        group.finish();
    }
}

fn types_and_operators(c: &mut Criterion) {
    let mut arena = Arena::new(2, UNCACHED);
    for (place, bytes) in sizes() {
        let mut group = c.benchmark_group(format!("two-sources/{place}"));
        settings(&mut group);
        group.throughput(Throughput::Bytes((bytes * 3) as u64));
        for &dtype in DataType::ALL {
            for op in [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Avg] {
                let reducer = Reducer::new(dtype, op, 3);
                group.bench_function(format!("{dtype}/{}", op.name()), |b| {
                    b.iter(|| arena.run(reducer, 2, bytes, place == "uncached"));
                });
            }
        }
        group.finish();
    }
}

fn narrow_floats_by_level(c: &mut Criterion) {
    let mut arena = Arena::new(8, UNCACHED);
    for (place, bytes) in sizes() {
        let mut group = c.benchmark_group(format!("narrow-sum/{place}"));
        settings(&mut group);
        for dtype in [DataType::Half, DataType::Bfloat16, DataType::F8e4m3, DataType::F8e5m2] {
            for n_sources in [2, 8] {
                group.throughput(Throughput::Bytes((bytes * (n_sources + 1)) as u64));
                for &level in Level::ALL.iter().filter(|level| level.is_available()) {
                    let reducer = Reducer::at_level(dtype, RedOp::Sum, n_sources, level);
                    group.bench_function(BenchmarkId::new(format!("{dtype}/{level:?}"), n_sources), |b| {
                        b.iter(|| arena.run(reducer, n_sources, bytes, place == "uncached"));
                    });
                }
            }
        }
        group.finish();
    }
}

fn tiny(c: &mut Criterion) {
    let mut arena = Arena::new(8, CACHED);
    let mut group = c.benchmark_group("tiny");
    settings(&mut group);
    for dtype in [DataType::Float, DataType::Half] {
        for bytes in [8, 64, 512] {
            let reducer = Reducer::new(dtype, RedOp::Sum, 8);
            group.bench_function(BenchmarkId::new(dtype.name(), bytes), |b| {
                b.iter(|| arena.run(reducer, 8, bytes, false));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, float_sum_by_sources, narrow_floats_by_level, types_and_operators, tiny);
criterion_main!(benches);
