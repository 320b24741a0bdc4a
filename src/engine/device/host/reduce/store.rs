//! Stores that go round the caches, and copies made of them.
//!
//! A non-temporal store is not ordered by a later release store: whoever uses [`stream`] calls [`fence`] before
//! returning, so that no caller ever has to know. Only whole 64-byte lines are streamed; a part of a line would cost a read of
//! the rest.

use super::isa::{Baseline, Isa, LINE};
use super::level::Level;
#[cfg(target_arch = "x86_64")]
use super::x86::Avx2;

/// Bytes that a copy to several destinations moves at a time, so that the source is read from memory once.
const COPY_BLOCK: usize = 4096;

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

/// Asks for the lines of the next block while this one is stored: the processor's own prefetcher stops at every page.
#[inline(always)]
pub(super) fn prefetch(src: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..bytes / LINE {
        // SAFETY: every x86-64 CPU has it, and asking for a line changes nothing, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(line * LINE).cast::<i8>());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (src, bytes);
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
        prefetch(src.wrapping_add(at + n), block.min(bytes - at - n));
        for dst in destinations {
            // SAFETY: at + n is at most `bytes`.
            unsafe { put(dst.add(at), src.add(at), n) };
        }
        (at, end) = (at + n, end + block);
    }
}

/// # Safety
/// As [`stream`], with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn stream_avx2(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { stream::<Avx2>(dst, src, bytes) };
}
