//! Element types and the numbers they are reduced in.

use super::narrow;
use crate::engine::types::DataType;

/// What a reduction computes in.
pub(super) trait Number: Copy + 'static {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
}

macro_rules! integer_number {
    ($($t:ty),+) => {$(
        impl Number for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn least(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self { self.max(other) }
        }
    )+};
}
integer_number!(i8, u8, i32, u32, i64, u64);

macro_rules! float_number {
    ($($t:ty),+) => {$(
        impl Number for $t {
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            // A NaN loses against a number, as in the minNum of IEEE 754-2008 that GPUs have.
            #[inline(always)]
            fn least(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self { self.max(other) }
        }
    )+};
}
float_number!(f32, f64);

/// One element as it lies in memory.
pub(super) trait Element: Copy + 'static {
    /// What it is reduced in.
    type Acc: Number;
    /// Whether memory holds accumulators themselves.
    const IS_ACC: bool;
    /// Whether it is binary16, which some CPUs convert in hardware.
    const IS_HALF: bool = false;
    /// Exact.
    fn widen(self) -> Self::Acc;
    /// Rounded once.
    fn narrow(value: Self::Acc) -> Self;
    /// From the low bits of a word.
    fn from_bits(bits: u64) -> Self;
    /// The final value of an average; of integers only.
    fn divide(value: Self::Acc, n_ranks: u32) -> Self::Acc;
}

macro_rules! integer_element {
    ($t:ty, |$value:ident, $n:ident| $divide:expr) => {
        impl Element for $t {
            type Acc = Self;
            const IS_ACC: bool = true;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(value: Self) -> Self {
                value
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            #[inline(always)]
            fn divide($value: Self, $n: u32) -> Self {
                $divide
            }
        }
    };
}
// Vectors cannot divide integers. A quotient of numbers that are exact in the float, and far below 2^mantissa, is never rounded
// up to the next integer, so cutting it gives C's division.
integer_element!(i8, |value, n| (f32::from(value) / n as f32) as i32 as i8);
integer_element!(u8, |value, n| (f32::from(value) / n as f32) as i32 as u8);
integer_element!(i32, |value, n| (f64::from(value) / f64::from(n)) as i32);
integer_element!(u32, |value, n| (f64::from(value) / f64::from(n)) as u32);
integer_element!(i64, |value, n| value / i64::from(n));
integer_element!(u64, |value, n| value / u64::from(n));

macro_rules! float_element {
    ($t:ty, $bits:ty) => {
        impl Element for $t {
            type Acc = Self;
            const IS_ACC: bool = true;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(value: Self) -> Self {
                value
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                <$t>::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn divide(value: Self, _: u32) -> Self {
                value
            }
        }
    };
}
float_element!(f32, u32);
float_element!(f64, u64);

macro_rules! narrow_element {
    ($(#[$doc:meta])* $name:ident($bits:ty), $is_half:literal, $widen:path, $narrow:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(super) struct $name($bits);

        impl Element for $name {
            type Acc = f32;
            const IS_ACC: bool = false;
            const IS_HALF: bool = $is_half;
            #[inline(always)]
            fn widen(self) -> f32 { $widen(self.0) }
            #[inline(always)]
            fn narrow(value: f32) -> Self { Self($narrow(value)) }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self { Self(bits as $bits) }
            #[inline(always)]
            fn divide(value: f32, _: u32) -> f32 { value }
        }
    };
}
narrow_element!(/** IEEE binary16. */ Half(u16), true, narrow::half_to_f32, narrow::f32_to_half);
narrow_element!(/** bfloat16. */ Bfloat16(u16), false, narrow::bfloat16_to_f32, narrow::f32_to_bfloat16);
narrow_element!(/** 8 bits, 4 of them exponent. */ E4m3(u8), false, narrow::e4m3_to_f32, narrow::f32_to_e4m3);
narrow_element!(/** 8 bits, 5 of them exponent. */ E5m2(u8), false, narrow::e5m2_to_f32, narrow::f32_to_e5m2);

/// A scalar in the element type, as the low bits of a word: integers cut toward zero, floats round, 8-bit floats saturate.
pub(super) fn bits_of(dtype: DataType, scalar: f64) -> u64 {
    let single = scalar as f32;
    match dtype {
        DataType::Int8 => u64::from(scalar as i8 as u8),
        DataType::Uint8 => u64::from(scalar as u8),
        DataType::Int32 => u64::from(scalar as i32 as u32),
        DataType::Uint32 => u64::from(scalar as u32),
        DataType::Int64 => scalar as i64 as u64,
        DataType::Uint64 => scalar as u64,
        DataType::Half => u64::from(narrow::f32_to_half(single)),
        DataType::Float => u64::from(single.to_bits()),
        DataType::Double => scalar.to_bits(),
        DataType::Bfloat16 => u64::from(narrow::f32_to_bfloat16(single)),
        DataType::F8e4m3 => u64::from(narrow::f32_to_e4m3(single)),
        DataType::F8e5m2 => u64::from(narrow::f32_to_e5m2(single)),
    }
}
