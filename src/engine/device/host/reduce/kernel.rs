//! The reduction of one block after another, written once and compiled for each instruction set.
//!
//! A block's accumulators live in an array of this function's own. That keeps them in the first-level cache, lets a destination
//! be a source (the block is complete before it is written), and tells the compiler that loads and stores are apart, without
//! which it would not use vectors for a reduction in place.

use std::mem::MaybeUninit;

use super::element::{Bfloat16, E4m3, E5m2, Element, Half};
use super::isa::{Baseline, Isa, LINE};
use super::level::Level;
use super::operator::{Max, Min, Operator, Prod, Sum};
use super::plain;
use super::store;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};
use super::{Job, Reducer, Source};
use crate::engine::types::{DataType, RedOp};

/// A reduction compiled for a type, an operator and an instruction set.
pub(super) type Kernel = unsafe fn(&Reducer, &Job<'_>);

/// Bytes of accumulators in a block.
const BLOCK_BYTES: usize = 4096;
/// The same for results that go round the caches: what is asked for ahead is then little enough to be there in time.
const STREAMED_BLOCK_BYTES: usize = 1024;

#[repr(C, align(64))]
struct Scratch([MaybeUninit<u8>; BLOCK_BYTES]);

impl Scratch {
    #[inline(always)]
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); BLOCK_BYTES])
    }

    #[inline(always)]
    fn as_mut_ptr<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

/// The kernel of a type and an operator; averages and pre-multiplied sums are sums.
pub(super) fn select(dtype: DataType, op: RedOp, level: Level) -> Kernel {
    match dtype {
        DataType::Int8 => by_operator::<i8>(op, level),
        DataType::Uint8 => by_operator::<u8>(op, level),
        DataType::Int32 => by_operator::<i32>(op, level),
        DataType::Uint32 => by_operator::<u32>(op, level),
        DataType::Int64 => by_operator::<i64>(op, level),
        DataType::Uint64 => by_operator::<u64>(op, level),
        DataType::Half => by_operator::<Half>(op, level),
        DataType::Float => by_operator::<f32>(op, level),
        DataType::Double => by_operator::<f64>(op, level),
        DataType::Bfloat16 => by_operator::<Bfloat16>(op, level),
        DataType::F8e4m3 => by_operator::<E4m3>(op, level),
        DataType::F8e5m2 => by_operator::<E5m2>(op, level),
    }
}

fn by_operator<E: Element>(op: RedOp, level: Level) -> Kernel {
    match op {
        RedOp::Sum | RedOp::Avg | RedOp::PreMulSum(_) => by_level::<E, Sum>(level),
        RedOp::Prod => by_level::<E, Prod>(level),
        RedOp::Max => by_level::<E, Max>(level),
        RedOp::Min => by_level::<E, Min>(level),
    }
}

#[cfg(target_arch = "x86_64")]
fn by_level<E: Element, O: Operator>(level: Level) -> Kernel {
    match level {
        Level::Baseline => run_baseline::<E, O>,
        Level::Avx2 => run_avx2::<E, O>,
        Level::Avx512 => run_avx512::<E, O>,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_level<E: Element, O: Operator>(_: Level) -> Kernel {
    run_baseline::<E, O>
}

/// # Safety
/// As [`Reducer::run`].
unsafe fn run_baseline<E: Element, O: Operator>(reducer: &Reducer, job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run::<E, O, Baseline>(reducer, job) };
}

/// # Safety
/// As [`Reducer::run`], with AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn run_avx2<E: Element, O: Operator>(reducer: &Reducer, job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run::<E, O, Avx2>(reducer, job) };
}

/// # Safety
/// As [`Reducer::run`], with AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run_avx512<E: Element, O: Operator>(reducer: &Reducer, job: &Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run::<E, O, Avx512>(reducer, job) };
}

/// # Safety
/// As [`Reducer::run`], on a CPU that has `I`.
#[inline(always)]
unsafe fn run<E: Element, O: Operator, I: Isa>(reducer: &Reducer, job: &Job<'_>) {
    let (mut acc, mut spare) = (Scratch::new(), Scratch::new());
    let (acc, spare) = (acc.as_mut_ptr::<E::Acc>(), spare.as_mut_ptr::<E::Acc>());
    let divisor = if job.post { reducer.divisor } else { None };
    let is_plain = E::IS_ACC && !(O::SCALES && job.sources.iter().any(|source| source.scale.is_some()));
    let block_bytes = if is_plain && job.non_temporal { STREAMED_BLOCK_BYTES } else { BLOCK_BYTES };
    let block = block_bytes / size_of::<E::Acc>();
    // All blocks but the first begin on a line of the first destination.
    let misaligned = job.destinations.first().map_or(0, |dst| dst.addr() % LINE);
    let (mut at, mut end) = (0, block - misaligned / size_of::<E>());
    while at < job.n_elem {
        let n = end.min(job.n_elem) - at;
        // SAFETY: the block lies inside the caller's ranges and `n` inside the scratch arrays.
        unsafe {
            if is_plain {
                plain::fold::<E, O>(job.sources, plain::Block { at, n, asks_ahead: job.non_temporal }, acc);
            } else {
                fold_sources::<E, O, I>(job.sources, at, n, (acc, spare));
            }
            if let Some(n_ranks) = divisor {
                for i in 0..n {
                    *acc.add(i) = E::divide(*acc.add(i), n_ranks);
                }
            }
            let result = finish::<E, I>(acc, spare, n);
            for dst in job.destinations {
                let (dst, bytes) = (dst.add(at * size_of::<E>()), n * size_of::<E>());
                if job.non_temporal {
                    store::stream::<I>(dst, result, bytes);
                } else {
                    std::ptr::copy_nonoverlapping(result, dst, bytes);
                }
            }
        }
        (at, end) = (at + n, end + block);
    }
    if job.non_temporal {
        store::fence();
    }
}

/// Folds elements `at..at + n` of every source into `acc`.
///
/// # Safety
/// Those elements are readable, both scratch arrays hold `n`, and the CPU has `I`.
#[inline(always)]
unsafe fn fold_sources<E: Element, O: Operator, I: Isa>(
    sources: &[Source],
    at: usize,
    n: usize,
    (acc, spare): (*mut E::Acc, *mut E::Acc),
) {
    let place = |source: &Source| source.ptr.wrapping_add(at * size_of::<E>()).cast::<E>();
    // SAFETY: `place` points at the readable elements; scratch arrays are apart from them and from each other.
    unsafe {
        let first = &sources[0];
        load::<E, O, I>(place(first), n, acc, first.scale);
        for source in &sources[1..] {
            let src = place(source);
            if E::IS_HALF && I::CONVERTS_HALF || O::SCALES && source.scale.is_some() {
                load::<E, O, I>(src, n, spare, source.scale);
                for i in 0..n {
                    *acc.add(i) = O::combine(*acc.add(i), *spare.add(i));
                }
            } else {
                for i in 0..n {
                    *acc.add(i) = O::combine(*acc.add(i), src.add(i).read_unaligned().widen());
                }
            }
        }
    }
}

/// `n` widened elements, multiplied where asked.
///
/// # Safety
/// `src` is readable and `out` writable for `n`, and the CPU has `I`.
#[inline(always)]
unsafe fn load<E: Element, O: Operator, I: Isa>(
    src: *const E,
    n: usize,
    out: *mut E::Acc,
    scale: Option<u64>,
) {
    use super::element::Number;
    // SAFETY: the caller's promise; a half's accumulator is f32, and a whole block of those is a multiple of 8.
    unsafe {
        if E::IS_HALF && I::CONVERTS_HALF {
            I::widen_half(src.cast(), out.cast(), n);
        } else {
            for i in 0..n {
                *out.add(i) = src.add(i).read_unaligned().widen();
            }
        }
        if O::SCALES
            && let Some(bits) = scale
        {
            let scale = E::from_bits(bits).widen();
            for i in 0..n {
                *out.add(i) = (*out.add(i)).times(scale);
            }
        }
    }
}

/// The finished block as it goes to memory: the accumulators themselves, or rounded into `spare`.
///
/// # Safety
/// Both arrays hold `n` accumulators, and the CPU has `I`.
#[inline(always)]
unsafe fn finish<E: Element, I: Isa>(acc: *const E::Acc, spare: *mut E::Acc, n: usize) -> *const u8 {
    if E::IS_ACC {
        return acc.cast();
    }
    // SAFETY: an element is no larger than its accumulator; a half's accumulator is f32, and `load` has filled them up to a
    // multiple of 8.
    unsafe {
        if E::IS_HALF && I::CONVERTS_HALF {
            I::narrow_half(acc.cast(), spare.cast(), n);
        } else {
            for i in 0..n {
                *spare.cast::<E>().add(i) = E::narrow(*acc.add(i));
            }
        }
    }
    spare.cast_const().cast()
}
