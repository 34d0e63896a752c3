//! Numbers as people read them.

/// A value in three significant digits, with commas between thousands.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    let decimals = if size == 0.0 || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        significant(size, 2)
    };
    grouped(value, decimals)
}

/// A ratio in two decimals, more where it is small, fewer where it is large.
pub(super) fn ratio(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.095 || size == 0.0 => 2,
        size => significant(size, 2),
    };
    grouped(value, decimals)
}

/// The decimals that show `digits` significant digits of a value below one.
fn significant(size: f64, digits: i32) -> usize {
    const DECIMALS_MAX: i32 = 7;
    (digits - 1 - size.log10().floor() as i32).clamp(0, DECIMALS_MAX) as usize
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{}%", grouped(share * 100.0, 1))
}

/// A value with so many decimals, a true minus sign, and commas between thousands.
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

/// From the lowest to the highest, or nothing where both read the same.
pub(super) fn spread(min: f64, max: f64, shown: fn(f64) -> String) -> Option<String> {
    let (low, high) = (shown(min), shown(max));
    (low != high).then(|| format!("{low} to {high}"))
}

/// Bytes in the unit that fits.
pub(super) fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut shown = count;
    while shown >= 1024.0 && unit + 1 < UNITS.len() {
        shown /= 1024.0;
        unit += 1;
    }
    format!("{} {}", figure(shown), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        let shown = [0.0, 1234.5, 12.34, 1.239, 0.5, 0.012_34, 0.000_024_1, -3.0, 9_777_661.4];
        let shown: Vec<String> = shown.into_iter().map(figure).collect();
        let expected =
            ["0", "1,234", "12.3", "1.24", "0.50", "0.012", "0.000024", "−3.00", "9,777,661"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn ratios_keep_two_decimals_where_those_tell_enough() {
        let shown: Vec<String> = [1.0, 0.934_85, 11.244, 122.1, 0.0067, 0.0, 0.0999, 1754.39]
            .into_iter()
            .map(ratio)
            .collect();
        assert_eq!(shown, ["1.00", "0.93", "11.2", "122", "0.0067", "0.00", "0.10", "1,754"]);
    }

    #[test]
    fn what_rounds_to_zero_has_no_sign() {
        assert_eq!(grouped(-0.001, 2), "0.00");
        assert_eq!(grouped(-1_000_000.0, 0), "−1,000,000");
        assert_eq!(grouped(100.0, 0), "100");
    }

    #[test]
    fn a_spread_of_nothing_is_not_shown() {
        assert_eq!(spread(1.0, 1.0, ratio), None);
        assert_eq!(spread(0.77, 1.06, ratio).as_deref(), Some("0.77 to 1.06"));
    }

    #[test]
    fn bytes_get_a_unit_that_fits() {
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(25_276_510_208.0), "23.5 GiB");
        assert_eq!(bytes(1.5 * 1024.0), "1.50 KiB");
    }
}
