//! Data checking: what every rank puts in and what must come out, each a pure function of (seed, element, rank), computed on
//! the fly. No buffer of expected results exists, and nothing here shares code with the engine's arithmetic.
//!
//! Properties are nccl-tests' (inputs whose sums and products are exact in any order and at any internal precision; the bits of
//! the numbers are our own), with three changes: averages depend on the element index, each round has data of its own because
//! callers raise `rep`, and [`Guard`] zones show stores outside the result.
//!
//! Elements are generated in blocks of [`BLOCK`] that share what is expensive (a hash of seed, rank and block; the place of a
//! rank in a permutation), so that the loop over the elements of a block is straight-line vector code. [`float`] says how a sum
//! of any number of ranks is known without adding them up.

mod float;
mod guard;
mod integer;
mod lane;
mod word;

#[cfg(test)]
mod tests;

pub use guard::Guard;

use std::fmt;

use crate::engine::types::{Collective, DataType, RedOp};
use word::Word;

/// Elements generated together.
const BLOCK: usize = 64;

/// Multiplier that nccl-tests gives a rank's input under `mulsum`: 1 on even ranks, 2 on odd ones.
pub fn mulsum_scalar(rank: usize) -> f64 {
    MULSUM_SCALARS[rank % 2]
}

const MULSUM_SCALARS: [f64; 2] = [1.0, 2.0];

/// Inputs and expected results of one round of one collective.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    data: Data,
    seed: u64,
    n_ranks: usize,
    dtype: DataType,
    scalars: [f64; 2],
}

/// Who contributes to a result, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// One rank: the result is its input. With the factor of its rank in the seed.
    Copy { seed_per_rank: u64 },
    /// All ranks.
    Fold(Fold),
}

/// How the contributions of all ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    MulSum,
}

impl Pattern {
    /// The data of round `rep`. The scalar inside a pre-multiplied sum is not looked at: see [`mulsum_scalar`].
    pub fn new(collective: Collective, rep: u64, n_ranks: usize, dtype: DataType, op: RedOp) -> Self {
        let fold = match op {
            RedOp::Sum => Fold::Sum,
            RedOp::Prod => Fold::Prod,
            RedOp::Max => Fold::Max,
            RedOp::Min => Fold::Min,
            RedOp::Avg => Fold::Avg,
            RedOp::PreMulSum(_) => Fold::MulSum,
        };
        let (data, seed) = match collective {
            Collective::AllGather => (Data::Copy { seed_per_rank: 1 }, 33 * rep),
            Collective::Broadcast => (Data::Copy { seed_per_rank: 0 }, rep),
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
                if n_ranks == 1 && fold != Fold::MulSum =>
            {
                (Data::Copy { seed_per_rank: 0 }, rep)
            }
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => (Data::Fold(fold), rep),
        };
        Self { data, seed, n_ranks, dtype, scalars: MULSUM_SCALARS }
    }

    /// Other multipliers of a pre-multiplied sum on even and on odd ranks: 0.5, 1, 1.5, 2 or 3. Data of floats stay exact under
    /// them.
    ///
    /// # Panics
    /// On other scalars.
    #[must_use]
    pub fn with_scalars(mut self, even: f64, odd: f64) -> Self {
        for scalar in [even, odd] {
            assert!([0.5, 1.0, 1.5, 2.0, 3.0].contains(&scalar), "no exact data for scalar {scalar}");
        }
        self.scalars = [even, odd];
        self
    }

    /// Writes the input of `rank`, from element `first_elem` on.
    ///
    /// # Panics
    /// If `out` ends inside an element.
    pub fn fill(&self, rank: usize, first_elem: u64, out: &mut [u8]) {
        self.with_type(Fill { rank, first_elem, out });
    }

    /// Compares a result, from its element `first_elem` on, with what it must be. Where ranks contribute together, results of
    /// all ranks are equal and `rank` does not matter; a gathered result is compared block by block, `rank` being the block's
    /// source and `first_elem` counted inside it.
    ///
    /// # Panics
    /// If `result` ends inside an element.
    pub fn check(&self, rank: usize, first_elem: u64, result: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        self.with_type(Check { rank, first_elem, result, verdict: &mut verdict });
        verdict
    }

    /// Steps of the representation a result may be off: two for averages of floats, whose scalar engines may apply in different
    /// precisions.
    fn tolerance(&self) -> u64 {
        if self.data == Data::Fold(Fold::Avg) && self.dtype.is_float() { 2 } else { 0 }
    }

    fn with_type(&self, task: impl Task) {
        match self.dtype {
            DataType::Int8 => task.run::<i8>(self),
            DataType::Uint8 => task.run::<u8>(self),
            DataType::Int32 => task.run::<i32>(self),
            DataType::Uint32 => task.run::<u32>(self),
            DataType::Int64 => task.run::<i64>(self),
            DataType::Uint64 => task.run::<u64>(self),
            DataType::Half => task.run::<float::Half>(self),
            DataType::Float => task.run::<float::Single>(self),
            DataType::Double => task.run::<float::Double>(self),
            DataType::Bfloat16 => task.run::<float::Bfloat16>(self),
            DataType::F8e4m3 => task.run::<float::E4m3>(self),
            DataType::F8e5m2 => task.run::<float::E5m2>(self),
        }
    }

    /// Seed of a rank's own stream in a copy.
    fn copy_seed(&self, seed_per_rank: u64, rank: usize) -> u64 {
        self.seed.wrapping_add(seed_per_rank * rank as u64)
    }
}

/// Data of one element type.
trait Kind {
    /// An element in memory.
    type Word: Word;
    /// A block of one contributor.
    fn copies(seed: u64, block: u64, out: &mut [Self::Word; BLOCK]);
    /// A rank's block of a reduction.
    fn inputs(pattern: &Pattern, fold: Fold, rank: usize, block: u64, out: &mut [Self::Word; BLOCK]);
    /// The block of the reduction's result.
    fn results(pattern: &Pattern, fold: Fold, block: u64, out: &mut [Self::Word; BLOCK]);
}

/// What is done with the data, for any type.
trait Task {
    fn run<K: Kind>(self, pattern: &Pattern);
}

struct Fill<'a> {
    rank: usize,
    first_elem: u64,
    out: &'a mut [u8],
}

impl Task for Fill<'_> {
    fn run<K: Kind>(self, pattern: &Pattern) {
        let mut words = [K::Word::ZERO; BLOCK];
        let mut rest = self.out;
        assert!(
            rest.len().is_multiple_of(size_of::<K::Word>()),
            "a buffer of {} bytes ends inside an element",
            rest.len()
        );
        for (block, lanes) in blocks(self.first_elem, rest.len() / size_of::<K::Word>()) {
            match pattern.data {
                Data::Copy { seed_per_rank } => {
                    K::copies(pattern.copy_seed(seed_per_rank, self.rank), block, &mut words)
                }
                Data::Fold(fold) => K::inputs(pattern, fold, self.rank, block, &mut words),
            }
            let (piece, others) = rest.split_at_mut(lanes.len() * size_of::<K::Word>());
            K::Word::write(&words[lanes], piece);
            rest = others;
        }
    }
}

struct Check<'a> {
    rank: usize,
    first_elem: u64,
    result: &'a [u8],
    verdict: &'a mut Verdict,
}

impl Task for Check<'_> {
    fn run<K: Kind>(self, pattern: &Pattern) {
        let (mut want, mut got) = ([K::Word::ZERO; BLOCK], [K::Word::ZERO; BLOCK]);
        let (mut rest, tolerance) = (self.result, pattern.tolerance());
        assert!(
            rest.len().is_multiple_of(size_of::<K::Word>()),
            "a result of {} bytes ends inside an element",
            rest.len()
        );
        for (block, lanes) in blocks(self.first_elem, rest.len() / size_of::<K::Word>()) {
            match pattern.data {
                Data::Copy { seed_per_rank } => {
                    K::copies(pattern.copy_seed(seed_per_rank, self.rank), block, &mut want)
                }
                Data::Fold(fold) => K::results(pattern, fold, block, &mut want),
            }
            let (piece, others) = rest.split_at(lanes.len() * size_of::<K::Word>());
            let got = &mut got[lanes.clone()];
            K::Word::read(piece, got);
            let first_elem = block * BLOCK as u64 + lanes.start as u64;
            self.verdict.compare(first_elem, got, &want[lanes], tolerance);
            rest = others;
        }
    }
}

/// Blocks that `n_elem` elements from `first_elem` on fall into, with the lanes of each that they cover.
fn blocks(first_elem: u64, n_elem: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let (mut at, end) = (first_elem, first_elem + n_elem as u64);
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (block, start) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
        let n = (BLOCK - start).min((end - at) as usize);
        at += n as u64;
        Some((block, start..start + n))
    })
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Elements that are wrong.
    pub wrong: u64,
    /// The first of them.
    pub first: Option<Mismatch>,
}

/// A wrong element; values are bits of the element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Index, as counted by the caller of the check.
    pub elem: u64,
    /// What is there.
    pub got: u64,
    /// What should be.
    pub want: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is {:#x} instead of {:#x}", self.elem, self.got, self.want)
    }
}

impl Verdict {
    #[inline]
    fn compare<W: Word>(&mut self, first_elem: u64, got: &[W], want: &[W], tolerance: u64) {
        let wrong = if tolerance == 0 {
            got.iter().zip(want).map(|(got, want)| u32::from(got != want)).sum::<u32>()
        } else {
            got.iter().zip(want).map(|(got, want)| u32::from(got.distance(*want) > tolerance)).sum::<u32>()
        };
        if wrong == 0 {
            return;
        }
        self.wrong += u64::from(wrong);
        if self.first.is_none() {
            let is_wrong = |(got, want): (&W, &W)| got.distance(*want) > tolerance;
            self.first = got.iter().zip(want).position(is_wrong).map(|lane| Mismatch {
                elem: first_elem + lane as u64,
                got: got[lane].to_u64(),
                want: want[lane].to_u64(),
            });
        }
    }
}
