//! What a sweep walks through: sizes, operators, types, roots, forced choices.

use std::fmt;

use analysis::record::Tuned;

use crate::engine::types::{Algorithm, Collective, DataType, Protocol, RedOp};

/// An operator as the command line names it; the engine's own differs by rank for `mulsum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Mean over ranks.
    Avg,
    /// Sum of inputs, each times its rank's own scalar.
    MulSum,
}

impl Op {
    /// Every operator, in the order of `-o all`.
    pub const ALL: &'static [Self] = &[Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// What `rank` passes to the engine. The scalars of `mulsum` are 1 on even ranks and 2 on odd ones.
    pub fn of_rank(self, rank: usize) -> RedOp {
        match self {
            Self::Sum => RedOp::Sum,
            Self::Prod => RedOp::Prod,
            Self::Max => RedOp::Max,
            Self::Min => RedOp::Min,
            Self::Avg => RedOp::Avg,
            Self::MulSum => RedOp::PreMulSum(if rank.is_multiple_of(2) { 1.0 } else { 2.0 }),
        }
    }

    /// nccl-tests' word.
    pub fn name(self) -> &'static str {
        self.of_rank(0).name()
    }

    /// The operator of that word.
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == word)
    }
}

/// How one size follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Times this; at least 2.
    Factor(u64),
    /// Plus this many bytes; at least 1.
    Bytes(u64),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Factor(factor) => write!(f, "{factor}(factor)"),
            Self::Bytes(bytes) => write!(f, "{bytes}(bytes)"),
        }
    }
}

/// The sizes asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// First size, bytes.
    pub min: u64,
    /// Last size allowed, bytes.
    pub max: u64,
    /// How they grow.
    pub step: Step,
}

impl Sizes {
    /// The sizes, rising. After a size of 0 a factor continues from one element.
    pub fn iter(self, dtype: DataType) -> impl Iterator<Item = u64> {
        let next = move |size: &u64| match self.step {
            Step::Factor(_) if *size == 0 => Some(dtype.size() as u64),
            Step::Factor(factor) => size.checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        };
        std::iter::successors(Some(self.min), next).take_while(move |size| *size <= self.max)
    }

    /// The sizes that are run untimed before: always doubling, whatever the step.
    pub fn warm_up(self, dtype: DataType) -> impl Iterator<Item = u64> {
        Self { step: Step::Factor(2), ..self }.iter(dtype)
    }

    /// No size above `limit`.
    pub fn capped(self, limit: u64) -> Self {
        Self { min: self.min.min(limit), max: self.max.min(limit), ..self }
    }
}

/// Element counts of one size, and how the table shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements a rank sends.
    pub send: u64,
    /// Elements a rank receives.
    pub recv: u64,
    /// The count passed to the call; the `count` column.
    pub count: u64,
    /// Elements between the parts of consecutive ranks in the receive buffer, 0 when in-place input starts at its beginning.
    pub stride: u64,
}

impl Shape {
    /// The shape of `size` bytes: operations cut by rank round each part down to 16 bytes.
    pub fn of(collective: Collective, size: u64, dtype: DataType, n_ranks: usize) -> Self {
        let count = size / dtype.size() as u64;
        match collective {
            Collective::AllGather => {
                let granule = 16 / dtype.size() as u64;
                let base = count / n_ranks as u64 / granule * granule;
                Self { send: base, recv: base * n_ranks as u64, count: base, stride: base }
            }
            _ => Self { send: count, recv: count, count, stride: 0 },
        }
    }

    /// The `size` column, bytes.
    pub fn bytes(&self, dtype: DataType) -> u64 {
        self.send.max(self.recv) * dtype.size() as u64
    }
}

/// What `--algo`, `--proto` and `--channels` ask for in one table; `None` is automatic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forcing {
    /// Algorithm.
    pub algorithm: Option<Algorithm>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Channels.
    pub n_channels: Option<u32>,
    /// Algorithm inside the MPI library instead.
    pub library: Option<&'static Tuned>,
}

impl Forcing {
    /// Whether everything is left to the engine.
    pub fn is_automatic(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Forcing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(library) = self.library {
            return write!(f, "algorithm {}", library.word());
        }
        let algorithm = self.algorithm.map_or("auto", Algorithm::name);
        let protocol = self.protocol.map_or("auto", Protocol::name);
        write!(f, "algorithm {algorithm}, protocol {protocol}, channels ")?;
        match self.n_channels {
            Some(n) => write!(f, "{n}"),
            None => write!(f, "auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(min: u64, max: u64, step: Step) -> Vec<u64> {
        Sizes { min, max, step }.iter(DataType::Float).collect()
    }

    #[test]
    fn sizes_multiply_or_add_and_stop_at_the_last_allowed() {
        assert_eq!(sizes(8, 64, Step::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(sizes(8, 70, Step::Factor(3)), [8, 24]);
        assert_eq!(sizes(10, 40, Step::Bytes(15)), [10, 25, 40]);
    }

    #[test]
    fn a_sweep_from_zero_ends() {
        assert_eq!(sizes(0, 16, Step::Factor(2)), [0, 4, 8, 16]);
        assert_eq!(sizes(0, 16, Step::Bytes(8)), [0, 8, 16]);
        assert_eq!(sizes(0, 0, Step::Factor(2)), [0]);
        let warm: Vec<u64> = Sizes { min: 0, max: 9, step: Step::Bytes(1) }.warm_up(DataType::Half).collect();
        assert_eq!(warm, [0, 2, 4, 8]);
    }

    #[test]
    fn sizes_near_the_end_of_the_number_range_end() {
        assert_eq!(sizes(1 << 62, u64::MAX, Step::Factor(4)), [1 << 62]);
    }

    #[test]
    fn a_cap_lowers_the_first_size_too() {
        let sizes = Sizes { min: 100, max: 200, step: Step::Factor(2) }.capped(64);
        assert_eq!((sizes.min, sizes.max), (64, 64));
    }

    #[test]
    fn shapes_follow_the_contract_vectors() {
        use DataType::{Double, Float, Half, Uint8};
        let vectors = [
            (2, Float, 8, (0, 0), (2, 8)),
            (2, Float, 32, (4, 32), (8, 32)),
            (3, Float, 64, (4, 48), (16, 64)),
            (3, Float, 1000, (80, 960), (250, 1000)),
            (3, Float, 4000, (332, 3984), (1000, 4000)),
            (3, Float, 33_554_432, (2_796_200, 33_554_400), (8_388_608, 33_554_432)),
            (4, Uint8, 63, (0, 0), (63, 63)),
            (4, Uint8, 64, (16, 64), (64, 64)),
            (4, Double, 100, (2, 64), (12, 96)),
            (8, Half, 1000, (56, 896), (500, 1000)),
            (8, Float, 33_554_432, (1_048_576, 33_554_432), (8_388_608, 33_554_432)),
            (5, Float, 1_048_576, (52_428, 1_048_560), (262_144, 1_048_576)),
            (6, Double, 1_048_576, (21_844, 1_048_512), (131_072, 1_048_576)),
        ];
        for (n, dtype, size, cut, whole) in vectors {
            let gather = Shape::of(Collective::AllGather, size, dtype, n);
            assert_eq!((gather.count, gather.bytes(dtype)), cut, "all_gather {n} {dtype} {size}");
            let reduce = Shape::of(Collective::AllReduce, size, dtype, n);
            assert_eq!((reduce.count, reduce.bytes(dtype)), whole, "all_reduce {n} {dtype} {size}");
        }
    }

    #[test]
    fn scalars_of_mulsum_alternate() {
        assert_eq!(Op::MulSum.of_rank(0), RedOp::PreMulSum(1.0));
        assert_eq!(Op::MulSum.of_rank(3), RedOp::PreMulSum(2.0));
        assert_eq!(Op::from_name("mulsum"), Some(Op::MulSum));
        assert_eq!(Op::from_name("SUM"), None);
    }
}
