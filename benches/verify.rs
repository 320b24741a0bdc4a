//! Data checking: bytes a second that one core generates and checks. The main job's data are float sums of 8 ranks.

use std::hint::black_box;
use std::time::Duration;

use chorus::engine::types::{Collective, DataType, RedOp};
use chorus::perf::verify::Pattern;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const BYTES: usize = 1 << 20;

fn bench(c: &mut Criterion, group: &str, cases: &[(String, Pattern)]) {
    let mut buffer = vec![0; BYTES];
    let mut group = c.benchmark_group(group);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    group.throughput(Throughput::Bytes(BYTES as u64));
    for (name, pattern) in cases {
        group.bench_function(BenchmarkId::new("fill", name), |b| {
            b.iter(|| pattern.fill(1, 0, black_box(&mut buffer)))
        });
        group.bench_function(BenchmarkId::new("check", name), |b| {
            b.iter(|| pattern.check(1, 0, black_box(&buffer)))
        });
    }
    group.finish();
}

fn float_sum(c: &mut Criterion) {
    let cases = [1, 2, 8, 64].map(|n_ranks| {
        (n_ranks.to_string(), Pattern::new(Collective::AllReduce, 1, n_ranks, DataType::Float, RedOp::Sum))
    });
    bench(c, "float-sum", &cases);
}

fn all_types(c: &mut Criterion) {
    let ops = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Avg, RedOp::PreMulSum(1.0)];
    let case = |dtype: DataType, op: RedOp| {
        (format!("{dtype}/{}", op.name()), Pattern::new(Collective::AllReduce, 1, 8, dtype, op))
    };
    let cases: Vec<_> =
        DataType::ALL.iter().flat_map(|&dtype| ops.iter().map(move |&op| case(dtype, op))).collect();
    bench(c, "eight-ranks", &cases);
}

criterion_group!(benches, float_sum, all_types);
criterion_main!(benches);
