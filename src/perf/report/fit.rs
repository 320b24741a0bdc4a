//! Numbers as C prints them and as nccl-tests fits them into a column.

/// `value` right-aligned in 7 (times) or 6 (bandwidths): two, one or no decimals, whichever first is not wider than the column,
/// else exponent form. What counts is the rounded text.
pub(super) fn fit(value: f64, width: usize) -> String {
    if value.is_nan() {
        return format!("{:>width$}", "nan");
    }
    if value.is_infinite() {
        return format!("{:>width$}", if value > 0.0 { "inf" } else { "-inf" });
    }
    let decimals = [2, 1, 0].into_iter().map(|d| format!("{value:.d$}")).find(|text| text.len() <= width);
    let text = decimals.unwrap_or_else(|| exponent(value, usize::from(width >= 7)));
    format!("{text:>width$}")
}

/// C's `%.{precision}e`.
fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').expect("invariant: exponent form has an e");
    let exponent: i32 = exponent.parse().expect("invariant: the exponent is a number");
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// C's `%g`: six significant digits, no trailing zeros.
pub(super) fn general(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    let rounded = exponent(value, 5);
    let (mantissa, exp) = rounded.split_once('e').expect("invariant: exponent form has an e");
    let power: i32 = exp.parse().expect("invariant: the exponent is a number");
    if (-4..6).contains(&power) {
        trim_zeros(&format!("{value:.*}", (5 - power) as usize)).to_owned()
    } else {
        format!("{}e{exp}", trim_zeros(mantissa))
    }
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A byte count with a binary unit: two decimals below 10, one below 100, else none.
pub(super) fn memory(bytes: i64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KB", "MB", "GB"] {
        if value.abs() < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let decimals = match value.abs() {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fit_as_in_the_contract_table() {
        for (value, text) in [
            (0.004, "   0.00"),
            (9999.994, "9999.99"),
            (9999.996, "10000.0"),
            (99999.96, " 100000"),
            (9_999_999.4, "9999999"),
            (9_999_999.6, "1.0e+07"),
            (f64::INFINITY, "    inf"),
            (f64::NAN, "    nan"),
        ] {
            assert_eq!(fit(value, 7), text);
        }
    }

    #[test]
    fn bandwidths_fit_as_in_the_contract_table() {
        for (value, text) in [
            (999.994, "999.99"),
            (999.996, "1000.0"),
            (9999.996, " 10000"),
            (123_456.0, "123456"),
            (999_999.6, " 1e+06"),
            (1.5e8, " 2e+08"),
            (f64::INFINITY, "   inf"),
            (f64::NAN, "   nan"),
        ] {
            assert_eq!(fit(value, 6), text);
        }
    }

    #[test]
    fn general_form_is_that_of_c() {
        for (value, text) in [
            (4.26966, "4.26966"),
            (0.0, "0"),
            (123_456.0, "123456"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_012_345_678, "1.23457e-05"),
            (0.000_123_4, "0.0001234"),
            (100.0, "100"),
            (999_999.7, "1e+06"),
            (12.5, "12.5"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn memory_has_binary_units_and_three_digits() {
        assert_eq!(memory(512), "512 B");
        assert_eq!(memory(1536), "1.50 KB");
        assert_eq!(memory(64 << 20), "64.0 MB");
        assert_eq!(memory(-(3 << 30)), "-3.00 GB");
    }
}
