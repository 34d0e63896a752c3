//! A candidate that runs a closure of this process repeatedly.

use std::time::{Duration, Instant};

use crate::harness::clock::core_hz;
use crate::harness::cost::Cost;
use crate::harness::metric::{BYTES_PER_CLOCK, CORE_CYCLES, TIME_US};
use crate::harness::timed::{Pick, alone};
use crate::harness::{Candidate, CommonOptions, Run};

/// The unit in which the time of a repetition is reported.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// The bytes of a repetition, divided by core cycles.
    BytesPerClock(usize),
    /// Microseconds.
    Time,
    /// Core cycles for each of this many operations.
    CyclesEach(usize),
}

/// The unit and the duration of repeated work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    pub(super) unit: Unit,
    pub(super) time: Duration,
    pub(super) quick: bool,
}

impl Repeat {
    pub(super) fn new(options: &CommonOptions, unit: Unit) -> Self {
        Self { unit, time: options.timed(), quick: options.quick }
    }

    /// Makes a candidate that repeats `work` until a stretch takes 8 ms; with `--quick`, once.
    pub(super) fn of<'a>(
        self,
        name: impl Into<String>,
        mut work: impl FnMut() + 'a,
    ) -> Candidate<'a> {
        Candidate::new(name, move || {
            let count = if self.quick { 1 } else { repetitions(&mut work) };
            let timing = alone(self.time, Pick::Best, count, |drive| {
                drive(&mut |meter| {
                    meter.time(|| (0..count).for_each(|_| work()));
                    Ok(())
                })
            })?;
            let cycles = timing.each.ns / 1e9 * core_hz();
            let sample = vec![match self.unit {
                Unit::BytesPerClock(bytes) => (BYTES_PER_CLOCK, bytes as f64 / cycles),
                Unit::Time => (TIME_US, timing.each.ns / 1e3),
                Unit::CyclesEach(count) => (CORE_CYCLES, cycles / count as f64),
            }];
            Ok(Run { sample, cost: Some(Cost::of_stretch(timing.cpu_seconds)), note: None })
        })
    }
}

fn repetitions(work: &mut impl FnMut()) -> usize {
    const STRETCH: Duration = Duration::from_millis(8);
    let mut count = 1;
    loop {
        let began = Instant::now();
        (0..count).for_each(|_| work());
        if began.elapsed() >= STRETCH {
            return count;
        }
        count *= 2;
    }
}
