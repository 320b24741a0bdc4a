//! Element arithmetic of the host device: all element types under all operators, any number of sources folded into any
//! number of destinations in one pass over memory.
//!
//! A [`Reducer`] picks its function once, by type, operator and the widest vectors this CPU has ([`level`]). That function
//! ([`kernel`]) takes blocks that stay in the first-level cache: sources are folded from left to right in the accumulator type
//! of the element ([`element`]: integers and binary32/64 in themselves, narrower floats in binary32), and a finished block is
//! rounded once and copied to every destination ([`store`]). Two narrow sources therefore give what pairwise arithmetic gives;
//! more of them round less often than a chain of hops does.
//!
//! What operators mean here: integers wrap; an average of integers divides the final sum toward zero; an average of floats has
//! every raw input multiplied by 1/n beforehand, as a pre-multiplied sum has by its rank's scalar; 8-bit floats saturate.

mod element;
mod isa;
mod kernel;
mod level;
mod narrow;
mod operator;
mod plain;
mod slices;
mod store;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use level::Level;
pub use slices::SliceReducer;

use crate::engine::types::{DataType, RedOp};

/// One input of a reduction.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// First element; need not be aligned.
    pub ptr: *const u8,
    /// Multiplier of a raw input of a sum, as bits of the element type (see [`Reducer::own_scale`]); nothing for partial
    /// results, which are scaled already.
    pub scale: Option<u64>,
}

/// One pass over memory: every source folded from left to right, the result to every destination.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Inputs, at least one. One alone is a copy.
    pub sources: &'a [Source],
    /// Outputs. One may be the same memory as a source, but must not overlap one in part.
    pub destinations: &'a [*mut u8],
    /// Elements to reduce.
    pub n_elem: usize,
    /// Whether this value is final: an integer average divides it. Other operators ignore it.
    pub post: bool,
    /// Whether stores go round the caches: for outputs that are larger than they. They are ordered before [`Reducer::run`]
    /// returns, so a release store may publish them.
    pub non_temporal: bool,
}

/// Reduction of one element type under one operator. Small and copied freely.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    dtype: DataType,
    level: Level,
    kernel: kernel::Kernel,
    scale: Option<u64>,
    divisor: Option<u32>,
}

impl Reducer {
    /// The reducer of a communicator of `n_ranks` on the CPU found at run time.
    pub fn new(dtype: DataType, op: RedOp, n_ranks: usize) -> Self {
        Self::at_level(dtype, op, n_ranks, Level::best(dtype))
    }

    /// The same with given vectors, for tests and benchmarks that compare them.
    ///
    /// # Panics
    /// If this CPU lacks them.
    pub fn at_level(dtype: DataType, op: RedOp, n_ranks: usize, level: Level) -> Self {
        assert!(level.is_available(), "this CPU has no {level:?}");
        let averages = op == RedOp::Avg;
        let scale = match op {
            RedOp::PreMulSum(scalar) => Some(element::bits_of(dtype, scalar)),
            RedOp::Avg if dtype == DataType::Double => Some(element::bits_of(dtype, 1.0 / n_ranks as f64)),
            RedOp::Avg if dtype.is_float() => Some(element::bits_of(dtype, f64::from(1.0 / n_ranks as f32))),
            _ => None,
        };
        let n_ranks = u32::try_from(n_ranks).expect("invariant: rank numbers fit in 32 bits");
        let divisor = (averages && !dtype.is_float()).then_some(n_ranks);
        Self { dtype, level, kernel: kernel::select(dtype, op, level), scale, divisor }
    }

    /// This rank's multiplier as bits of the element type, to be put on its raw input: the scalar of a pre-multiplied sum, 1/n
    /// of an average of floats.
    pub fn own_scale(&self) -> Option<u64> {
        self.scale
    }

    /// Bytes of one element.
    pub fn elem_bytes(&self) -> usize {
        self.dtype.size()
    }

    /// Does the job. An empty one touches nothing.
    ///
    /// # Safety
    /// Every source is readable and every destination writable for `job.n_elem` elements; destinations do not overlap each
    /// other, nor a source in part; nobody else writes any of this memory during the call or reads a destination.
    #[inline]
    pub unsafe fn run(&self, job: &Job<'_>) {
        debug_assert!(!job.sources.is_empty(), "a reduction needs a source");
        let divides = job.post && self.divisor.is_some();
        let [Source { ptr, scale: None }] = *job.sources else {
            // SAFETY: the caller's promise is the kernel's; the level was checked when it was chosen.
            return unsafe { (self.kernel)(self, job) };
        };
        if divides {
            // SAFETY: as above.
            return unsafe { (self.kernel)(self, job) };
        }
        let bytes = job.n_elem * self.dtype.size();
        // SAFETY: the caller's promise, in bytes.
        unsafe { store::copy(ptr, job.destinations, bytes, job.non_temporal.then_some(self.level)) };
    }
}
