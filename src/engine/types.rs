//! The words of the field as closed sets: collectives, algorithms, protocols, element types, operators.
//!
//! Orders are NCCL's, because its tables are indexed by them.

use std::fmt;

macro_rules! closed_set {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every member, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word users type and records hold.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The member of that name, in any case.
            pub fn from_name(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| member.name().eq_ignore_ascii_case(word))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

closed_set! {
    /// What is asked of all ranks together.
    Collective {
        /// Root's buffer to everybody.
        Broadcast = "broadcast",
        /// Reduction of all to the root.
        Reduce = "reduce",
        /// Everybody's block to everybody.
        AllGather = "all_gather",
        /// Reduction, one block of it to each.
        ReduceScatter = "reduce_scatter",
        /// Reduction of all to everybody.
        AllReduce = "all_reduce",
    }
}

closed_set! {
    /// How ranks are arranged. The first seven are NCCL's and in its order; the last two are the symmetric-memory kernels.
    Algorithm {
        /// Double binary tree between hosts, chains inside.
        Tree = "tree",
        /// Ring.
        Ring = "ring",
        /// In-network reduction, every rank its own head.
        CollNetDirect = "collnetdirect",
        /// In-network reduction behind a chain.
        CollNetChain = "collnetchain",
        /// In-switch multicast and reduction.
        Nvls = "nvls",
        /// The same inside a host, a tree between hosts.
        NvlsTree = "nvlstree",
        /// Parallel aggregated trees.
        Pat = "pat",
        /// All payloads in flag lines, every rank reduces for itself.
        OneShot = "oneshot",
        /// Load-reduce-store over everybody's registered buffers.
        TwoShot = "twoshot",
    }
}

closed_set! {
    /// How a FIFO slot says that its data are there.
    Protocol {
        /// 8 bytes of data and two flags in a 16-byte line.
        LL = "ll",
        /// 120 bytes of data and a flag in a 128-byte line.
        LL128 = "ll128",
        /// Bulk data, then a step counter.
        Simple = "simple",
    }
}

closed_set! {
    /// Element types, in nccl-tests' `-d all` order.
    DataType {
        /// Signed 8 bits.
        Int8 = "int8",
        /// Unsigned 8 bits.
        Uint8 = "uint8",
        /// Signed 32 bits.
        Int32 = "int32",
        /// Unsigned 32 bits.
        Uint32 = "uint32",
        /// Signed 64 bits.
        Int64 = "int64",
        /// Unsigned 64 bits.
        Uint64 = "uint64",
        /// IEEE binary16.
        Half = "half",
        /// IEEE binary32.
        Float = "float",
        /// IEEE binary64.
        Double = "double",
        /// Upper half of binary32.
        Bfloat16 = "bfloat16",
        /// 4 exponent bits, bias 7, largest 448, no infinity.
        F8e4m3 = "f8e4m3",
        /// 5 exponent bits, bias 15.
        F8e5m2 = "f8e5m2",
    }
}

impl DataType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::F8e4m3 | Self::F8e5m2 => 1,
            Self::Half | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double => 8,
        }
    }

    /// Whether arithmetic on it rounds.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Half | Self::Float | Self::Double | Self::Bfloat16 | Self::F8e4m3 | Self::F8e5m2)
    }
}

/// A reduction operator as the caller names it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RedOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Sum over the number of ranks: integers divide the final value toward zero, floats scale each input by 1/n.
    Avg,
    /// Each rank's input times that rank's own scalar, then the sum. The scalar is converted to the element type once.
    PreMulSum(f64),
}

impl RedOp {
    /// NCCL's number of it, as log lines show it.
    pub fn code(self) -> u32 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Max => 2,
            Self::Min => 3,
            Self::Avg => 4,
            Self::PreMulSum(_) => 5,
        }
    }

    /// nccl-tests' word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum(_) => "mulsum",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_the_tables() {
        assert_eq!(Collective::AllReduce as usize, 4);
        assert_eq!(Algorithm::Pat as usize, 6);
        assert_eq!(Protocol::Simple as usize, 2);
    }

    #[test]
    fn names_round_trip_in_any_case() {
        for &a in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(&a.name().to_uppercase()), Some(a));
        }
        assert_eq!(DataType::from_name("float32"), None);
    }
}
