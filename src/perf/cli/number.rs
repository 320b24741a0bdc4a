//! Number syntax of the command line: sizes as C's `scanf` reads them, integers as `strtol` with base 0 reads them.
//!
//! Sizes are a double followed by at most one suffix letter, binary units (`8`, `8K`, `1.5k`, `1e3`, `0x10`, `8MiB`, `8 M`);
//! what follows the letter is ignored, as nccl-tests ignores it. Infinities, NaN and negative values are refused. Hexadecimal
//! doubles (`0x1.8p4`) are doubles, too.

use crate::env::parse_integer;

/// Bytes of a size text, or nothing when it is no size.
pub fn parse_size(text: &str) -> Option<u64> {
    let (value, rest) = leading_double(text.trim_start())?;
    let unit = match rest.trim_start().chars().next() {
        None => 1.0,
        Some('K' | 'k') => 1024.0,
        Some('M' | 'm') => 1024.0 * 1024.0,
        Some('G' | 'g') => 1024.0 * 1024.0 * 1024.0,
        Some(_) => return None,
    };
    let bytes = value * unit;
    (bytes >= 0.0 && bytes < i64::MAX as f64).then_some(bytes as u64)
}

/// The longest prefix that is a C floating-point number, and what follows it.
pub(super) fn leading_double(text: &str) -> Option<(f64, &str)> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if let Some(hex) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        return leading_hex(hex);
    }
    let bytes = unsigned.as_bytes();
    let digits_from = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits_from(0);
    let mut end = whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits_from(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        match digits_from((end + 1 + sign).min(bytes.len())) {
            0 => return None,
            exponent => end += 1 + sign + exponent,
        }
    }
    let value: f64 = unsigned[..end].parse().ok()?;
    value.is_finite().then_some((value, &unsigned[end..]))
}

/// The part of a hexadecimal double behind `0x`: digits with at most one point, then perhaps `p` and a power of two.
fn leading_hex(text: &str) -> Option<(f64, &str)> {
    let (mut value, mut scale, mut n_digits, mut end) = (0.0, 1.0, 0, 0);
    let mut has_point = false;
    for c in text.chars() {
        match c.to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                n_digits += 1;
                if has_point {
                    scale /= 16.0;
                }
            }
            None if c == '.' && !has_point => has_point = true,
            None => break,
        }
        end += 1;
    }
    if n_digits == 0 {
        return None;
    }
    let mut rest = &text[end..];
    let mut power = 0;
    if let Some(after) = rest.strip_prefix(['p', 'P']) {
        let sign = usize::from(after.starts_with(['+', '-']));
        let digits = after[sign..].bytes().take_while(u8::is_ascii_digit).count();
        power = after[..sign + digits].parse().ok()?;
        rest = &after[sign + digits..];
    }
    let value = value * scale * 2_f64.powi(power);
    value.is_finite().then_some((value, rest))
}

/// A clap parser of sizes; `name` is how nccl-tests' message calls the option.
pub(super) fn size(
    name: &'static str,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| parse_size(text).ok_or_else(|| format!("invalid size specified for '{name}'"))
}

/// A clap parser of integers within `low..=high`; `option` names it as in `-n,--iters`.
pub(super) fn integer(
    option: &'static str,
    low: i64,
    high: i64,
) -> impl Fn(&str) -> Result<i64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = parse_integer(text).ok_or_else(|| {
            format!("invalid value '{text}' for {option}: a whole number is needed, such as 16 or 0x10")
        })?;
        if (low..=high).contains(&value) {
            Ok(value)
        } else if value < low && high == i64::from(i32::MAX) {
            Err(format!("invalid value '{text}' for {option}: it must be {low} or more"))
        } else if value > high && high == i64::from(i32::MAX) {
            Err(format!("invalid value '{text}' for {option}: it must be {high} or less"))
        } else {
            Err(format!("invalid value '{text}' for {option}: it must lie in {low}..{high}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_contract_table() {
        let table = [
            ("8", 8),
            ("8K", 8192),
            ("8k", 8192),
            ("8M", 8 << 20),
            ("8m", 8 << 20),
            ("8G", 8 << 30),
            ("8g", 8 << 30),
            ("1.5k", 1536),
            ("1e3", 1000),
            ("0x10", 16),
            ("8MB", 8 << 20),
            ("8MiB", 8 << 20),
            ("8 M", 8 << 20),
            ("8.5", 8),
            (".5k", 512),
            ("0", 0),
            ("0x1p4", 16),
            ("0X1.8P+4k", 24 << 10),
            ("0x.8p1", 1),
            ("+0x20M", 32 << 20),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_size(text), Some(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "8B", "8T", "8P", "1,5M", "", "M", "abc", "-1", "inf", "nan", "1e999", "1e", ".", "9e18G", "0x",
            "0x.", "0x1p",
        ] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }

    #[test]
    fn integers_name_their_option_and_their_range() {
        let parse = integer("-z,--blocking", 0, 3);
        assert_eq!(parse("0x2"), Ok(2));
        assert_eq!(parse("4").unwrap_err(), "invalid value '4' for -z,--blocking: it must lie in 0..3");
        assert!(parse("abc").unwrap_err().contains("whole number"));
        let positive = integer("-t,--nthreads", 1, i32::MAX.into());
        assert!(positive("0").unwrap_err().ends_with("it must be 1 or more"));
        assert!(positive("0x80000000").unwrap_err().ends_with("it must be 2147483647 or less"));
    }
}
