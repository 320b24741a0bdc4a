//! Hashes and numbers in vector lanes of 32 and of 64 bits.
//!
//! Lane hashes use shifts, additions and exclusive ors only: the baseline of x86-64 has no vector multiplication of these
//! widths. A good scalar hash per block ([`key`]) makes up for their simplicity.

use std::ops::{BitAnd, BitOr, BitXor, Shl, Shr};

use super::BLOCK;
use super::word::Word;

/// A strong mix of 64 bits (the finaliser of SplitMix64).
pub(super) const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Hash of a stream of a seed at a block.
pub(super) fn key(seed: u64, stream: u64, block: u64) -> u64 {
    mixed(mixed(mixed(seed).wrapping_add(stream)).wrapping_add(block))
}

/// An unsigned lane, with the float of its width in it.
pub(super) trait Lane:
    Copy
    + Eq
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// Width.
    const BITS: u32;
    /// Mantissa bits of the float of this width.
    const MANTISSA: u32;
    /// Its exponent bias.
    const BIAS: i32;

    fn from_u64(bits: u64) -> Self;
    fn to_u64(self) -> u64;
    /// Wrapping sum.
    fn plus(self, other: Self) -> Self;
    /// Wrapping difference.
    fn minus(self, other: Self) -> Self;
    /// Wrapping product.
    fn times(self, other: Self) -> Self;
    /// A hash of the lane.
    fn mix(self) -> Self;
    /// The hash of each lane of a block whose key this is.
    fn spread(key: u64, lane: usize) -> Self;
    /// Bits of the float `self * scale`, `self` being a two's complement integer and `scale` the bits of a float.
    fn scaled(self, scale: Self) -> Self;
    /// Bits of the product of two floats given as bits.
    fn float_times(self, other: Self) -> Self;
    /// Bits of the sum of two floats given as bits.
    fn float_plus(self, other: Self) -> Self;
    /// Whether a two's complement integer is less than another.
    fn is_less(self, other: Self) -> bool;

    /// Bits of the float 2^`exponent`.
    fn power_of_two(exponent: i32) -> Self {
        Self::from_u64(((exponent + Self::BIAS) as u64) << Self::MANTISSA)
    }
}

macro_rules! lane {
    ($t:ty, $signed:ty, $float:ty, $mantissa:literal, $bias:literal, |$x:ident| $mix:expr) => {
        impl Lane for $t {
            const BITS: u32 = <$t>::BITS;
            const MANTISSA: u32 = $mantissa;
            const BIAS: i32 = $bias;
            #[inline(always)]
            fn from_u64(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn mix(self) -> Self {
                let $x = self;
                $mix
            }
            #[inline(always)]
            fn spread(key: u64, lane: usize) -> Self {
                (key as Self)
                    .wrapping_add((lane as Self).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as Self))
                    .mix()
            }
            #[inline(always)]
            fn scaled(self, scale: Self) -> Self {
                (self as $signed as $float * <$float>::from_bits(scale)).to_bits()
            }
            #[inline(always)]
            fn float_times(self, other: Self) -> Self {
                (<$float>::from_bits(self) * <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn float_plus(self, other: Self) -> Self {
                (<$float>::from_bits(self) + <$float>::from_bits(other)).to_bits()
            }
            #[inline(always)]
            fn is_less(self, other: Self) -> bool {
                (self as $signed) < other as $signed
            }
        }
    };
}

lane!(u32, i32, f32, 23, 127, |x| {
    let x = x ^ (x >> 16);
    let x = x.wrapping_add(x << 10);
    let x = x ^ (x >> 7);
    let x = x.wrapping_add(x << 4);
    let x = x ^ (x >> 11);
    x.wrapping_add(x << 15)
});
lane!(u64, i64, f64, 52, 1023, |x| {
    let x = x ^ (x >> 32);
    let x = x.wrapping_add(x << 21);
    let x = x ^ (x >> 14);
    let x = x.wrapping_add(x << 7);
    let x = x ^ (x >> 25);
    x.wrapping_add(x << 33)
});

/// Random words of a block, as many to a lane as fit, after `shape` has seen the lane.
#[inline(always)]
pub(super) fn random_words<L: Lane, W: Word>(key: u64, shape: impl Fn(L) -> L, out: &mut [W; BLOCK]) {
    let per_lane = const { size_of::<L>() / size_of::<W>() };
    for (lane, words) in out.chunks_exact_mut(per_lane).enumerate() {
        let bits = shape(L::spread(key, lane));
        for (i, word) in words.iter_mut().enumerate() {
            *word = W::from_u64((bits >> (8 * i * size_of::<W>()) as u32).to_u64());
        }
    }
}

/// Hashed lanes of a block.
#[inline(always)]
pub(super) fn spread<L: Lane>(key: u64, out: &mut [L; BLOCK]) {
    for (lane, out) in out.iter_mut().enumerate() {
        *out = L::spread(key, lane);
    }
}
