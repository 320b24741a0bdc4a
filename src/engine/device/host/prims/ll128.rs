//! LL128: 128-byte lines of 120 bytes of data and a 64-bit flag. Low latency, 15/16 of the wire.
//!
//! The flag is step + 1, in the last word of every line. Sixteen lines are a block of 1920 payload bytes, moved whole even when the step
//! ends inside it. In a block, payload is permuted as a warp of 32 lanes holds it, so that a device can be the peer:
//!
//! - Pair `g` of lane `l` (`g` 0 to 3, `l` 0 to 31) is words `64g + 2l` and the next: eight lanes make a line, and the second word of
//!   every eighth lane is its flag.
//! - Payload vector (16 bytes) `32g - 4(g/2) + l - (g mod 2)(l/8)` is pair `g` of lane `l`. Flag lanes have room for one word a pair, so
//!   their vector of an even pair is split: the first word stays, the second is the first word of the next pair.
//!
//! Read line by line: a line holds seven vectors that are adjacent in the payload and one word of an eighth; see [`Place`].
//!
//! **Order.** The sender stores the data words, then the flag with release order; the receiver loads the flag with acquire order, then
//! the data. (A device needs the line to be stored at once; here order suffices.) Data words are only read after their flag has come, and only
//! overwritten after the receiver's `head` has: nobody reads while another writes. A stale flag is smaller by a multiple of 8 and 64 bits
//! never come round.

use super::flagged::{self, Format, Scratch};
use super::{Connectors, Operation, Outcome, Progressing};
use crate::engine::device::host::fifo::Flag;
use crate::engine::plan::Lane;
use crate::engine::types::Protocol;

/// Payload of a block, bytes.
const PAYLOAD: usize = 1920;
/// Lines of a block.
const LINES: usize = 16;
/// Bytes of a line.
const LINE: usize = 128;

/// The format.
#[derive(Debug)]
struct Blocks;

/// Where a line's content lies in the block's payload, byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Seven adjacent vectors, 112 bytes.
    vectors: usize,
    /// The word before the flag, 8 bytes.
    word: usize,
}

/// Places of the sixteen lines.
const PLACES: [Place; LINES] = places();

const fn places() -> [Place; LINES] {
    let mut places = [Place { vectors: 0, word: 0 }; LINES];
    let mut line = 0;
    while line < LINES {
        let (g, eighth) = (line / 4, line % 4);
        let lane = 8 * eighth;
        let vectors = 16 * (32 * g - 4 * (g / 2) + lane - (g % 2) * eighth);
        // The flag lane of the even pair before (or this one) owns the split vector.
        let even = g / 2 * 2;
        let split = 16 * (32 * even - 4 * (even / 2) + lane + 7);
        places[line] = Place { vectors, word: split + 8 * (g % 2) };
        line += 1;
    }
    places
}

/// Moves what has arrived, up to the end of the step.
pub(in super::super) fn poll(
    op: &Operation,
    lane: &Lane,
    at: &mut Progressing,
    connectors: &mut Connectors,
    scratch: &mut Scratch,
) -> Outcome {
    flagged::poll::<Blocks>(op, lane, at, connectors, scratch)
}

/// The flag of a line.
///
/// # Safety
/// `line` is an aligned line of a slot that stays mapped.
unsafe fn flag_of<'a>(line: *const u8) -> &'a Flag {
    // SAFETY: the last word of the line, by the caller's promise.
    unsafe { &*line.add(LINE - 8).cast::<Flag>() }
}

impl Format for Blocks {
    const PROTOCOL: Protocol = Protocol::LL128;
    const PAYLOAD: usize = PAYLOAD;
    const WIRE: usize = LINES * LINE;

    #[inline]
    unsafe fn unpack(wire: *const u8, units: usize, flag: u64, to: *mut u8) -> usize {
        for unit in 0..units {
            // SAFETY: the block lies in the slot and its payload fits `to`, by the caller's promise; its data are only read once all its
            // flags have come, see above.
            unsafe {
                let block = wire.add(unit * Self::WIRE);
                // The last line is stored last: usually the only one worth asking.
                let has_come = |line: usize| flag_of(block.add(line * LINE)).is_raised(flag);
                if !(0..LINES).rev().all(has_come) {
                    return unit;
                }
                let to = to.add(unit * PAYLOAD);
                for (line, place) in PLACES.iter().enumerate() {
                    let line = block.add(line * LINE);
                    std::ptr::copy_nonoverlapping(line, to.add(place.vectors), 112);
                    std::ptr::copy_nonoverlapping(line.add(112), to.add(place.word), 8);
                }
            }
        }
        units
    }

    #[inline]
    unsafe fn pack(from: *const u8, bytes: usize, wire: *mut u8, flag: u64) {
        let (whole, rest) = (bytes / PAYLOAD, bytes % PAYLOAD);
        // SAFETY: by the caller's promise; the last block is filled up with zeros.
        unsafe {
            for unit in 0..whole {
                pack_block(from.add(unit * PAYLOAD), wire.add(unit * Self::WIRE), flag);
            }
            if rest > 0 {
                let mut last = [0; PAYLOAD];
                std::ptr::copy_nonoverlapping(from.add(whole * PAYLOAD), last.as_mut_ptr(), rest);
                pack_block(last.as_ptr(), wire.add(whole * Self::WIRE), flag);
            }
        }
    }

    #[inline]
    unsafe fn finish(_wire: *mut u8, _used: usize, _slot_bytes: usize, _step: u64) {}
}

/// # Safety
/// `from` has a block's payload; `block` is a block of a free slot.
#[inline]
unsafe fn pack_block(from: *const u8, block: *mut u8, flag: u64) {
    for (line, place) in PLACES.iter().enumerate() {
        // SAFETY: by the caller's promise; the flag follows its line's data.
        unsafe {
            let line = block.add(line * LINE);
            std::ptr::copy_nonoverlapping(from.add(place.vectors), line, 112);
            std::ptr::copy_nonoverlapping(from.add(place.word), line.add(112), 8);
            flag_of(line).raise(flag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(128))]
    struct Wire([u64; 256 * 2]);

    /// The permutation as the format defines it, lane by lane.
    fn permuted(payload: &[u64; 240], flag: u64) -> [u64; 256] {
        let mut words = [0; 256];
        for (g, lane) in (0..4).flat_map(|g| (0..32).map(move |l| (g, l))) {
            let vector = (32 * g + lane) as i64 - 4 * (g as i64 / 2) - (g as i64 % 2) * (lane as i64 / 8);
            let at = 64 * g + 2 * lane;
            if lane % 8 != 7 {
                words[at..at + 2].copy_from_slice(&payload[2 * vector as usize..][..2]);
            } else {
                words[at + 1] = flag;
                if g % 2 == 0 {
                    words[at] = payload[2 * vector as usize];
                    words[at + 64] = payload[2 * vector as usize + 1];
                }
            }
        }
        words
    }

    #[test]
    fn a_block_is_permuted_as_lanes_hold_it() {
        let payload: [u64; 240] = std::array::from_fn(|i| 1000 + i as u64);
        let mut wire = Wire([0; 512]);
        // SAFETY: the payload is one block, the wire has two.
        unsafe { Blocks::pack(payload.as_ptr().cast(), PAYLOAD, wire.0.as_mut_ptr().cast(), 77) };
        assert_eq!(wire.0[..256], permuted(&payload, 77));
        assert_eq!(wire.0[256..], [0; 256]);
    }

    #[test]
    fn what_is_packed_is_unpacked_at_any_length() {
        for bytes in [1_usize, 8, 119, 120, 1919, 1920, 1921, 3840] {
            let payload: Vec<u8> = (0..bytes).map(|i| (i * 7 + 3) as u8).collect();
            let mut wire = Wire([0; 512]);
            let mut got = vec![0; 2 * PAYLOAD];
            let units = bytes.div_ceil(PAYLOAD);
            // SAFETY: at most two blocks on either side.
            unsafe {
                Blocks::pack(payload.as_ptr(), bytes, wire.0.as_mut_ptr().cast(), 9);
                assert_eq!(Blocks::unpack(wire.0.as_ptr().cast(), units, 9, got.as_mut_ptr()), units);
            }
            assert_eq!(got[..bytes], payload);
        }
    }

    #[test]
    fn a_block_with_one_old_flag_has_not_arrived() {
        for line in 0..32 {
            let mut wire = Wire([6; 512]);
            wire.0[16 * line + 15] = 5;
            let mut got = vec![0; 2 * PAYLOAD];
            // SAFETY: two blocks on either side.
            let n = unsafe { Blocks::unpack(wire.0.as_ptr().cast(), 2, 6, got.as_mut_ptr()) };
            assert_eq!(n, line / 16);
        }
    }
}
