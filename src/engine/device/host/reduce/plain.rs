//! Folding sources that are accumulators already and want no multiplier: up to four in one pass over the block.
//!
//! Folding one source at a time loads and stores the accumulators once for each; with four at a time they go through registers. The order
//! stays left to right, so results are the same bits. A block of every source lies in a page of its own, where the processor's
//! prefetcher starts anew: for data that come from memory a pass first asks for what the next pass reads.

use super::Source;
use super::element::Element;
use super::operator::Operator;
use super::store::prefetch;

/// A block of the elements of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Its first element.
    pub(super) at: usize,
    /// Elements in it.
    pub(super) n: usize,
    /// Whether sources come from memory rather than from a cache.
    pub(super) asks_ahead: bool,
}

/// Sources of the first pass; the later ones also fold the accumulators.
const FIRST: usize = 4;
/// Sources of each later pass.
const LATER: usize = 3;

/// Folds a block of every source into `acc`.
///
/// # Safety
/// The block is readable in every source, `acc` holds `block.n` and is apart from them, and memory holds accumulators (`E::IS_ACC`).
#[inline(always)]
pub(super) unsafe fn fold<E: Element, O: Operator>(sources: &[Source], block: Block, acc: *mut E::Acc) {
    let place = |source: &Source| source.ptr.wrapping_add(block.at * size_of::<E>()).cast::<E>();
    let (first, rest) = sources.split_at(sources.len().min(FIRST));
    ask_ahead::<E>(
        if rest.is_empty() { first } else { &rest[..rest.len().min(LATER)] },
        block,
        rest.is_empty(),
    );
    // SAFETY: `place` points at readable elements, and `i` stays below `block.n`.
    unsafe {
        let load = |src: *const E, i: usize| src.add(i).read_unaligned().widen();
        match first {
            [a] => {
                let a = place(a);
                fill(acc, block.n, |i| load(a, i));
            }
            [a, b] => {
                let (a, b) = (place(a), place(b));
                fill(acc, block.n, |i| O::combine(load(a, i), load(b, i)));
            }
            [a, b, c] => {
                let (a, b, c) = (place(a), place(b), place(c));
                fill(acc, block.n, |i| O::combine(O::combine(load(a, i), load(b, i)), load(c, i)));
            }
            [a, b, c, d] => {
                let (a, b, c, d) = (place(a), place(b), place(c), place(d));
                let left = |i| O::combine(O::combine(load(a, i), load(b, i)), load(c, i));
                fill(acc, block.n, |i| O::combine(left(i), load(d, i)));
            }
            _ => unreachable!("invariant: the first pass has one to four sources"),
        }
        let mut passes = rest.chunks(LATER).peekable();
        while let Some(pass) = passes.next() {
            let next = passes.peek();
            ask_ahead::<E>(next.copied().unwrap_or(first), block, next.is_none());
            match pass {
                [a] => {
                    let a = place(a);
                    each(acc, block.n, |sum, i| O::combine(sum, load(a, i)));
                }
                [a, b] => {
                    let (a, b) = (place(a), place(b));
                    each(acc, block.n, |sum, i| O::combine(O::combine(sum, load(a, i)), load(b, i)));
                }
                [a, b, c] => {
                    let (a, b, c) = (place(a), place(b), place(c));
                    let left = |sum, i| O::combine(O::combine(sum, load(a, i)), load(b, i));
                    each(acc, block.n, |sum, i| O::combine(left(sum, i), load(c, i)));
                }
                _ => unreachable!("invariant: a later pass has one to three sources"),
            }
        }
    }
}

/// Writes what `make` says of every place.
///
/// # Safety
/// `acc` has room for `n` accumulators.
#[inline(always)]
unsafe fn fill<A: Copy>(acc: *mut A, n: usize, make: impl Fn(usize) -> A) {
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        unsafe { acc.add(i).write(make(i)) };
    }
}

/// Replaces every accumulator by what `make` says of it and its place.
///
/// # Safety
/// `acc` holds `n` accumulators.
#[inline(always)]
unsafe fn each<A: Copy>(acc: *mut A, n: usize, make: impl Fn(A, usize) -> A) {
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        unsafe { *acc.add(i) = make(*acc.add(i), i) };
    }
}

/// Asks for the block of `sources`, or for the one behind it.
#[inline(always)]
fn ask_ahead<E: Element>(sources: &[Source], block: Block, is_next: bool) {
    if block.asks_ahead {
        let at = if is_next { block.at + block.n } else { block.at };
        for source in sources {
            prefetch(source.ptr.wrapping_add(at * size_of::<E>()), block.n * size_of::<E>());
        }
    }
}
