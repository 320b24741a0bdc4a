//! Elements as they lie in memory: unsigned words of the element's width.

/// An unsigned word.
pub(super) trait Word: Copy + Eq {
    const ZERO: Self;
    /// Low bits of a word.
    fn from_u64(bits: u64) -> Self;
    fn to_u64(self) -> u64;
    /// Difference as unsigned integers, as nccl-tests measures it.
    fn distance(self, other: Self) -> u64;
    /// Order of sign and magnitude made that of two's complement, and back.
    fn reordered(self) -> Self;
    /// Whether a two's complement integer is less than another.
    fn is_less(self, other: Self) -> bool;
    /// All bits changed where the mask's are set.
    fn flipped(self, mask: Self) -> Self;
    /// Fills `bytes` with exactly these words.
    fn write(words: &[Self], bytes: &mut [u8]);
    /// Fills `words` from exactly these bytes.
    fn read(bytes: &[u8], words: &mut [Self]);
}

macro_rules! word {
    ($($t:ty, $signed:ty);+) => {$(
        impl Word for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn from_u64(bits: u64) -> Self { bits as Self }
            #[inline(always)]
            fn to_u64(self) -> u64 { u64::from(self) }
            #[inline(always)]
            fn distance(self, other: Self) -> u64 { u64::from(self.abs_diff(other)) }
            #[inline(always)]
            fn reordered(self) -> Self { self ^ ((self as $signed >> (<$t>::BITS - 1)) as Self >> 1) }
            #[inline(always)]
            fn is_less(self, other: Self) -> bool { (self as $signed) < other as $signed }
            #[inline(always)]
            fn flipped(self, mask: Self) -> Self { self ^ mask }
            #[inline(always)]
            fn write(words: &[Self], bytes: &mut [u8]) {
                for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(size_of::<Self>())) {
                    bytes.copy_from_slice(&word.to_ne_bytes());
                }
            }
            #[inline(always)]
            fn read(bytes: &[u8], words: &mut [Self]) {
                for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<Self>())) {
                    *word = Self::from_ne_bytes(bytes.try_into().expect("invariant: chunks have the width asked for"));
                }
            }
        }
    )+};
}
word!(u8, i8; u16, i16; u32, i32; u64, i64);
