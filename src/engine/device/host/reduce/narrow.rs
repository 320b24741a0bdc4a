//! Floats narrower than binary32: to binary32 exactly, and back with rounding to nearest, ties to even. No branches, so that
//! loops over them become vector code.

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;

/// 2^`exponent`, which is a normal binary32.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Widens the magnitude bits of a float with `mantissa` mantissa bits and exponent bias `bias`, subnormals included: seen as
/// binary32 they are too small by a power of two. Top exponents count as numbers here.
#[inline(always)]
fn widen_magnitude(magnitude: u32, mantissa: u32, bias: i32) -> f32 {
    f32::from_bits(magnitude << (23 - mantissa)) * power_of_two(127 - bias)
}

/// Rounds the binary32 magnitude bits `magnitude` to `mantissa` mantissa bits and exponent bias `bias`. The caller deals with
/// what is too large.
#[inline(always)]
fn narrow_magnitude(magnitude: u32, mantissa: u32, bias: i32) -> u32 {
    let dropped = 23 - mantissa;
    let odd = (magnitude >> dropped) & 1;
    let rebias = ((127 - bias) as u32) << 23;
    let normal =
        magnitude.wrapping_sub(rebias).wrapping_add((1 << (dropped - 1)) - 1).wrapping_add(odd) >> dropped;
    // A subnormal result: adding a number whose last bit has the weight of ours makes the adder round.
    let magic = power_of_two(1 - bias + dropped as i32);
    let subnormal = (f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits());
    let smallest_normal = ((128 - bias) as u32) << 23;
    if magnitude < smallest_normal { subnormal } else { normal }
}

/// IEEE binary16.
#[inline(always)]
pub(super) fn half_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = bits & 0x7fff;
    let finite = widen_magnitude(magnitude, 10, 15).to_bits();
    let special = INFINITY | (magnitude << 13);
    let wide = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(wide | (bits & 0x8000) << 16)
}

/// IEEE binary16, rounded.
#[inline(always)]
pub(super) fn f32_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    // Halves end where 65520 rounds to 2^16, whose bits are those of infinity; beyond it the formula would run on.
    let bounded = if magnitude < 0x4780_0000 { magnitude } else { 0x4780_0000 };
    let rounded = narrow_magnitude(bounded, 10, 15);
    let narrow = if magnitude > INFINITY { 0x7e00 } else { rounded };
    (narrow | (bits & SIGN) >> 16) as u16
}

/// The upper half of binary32.
#[inline(always)]
pub(super) fn bfloat16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The upper half of binary32, rounded.
#[inline(always)]
pub(super) fn f32_to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    // Rounding could carry a NaN's mantissa away.
    let quiet = (bits >> 16) | 0x40;
    (if bits & !SIGN > INFINITY { quiet } else { rounded }) as u16
}

/// 4 exponent bits with bias 7, no infinity: the largest magnitude is 448 and one pattern of each sign is NaN.
#[inline(always)]
pub(super) fn e4m3_to_f32(bits: u8) -> f32 {
    let bits = u32::from(bits);
    let magnitude = bits & 0x7f;
    let finite = widen_magnitude(magnitude, 3, 7).to_bits();
    let wide = if magnitude == 0x7f { 0x7fc0_0000 } else { finite };
    f32::from_bits(wide | (bits & 0x80) << 24)
}

/// The nearest of that format; too large ones, infinity too, become the largest.
#[inline(always)]
pub(super) fn f32_to_e4m3(value: f32) -> u8 {
    const LARGEST: u32 = 448.0_f32.to_bits();
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let bounded = if magnitude < LARGEST { magnitude } else { LARGEST };
    let rounded = narrow_magnitude(bounded, 3, 7);
    let narrow = if magnitude > INFINITY { 0x7f } else { rounded };
    (narrow | (bits & SIGN) >> 24) as u8
}

/// 5 exponent bits with bias 15: the upper half of binary16.
#[inline(always)]
pub(super) fn e5m2_to_f32(bits: u8) -> f32 {
    half_to_f32(u16::from(bits) << 8)
}

/// The nearest of that format; too large ones, infinity too, become the largest.
#[inline(always)]
pub(super) fn f32_to_e5m2(value: f32) -> u8 {
    const LARGEST: u32 = 57344.0_f32.to_bits();
    let bits = value.to_bits();
    let magnitude = bits & !SIGN;
    let bounded = if magnitude < LARGEST { magnitude } else { LARGEST };
    let rounded = narrow_magnitude(bounded, 2, 15);
    let narrow = if magnitude > INFINITY { 0x7f } else { rounded };
    (narrow | (bits & SIGN) >> 24) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halfway points and their neighbours, ends of ranges, and many others.
    fn probes() -> impl Iterator<Item = f32> {
        let spread = (0..1_u32 << 16).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        let near = (0..=u16::MAX).flat_map(|bits| {
            let at = half::f16::from_bits(bits).to_f32().to_bits();
            [at.wrapping_sub(1), at, at + 1, at + 0xfff, at + 0x1000, at + 0x1001].map(f32::from_bits)
        });
        spread.chain(near)
    }

    /// The nearest of all finite members, ties to the even code, by search: slow and simple.
    fn nearest(value: f32, decode: fn(u8) -> f32, largest: u8) -> u8 {
        let wanted = f64::from(value.abs()).min(f64::from(decode(largest)));
        let distance = |code: u8| (f64::from(decode(code)) - wanted).abs();
        let best =
            (0..=largest).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        best.unwrap() | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn half_converts_as_ieee_says() {
        for bits in 0..=u16::MAX {
            let (ours, known) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == known.to_bits() || (ours.is_nan() && known.is_nan()), "{bits:#06x}");
        }
        for value in probes() {
            let (ours, known) = (f32_to_half(value), half::f16::from_f32(value));
            assert!(
                ours == known.to_bits() || (known.is_nan() && half_to_f32(ours).is_nan()),
                "{value:e} {ours:#06x}"
            );
        }
    }

    #[test]
    fn bfloat16_converts_as_ieee_says() {
        for value in probes() {
            let (ours, known) = (f32_to_bfloat16(value), half::bf16::from_f32(value));
            assert!(
                ours == known.to_bits() || (known.is_nan() && bfloat16_to_f32(ours).is_nan()),
                "{value:e}"
            );
        }
    }

    #[test]
    fn f8_rounds_to_the_nearest_member_and_saturates() {
        for value in probes().step_by(7).filter(|value| !value.is_nan()) {
            assert_eq!(f32_to_e4m3(value), nearest(value, e4m3_to_f32, 0x7e), "{value:e}");
            assert_eq!(f32_to_e5m2(value), nearest(value, e5m2_to_f32, 0x7b), "{value:e}");
        }
    }

    #[test]
    fn e4m3_has_bias_7_ends_at_448_and_has_no_infinity() {
        assert_eq!(e4m3_to_f32(0x38), 1.0);
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x01), 2.0_f32.powi(-9));
        assert_eq!(f32_to_e4m3(f32::INFINITY), 0x7e);
        assert_eq!(f32_to_e4m3(-1e9), 0xfe);
        assert!(e4m3_to_f32(f32_to_e4m3(f32::NAN)).is_nan());
        assert_eq!((0..=u8::MAX).filter(|&code| e4m3_to_f32(code).is_nan()).count(), 2);
        assert!((0..=u8::MAX).all(|code| !e4m3_to_f32(code).is_infinite()));
    }

    #[test]
    fn e5m2_has_bias_15_and_keeps_infinity_as_an_input() {
        assert_eq!(e5m2_to_f32(0x3c), 1.0);
        assert_eq!(e5m2_to_f32(0x7b), 57344.0);
        assert_eq!(e5m2_to_f32(0x01), 2.0_f32.powi(-16));
        assert_eq!(e5m2_to_f32(0xfc), f32::NEG_INFINITY);
        assert_eq!(f32_to_e5m2(1e9), 0x7b);
        assert!(e5m2_to_f32(f32_to_e5m2(f32::NAN)).is_nan());
    }

    #[test]
    fn members_survive_the_way_through_binary32() {
        for code in 0..=u8::MAX {
            let (four, five) = (e4m3_to_f32(code), e5m2_to_f32(code));
            assert!(four.is_nan() || f32_to_e4m3(four) == code, "{code:#04x}");
            assert!(!five.is_finite() || f32_to_e5m2(five) == code, "{code:#04x}");
        }
    }
}
