//! Wider vectors of x86-64. Kernels call these from functions that enable the instructions, so that they are inlined there.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
    _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_storeu_ps, _mm512_stream_si512,
};

use super::isa::Isa;

/// AVX2 and F16C.
pub(super) struct Avx2;
/// AVX-512 F, BW, DQ and VL.
pub(super) struct Avx512;

/// Eight halves.
///
/// # Safety
/// Eight elements are readable and writable, and the CPU has F16C.
#[inline(always)]
unsafe fn widen_eight(src: *const u16, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(src.cast::<__m128i>()))) };
}

/// Eight halves.
///
/// # Safety
/// Eight elements are readable and writable, and the CPU has F16C.
#[inline(always)]
unsafe fn narrow_eight(src: *const f32, out: *mut u16) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src));
        _mm_storeu_si128(out.cast::<__m128i>(), halves);
    }
}

impl Isa for Avx2 {
    const CONVERTS_HALF: bool = true;

    #[inline(always)]
    unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize) {
        let whole = n / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: i + 8 <= n.
            unsafe { widen_eight(src.add(i), out.add(i)) };
        }
        let (mut narrow, mut wide) = ([0_u16; 8], [0_f32; 8]);
        for (i, half) in narrow[..n - whole].iter_mut().enumerate() {
            // SAFETY: whole + i < n.
            *half = unsafe { src.add(whole + i).read_unaligned() };
        }
        // SAFETY: both arrays hold eight.
        unsafe { widen_eight(narrow.as_ptr(), wide.as_mut_ptr()) };
        for (i, &value) in wide[..n - whole].iter().enumerate() {
            // SAFETY: whole + i < n.
            unsafe { out.add(whole + i).write(value) };
        }
    }

    #[inline(always)]
    unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize) {
        let whole = n / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: i + 8 <= n.
            unsafe { narrow_eight(src.add(i), out.add(i)) };
        }
        let (mut wide, mut narrow) = ([0_f32; 8], [0_u16; 8]);
        for (i, value) in wide[..n - whole].iter_mut().enumerate() {
            // SAFETY: whole + i < n.
            *value = unsafe { src.add(whole + i).read() };
        }
        // SAFETY: both arrays hold eight.
        unsafe { narrow_eight(wide.as_ptr(), narrow.as_mut_ptr()) };
        for (i, &half) in narrow[..n - whole].iter().enumerate() {
            // SAFETY: whole + i < n.
            unsafe { out.add(whole + i).write_unaligned(half) };
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
