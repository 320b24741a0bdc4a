//! Intervals of a proportion, for published error rates.

use statrs::distribution::{Beta, ContinuousCDF};

/// Clopper-Pearson interval of `hits` out of `n` at confidence `1 - alpha`.
pub fn clopper_pearson(hits: u64, n: u64, alpha: f64) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (x, n) = (hits as f64, n as f64);
    let quantile =
        |a: f64, b: f64, q: f64| Beta::new(a, b).expect("invariant: positive shapes").inverse_cdf(q);
    let low = if hits == 0 { 0.0 } else { quantile(x, n - x + 1.0, alpha / 2.0) };
    let high = if x == n { 1.0 } else { quantile(x + 1.0, n - x, 1.0 - alpha / 2.0) };
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::clopper_pearson;

    #[test]
    fn no_hit_in_five_hundred_still_leaves_an_upper_end() {
        let (low, high) = clopper_pearson(0, 500, 0.05);
        assert_eq!(low, 0.0);
        // 1 - 0.025^(1/500)
        assert!((high - (1.0 - 0.025f64.powf(1.0 / 500.0))).abs() < 1e-6, "{high}");
        assert_eq!(clopper_pearson(0, 0, 0.05), (0.0, 1.0));
    }

    #[test]
    fn five_of_ten_is_the_textbook_interval() {
        let (low, high) = clopper_pearson(5, 10, 0.05);
        assert!((low - 0.1871).abs() < 1e-4 && (high - 0.8129).abs() < 1e-4, "{low} {high}");
        let (low, high) = clopper_pearson(10, 10, 0.05);
        assert!((low - 0.6915).abs() < 1e-4 && high == 1.0, "{low}");
    }
}
