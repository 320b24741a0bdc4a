//! Stores that go round the caches, and copies made of them.
//!
//! A non-temporal store is not ordered by a later release store: whoever uses [`Isa::stream`] calls [`fence`] before
//! returning, so that no caller ever has to know. Only whole 64-byte lines are streamed; a part of a line would cost a read of
//! the rest.

use super::level::Level;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Bytes that a copy to several destinations moves at a time, so that the source is read from memory once.
const COPY_BLOCK: usize = 4096;

/// What kernels need from an instruction set beyond what the compiler finds by itself.
pub(super) trait Isa: 'static {
    /// Whether binary16 is converted in hardware.
    const CONVERTS_HALF: bool;

    /// Exact conversion of `n` halves.
    ///
    /// # Safety
    /// Both ranges are valid, and the CPU has this instruction set.
    unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize);

    /// Rounding conversion to `n` halves.
    ///
    /// # Safety
    /// Both ranges are valid, and the CPU has this instruction set.
    unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize);

    /// Writes whole lines to `dst`, which is aligned to one, round the caches.
    ///
    /// # Safety
    /// Both ranges are valid and equal or apart, `dst` is aligned to a line, and the CPU has this instruction set.
    unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize);
}

/// Copies `bytes` round the caches: head and tail of less than a line are stored plainly. Needs a [`fence`] later.
///
/// # Safety
/// Both ranges are valid and equal or apart, and the CPU has this instruction set.
#[inline(always)]
pub(super) unsafe fn stream<I: Isa>(dst: *mut u8, src: *const u8, bytes: usize) {
    let head = dst.align_offset(LINE).min(bytes);
    let body = (bytes - head) / LINE * LINE;
    let tail = bytes - head - body;
    // SAFETY: the three pieces make up the ranges that the caller promised; after `head` bytes `dst` is aligned.
    unsafe {
        std::ptr::copy(src, dst, head);
        I::stream_lines(dst.add(head), src.add(head), body / LINE);
        std::ptr::copy(src.add(head + body), dst.add(head + body), tail);
    }
}

/// Orders all streamed stores of this thread before what it stores next.
#[inline(always)]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies `bytes` to every destination, reading them from memory once; round the caches with the instructions of `streamed`.
///
/// # Safety
/// The ranges are valid; a destination is the source or apart from it; the CPU has `streamed`.
pub(super) unsafe fn copy(src: *const u8, destinations: &[*mut u8], bytes: usize, streamed: Option<Level>) {
    match (streamed, destinations) {
        // SAFETY: the caller's promise; a copy onto itself is allowed.
        (None, &[dst]) => unsafe { std::ptr::copy(src, dst, bytes) },
        // SAFETY: the caller's promise.
        (None, _) => unsafe {
            in_blocks(src, destinations, bytes, |dst, src, n| std::ptr::copy(src, dst, n))
        },
        #[cfg(target_arch = "x86_64")]
        (Some(Level::Avx2 | Level::Avx512), _) => {
            // SAFETY: the caller's promise; both levels include AVX2.
            unsafe { in_blocks(src, destinations, bytes, |dst, src, n| stream_avx2(dst, src, n)) };
            fence();
        }
        (Some(_), _) => {
            // SAFETY: the caller's promise; every CPU has the baseline.
            unsafe { in_blocks(src, destinations, bytes, |dst, src, n| stream::<Baseline>(dst, src, n)) };
            fence();
        }
    }
}

/// Cuts a copy so that pieces but the first begin on a line of the first destination.
///
/// # Safety
/// The ranges are valid; `put(dst, src, n)` may be called for every piece of them.
#[inline(always)]
unsafe fn in_blocks(
    src: *const u8,
    destinations: &[*mut u8],
    bytes: usize,
    put: impl Fn(*mut u8, *const u8, usize),
) {
    let block = if destinations.len() == 1 { bytes } else { COPY_BLOCK };
    let misaligned = destinations.first().map_or(0, |dst| dst.addr() % LINE);
    let (mut at, mut end) = (0, block.saturating_sub(misaligned).max(LINE));
    while at < bytes {
        let n = end.min(bytes) - at;
        for dst in destinations {
            // SAFETY: at + n is at most `bytes`.
            unsafe { put(dst.add(at), src.add(at), n) };
        }
        (at, end) = (at + n, end + block);
    }
}

/// What every CPU of this architecture can do.
pub(super) struct Baseline;

impl Isa for Baseline {
    const CONVERTS_HALF: bool = false;

    #[inline(always)]
    unsafe fn widen_half(_: *const u16, _: *mut f32, _: usize) {
        unreachable!("invariant: guarded by CONVERTS_HALF");
    }

    #[inline(always)]
    unsafe fn narrow_half(_: *const f32, _: *mut u16, _: usize) {
        unreachable!("invariant: guarded by CONVERTS_HALF");
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        for i in 0..n_lines * 4 {
            // SAFETY: inside the caller's ranges; `dst` is aligned to 64 and so to 16; SSE2 is part of x86-64.
            unsafe {
                _mm_stream_si128(dst.cast::<__m128i>().add(i), _mm_loadu_si128(src.cast::<__m128i>().add(i)))
            };
        }
    }

    /// There is no stable way to ask for it here; plain stores are right too.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(src, dst, n_lines * LINE) };
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// # Safety
/// As [`stream`], with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn stream_avx2(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { stream::<Avx2>(dst, src, bytes) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Isa;
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
        _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_ps,
        _mm256_storeu_si256, _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_storeu_ps, _mm512_stream_si512,
    };

    /// AVX2 and F16C.
    pub(in super::super) struct Avx2;
    /// AVX-512 F, BW, DQ and VL.
    pub(in super::super) struct Avx512;

    impl Isa for Avx2 {
        const CONVERTS_HALF: bool = true;

        #[inline(always)]
        unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize) {
            for i in (0..n / 8 * 8).step_by(8) {
                // SAFETY: i + 8 <= n.
                unsafe {
                    _mm256_storeu_ps(
                        out.add(i),
                        _mm256_cvtph_ps(_mm_loadu_si128(src.add(i).cast::<__m128i>())),
                    )
                };
            }
            for i in n / 8 * 8..n {
                // SAFETY: i < n.
                unsafe {
                    *out.add(i) =
                        crate::engine::device::host::reduce::narrow::half_to_f32(src.add(i).read_unaligned())
                };
            }
        }

        #[inline(always)]
        unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize) {
            for i in (0..n / 8 * 8).step_by(8) {
                // SAFETY: i + 8 <= n.
                unsafe {
                    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src.add(i)));
                    _mm_storeu_si128(out.add(i).cast::<__m128i>(), halves);
                }
            }
            for i in n / 8 * 8..n {
                // SAFETY: i < n.
                unsafe {
                    out.add(i).write_unaligned(crate::engine::device::host::reduce::narrow::f32_to_half(
                        *src.add(i),
                    ))
                };
            }
        }

        #[inline(always)]
        unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize) {
            for i in 0..n_lines * 2 {
                // SAFETY: inside the caller's ranges; `dst` is aligned to 64 and so to 32.
                unsafe {
                    _mm256_stream_si256(
                        dst.cast::<__m256i>().add(i),
                        _mm256_loadu_si256(src.cast::<__m256i>().add(i)),
                    );
                }
            }
        }
    }

    impl Isa for Avx512 {
        const CONVERTS_HALF: bool = true;

        #[inline(always)]
        unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize) {
            let whole = n / 16 * 16;
            for i in (0..whole).step_by(16) {
                // SAFETY: i + 16 <= n.
                unsafe {
                    _mm512_storeu_ps(
                        out.add(i),
                        _mm512_cvtph_ps(_mm256_loadu_si256(src.add(i).cast::<__m256i>())),
                    )
                };
            }
            // SAFETY: the rest of the same ranges; AVX-512 includes AVX2.
            unsafe { Avx2::widen_half(src.add(whole), out.add(whole), n - whole) };
        }

        #[inline(always)]
        unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize) {
            let whole = n / 16 * 16;
            for i in (0..whole).step_by(16) {
                // SAFETY: i + 16 <= n.
                unsafe {
                    let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(src.add(i)));
                    _mm256_storeu_si256(out.add(i).cast::<__m256i>(), halves);
                }
            }
            // SAFETY: the rest of the same ranges; AVX-512 includes AVX2.
            unsafe { Avx2::narrow_half(src.add(whole), out.add(whole), n - whole) };
        }

        #[inline(always)]
        unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize) {
            for i in 0..n_lines {
                // SAFETY: inside the caller's ranges; `dst` is aligned to 64.
                unsafe {
                    _mm512_stream_si512(
                        dst.cast::<__m512i>().add(i),
                        _mm512_loadu_si512(src.cast::<__m512i>().add(i)),
                    );
                }
            }
        }
    }
}
