//! Statistics over the values of several runs.

/// Four numbers that summarise the values of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// Summarises values; `None` if there are none or one is not a number.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Some(Self { median, mean, min: sorted[0], max: sorted[sorted.len() - 1] })
    }

    /// Summarises the ratios of each run's value to the baseline's value in the same round. The median
    /// of these ratios is more stable than the ratio of two medians, because a slow phase of the machine
    /// affects both values of a round.
    ///
    /// Returns `None` if the numbers of rounds differ or a baseline is zero.
    pub(crate) fn of_ratios(values: &[f64], baseline: &[f64]) -> Option<Self> {
        if values.len() != baseline.len() || baseline.contains(&0.0) {
            return None;
        }
        let ratios: Vec<f64> = values.iter().zip(baseline).map(|(a, b)| a / b).collect();
        Self::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Summary::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((odd.median, odd.mean, odd.min, odd.max), (3.0, 3.0, 1.0, 5.0));
        let even = Summary::of(&[4.0, 1.0, 2.0, 9.0]).unwrap();
        assert_eq!((even.median, even.mean), (3.0, 4.0));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine was half as fast in the second round, for both.
        let ratio = Summary::of_ratios(&[10.0, 5.0, 10.0], &[8.0, 4.0, 8.0]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (1.25, 1.25, 1.25));
        assert_eq!(Summary::of_ratios(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(Summary::of_ratios(&[1.0], &[0.0]), None);
    }
}
