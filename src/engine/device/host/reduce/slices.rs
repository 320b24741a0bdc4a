//! The element arithmetic over slices, for callers that move the data by other means: the same numbers as a collective gives.
//!
//! A reduction over ranks is [`SliceReducer::prepare`] on every rank's input, [`SliceReducer::fold`] in any order,
//! [`SliceReducer::finish`] on the result.

use super::{Job, Reducer, Source};
use crate::engine::types::{DataType, RedOp};

/// Reduction of one element type under one operator, over byte slices that need not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct SliceReducer {
    reducer: Reducer,
}

impl SliceReducer {
    /// The arithmetic of a rank of a group of `n_ranks`.
    pub fn new(dtype: DataType, op: RedOp, n_ranks: usize) -> Self {
        Self { reducer: Reducer::new(dtype, op, n_ranks) }
    }

    /// Whether inputs are multiplied before they are folded.
    pub fn prepares(&self) -> bool {
        self.reducer.own_scale().is_some()
    }

    /// Multiplies a raw input in place, where the operator says so.
    pub fn prepare(&self, input: &mut [u8]) {
        if let Some(scale) = self.reducer.own_scale() {
            self.run(input, None, Some(scale), false);
        }
    }

    /// Folds `other` into `result`.
    ///
    /// # Panics
    /// If they are not equally long.
    pub fn fold(&self, result: &mut [u8], other: &[u8]) {
        assert_eq!(result.len(), other.len(), "only equally long slices fold");
        self.run(result, Some(other), None, false);
    }

    /// Divides the sum of an integer average; other results are final already.
    pub fn finish(&self, result: &mut [u8]) {
        if self.reducer.divisor.is_some() {
            self.run(result, None, None, true);
        }
    }

    fn run(&self, result: &mut [u8], other: Option<&[u8]>, scale: Option<u64>, post: bool) {
        let (n_elem, own) = (result.len() / self.reducer.elem_bytes(), result.as_mut_ptr());
        let first = Source { ptr: own.cast_const(), scale };
        let second = Source { ptr: other.map_or(own.cast_const(), <[u8]>::as_ptr), scale: None };
        let sources = [first, second];
        let n_sources = if other.is_some() { 2 } else { 1 };
        let job =
            Job { sources: &sources[..n_sources], destinations: &[own], n_elem, post, non_temporal: false };
        // SAFETY: both slices are `n_elem` elements long; the destination is borrowed exclusively and is itself the first source.
        unsafe { self.reducer.run(&job) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn integers_fold_and_averages_divide_at_the_end() {
        let average = SliceReducer::new(DataType::Int32, RedOp::Avg, 3);
        let mut result = bytes(&[7, -7, i32::MAX]);
        average.prepare(&mut result);
        average.fold(&mut result, &bytes(&[1, -1, 1]));
        average.finish(&mut result);
        assert_eq!(result, bytes(&[2, -2, i32::MIN / 3]));
    }

    #[test]
    fn pre_multiplied_inputs_are_multiplied_once() {
        let half = |value: f32| half::f16::from_f32(value).to_bits().to_ne_bytes();
        let sum = SliceReducer::new(DataType::Half, RedOp::PreMulSum(2.0), 2);
        let mut result = half(1.5).to_vec();
        sum.prepare(&mut result);
        sum.fold(&mut result, &half(0.25));
        sum.finish(&mut result);
        assert_eq!(result, half(3.25));
        assert!(!SliceReducer::new(DataType::Half, RedOp::Max, 2).prepares());
    }
}
