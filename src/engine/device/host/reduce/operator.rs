//! The four ways two accumulators combine. Averages and pre-multiplied sums are sums here.

use super::element::Number;

/// A way to combine.
pub(super) trait Operator: 'static {
    /// Whether raw inputs may have to be multiplied first.
    const SCALES: bool;
    /// Left with right.
    fn combine<N: Number>(left: N, right: N) -> N;
}

/// Sum.
pub(super) struct Sum;
/// Product.
pub(super) struct Prod;
/// Smallest.
pub(super) struct Min;
/// Largest.
pub(super) struct Max;

macro_rules! operator {
    ($name:ident, $scales:literal, $method:ident) => {
        impl Operator for $name {
            const SCALES: bool = $scales;
            #[inline(always)]
            fn combine<N: Number>(left: N, right: N) -> N {
                left.$method(right)
            }
        }
    };
}
operator!(Sum, true, plus);
operator!(Prod, false, times);
operator!(Min, false, least);
operator!(Max, false, greatest);
