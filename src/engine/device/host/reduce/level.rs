//! Instruction sets a kernel exists for, and which of them this CPU has.

use crate::engine::types::DataType;

/// Vector instructions, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every CPU of this architecture has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// 256-bit vectors and conversions of binary16 (x86-64).
    Avx2,
    /// 512-bit vectors (x86-64).
    Avx512,
}

impl Level {
    /// Every level, narrowest first.
    pub const ALL: &'static [Self] = &[Self::Baseline, Self::Avx2, Self::Avx512];

    /// Whether this CPU and system can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest one this CPU has. Only 8-bit floats gain from 512 bits: their sums ran 1.6 to 2.6 times as fast as with 256,
    /// binary32 and the halves no faster or slower (Zen 4, 2026-11-30, `benches/reduce.rs`).
    pub fn best(dtype: DataType) -> Self {
        let widest = match dtype {
            DataType::F8e4m3 | DataType::F8e5m2 => Self::Avx512,
            _ => Self::Avx2,
        };
        Self::ALL
            .iter()
            .copied()
            .rev()
            .find(|level| *level <= widest && level.is_available())
            .unwrap_or(Self::Baseline)
    }
}
