//! Floats whose reductions are exact.
//!
//! **Sum.** All numbers of an element are integers times one power of two ("units"), and no partial sum leaves ±2^(m+1) units
//! (m mantissa bits), so nothing ever rounds. Ranks take places in a rotation that changes from block to block; even places are
//! one class, positive, odd ones the other, negative. A class of h members adds up to a known total by telescoping: member j
//! brings `base + x(j) - x(j + 1) + extra(j)`, where x is a hash below `base` and the last member's successor is the first, so
//! all x cancel; `extra` hands out the remainder, and member 0 adds the element's random part. Everybody's share is then
//! computed alone, and the result without looking at ranks. One random part is even and the other odd: no result is zero.
//!
//! **Pre-multiplied sum.** The same with both classes positive, a class being the ranks of one scalar, and totals such that
//! after multiplication they fit.
//!
//! **Product.** Place 0 brings a mantissa that is no power of two, all others powers of two; exponents are the steps of a
//! monotone split of a total below the type's largest.
//!
//! **Average.** Two places bring small integers, others zero; the result is the sum of their products with 1/n, each rounded
//! in the type. **Minimum, maximum.** Random floats on every rank, folded.

use super::lane::{Lane, key, random_words, spread};
use super::word::Word;
use super::{BLOCK, Fold, Kind, Pattern};

/// A binary float format.
pub(super) trait Format {
    /// An element in memory.
    type Word: Word;
    /// Lanes whose float holds every member of the format.
    type Lane: Lane;
    /// Mantissa bits.
    const MANTISSA: u32;
    /// Exponent bits.
    const EXPONENT: u32;
    /// Exponent bias.
    const BIAS: i32 = (1 << (Self::EXPONENT - 1)) - 1;
    /// Exponent of the largest powers of two.
    const TOP: i32 = Self::BIAS;
}

macro_rules! format {
    ($(#[$doc:meta])* $name:ident, $word:ty, $lane:ty, $mantissa:literal, $exponent:literal $(, top $top:literal)?) => {
        $(#[$doc])*
        pub(super) struct $name;
        impl Format for $name {
            type Word = $word;
            type Lane = $lane;
            const MANTISSA: u32 = $mantissa;
            const EXPONENT: u32 = $exponent;
            $(const TOP: i32 = $top;)?
        }
    };
}
format!(/** binary16. */ Half, u16, u32, 10, 5);
format!(/** binary32. */ Single, u32, u32, 23, 8);
format!(/** binary64. */ Double, u64, u64, 52, 11);
format!(/** bfloat16. */ Bfloat16, u16, u32, 7, 8);
format!(/** 8 bits, no infinity: its top exponent holds numbers. */ E4m3, u8, u32, 3, 4, top 8);
format!(/** 8 bits, the upper half of binary16. */ E5m2, u8, u32, 2, 5);

/// Streams of hashes. Members of a class have streams of their own.
const COPIES: u64 = 0;
const ELEMENT: u64 = 1;
const ROTATION: u64 = 2;
const FIRST_MEMBER: u64 = 16;

/// What decorrelates a second hash of a lane from the first.
const SECOND: u64 = 0x5851_f42d_4c95_7f2d;

/// Exponents that a sum's unit takes: a power of two of them, in the middle of those at which a unit is normal and the largest
/// partial sum finite.
const fn unit_exponents<F: Format>() -> (i32, u32) {
    let lowest = 1 - F::BIAS;
    let available = (F::TOP - F::MANTISSA as i32 - 1 - lowest + 1) as u32;
    let used = 1 << available.ilog2();
    (lowest + (available - used) as i32 / 2, used)
}

/// A lane's float, which is a member of the format, in memory.
#[inline(always)]
fn encode<F: Format>(bits: F::Lane) -> F::Word {
    let sign = bits >> (F::Lane::BITS - 1);
    let magnitude = (bits << 1) >> 1;
    // Too small by a power of two, a lane's float has the format's exponent, subnormals included, where its own would be.
    let rebiased = if F::BIAS == F::Lane::BIAS {
        magnitude
    } else {
        magnitude.float_times(F::Lane::power_of_two(F::BIAS - F::Lane::BIAS))
    };
    let narrow = rebiased >> (F::Lane::MANTISSA - F::MANTISSA);
    F::Word::from_u64((narrow | sign << (F::MANTISSA + F::EXPONENT)).to_u64())
}

/// A positive lane's float rounded to the format, ties to even, as a lane's float.
#[inline(always)]
fn rounded<F: Format>(bits: F::Lane) -> F::Lane {
    if F::MANTISSA == F::Lane::MANTISSA {
        return bits;
    }
    // Adding and taking away a power of two whose last bit weighs as much as the format's last bit here.
    let exponent = (bits >> F::Lane::MANTISSA) << F::Lane::MANTISSA;
    let lowest = F::Lane::power_of_two(1 - F::BIAS);
    let exponent = if exponent.is_less(lowest) { lowest } else { exponent };
    let magic =
        exponent.plus(F::Lane::from_u64(u64::from(F::Lane::MANTISSA - F::MANTISSA) << F::Lane::MANTISSA));
    let sign = F::Lane::from_u64(1 << (F::Lane::BITS - 1));
    bits.float_plus(magic).float_plus(magic ^ sign)
}

/// Random sign, mantissa, and exponent of the middle half of the range in every word of a lane, made of the lane's random bits.
#[inline(always)]
fn shaped<F: Format>(bits: F::Lane) -> F::Lane {
    let width = F::MANTISSA + F::EXPONENT + 1;
    let everywhere =
        |word: u64| F::Lane::from_u64((0..F::Lane::BITS / width).fold(0, |all, i| all | word << (i * width)));
    let sign_and_mantissa = everywhere(1 << (width - 1) | ((1 << F::MANTISSA) - 1));
    let exponent = everywhere(((1 << (F::EXPONENT - 1)) - 1) << F::MANTISSA);
    // No carry leaves a word: the sum's largest field is below three quarters of the range.
    (bits & sign_and_mantissa) | (bits & exponent).plus(everywhere(1 << (F::EXPONENT - 2 + F::MANTISSA)))
}

/// The place of a rank in the block's rotation of `n`.
fn place(seed: u64, block: u64, rank: usize, n: usize) -> usize {
    (rank + (key(seed, ROTATION, block) % n as u64) as usize) % n
}

/// Ranks that add up to a known total.
struct Class<L> {
    /// Which of the two.
    index: usize,
    n_members: usize,
    /// The part of the total that does not depend on the element, in quanta.
    fixed: u64,
    /// Bits of the random part, and those of them that are always set.
    random: (L, L),
    /// Units in a quantum, as a shift.
    quantum: u32,
    /// Units that a quantum gives after multiplication by the class's scalar.
    weight: u64,
    negative: bool,
}

impl<L: Lane> Class<L> {
    /// One of the two classes of a plain sum.
    fn of_sum<F: Format<Lane = L>>(index: usize, n_ranks: usize) -> Self {
        let half = 1 << F::MANTISSA;
        let random = (L::from_u64((half - 1) & !1), L::from_u64(index as u64));
        Self {
            index,
            n_members: (n_ranks + 1 - index) / 2,
            fixed: half,
            random,
            quantum: 0,
            weight: 1,
            negative: index == 1,
        }
    }

    /// The ranks of one scalar in a pre-multiplied sum; each class may fill half of the range.
    fn of_mulsum<F: Format<Lane = L>>(index: usize, pattern: &Pattern) -> Self {
        let scalar = pattern.scalars[index];
        // A half of an odd number of units would be no whole number of them.
        let quantum = u32::from(scalar.fract() != 0.0);
        let weight = (scalar * f64::from(1 << quantum)) as u64;
        let budget = (1_u64 << F::MANTISSA) / weight;
        let random = (1_u64 << (budget / 2).max(1).ilog2()) - 1;
        Self {
            index,
            n_members: (pattern.n_ranks + 1 - index) / 2,
            fixed: budget - random,
            random: (L::from_u64(random), L::from_u64(0)),
            quantum,
            weight,
            negative: false,
        }
    }

    /// The random part of the total, from the element's two hashes.
    #[inline(always)]
    fn random_part(&self, first: L, second: L) -> L {
        let bits = if self.index == 0 { first } else { second };
        (bits & self.random.0) | self.random.1
    }

    /// What member `member` brings, in units, for all elements of a block with first hashes `hashes`.
    #[inline(always)]
    fn shares(&self, member: usize, (seed, block): (u64, u64), hashes: &[L; BLOCK], out: &mut [L; BLOCK]) {
        let n = self.n_members as u64;
        let base = self.fixed / n;
        let hash_mask =
            L::from_u64(((base + 1).next_power_of_two() >> u32::from(!(base + 1).is_power_of_two())) - 1);
        let base = L::from_u64(base + u64::from((member as u64) < self.fixed % n));
        let stream = |member: usize| FIRST_MEMBER + 2 * member as u64 + self.index as u64;
        let own = L::from_u64(key(seed, stream(member), block));
        let next = L::from_u64(key(seed, stream((member + 1) % self.n_members), block));
        let sign = L::from_u64(if self.negative { u64::MAX } else { 0 });
        let is_first = L::from_u64(if member == 0 { u64::MAX } else { 0 });
        for (out, &hash) in out.iter_mut().zip(hashes) {
            let telescoping = ((hash ^ own).mix() & hash_mask).minus((hash ^ next).mix() & hash_mask);
            let random = self.random_part(hash, second_hash(hash)) & is_first;
            let share = base.plus(telescoping).plus(random) << self.quantum;
            *out = (share ^ sign).minus(sign);
        }
    }
}

#[inline(always)]
fn second_hash<L: Lane>(hash: L) -> L {
    (hash ^ L::from_u64(SECOND)).mix()
}

/// The element's unit as a lane's float, from its first hash.
#[inline(always)]
fn unit<F: Format>(hash: F::Lane) -> F::Lane {
    let (lowest, n) = const { unit_exponents::<F>() };
    let exponent = (hash >> F::MANTISSA) & F::Lane::from_u64(u64::from(n - 1));
    exponent.plus(F::Lane::from_u64((lowest + F::Lane::BIAS) as u64)) << F::Lane::MANTISSA
}

fn classes<F: Format>(pattern: &Pattern, fold: Fold) -> [Class<F::Lane>; 2] {
    [0, 1].map(|index| match fold {
        Fold::MulSum => Class::of_mulsum::<F>(index, pattern),
        _ => Class::of_sum::<F>(index, pattern.n_ranks),
    })
}

fn sum_inputs<F: Format>(pattern: &Pattern, fold: Fold, rank: usize, block: u64, out: &mut [F::Word; BLOCK]) {
    let zero = F::Lane::from_u64(0);
    let (mut hashes, mut shares) = ([zero; BLOCK], [zero; BLOCK]);
    spread(key(pattern.seed, ELEMENT, block), &mut hashes);
    let classes = classes::<F>(pattern, fold);
    let (class, member) = match fold {
        Fold::MulSum => {
            (&classes[rank % 2], place(pattern.seed, block, rank / 2, classes[rank % 2].n_members))
        }
        _ => {
            let place = place(pattern.seed, block, rank, pattern.n_ranks);
            (&classes[place % 2], place / 2)
        }
    };
    class.shares(member, (pattern.seed, block), &hashes, &mut shares);
    for ((out, &share), &hash) in out.iter_mut().zip(&shares).zip(&hashes) {
        *out = encode::<F>(share.scaled(unit::<F>(hash)));
    }
}

fn sum_results<F: Format>(pattern: &Pattern, fold: Fold, block: u64, out: &mut [F::Word; BLOCK]) {
    let key = key(pattern.seed, ELEMENT, block);
    let [plus, other] = classes::<F>(pattern, fold);
    let weight = |class: &Class<F::Lane>| {
        let weight = if class.n_members == 0 { 0 } else { class.weight };
        F::Lane::from_u64(if class.negative { weight.wrapping_neg() } else { weight })
    };
    let (plus_weight, other_weight) = (weight(&plus), weight(&other));
    let fixed = F::Lane::from_u64(plus.fixed)
        .times(plus_weight)
        .plus(F::Lane::from_u64(other.fixed).times(other_weight));
    for (lane, out) in out.iter_mut().enumerate() {
        let first = F::Lane::spread(key, lane);
        let second = second_hash(first);
        let random = match fold {
            Fold::MulSum => plus
                .random_part(first, second)
                .times(plus_weight)
                .plus(other.random_part(first, second).times(other_weight)),
            _ => plus.random_part(first, second).minus(other.random_part(first, second)),
        };
        *out = encode::<F>(fixed.plus(random).scaled(unit::<F>(first)));
    }
}

/// Mantissa of the product, its exponent (0 to the bias, whose bits are all set), and a sign bit from an element's hash.
#[inline(always)]
fn product_parts<F: Format>(hash: F::Lane) -> (F::Lane, F::Lane, F::Lane) {
    let mantissa = (hash & F::Lane::from_u64((1 << F::MANTISSA) - 1)) | F::Lane::from_u64(1);
    let exponent = (hash >> F::MANTISSA) & F::Lane::from_u64(F::BIAS as u64);
    let sign = second_hash(hash) & F::Lane::from_u64(1);
    (mantissa << (F::Lane::MANTISSA - F::MANTISSA), exponent, sign)
}

/// A lane's float from its parts.
#[inline(always)]
fn assembled<L: Lane>(mantissa: L, exponent: L, sign: L) -> L {
    mantissa | exponent.plus(L::from_u64(L::BIAS as u64)) << L::MANTISSA | sign << (L::BITS - 1)
}

fn product_inputs<F: Format>(pattern: &Pattern, rank: usize, block: u64, out: &mut [F::Word; BLOCK]) {
    let place = place(pattern.seed, block, rank, pattern.n_ranks) as u64;
    let key = key(pattern.seed, ELEMENT, block);
    let share = |place: u64| F::Lane::from_u64((place << 16) / pattern.n_ranks as u64);
    let (from, to) = (share(place), share(place + 1));
    let first = F::Lane::from_u64(if place == 0 { u64::MAX } else { 0 });
    let alternating = F::Lane::from_u64(place % 2);
    for (lane, out) in out.iter_mut().enumerate() {
        let (mantissa, exponent, sign) = product_parts::<F>(F::Lane::spread(key, lane));
        let exponent = (exponent.times(to) >> 16).minus(exponent.times(from) >> 16);
        *out = encode::<F>(assembled(mantissa & first, exponent, (sign & first) ^ alternating));
    }
}

fn product_results<F: Format>(pattern: &Pattern, block: u64, out: &mut [F::Word; BLOCK]) {
    let key = key(pattern.seed, ELEMENT, block);
    let alternating = F::Lane::from_u64(pattern.n_ranks as u64 / 2 % 2);
    for (lane, out) in out.iter_mut().enumerate() {
        let (mantissa, exponent, sign) = product_parts::<F>(F::Lane::spread(key, lane));
        *out = encode::<F>(assembled(mantissa, exponent, sign ^ alternating));
    }
}

/// What place 0 or 1 brings to an average: an integer of the mantissa's size times 2 to 16.
#[inline(always)]
fn average_part<F: Format>(hash: F::Lane) -> F::Lane {
    let integer = (hash & F::Lane::from_u64((1 << F::MANTISSA) - 1)).plus(F::Lane::from_u64(1));
    let exponent =
        ((hash >> F::MANTISSA) & F::Lane::from_u64(3)).plus(F::Lane::from_u64(1 + F::Lane::BIAS as u64));
    integer.scaled(exponent << F::Lane::MANTISSA)
}

fn average_key(pattern: &Pattern, place: usize, block: u64) -> u64 {
    key(pattern.seed, FIRST_MEMBER + place as u64, block)
}

fn average_inputs<F: Format>(pattern: &Pattern, rank: usize, block: u64, out: &mut [F::Word; BLOCK]) {
    let place = place(pattern.seed, block, rank, pattern.n_ranks);
    if place > 1 {
        *out = [F::Word::ZERO; BLOCK];
        return;
    }
    let key = average_key(pattern, place, block);
    for (lane, out) in out.iter_mut().enumerate() {
        *out = encode::<F>(average_part::<F>(F::Lane::spread(key, lane)));
    }
}

fn average_results<F: Format>(pattern: &Pattern, block: u64, out: &mut [F::Word; BLOCK]) {
    let [left, right] = [0, 1].map(|place| average_key(pattern, place, block));
    let reciprocal = if F::Lane::BITS == 64 {
        (1.0 / pattern.n_ranks as f64).to_bits()
    } else {
        u64::from((1.0 / pattern.n_ranks as f32).to_bits())
    };
    let reciprocal = rounded::<F>(F::Lane::from_u64(reciprocal));
    for (lane, out) in out.iter_mut().enumerate() {
        let part = |key| rounded::<F>(average_part::<F>(F::Lane::spread(key, lane)).float_times(reciprocal));
        *out = encode::<F>(rounded::<F>(part(left).float_plus(part(right))));
    }
}

fn random_inputs<F: Format>(seed: u64, stream: u64, block: u64, out: &mut [F::Word; BLOCK]) {
    random_words(key(seed, stream, block), shaped::<F>, out);
}

/// The largest, or the smallest, of all ranks' random floats.
fn extreme_results<F: Format>(pattern: &Pattern, fold: Fold, block: u64, out: &mut [F::Word; BLOCK]) {
    let flip = F::Word::from_u64(if fold == Fold::Max { 0 } else { u64::MAX });
    let comparable = |word: F::Word| word.reordered().flipped(flip);
    let mut words = [F::Word::ZERO; BLOCK];
    random_inputs::<F>(pattern.seed, FIRST_MEMBER, block, out);
    for best in out.iter_mut() {
        *best = comparable(*best);
    }
    for rank in 1..pattern.n_ranks {
        random_inputs::<F>(pattern.seed, FIRST_MEMBER + rank as u64, block, &mut words);
        for (best, &word) in out.iter_mut().zip(&words) {
            let candidate = comparable(word);
            *best = if best.is_less(candidate) { candidate } else { *best };
        }
    }
    for best in out.iter_mut() {
        *best = best.flipped(flip).reordered();
    }
}

impl<F: Format> Kind for F {
    type Word = F::Word;

    fn copies(seed: u64, block: u64, out: &mut [F::Word; BLOCK]) {
        random_inputs::<F>(seed, COPIES, block, out);
    }

    fn inputs(pattern: &Pattern, fold: Fold, rank: usize, block: u64, out: &mut [F::Word; BLOCK]) {
        match fold {
            Fold::Sum | Fold::MulSum => sum_inputs::<F>(pattern, fold, rank, block, out),
            Fold::Prod => product_inputs::<F>(pattern, rank, block, out),
            Fold::Max | Fold::Min => random_inputs::<F>(pattern.seed, FIRST_MEMBER + rank as u64, block, out),
            Fold::Avg => average_inputs::<F>(pattern, rank, block, out),
        }
    }

    fn results(pattern: &Pattern, fold: Fold, block: u64, out: &mut [F::Word; BLOCK]) {
        match fold {
            Fold::Sum | Fold::MulSum => sum_results::<F>(pattern, fold, block, out),
            Fold::Prod => product_results::<F>(pattern, block, out),
            Fold::Max | Fold::Min => extreme_results::<F>(pattern, fold, block, out),
            Fold::Avg => average_results::<F>(pattern, block, out),
        }
    }
}
