//! Calls queued back to back over memory that they share equal the same calls one after another: inputs are not taken before they are
//! final, and not overwritten while a peer still reads them.

use std::time::Duration;

use chorus::{
    Algorithm, Buffer, CommInit, Communicator, DataType, Forced, Protocol, RedOp, Settings, Stream, UniqueId,
};

/// Words of a rank's only buffer.
const WORDS: usize = 3000;
const CALLS: usize = 400;

/// One call of all ranks, in words.
#[derive(Clone, Debug)]
struct Call {
    gather: bool,
    count: usize,
    /// Where each rank's input and result lie.
    places: Vec<(usize, usize)>,
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// Calls whose input is in place or apart from the result, at places that calls share again and again.
fn calls(n: usize, seed: u64) -> Vec<Call> {
    let mut draw = Draw(seed);
    let mut call = || {
        let gather = draw.below(3) == 0;
        let count = [1, 3, 14, 40, 200, 500][draw.below(6)];
        let blocks = if gather { n } else { 1 };
        let mut place = |rank: usize| loop {
            let recv = draw.below(WORDS - blocks * count) / 100 * 100;
            if draw.below(3) == 0 {
                return (recv + if gather { rank * count } else { 0 }, recv);
            }
            let send = draw.below(WORDS - count) / 100 * 100;
            if send + count <= recv || send >= recv + blocks * count {
                return (send, recv);
            }
        };
        Call { gather, count, places: (0..n).map(&mut place).collect() }
    };
    (0..CALLS).map(|_| call()).collect()
}

fn one_by_one(memory: &mut [Vec<u32>], call: &Call) {
    let inputs: Vec<Vec<u32>> =
        memory.iter().zip(&call.places).map(|(m, &(send, _))| m[send..send + call.count].to_vec()).collect();
    let result: Vec<u32> = if call.gather {
        inputs.concat()
    } else {
        (0..call.count).map(|i| inputs.iter().fold(0, |sum: u32, input| sum.wrapping_add(input[i]))).collect()
    };
    for (m, &(_, recv)) in memory.iter_mut().zip(&call.places) {
        m[recv..recv + result.len()].copy_from_slice(&result);
    }
}

fn start(rank: usize) -> Vec<u32> {
    (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(rank as u32 * 7919)).collect()
}

fn launch(rank: usize, (comm, buffer, stream): &(Communicator, Buffer, Stream), calls: &[Call]) {
    for call in calls {
        let (send, recv) = call.places[rank];
        let spans = (buffer.span(4 * send), buffer.span(4 * recv));
        if call.gather {
            comm.all_gather(spans, call.count, DataType::Uint32, stream).unwrap();
        } else {
            comm.all_reduce(spans, call.count, (DataType::Uint32, RedOp::Sum), stream).unwrap();
        }
    }
    stream.synchronize().unwrap();
}

#[test]
fn queued_calls_equal_calls_one_by_one() {
    let one_shot = Some(Algorithm::OneShot);
    let kinds = [
        Forced { algorithm: one_shot, protocol: Some(Protocol::Simple), ..Forced::default() },
        Forced { algorithm: one_shot, protocol: Some(Protocol::LL), ..Forced::default() },
        Forced::default(),
    ];
    for n in [2, 3, 5] {
        let limit = Some(Duration::from_secs(60));
        let settings = Settings::from_env(limit).unwrap();
        let id = UniqueId::create(&settings.bootstrap).unwrap();
        let init = CommInit { id, n_ranks: n, ranks: (0..n).collect(), settings, limit };
        let with_buffer = |comm: Communicator| {
            let (buffer, stream) = (comm.alloc(4 * WORDS).unwrap(), comm.stream());
            (comm, buffer, stream)
        };
        let ranks: Vec<_> = Communicator::init(init).unwrap().into_iter().map(with_buffer).collect();
        for (seed, forced) in kinds.into_iter().enumerate() {
            let calls = calls(n, (10 * n + seed) as u64);
            let mut memory: Vec<Vec<u32>> = (0..n).map(start).collect();
            for (rank, (comm, buffer, _)) in ranks.iter().enumerate() {
                comm.force(forced);
                buffer.write(|bytes| {
                    for (to, word) in bytes.chunks_exact_mut(4).zip(&memory[rank]) {
                        to.copy_from_slice(&word.to_ne_bytes());
                    }
                });
            }
            std::thread::scope(|scope| {
                for (rank, own) in ranks.iter().enumerate() {
                    scope.spawn({
                        let calls = &calls;
                        move || launch(rank, own, calls)
                    });
                }
            });
            calls.iter().for_each(|call| one_by_one(&mut memory, call));
            for (rank, (_, buffer, _)) in ranks.iter().enumerate() {
                buffer.read(|bytes| {
                    let got = bytes.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap()));
                    let wrong = got.zip(&memory[rank]).position(|(got, want)| got != *want);
                    assert_eq!(wrong, None, "n={n} {forced:?} rank {rank}");
                });
            }
        }
    }
}
