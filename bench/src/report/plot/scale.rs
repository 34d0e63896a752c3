//! An axis: the positions of values, and its ticks.

use serde::Deserialize;

use super::super::number;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Scale {
    /// Linear from zero.
    #[default]
    Linear,
    /// Logarithmic, for values whose ratios matter, over more than a decade or below one.
    Log,
}

/// An axis from `low` to `high`, whose length is in units of the drawing.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    length: f64,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// Creates an axis that contains all values. A logarithmic axis ignores values that are not positive
    /// numbers.
    pub(super) fn of(scale: Scale, values: impl Iterator<Item = f64>, length: f64) -> Self {
        let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            (least, most) = (least.min(value), most.max(value));
        }
        if least > most {
            (least, most) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => Self::linear(least, most, length),
            Scale::Log => Self::log(least, most, length),
        }
    }

    fn linear(least: f64, most: f64, length: f64) -> Self {
        let (least, mut most) = (least.min(0.0), most.max(0.0));
        if least >= most {
            most = least + 1.0;
        }
        let step = step(most - least);
        let low = (least / step).floor() * step;
        let high = (most / step).ceil() * step;
        let count = ((high - low) / step).round() as usize;
        let ticks = (0..=count).map(|nth| low + step * nth as f64).collect();
        Self { scale: Scale::Linear, low, high, length, ticks }
    }

    fn log(least: f64, most: f64, length: f64) -> Self {
        let (mut first, mut last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        if first == last {
            (first, last) = (first - 1, last + 1);
        }
        let decades = last - first;
        let steps: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decade = |nth: i32| steps.iter().map(move |step| step * 10f64.powi(nth));
        let all: Vec<f64> = (first..=last).flat_map(decade).collect();
        // From the last tick that is not above any value to the first that is not below any.
        let below = all.iter().rposition(|tick| *tick <= least * 1.000_001).unwrap_or(0);
        let above = all.iter().position(|tick| *tick >= most * 0.999_999);
        let above = above.unwrap_or(all.len() - 1).max(below + 1).min(all.len() - 1);
        let mut ticks = all[below.min(above - 1)..=above].to_vec();
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        const TICKS_MAX: usize = 7;
        if ticks.len() > TICKS_MAX {
            let apart = ticks.len().div_ceil(TICKS_MAX);
            ticks = ticks.into_iter().step_by(apart).collect();
        }
        Self { scale: Scale::Log, low, high, length, ticks }
    }

    /// Returns the position of a value; a value outside of the axis is placed at its end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => {
                let value = value.max(f64::MIN_POSITIVE);
                (value / self.low).ln() / (self.high / self.low).ln()
            }
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) * self.length }
    }

    /// Returns the position where bars begin.
    pub(super) fn origin(&self) -> f64 {
        match self.scale {
            Scale::Linear => self.at(0.0),
            Scale::Log => 0.0,
        }
    }

    /// Returns the label of a tick, with just enough decimals to distinguish it from the next.
    pub(super) fn label(&self, tick: f64) -> String {
        let fine = match self.scale {
            Scale::Linear => self.ticks.get(1).map_or(1.0, |next| next - self.ticks[0]),
            Scale::Log => tick,
        };
        let decimals = (0..7).find(|decimals| {
            let scaled = fine * 10f64.powi(*decimals);
            (scaled - scaled.round()).abs() < 1e-6
        });
        number::grouped(tick, decimals.unwrap_or(7) as usize)
    }
}

/// Returns the distance of ticks: 1, 2 or 5 times a power of ten, for four to six ticks.
fn step(span: f64) -> f64 {
    let rough = span / 4.5;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|of| of * power)
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_contains_all_values() {
        let axis = Axis::of(Scale::Linear, [0.9, 2.36].into_iter(), 300.0);
        assert_eq!(axis.ticks, [0.0, 1.0, 2.0, 3.0]);
        assert_eq!((axis.at(0.0), axis.at(1.5), axis.at(3.0)), (0.0, 150.0, 300.0));
        assert_eq!((axis.at(-4.0), axis.at(9.0), axis.at(f64::NAN)), (0.0, 300.0, 0.0));
        let labels: Vec<String> = axis.ticks.iter().map(|tick| axis.label(*tick)).collect();
        assert_eq!(labels, ["0", "1", "2", "3"]);
        let small = Axis::of(Scale::Linear, [0.009].into_iter(), 100.0);
        assert_eq!(small.label(small.ticks[1]), "0.002");
    }

    #[test]
    fn a_log_axis_gives_each_decade_the_same_length() {
        let axis = Axis::of(Scale::Log, [3.0, 31.0, 9_000.0, 0.0].into_iter(), 400.0);
        assert_eq!(axis.ticks, [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert!((axis.at(10.0) - 100.0).abs() < 1e-9 && (axis.at(100.0) - 200.0).abs() < 1e-9);
        assert_eq!(axis.at(0.0), 0.0);
        let near = Axis::of(Scale::Log, [0.9, 4.4].into_iter(), 100.0);
        assert_eq!(near.ticks, [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(near.label(0.5), "0.5");
    }

    #[test]
    fn every_axis_has_few_ticks_and_all_are_finite() {
        for scale in [Scale::Linear, Scale::Log] {
            for values in [vec![], vec![1.0, 1.0], vec![0.0], vec![f64::NAN], vec![0.003, 1e6]] {
                let axis = Axis::of(scale, values.iter().copied(), 100.0);
                assert!((2..=8).contains(&axis.ticks.len()), "{scale:?} {values:?}");
                assert!(axis.ticks.iter().all(|tick| tick.is_finite()), "{scale:?} {values:?}");
                assert!((0.0..=100.0).contains(&axis.at(1.0)), "{scale:?} {values:?}");
            }
        }
    }
}
