//! Numbers formatted for readers.

/// Formats a value with three significant digits, or two below one, and commas between thousands.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        size => (1 - size.log10().floor() as i32).clamp(0, 7) as usize,
    };
    grouped(value, decimals)
}

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{}%", grouped(share * 100.0, 1))
}

/// Formats a value with this many decimals, a true minus sign, and commas between thousands.
pub(super) fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, rest) = plain.find('.').map_or((plain.as_str(), ""), |at| plain.split_at(at));
    let mut text = String::new();
    if value < 0.0 && plain.bytes().any(|byte| matches!(byte, b'1'..=b'9')) {
        text.push('−');
    }
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Returns the lowest and the highest value as text, or `None` if both look the same.
pub(super) fn spread(min: f64, max: f64, shown: fn(f64) -> String) -> Option<String> {
    let (low, high) = (shown(min), shown(max));
    (low != high).then(|| format!("{low} to {high}"))
}

/// Formats bytes with a suitable unit.
pub(super) fn bytes(count: f64) -> String {
    let (mut shown, mut unit) = (count, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if shown >= 1024.0 {
            (shown, unit) = (shown / 1024.0, larger);
        }
    }
    format!("{} {unit}", figure(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits_and_zero_has_no_sign() {
        for (value, expected) in [
            (0.0, "0"),
            (1234.5, "1,234"),
            (12.34, "12.3"),
            (1.239, "1.24"),
            (0.5, "0.50"),
            (0.012_34, "0.012"),
            (0.000_024_1, "0.000024"),
            (-3.0, "−3.00"),
            (9_777_661.4, "9,777,661"),
        ] {
            assert_eq!(figure(value), expected);
        }
        assert_eq!([grouped(-0.001, 2), grouped(-1e6, 0)], ["0.00", "−1,000,000"]);
        assert_eq!(percent(0.8764), "87.6%");
    }

    #[test]
    fn an_empty_spread_is_not_shown() {
        assert_eq!(spread(1.0, 1.0, figure), None);
        assert_eq!(spread(0.77, 1.06, figure).as_deref(), Some("0.77 to 1.06"));
    }

    #[test]
    fn bytes_get_a_suitable_unit() {
        let shown = [512.0, 1.5 * 1024.0, 25_276_510_208.0].map(bytes);
        assert_eq!(shown, ["512 B", "1.50 KiB", "23.5 GiB"]);
    }
}
