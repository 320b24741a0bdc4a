//! What kernels need from an instruction set beyond what the compiler finds by itself, and the instructions every CPU has.

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// An instruction set.
pub(super) trait Isa: 'static {
    /// Whether binary16 is converted in hardware.
    const CONVERTS_HALF: bool;

    /// Exact conversion of `n` halves; fills `out` up to a multiple of 8 floats.
    ///
    /// # Safety
    /// `src` is readable for `n` elements, `out` writable for `n` rounded up to a multiple of 8, and the CPU has this
    /// instruction set.
    unsafe fn widen_half(src: *const u16, out: *mut f32, n: usize);

    /// Rounding conversion to `n` halves, and of what follows them up to a multiple of 8.
    ///
    /// # Safety
    /// `src` is initialised and `out` writable for `n` rounded up to a multiple of 8, and the CPU has this instruction set.
    unsafe fn narrow_half(src: *const f32, out: *mut u16, n: usize);

    /// Writes whole lines to `dst` round the caches.
    ///
    /// # Safety
    /// Both ranges are valid and equal or apart, `dst` is aligned to a line, and the CPU has this instruction set.
    unsafe fn stream_lines(dst: *mut u8, src: *const u8, n_lines: usize);
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
                let sixteen = _mm_loadu_si128(src.cast::<__m128i>().add(i));
                _mm_stream_si128(dst.cast::<__m128i>().add(i), sixteen);
            }
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
