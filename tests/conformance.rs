//! The matrix: every algorithm × protocol × type × operator at every rank count, with transport, channels, placement and size drawn
//! so that every pair of values of any two factors occurs. Expected values come from the harness's own generator, which shares no
//! arithmetic with the engine.

use std::collections::BTreeSet;
use std::time::Duration;

use chorus::perf::verify::{Pattern, mulsum_scalar};
use chorus::{
    Algorithm, Buffer, Collective, CommInit, Communicator, DataType, Forced, Protocol, RedOp, Settings,
    Stream, UniqueId,
};
use rand_like::Draw;

/// Rank counts of the matrix.
const RANKS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16];
/// Draws of the remaining factors per algorithm, protocol, type, operator and rank count.
const DRAWS: u64 = 3;
/// FIFO sizes of LL, LL128 and Simple: small, so that a chunk is small and sizes past it are cheap.
const BUFFERS: [Option<usize>; 3] = [Some(64 << 10), Some(128 << 10), Some(64 << 10)];
const GUARD: usize = 256;

const OPS: [RedOp; 6] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg, RedOp::PreMulSum(0.0)];

/// How many elements a call has, in words of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    Zero,
    One,
    Seven,
    Prime,
    /// One element more than a chunk of LL.
    PastLl,
    /// One element more than what all ranks move in one loop of a Simple ring.
    PastLoop,
}

const SIZES: [Size; 6] = [Size::Zero, Size::One, Size::Seven, Size::Prime, Size::PastLl, Size::PastLoop];

impl Size {
    fn count(self, elem_bytes: usize, n: usize) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Seven => 7,
            Self::Prime => 1009,
            Self::PastLl => 4096 / elem_bytes + 1,
            Self::PastLoop => n * (32 << 10) / elem_bytes + 1,
        }
    }
}

/// One case.
#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    shm: bool,
    n_channels: u32,
    n_ranks: usize,
    dtype: DataType,
    op: RedOp,
    in_place: bool,
    size: Size,
}

impl Case {
    /// Each factor's value as text: the pairs of these must all occur.
    fn factors(&self) -> [String; 9] {
        [
            format!("{} {} {}", self.collective, self.algorithm, self.protocol),
            format!("shm {}", self.shm),
            format!("channels {}", self.n_channels),
            format!("ranks {}", self.n_ranks),
            format!("type {}", self.dtype),
            format!("op {}", self.op.name()),
            format!("in place {}", self.in_place),
            format!("size {:?}", self.size),
            format!("collective {}", self.collective),
        ]
    }
}

/// A small generator whose stream never changes.
mod rand_like {
    pub(super) struct Draw(pub(super) u64);
    impl Draw {
        pub(super) fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as usize) % n
        }
    }
}

struct Rank {
    comm: Communicator,
    send: Buffer,
    recv: Buffer,
    stream: Stream,
}

fn communicators(n: usize, shm: bool) -> Vec<Rank> {
    let limit = Some(Duration::from_secs(120));
    let base = Settings::from_env(limit).unwrap();
    let settings = Settings { p2p_disable: shm, plan: base.plan.with_buffers(BUFFERS), ..base };
    let id = UniqueId::create(&settings.bootstrap).unwrap();
    let comms =
        Communicator::init(CommInit { id, n_ranks: n, ranks: (0..n).collect(), settings, limit }).unwrap();
    let largest = n * (32 << 10) + 64;
    let make = |comm: Communicator| {
        let (send, recv) = (comm.alloc(largest).unwrap(), comm.alloc(largest * n + GUARD).unwrap());
        let stream = comm.stream();
        Rank { comm, send, recv, stream }
    };
    comms.into_iter().map(make).collect()
}

/// Ways to run a collective here, in the order of the tables.
fn ways(collective: Collective, shm: bool) -> Vec<(Algorithm, Protocol)> {
    let mut ways = Vec::new();
    for &algorithm in Algorithm::ALL {
        for &protocol in Protocol::ALL {
            let exists = chorus::engine::tuning::host::exists(collective, algorithm, protocol);
            // Two-shot and direct one-shot need the peers' buffers, which SHM does not reach: that refusal has a test of its own.
            let is_direct =
                matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot) && protocol == Protocol::Simple;
            if exists && !(shm && is_direct) {
                ways.push((algorithm, protocol));
            }
        }
    }
    ways
}

fn run(ranks: &[Rank], case: &Case, rep: u64) -> Result<(), String> {
    let n = case.n_ranks;
    let elem = case.dtype.size();
    let gather = case.collective == Collective::AllGather;
    let mut count = case.size.count(elem, n);
    if gather {
        count = count.div_ceil(n);
    }
    if case.algorithm == Algorithm::OneShot {
        count = count.min((64 << 10) / elem);
    }
    let input = count * elem;
    let result = if gather { n * input } else { input };
    let pattern = |source: usize| {
        let seed = if gather { 33 * rep + source as u64 } else { rep };
        Pattern::new(case.collective, seed, n, case.dtype, case.op)
    };
    for (r, rank) in ranks.iter().enumerate() {
        let own = if case.in_place && gather { r * input } else { 0 };
        rank.recv.write(|bytes| {
            bytes[..result + GUARD].fill(0xee);
            if case.in_place {
                pattern(r).fill(r, 0, &mut bytes[own..own + input]);
            }
        });
        if !case.in_place {
            rank.send.write(|bytes| pattern(r).fill(r, 0, &mut bytes[..input]));
        }
        let send = if case.in_place { rank.recv.span(own) } else { rank.send.span(0) };
        let forced = Forced {
            algorithm: Some(case.algorithm),
            protocol: Some(case.protocol),
            n_channels: Some(case.n_channels),
        };
        rank.comm.force(forced);
        let op = if let RedOp::PreMulSum(_) = case.op { RedOp::PreMulSum(mulsum_scalar(r)) } else { case.op };
        let spans = (send, rank.recv.span(0));
        let launched = if gather {
            rank.comm.all_gather(spans, count, case.dtype, &rank.stream)
        } else {
            rank.comm.all_reduce(spans, count, (case.dtype, op), &rank.stream)
        };
        launched.map_err(|e| e.to_string())?;
    }
    for rank in ranks {
        rank.stream.synchronize().map_err(|e| e.to_string())?;
    }
    for (r, rank) in ranks.iter().enumerate() {
        rank.recv.read(|bytes| {
            let blocks = if gather { n } else { 1 };
            for source in 0..blocks {
                let block = &bytes[source * input..source * input + input];
                let verdict = pattern(source).check(source, 0, block);
                if verdict.wrong > 0 {
                    return Err(format!("rank {r}, block {source}: {verdict:?}"));
                }
            }
            if bytes[result..result + GUARD].iter().any(|&b| b != 0xee) {
                return Err(format!("rank {r} wrote past the result of {result} bytes"));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Runs every way at the given rank counts; the pairs of factor values that occurred, and the number of cases.
fn sweep(rank_counts: &[usize]) -> (BTreeSet<(String, String)>, u64) {
    let mut draw = Draw(20_261_130);
    let mut covered: BTreeSet<(String, String)> = BTreeSet::new();
    let mut n_cases = 0u64;
    for &n_ranks in rank_counts {
        for shm in [false, true] {
            let ranks = communicators(n_ranks, shm);
            for collective in [Collective::AllReduce, Collective::AllGather] {
                for (algorithm, protocol) in ways(collective, shm) {
                    for &dtype in DataType::ALL {
                        let ops = if collective == Collective::AllGather { &OPS[..1] } else { &OPS[..] };
                        for &op in ops {
                            for _ in 0..if shm { 1 } else { DRAWS } {
                                let case = Case {
                                    collective,
                                    algorithm,
                                    protocol,
                                    shm,
                                    n_channels: [1, 2, 5][draw.below(3)],
                                    n_ranks,
                                    dtype,
                                    op,
                                    in_place: draw.below(2) == 1,
                                    size: SIZES[draw.below(SIZES.len())],
                                };
                                n_cases += 1;
                                if let Err(why) = run(&ranks, &case, n_cases) {
                                    panic!("case {n_cases}: {case:?}: {why}");
                                }
                                let factors = case.factors();
                                for (i, a) in factors.iter().enumerate() {
                                    for b in &factors[i + 1..] {
                                        covered.insert((a.clone(), b.clone()));
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    (covered, n_cases)
}

/// Every pair of values that two factors can take must have occurred.
fn check(rank_counts: &[usize], covered: &BTreeSet<(String, String)>, n_cases: u64) {
    let has =
        |a: String, b: String| assert!(covered.contains(&(a.clone(), b.clone())), "no case with {a} and {b}");
    let types = || DataType::ALL.iter().map(|t| format!("type {t}"));
    for size in SIZES {
        types().for_each(|t| has(t, format!("size {size:?}")));
        rank_counts.iter().for_each(|n| has(format!("ranks {n}"), format!("size {size:?}")));
        OPS.iter().for_each(|op| has(format!("op {}", op.name()), format!("size {size:?}")));
    }
    for n in rank_counts {
        types().for_each(|t| has(format!("ranks {n}"), t));
        [1, 2, 5].iter().for_each(|c| has(format!("channels {c}"), format!("ranks {n}")));
        [false, true].iter().for_each(|shm| has(format!("shm {shm}"), format!("ranks {n}")));
    }
    println!(
        "conformance at ranks {rank_counts:?}: {n_cases} cases, {} pairs of factor values",
        covered.len()
    );
}

// Two halves, so that two cores share the work; together more than 20 000 cases.
#[test]
fn every_way_gives_the_right_answer_on_up_to_nine_ranks() {
    let counts = &RANKS[..9];
    let (covered, n_cases) = sweep(counts);
    check(counts, &covered, n_cases);
    assert!(n_cases >= 16_000, "{n_cases} cases are fewer than promised");
}

#[test]
fn every_way_gives_the_right_answer_on_thirteen_and_sixteen_ranks() {
    let counts = &RANKS[9..];
    let (covered, n_cases) = sweep(counts);
    check(counts, &covered, n_cases);
    assert!(n_cases >= 4_000, "{n_cases} cases are fewer than promised");
}

#[test]
fn two_shot_is_refused_where_buffers_cannot_be_reached() {
    let ranks = communicators(2, true);
    ranks[0].comm.force(Forced { algorithm: Some(Algorithm::TwoShot), ..Forced::default() });
    let spans = (ranks[0].send.span(0), ranks[0].recv.span(0));
    let refused =
        ranks[0].comm.all_reduce(spans, 1, (DataType::Float, RedOp::Sum), &ranks[0].stream).unwrap_err();
    assert!(refused.to_string().contains("peer access"), "{refused}");
}
