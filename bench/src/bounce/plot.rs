//! A curve in one line of text.

/// The columns of a curve, at most.
const COLUMNS: usize = 60;
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The values, up to `most`, in as many columns as there are values, or fewer: each the highest of
/// its values. What is not zero is not empty.
pub(super) fn line(values: impl Iterator<Item = u64>, most: u64) -> String {
    let values: Vec<u64> = values.collect();
    let columns = values.len().clamp(1, COLUMNS);
    let column = |nth: usize| {
        let of = nth * values.len() / columns..(nth + 1) * values.len() / columns;
        let highest = values[of].iter().copied().max().unwrap_or(0);
        let eighths = (u128::from(highest) * 8).div_ceil(u128::from(most.max(1)));
        HEIGHTS[eighths.min(8) as usize]
    };
    (0..columns).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_eighths_rounded_up() {
        assert_eq!(line([0, 1, 50, 51, 100].into_iter(), 100), " ▁▄▅█");
        assert_eq!(line([].into_iter(), 0), " ");
        assert_eq!(line([0, 0].into_iter(), 0), "  ");
    }

    #[test]
    fn a_long_curve_keeps_its_peaks() {
        let curve = line((0..6000).map(|at| if at == 3333 { 9 } else { 0 }), 9);
        assert_eq!(curve.chars().count(), COLUMNS);
        assert_eq!(curve.trim(), "█");
    }
}
