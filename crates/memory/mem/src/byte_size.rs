//! Numbers of bytes in messages.

use core::fmt;

/// A number of bytes that is formatted for people, in the decimal units of disks and limits.
///
/// A number below 10,000 is exact.
///
/// ```
/// use longshore_mem::ByteSize;
///
/// assert_eq!(ByteSize(4096).to_string(), "4096 bytes");
/// assert_eq!(ByteSize(3_607_101_440).to_string(), "3.61 GB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
        if self.0 < 10_000 {
            return write!(f, "{} bytes", self.0);
        }
        let mut number = self.0 as f64 / 1e3;
        let mut units = UNITS.iter();
        let mut unit = units.next();
        // From here on, two digits would be rounded to 1000.00.
        while number >= 999.995 {
            number /= 1e3;
            unit = units.next();
        }
        write!(f, "{number:.2} {}", unit.unwrap_or(&"EB"))
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn bytes_are_formatted_in_decimal_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (9_999, "9999 bytes"),
            (10_000, "10.00 kB"),
            (999_994, "999.99 kB"),
            (999_996, "1.00 MB"),
            (67_108_864, "67.11 MB"),
            (8_796_143_353_856, "8.80 TB"),
            (u64::MAX, "18.45 EB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
