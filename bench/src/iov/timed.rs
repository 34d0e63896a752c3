//! A candidate that is a few lines in this process, run again and again.

use std::time::{Duration, Instant};

use super::clock;
use crate::harness::metric::{BYTES_PER_CLOCK, CORE_CYCLES, TIME_US};
use crate::harness::{Candidate, Sample, Trouble};

/// What a run's time is turned into.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// Bytes a run, over cycles.
    BytesPerClock(usize),
    /// Microseconds a run.
    Time,
    /// Cycles for each of so many things that a run does.
    CyclesEach(usize),
}

/// A piece of work.
pub(super) struct Repeated<'a> {
    name: String,
    unit: Unit,
    is_ours: bool,
    work: Box<dyn FnMut() + 'a>,
}

impl<'a> Repeated<'a> {
    pub(super) fn new(name: impl Into<String>, unit: Unit, work: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), unit, is_ours: false, work: Box::new(work) }
    }

    pub(super) fn ours(name: impl Into<String>, unit: Unit, work: impl FnMut() + 'a) -> Self {
        Self { is_ours: true, ..Self::new(name, unit, work) }
    }
}

/// As boxed as the harness asks.
pub(super) fn boxed<'a>(candidate: Repeated<'a>) -> Box<dyn Candidate + 'a> {
    Box::new(candidate)
}

impl Candidate for Repeated<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    /// The best of a few stretches: what a machine shared with others takes away is not the work's.
    fn measure(&mut self) -> Result<Sample, Trouble> {
        const STRETCHES: usize = 4;
        const STRETCH: Duration = Duration::from_millis(8);
        let mut runs = 1u32;
        let mut best = f64::INFINITY;
        (self.work)();
        let mut stretches = 0;
        while stretches < STRETCHES {
            let began = Instant::now();
            for _ in 0..runs {
                (self.work)();
            }
            let elapsed = began.elapsed();
            if elapsed < STRETCH {
                runs = runs.saturating_mul(2);
                continue;
            }
            best = best.min(elapsed.as_secs_f64() / f64::from(runs));
            stretches += 1;
        }
        let cycles = best * clock::core_hz();
        Ok(vec![match self.unit {
            Unit::BytesPerClock(bytes) => (BYTES_PER_CLOCK, bytes as f64 / cycles),
            Unit::Time => (TIME_US, best * 1e6),
            Unit::CyclesEach(count) => (CORE_CYCLES, cycles / count as f64),
        }])
    }

    fn is_ours(&self) -> bool {
        self.is_ours
    }
}
