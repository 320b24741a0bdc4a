//! LL: 16-byte lines of data, flag, data, flag (four 32-bit words). Lowest latency, half of the wire.
//!
//! Line `k` carries bytes `[8k, 8k+8)` of the step. The flag is the low half of step + 1.
//!
//! **Order.** Each 64-bit half of a line carries a flag of its own and is stored and loaded whole, so a flag that has arrived proves that its
//! data have: nothing else orders them. On x86-64 a line moves as one 16-byte access: the hardware never splits an aligned 8-byte half of
//! it, which is all that is needed; a line of which one half is old is read again. Elsewhere the halves are two relaxed atomics.
//!
//! **Stale lines.** A slot's old lines carry flags of steps 8, 16, … before, and fresh memory carries 0; none equals step + 1. Lines that a
//! short step leaves untouched keep older flags, which would come true again after 2³² steps. So in the last eight steps before every
//! multiple of 2³¹ the sender stamps the rest of the slot with the current flag.

use super::flagged::{self, Format, Scratch};
use super::{Connectors, Operation, Outcome, Progressing};
use crate::engine::plan::Lane;
use crate::engine::types::Protocol;

/// Bits of the step that are all set before the flags come round.
const WRAP: u64 = 0x7fff_fff8;

/// The format.
#[derive(Debug)]
struct Lines;

/// Moves what has arrived, up to the end of the step.
pub(in super::super) fn poll(
    op: &Operation,
    lane: &Lane,
    at: &mut Progressing,
    connectors: &mut Connectors,
    scratch: &mut Scratch,
) -> Outcome {
    flagged::poll::<Lines>(op, lane, at, connectors, scratch)
}

impl Format for Lines {
    const PROTOCOL: Protocol = Protocol::LL;
    const PAYLOAD: usize = 8;
    const WIRE: usize = 16;

    #[inline]
    unsafe fn unpack(wire: *const u8, units: usize, flag: u64, to: *mut u8) -> usize {
        // SAFETY: by the caller's promise.
        unsafe { line::unpack(wire, units, flag as u32, to) }
    }

    #[inline]
    unsafe fn pack(from: *const u8, bytes: usize, wire: *mut u8, flag: u64) {
        let (whole, rest) = (bytes / 8, bytes % 8);
        // SAFETY: by the caller's promise; the last line takes the bytes that are left and zeros.
        unsafe {
            line::pack(from, whole, wire, flag as u32);
            if rest > 0 {
                let mut last = [0; 8];
                std::ptr::copy_nonoverlapping(from.add(whole * 8), last.as_mut_ptr(), rest);
                line::pack(last.as_ptr(), 1, wire.add(whole * 16), flag as u32);
            }
        }
    }

    #[inline]
    unsafe fn finish(wire: *mut u8, used: usize, slot_bytes: usize, step: u64) {
        if step & WRAP == WRAP {
            for at in (used..slot_bytes).step_by(16) {
                // SAFETY: the line lies in the slot, by the caller's promise.
                unsafe { line::pack([0; 8].as_ptr(), 1, wire.add(at), (step + 1) as u32) };
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use halves as line;
#[cfg(target_arch = "x86_64")]
use whole as line;

/// Lines as 16-byte accesses.
#[cfg(target_arch = "x86_64")]
mod whole {
    use std::arch::x86_64::{
        __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadl_epi64, _mm_loadu_si128,
        _mm_movemask_epi8, _mm_set1_epi32, _mm_shuffle_epi32, _mm_shuffle_ps, _mm_storel_epi64,
        _mm_storeu_si128, _mm_unpackhi_epi32, _mm_unpacklo_epi32,
    };

    /// # Safety
    /// `wire` has `lines` lines, aligned to 16 bytes; `to` can take 8 bytes of each.
    #[inline]
    pub(super) unsafe fn unpack(wire: *const u8, lines: usize, flag: u32, to: *mut u8) -> usize {
        let wire = wire.cast::<__m128i>();
        let mut i = 0;
        // SAFETY: SSE2 is part of x86-64. Lines below `lines` exist and are aligned; the sender may be storing them now, hence volatile: each is loaded once and
        // judged by the flags loaded with it. Unpacked lines fit `to`.
        unsafe {
            let flags = _mm_set1_epi32(flag as i32);
            while i + 2 <= lines {
                let (a, b) = (wire.add(i).read_volatile(), wire.add(i + 1).read_volatile());
                // Data of both lines, flags of both lines.
                let data = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(
                    _mm_castsi128_ps(a),
                    _mm_castsi128_ps(b),
                ));
                let got = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(
                    _mm_castsi128_ps(a),
                    _mm_castsi128_ps(b),
                ));
                if _mm_movemask_epi8(_mm_cmpeq_epi32(got, flags)) != 0xffff {
                    break;
                }
                _mm_storeu_si128(to.add(i * 8).cast(), data);
                i += 2;
            }
            if i < lines {
                let a = wire.add(i).read_volatile();
                // Words 0, 2, 1, 3: data first.
                let sorted = _mm_shuffle_epi32::<0b11_01_10_00>(a);
                if _mm_movemask_epi8(_mm_cmpeq_epi32(sorted, flags)) & 0xff00 == 0xff00 {
                    _mm_storel_epi64(to.add(i * 8).cast(), sorted);
                    i += 1;
                }
            }
        }
        i
    }

    /// # Safety
    /// `from` has 8 bytes for each of `lines` lines; `wire` has the lines, aligned to 16 bytes.
    #[inline]
    pub(super) unsafe fn pack(from: *const u8, lines: usize, wire: *mut u8, flag: u32) {
        let wire = wire.cast::<__m128i>();
        let mut i = 0;
        // SAFETY: SSE2 is part of x86-64. By the caller's promise; the receiver may be loading the lines now, hence volatile.
        unsafe {
            let flags = _mm_set1_epi32(flag as i32);
            while i + 2 <= lines {
                let data = _mm_loadu_si128(from.add(i * 8).cast());
                wire.add(i).write_volatile(_mm_unpacklo_epi32(data, flags));
                wire.add(i + 1).write_volatile(_mm_unpackhi_epi32(data, flags));
                i += 2;
            }
            if i < lines {
                let data = _mm_loadl_epi64(from.add(i * 8).cast());
                wire.add(i).write_volatile(_mm_unpacklo_epi32(data, flags));
            }
        }
    }
}

/// Lines as two atomics each.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod halves {
    use crate::engine::sync::{AtomicU64, Ordering};

    /// # Safety
    /// `wire` has `lines` lines, aligned to 16 bytes; `to` can take 8 bytes of each.
    #[inline]
    pub(super) unsafe fn unpack(wire: *const u8, lines: usize, flag: u32, to: *mut u8) -> usize {
        for i in 0..lines {
            // SAFETY: the line exists and is aligned; atomics of shared memory may be accessed from anywhere.
            let halves = unsafe { &*wire.add(i * 16).cast::<[AtomicU64; 2]>() };
            let (a, b) = (halves[0].load(Ordering::Relaxed), halves[1].load(Ordering::Relaxed));
            if (a >> 32) as u32 != flag || (b >> 32) as u32 != flag {
                return i;
            }
            let data = u64::from(a as u32) | b << 32;
            // SAFETY: `to` has room for every line.
            unsafe { to.add(i * 8).cast::<u64>().write_unaligned(data) };
        }
        lines
    }

    /// # Safety
    /// `from` has 8 bytes for each of `lines` lines; `wire` has the lines, aligned to 16 bytes.
    #[inline]
    pub(super) unsafe fn pack(from: *const u8, lines: usize, wire: *mut u8, flag: u32) {
        for i in 0..lines {
            // SAFETY: by the caller's promise.
            let (data, halves) = unsafe {
                (from.add(i * 8).cast::<u64>().read_unaligned(), &*wire.add(i * 16).cast::<[AtomicU64; 2]>())
            };
            let flag = u64::from(flag) << 32;
            halves[0].store(data & 0xffff_ffff | flag, Ordering::Relaxed);
            halves[1].store(data >> 32 | flag, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(16))]
    struct Slot([u32; 4 * 16]);

    #[test]
    fn a_line_is_data_flag_data_flag() {
        let mut slot = Slot([0; 64]);
        let payload: Vec<u8> = (1..=20).collect();
        // SAFETY: 20 bytes are three lines of the sixteen.
        unsafe { Lines::pack(payload.as_ptr(), 20, slot.0.as_mut_ptr().cast(), 7) };
        let words =
            [0x04030201, 7, 0x08070605, 7, 0x0c0b0a09, 7, 0x100f0e0d, 7, 0x14131211, 7, 0, 7, 0, 0, 0, 0];
        assert_eq!(slot.0[..16], words);
    }

    #[test]
    fn unpacking_stops_before_the_first_line_that_has_not_arrived() {
        let mut slot = Slot([0; 64]);
        let payload: Vec<u8> = (0..128).collect();
        for arrived in 0..=16 {
            let mut got = [0xee; 128];
            // SAFETY: at most sixteen lines of the sixteen; the output has room for all.
            let n = unsafe {
                Lines::pack(payload.as_ptr(), arrived * 8, slot.0.as_mut_ptr().cast(), 100 + arrived as u64);
                Lines::unpack(slot.0.as_ptr().cast(), 16, 100 + arrived as u64, got.as_mut_ptr())
            };
            assert_eq!(n, arrived);
            assert_eq!(got[..n * 8], payload[..n * 8]);
            assert!(got[n * 8..].iter().all(|&b| b == 0xee));
        }
    }

    #[test]
    fn lines_as_two_halves_are_the_same_lines() {
        let payload: Vec<u8> = (0..128).map(|i| (i * 5 + 1) as u8).collect();
        for lines in 0..=16 {
            let (mut slot, mut other) = (Slot([0; 64]), Slot([0; 64]));
            let mut got = [0; 128];
            // SAFETY: at most sixteen lines of the sixteen; payload and output have 8 bytes for each.
            let arrived = unsafe {
                halves::pack(payload.as_ptr(), lines, slot.0.as_mut_ptr().cast(), 77);
                line::pack(payload.as_ptr(), lines, other.0.as_mut_ptr().cast(), 77);
                halves::unpack(other.0.as_ptr().cast(), 16, 77, got.as_mut_ptr())
            };
            assert_eq!(slot.0, other.0);
            assert_eq!(arrived, lines);
            assert_eq!(got[..8 * lines], payload[..8 * lines]);
        }
    }

    #[test]
    fn a_line_with_one_old_half_has_not_arrived() {
        for (half, lines) in [(1, 1), (3, 1), (5, 2), (7, 2)] {
            let mut slot = Slot([9; 64]);
            slot.0[half] = 8;
            let mut got = [0; 16];
            // SAFETY: two lines of the sixteen; the output has room for them.
            let n = unsafe { Lines::unpack(slot.0.as_ptr().cast(), lines, 9, got.as_mut_ptr()) };
            assert_eq!(n, lines - 1, "half {half}");
        }
    }

    #[test]
    fn the_rest_of_a_slot_is_stamped_only_before_the_flags_come_round() {
        for (step, want) in
            [(0x7fff_fff7, 0), (0x7fff_fff8, 0x7fff_fff9), (0xffff_ffff, 0), (0x0001_7fff_fffa, 0x7fff_fffb)]
        {
            let mut slot = Slot([5; 64]);
            // SAFETY: the slot has 256 bytes.
            unsafe { Lines::finish(slot.0.as_mut_ptr().cast(), 32, 256, step) };
            let stamped = step & WRAP == WRAP;
            assert_eq!(slot.0[..8], [5; 8]);
            assert!(
                slot.0[8..].chunks(4).all(|l| if stamped { l == [0, want, 0, want] } else { l == [5; 4] }),
                "{step:x}"
            );
        }
    }
}
