//! Sizes, alignments and durations: parsing and formatting.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use longshore::mem::Granule;

/// A number of bytes, written as `128MiB`, `4GB`, `512k` or `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        // As in coreutils: K and KiB are 1024, KB is 1000.
        let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(format!("unknown unit '{unit}'; use KiB, MiB, GiB or KB, MB, GB")),
        };
        let refused = || format!("'{word}' is not a size such as 128MiB");
        let bytes = if let Ok(whole) = number.parse::<u64>() {
            whole.checked_mul(unit_bytes)
        } else {
            let fraction: f64 = number.parse().map_err(|_| refused())?;
            let bytes = fraction * unit_bytes as f64;
            (bytes < 1e18).then_some(bytes as u64)
        };
        bytes.map(Self).ok_or_else(|| format!("'{word}' is too large"))
    }
}

/// The alignment of tensors: a power of two up to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment(pub(crate) Granule);

impl FromStr for Alignment {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        // `Size` reads an M as 2^20 bytes, so 2M is a power of two.
        let Size(bytes) = word.parse()?;
        let granule = Granule::new(bytes).ok().filter(|_| bytes <= 1 << 30);
        granule.map(Self).ok_or_else(|| {
            format!("'{word}' is not a power of two up to 1 GiB (such as 64, 256, 4096 or 2M)")
        })
    }
}

/// A duration, written as 500ms, 30s, 10m or 2h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

impl FromStr for Period {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let refused = || format!("'{word}' is not a duration (expected 500ms, 30s, 10m or 2h)");
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refused())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" | "" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            _ => return Err(refused()),
        };
        number.checked_mul(unit_ms).map(Duration::from_millis).map(Self).ok_or_else(refused)
    }
}

/// Formats a time in its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A number of bytes in decimal units, as is usual for disks and speeds: `3.61 GB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal(pub(crate) f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.abs();
        let (divisor, unit) = match magnitude {
            m if m >= 1e9 => (1e9, "GB"),
            m if m >= 1e6 => (1e6, "MB"),
            m if m >= 1e3 => (1e3, "kB"),
            _ => return write!(f, "{} B", self.0),
        };
        write!(f, "{:.2} {unit}", self.0 / divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_in_their_largest_unit() {
        let shown = [0, 119, 120, 7199, 7200, 172_800].map(age);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }

    #[test]
    fn durations_are_parsed() {
        for (word, ms) in [("500ms", 500), ("30s", 30_000), ("7", 7000), ("10m", 600_000)] {
            assert_eq!(word.parse(), Ok(Period(Duration::from_millis(ms))), "{word}");
        }
        for word in ["", "s", "-1s", "1.5h", "1d", "99999999999999999999s"] {
            assert!(word.parse::<Period>().is_err(), "{word}");
        }
    }

    #[test]
    fn sizes_are_parsed_with_their_units() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("512k", 512 << 10),
            ("128MiB", 128 << 20),
            ("1.5GiB", 3 << 29),
            ("4GB", 4_000_000_000),
            ("1 TiB", 1 << 40),
        ];
        for (word, bytes) in cases {
            assert_eq!(word.parse(), Ok(Size(bytes)), "{word}");
        }
        for word in ["", "MiB", "-1", "1XB", "1.2.3G", "99999999999T", "18446744073709551616"] {
            assert!(word.parse::<Size>().is_err(), "{word}");
        }
    }

    #[test]
    fn alignments_are_powers_of_two() {
        for (word, bytes) in
            [("1", 1), ("64", 64), ("4k", 4096), ("2M", 2 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(word.parse(), Ok(Alignment(Granule::new(bytes).unwrap())), "{word}");
        }
        for word in ["0", "63", "2MB", "2GiB", "x"] {
            assert!(word.parse::<Alignment>().is_err(), "{word}");
        }
    }

    #[test]
    fn bytes_are_formatted_in_decimal_units() {
        assert_eq!(Decimal(999.0).to_string(), "999 B");
        assert_eq!(Decimal(3_607_101_440.0).to_string(), "3.61 GB");
        assert_eq!(Decimal(-86016.0).to_string(), "-86.02 kB");
    }
}
