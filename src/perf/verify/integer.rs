//! Integers: random bits on every rank, folded in rank order with the type's own wrap-around arithmetic. Any order gives the
//! same, because wrapping sums and products are associative.

use super::lane::{key, random_words};
use super::word::Word;
use super::{BLOCK, Fold, Kind, Pattern};

/// Stream of a rank's own data.
fn stream(rank: usize) -> u64 {
    1 + rank as u64
}

/// Random words of the type's width.
#[inline(always)]
fn random<W: Word>(key: u64, out: &mut [W; BLOCK]) {
    if size_of::<W>() <= 4 {
        random_words::<u32, W>(key, |bits| bits, out);
    } else {
        random_words::<u64, W>(key, |bits| bits, out);
    }
}

macro_rules! integer_kind {
    ($t:ty, $word:ty, |$value:ident, $n:ident| $divide:expr) => {
        impl Kind for $t {
            type Word = $word;

            fn copies(seed: u64, block: u64, out: &mut [$word; BLOCK]) {
                random(key(seed, 0, block), out);
            }

            fn inputs(pattern: &Pattern, fold: Fold, rank: usize, block: u64, out: &mut [$word; BLOCK]) {
                random(key(pattern.seed, stream(rank), block), out);
                if fold == Fold::Prod {
                    // One zero would hide what all other ranks did.
                    for word in out.iter_mut() {
                        *word |= <$word>::from(*word == 0);
                    }
                }
            }

            fn results(pattern: &Pattern, fold: Fold, block: u64, out: &mut [$word; BLOCK]) {
                let mut input = [0; BLOCK];
                Self::inputs(pattern, fold, 0, block, out);
                if fold == Fold::MulSum {
                    scale(out, pattern.scalars[0] as $t);
                }
                for rank in 1..pattern.n_ranks {
                    Self::inputs(pattern, fold, rank, block, &mut input);
                    match fold {
                        Fold::Sum | Fold::Avg => combine(out, &input, <$t>::wrapping_add),
                        Fold::Prod => combine(out, &input, <$t>::wrapping_mul),
                        Fold::Max => combine(out, &input, <$t>::max),
                        Fold::Min => combine(out, &input, <$t>::min),
                        Fold::MulSum => {
                            scale(&mut input, pattern.scalars[rank % 2] as $t);
                            combine(out, &input, <$t>::wrapping_add);
                        }
                    }
                }
                if fold == Fold::Avg {
                    let $n = pattern.n_ranks;
                    for word in out.iter_mut() {
                        let $value = *word as $t;
                        *word = $divide as $t as $word;
                    }
                }

                #[inline(always)]
                fn combine(out: &mut [$word; BLOCK], input: &[$word; BLOCK], with: impl Fn($t, $t) -> $t) {
                    for (out, input) in out.iter_mut().zip(input) {
                        *out = with(*out as $t, *input as $t) as $word;
                    }
                }

                #[inline(always)]
                fn scale(words: &mut [$word; BLOCK], scalar: $t) {
                    for word in words {
                        *word = (*word as $t).wrapping_mul(scalar) as $word;
                    }
                }
            }
        }
    };
}
// Bytes are divided in binary32, which is exact enough for them and which vectors can do.
integer_kind!(i8, u8, |value, n| (f32::from(value) / n as f32) as i32);
integer_kind!(u8, u8, |value, n| (f32::from(value) / n as f32) as i32);
integer_kind!(i32, u32, |value, n| i64::from(value) / n as i64);
integer_kind!(u32, u32, |value, n| u64::from(value) / n as u64);
integer_kind!(i64, u64, |value, n| value / n as i64);
integer_kind!(u64, u64, |value, n| value / n as u64);
