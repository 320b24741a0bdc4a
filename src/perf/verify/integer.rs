//! Integers: random bits on every rank, folded in rank order with the type's own wrap-around arithmetic. Any order gives the
//! same, because wrapping sums and products are associative.

use super::lane::{Lane, key};
use super::word::Word;
use super::{BLOCK, Fold, Kind, Pattern};

/// Stream of a rank's own data.
fn stream(rank: usize) -> u64 {
    1 + rank as u64
}

/// Random words of the type's width, as many to a lane as fit.
#[inline(always)]
fn random<W: Word>(key: u64, out: &mut [W; BLOCK]) {
    if size_of::<W>() == 1 {
        for (i, four) in out.chunks_exact_mut(4).enumerate() {
            let lane = u32::spread(key, i);
            for (byte, word) in four.iter_mut().enumerate() {
                *word = W::from_u64(u64::from(lane >> (8 * byte)));
            }
        }
    } else if size_of::<W>() <= 4 {
        for (i, word) in out.iter_mut().enumerate() {
            *word = W::from_u64(u64::from(u32::spread(key, i)));
        }
    } else {
        for (i, word) in out.iter_mut().enumerate() {
            *word = W::from_u64(u64::spread(key, i));
        }
    }
}

macro_rules! integer_kind {
    ($t:ty, $word:ty, $wide:ty) => {
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
                    for word in out.iter_mut() {
                        *word = (<$wide>::from(*word as $t) / pattern.n_ranks as $wide) as $word;
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
integer_kind!(i8, u8, i64);
integer_kind!(u8, u8, u64);
integer_kind!(i32, u32, i64);
integer_kind!(u32, u32, u64);
integer_kind!(i64, u64, i64);
integer_kind!(u64, u64, u64);
