//! Sizes with units, as users write them.

/// Reads `512MiB`, `3.4GB`, `1048576`: units of 1024 with an `i`, of 1000 without.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size (expected 3.4GB, 512MiB or a number of bytes)");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return Err(bad()),
    };
    let bytes = number * scale;
    // Every whole number up to this limit is exact as a float.
    if !(1.0..=9e15).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1000_or_of_1024() {
        assert_eq!(parse_size("3.4GB"), Ok(3_400_000_000));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("4096"), Ok(4096));
        for text in ["", "GB", "1TBx", "-1", "0", "1e3", "99999999GB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
