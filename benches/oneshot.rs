//! One-shot latency: two ranks of one process, each on a thread of its own, back-to-back calls of 8 bytes.
//! The floor is one cache-line transfer between the two cores.

use std::hint::black_box;
use std::time::{Duration, Instant};

use chorus::{
    Algorithm, Buffer, CommInit, Communicator, DataType, Forced, RedOp, Settings, Stream, UniqueId,
};
use criterion::{Criterion, criterion_group, criterion_main};

struct Rank {
    comm: Communicator,
    send: Buffer,
    recv: Buffer,
    stream: Stream,
}

impl Rank {
    fn run(&self, iterations: u64, wait_for_each: bool) -> Duration {
        let start = Instant::now();
        for _ in 0..iterations {
            let spans = (self.send.span(0), self.recv.span(0));
            let sum = (DataType::Float, RedOp::Sum);
            self.comm.all_reduce(spans, 2, sum, &self.stream).expect("invariant: the call is valid");
            if wait_for_each {
                self.stream.synchronize().expect("invariant: both ranks take part");
            }
        }
        self.stream.synchronize().expect("invariant: both ranks take part");
        black_box(start.elapsed())
    }
}

fn ranks() -> Vec<Rank> {
    let settings = Settings::from_env(None).expect("invariant: the environment is valid");
    let id = UniqueId::create(&settings.bootstrap).expect("invariant: the loopback works");
    let init = CommInit { id, n_ranks: 2, ranks: vec![0, 1], settings, limit: None };
    let make = |comm: Communicator| {
        comm.force(Forced { algorithm: Some(Algorithm::OneShot), ..Forced::default() });
        let (send, recv) = (comm.alloc(64).expect("64 bytes"), comm.alloc(64).expect("64 bytes"));
        let stream = comm.stream();
        Rank { comm, send, recv, stream }
    };
    Communicator::init(init).expect("invariant: two ranks can meet").into_iter().map(make).collect()
}

fn latency(c: &mut Criterion) {
    let ranks = ranks();
    let mut group = c.benchmark_group("one-shot, 2 ranks, 8 bytes");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for (name, wait) in [("waiting for each call", true), ("back to back", false)] {
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                std::thread::scope(|scope| {
                    let peer = scope.spawn(|| ranks[1].run(iterations, wait));
                    let own = ranks[0].run(iterations, wait);
                    own.max(peer.join().expect("invariant: the peer's thread does not panic"))
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, latency);
criterion_main!(benches);
