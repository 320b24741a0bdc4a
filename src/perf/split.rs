//! NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK: which processes form a group. A group is a communicator of its own.

use crate::env;

/// How a process's rank becomes its group's colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// One group, colour 0.
    #[default]
    Whole,
    /// Rank AND value.
    And(u64),
    /// Rank OR value.
    Or(u64),
    /// Rank modulo value.
    Modulo(u64),
    /// Rank divided by value.
    Divide(u64),
}

impl Split {
    /// From the texts of NCCL_TESTS_SPLIT_MASK (which wins) and NCCL_TESTS_SPLIT; an error is a line for the user.
    pub fn parse(mask: Option<&str>, split: Option<&str>) -> Result<Self, String> {
        if let Some(mask) = mask {
            let digits = mask.trim().trim_start_matches("0x").trim_start_matches("0X");
            return u64::from_str_radix(digits, 16)
                .map(Self::And)
                .map_err(|_| format!("NCCL_TESTS_SPLIT_MASK '{mask}' is not a hexadecimal number"));
        }
        split.map_or(Ok(Self::Whole), Self::parse_operator)
    }

    fn parse_operator(text: &str) -> Result<Self, String> {
        let help = "write AND, OR, MOD or DIV (or & | % /) and a number, such as 'MOD 2' or 'AND 0x7'";
        let bad = |what: &str| format!("NCCL_TESTS_SPLIT '{text}': {what}; {help}");
        let trimmed = text.trim();
        let upper = trimmed.to_ascii_uppercase();
        type Make = fn(u64) -> Split;
        let operators: [(&str, Make); 8] = [
            ("AND", Self::And),
            ("&", Self::And),
            ("OR", Self::Or),
            ("|", Self::Or),
            ("MOD", Self::Modulo),
            ("%", Self::Modulo),
            ("DIV", Self::Divide),
            ("/", Self::Divide),
        ];
        let (word, make) = operators
            .iter()
            .find(|(word, _)| upper.starts_with(word))
            .ok_or_else(|| bad("no such operator"))?;
        let value =
            number(trimmed[word.len()..].trim()).ok_or_else(|| bad("no number after the operator"))?;
        match make(value) {
            Self::Modulo(0) | Self::Divide(0) => Err(bad("division by zero")),
            split => Ok(split),
        }
    }

    /// The colour of a process.
    pub fn color(self, process: u64) -> u64 {
        match self {
            Self::Whole => 0,
            Self::And(value) => process & value,
            Self::Or(value) => process | value,
            Self::Modulo(value) => process % value,
            Self::Divide(value) => process / value,
        }
    }
}

/// `0b` binary, `0x` hexadecimal, leading 0 octal, else decimal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
        Some(binary) => u64::from_str_radix(binary, 2).ok(),
        None => env::parse_integer(text).and_then(|value| u64::try_from(value).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colors(split: &str) -> Vec<u64> {
        let split = Split::parse(None, Some(split)).unwrap();
        (0..16).map(|p| split.color(p)).collect()
    }

    #[test]
    fn colours_of_sixteen_processes_are_those_of_the_contract() {
        let eights: Vec<u64> = (0..16).map(|p| p % 8).collect();
        assert_eq!(colors("AND 0x7"), eights);
        assert_eq!(colors("MOD 8"), eights);
        assert_eq!(colors("%0b1000"), eights);
        let labels: Vec<u64> = [[7; 8], [15; 8]].concat();
        assert_eq!(colors("or 07"), labels);
        assert_eq!(colors("/ 8"), [[0; 8], [1; 8]].concat());
    }

    #[test]
    fn the_mask_is_hexadecimal_and_wins() {
        assert_eq!(Split::parse(Some("10"), Some("MOD 2")), Ok(Split::And(16)));
        assert_eq!(Split::parse(Some("0x7"), None), Ok(Split::And(7)));
        assert_eq!(Split::parse(None, None), Ok(Split::Whole));
    }

    #[test]
    fn bad_text_is_an_error_that_says_what_would_be_right() {
        for text in ["XOR 2", "MOD", "MOD 0", "DIV 0", "MOD x", ""] {
            let error = Split::parse(None, Some(text)).unwrap_err();
            assert!(error.contains("NCCL_TESTS_SPLIT") && error.contains("MOD 2"), "{error}");
        }
        assert!(Split::parse(Some("xyz"), None).is_err());
    }
}
