//! The only reader of environment variables. Each setting is read here once, with its name, values and default beside it.

use std::ffi::OsString;

/// A variable's text, or nothing when it is unset or not UTF-8.
#[expect(clippy::disallowed_methods, reason = "this file is the one reader")]
pub fn text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A variable as the system holds it.
#[expect(clippy::disallowed_methods, reason = "this file is the one reader")]
pub fn raw(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Names of all variables, for warnings about misspelt ones. Values stay behind.
pub fn names() -> Vec<String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
}

/// An integer setting in C's base-0 syntax (`0x10`, `010`, `16`), or nothing when it is unset or not a number.
pub fn integer(name: &str) -> Option<i64> {
    parse_integer(&text(name)?)
}

/// C's `strtol` with base 0, but the whole text must be a number.
pub fn parse_integer(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let value = if let Some(hex) = lower.strip_prefix("0x") {
        i64::from_str_radix(hex, 16).ok()?
    } else if lower.len() > 1 && lower.starts_with('0') {
        i64::from_str_radix(&lower[1..], 8).ok()?
    } else if lower.bytes().all(|b| b.is_ascii_digit()) {
        lower.parse().ok()?
    } else {
        return None;
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::parse_integer;

    #[test]
    fn integers_follow_base_zero() {
        assert_eq!(parse_integer("0x10"), Some(16));
        assert_eq!(parse_integer("010"), Some(8));
        assert_eq!(parse_integer("-1"), Some(-1));
        assert_eq!(parse_integer("0"), Some(0));
        assert_eq!(parse_integer("12ab"), None);
        assert_eq!(parse_integer(""), None);
    }
}
