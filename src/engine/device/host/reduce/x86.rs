//! Wider vectors of x86-64. Kernels call these from functions that enable the instructions, so that they are inlined there.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_set_epi64x, _mm_storeu_si128,
    _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_ps,
    _mm256_storeu_si256, _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_storeu_ps, _mm512_stream_si512,
};

use super::isa::Isa;

/// AVX2 and F16C.
pub(super) struct Avx2;
/// AVX-512 F, BW, DQ and VL.
pub(super) struct Avx512;

/// Up to seven halves, zeros behind them. Made in a register: eight narrow stores would hold up the wide load after them.
///
/// # Safety
/// `n` elements are readable.
#[inline(always)]
unsafe fn few_halves(src: *const u16, n: usize) -> __m128i {
    let (mut bits, mut at) = (0_u128, 0);
    // SAFETY: the pieces add up to `n` elements; x86-64 has SSE2.
    unsafe {
        if n & 4 != 0 {
            bits = u128::from(src.cast::<u64>().read_unaligned());
            at = 4;
        }
        if n & 2 != 0 {
            bits |= u128::from(src.add(at).cast::<u32>().read_unaligned()) << (16 * at);
            at += 2;
        }
        if n & 1 != 0 {
            bits |= u128::from(src.add(at).read_unaligned()) << (16 * at);
        }
        _mm_set_epi64x((bits >> 64) as i64, bits as i64)
    }
}

impl Isa for Avx2 {
    const CONVERTS_HALF: bool = true;

    #[inline(always)]
    unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize) {
        let whole = n / 8 * 8;
        // SAFETY: `src` is read up to n, `out` written up to the next multiple of 8, for which the caller has room.
        unsafe {
            for i in (0..whole).step_by(8) {
                let halves = _mm_loadu_si128(src.add(i).cast::<__m128i>());
                _mm256_storeu_ps(out.add(i), _mm256_cvtph_ps(halves));
            }
            if whole < n {
                let halves = few_halves(src.add(whole), n - whole);
                _mm256_storeu_ps(out.add(whole), _mm256_cvtph_ps(halves));
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize) {
        for i in (0..n).step_by(8) {
            // SAFETY: both arrays reach up to the next multiple of 8 after n, as the caller promised.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src.add(i)));
                _mm_storeu_si128(out.add(i).cast::<__m128i>(), halves);
            }
        }
    }

    #[inline(always)]
    unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize) {
        for i in 0..n_lines * 2 {
            // SAFETY: inside the caller's ranges; `dst` is aligned to 64 and so to 32.
            unsafe {
                let half_line = _mm256_loadu_si256(src.cast::<__m256i>().add(i));
                _mm256_stream_si256(dst.cast::<__m256i>().add(i), half_line);
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
                let halves = _mm256_loadu_si256(src.add(i).cast::<__m256i>());
                _mm512_storeu_ps(out.add(i), _mm512_cvtph_ps(halves));
            }
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
                let line = _mm512_loadu_si512(src.cast::<__m512i>().add(i));
                _mm512_stream_si512(dst.cast::<__m512i>().add(i), line);
            }
        }
    }
}
