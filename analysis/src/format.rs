//! How numbers look to people: binary sizes, times with three or four figures, percentages.

/// A size in the largest binary unit that divides it: `64 KiB`, `1000 B`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value != 0 && value % 1024 == 0 && unit + 1 < UNITS.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", UNITS[unit])
}

/// A size that need not be exact: `11.3 KiB`.
pub fn about_size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", figures(value, 3), UNITS[unit])
}

/// Microseconds with four figures.
pub fn micros(us: f64) -> String {
    figures(us, 4)
}

/// GB/s with three figures.
pub fn bandwidth(gb_per_s: f64) -> String {
    figures(gb_per_s, 3)
}

/// A fraction as a percentage with one decimal.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A bound as a percentage, without needless zeros: `5 %`, `2.5 %`.
pub fn share(fraction: f64) -> String {
    let text = format!("{:.2}", fraction * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A number with about so many significant figures, never in exponent form.
pub fn figures(value: f64, figures: i32) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (figures - 1 - magnitude).clamp(0, 6) as usize;
    format!("{value:.decimals$}")
}

/// A p-value with two figures; very small ones as a bound.
pub fn p_value(p: f64) -> String {
    if p < 1e-6 { "< 0.000001".into() } else { figures(p, 2) }
}

/// Bytes of a size as people type it: `64K`, `1.5k`, `8`, `1GiB`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let cut = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..cut], trimmed[cut..].trim().to_ascii_lowercase());
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is no size such as 8, 64K or 1G"))?;
    let factor = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024f64.powi(2),
        "g" => 1024f64.powi(3),
        "t" => 1024f64.powi(4),
        _ => return Err(format!("`{text}`: unknown unit, use K, M or G (powers of 1024)")),
    };
    Ok((value * factor) as u64)
}

/// A fraction of text such as `5%`, `5 %` or `0.05`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_fraction(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let (number, scale) = match trimmed.strip_suffix('%') {
        Some(number) => (number.trim(), 0.01),
        None => (trimmed, 1.0),
    };
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is no share such as 5% or 0.05"))?;
    if !(0.0..10.0).contains(&(value * scale)) {
        return Err(format!("`{text}` is out of range: a share such as 5% or 0.05 is meant"));
    }
    Ok(value * scale)
}

/// `1 row`, `2 rows`, `2 launches`.
pub fn count(n: usize, noun: &str) -> String {
    let ending = match n {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{n} {noun}{ending}")
}

/// The first letter in upper case, as an algorithm starts a sentence.
pub fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::{about_size, count, figures, parse_fraction, parse_size, percent, share, size};

    #[test]
    fn sizes_and_shares_go_both_ways() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(1000), "1000 B");
        assert_eq!(about_size(11_585.0), "11.3 KiB");
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        assert_eq!(parse_size("1 GiB"), Ok(1 << 30));
        assert!(parse_size("8X").unwrap_err().contains("unknown unit"));
        assert!(parse_size("").is_err());
        assert_eq!(parse_fraction("5%"), Ok(0.05));
        assert_eq!(parse_fraction("0.025"), Ok(0.025));
        assert!(parse_fraction("5000").is_err());
        assert_eq!(percent(0.6064), "60.6 %");
        assert_eq!([0.05, 0.025, 0.1].map(share), ["5 %", "2.5 %", "10 %"]);
    }

    #[test]
    fn figures_are_kept_without_exponents() {
        assert_eq!(figures(57.689, 4), "57.69");
        assert_eq!(figures(0.012345, 3), "0.0123");
        assert_eq!(figures(123_456.7, 4), "123457");
        assert_eq!(figures(0.0, 4), "0");
        assert_eq!(figures(f64::NAN, 4), "-");
        assert_eq!(count(1, "row"), "1 row");
        assert_eq!(count(2, "launch"), "2 launches");
    }
}
