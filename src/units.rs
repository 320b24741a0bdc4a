//! Quantities with their unit in the type: bytes, microseconds, gigabytes per second.

use std::fmt;

/// A number of bytes. Displays in the largest binary unit that divides it (`64 KiB`, `1000 B`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0, 0);
        while value != 0 && value % 1024 == 0 && unit + 1 < UNITS.len() {
            value /= 1024;
            unit += 1;
        }
        f.pad(&format!("{value} {}", UNITS[unit]))
    }
}

/// A duration in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

/// A rate in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct GbPerSec(pub f64);

impl GbPerSec {
    /// Rate of `bytes` in `time`; infinite when the time is zero.
    pub fn of(bytes: Bytes, time: Micros) -> Self {
        Self(bytes.0 as f64 / 1e3 / time.0)
    }

    /// Time that `bytes` take at this rate.
    pub fn time(self, bytes: Bytes) -> Micros {
        Micros(bytes.0 as f64 / 1e3 / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_display_in_the_largest_unit_that_divides() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1000).to_string(), "1000 B");
        assert_eq!(Bytes(65536).to_string(), "64 KiB");
        assert_eq!(Bytes(3 << 30).to_string(), "3 GiB");
    }

    #[test]
    fn a_gigabyte_a_second_is_a_kilobyte_a_microsecond() {
        assert_eq!(GbPerSec::of(Bytes(1000), Micros(1.0)).0, 1.0);
        assert_eq!(GbPerSec(2.0).time(Bytes(4000)).0, 2.0);
    }
}
