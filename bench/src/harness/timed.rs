//! The loop that times work in this process, for all benches.
//!
//! A *stretch* is a closure that does a known number of operations, and times them as one interval with
//! the [`Meter`] that it gets. Work is a function that sets up, on its thread, and then calls `drive`
//! with its stretch.
//!
//! ```text
//!   work(thread, drive)        alone:    one stretch is discarded, then stretches until the time is over
//!     set up                   together: the same on every thread at once, five times
//!     drive(|meter| {
//!         set up a stretch     not timed
//!         meter.time(|| ...)   timed
//!     })
//! ```

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use super::clock;
use super::cost::{process_cpu_seconds, thread_cpu_seconds};

/// A stretch of operations.
pub(crate) type Stretch<'a> = &'a mut dyn FnMut(&mut Meter) -> Result<()>;
/// Runs a stretch repeatedly until its time is over.
pub(crate) type Drive<'a> = &'a mut dyn FnMut(Stretch<'_>) -> Result<()>;

/// The time of a stretch, or of one of its operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// Ticks of the counter of [`clock`].
    pub(crate) ticks: f64,
    pub(crate) ns: f64,
}

/// The stretch whose time is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// The shortest: other programs on the machine can only make a stretch longer.
    Best,
    /// The median, if a stretch depends on the work of another thread at the same time.
    Median,
}

/// Times stretches.
pub(crate) struct Meter {
    pick: Pick,
    /// With [`Pick::Best`] only the best one, because a list of all would use cache space.
    spans: Vec<Span>,
    /// The seconds of each stretch by the process's CPU clock. They are measured in separate stretches,
    /// because the call would disturb the timing.
    cpu: Option<Vec<f64>>,
}

/// The result of timing many stretches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The time of one operation.
    pub(crate) each: Span,
    /// The CPU time of one stretch.
    pub(crate) cpu_seconds: f64,
}

impl Meter {
    /// Times `work`, which is the whole stretch.
    #[inline]
    pub(crate) fn time<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let cpu = self.cpu.as_ref().map(|_| process_cpu_seconds());
        let (began, first) = (Instant::now(), clock::now());
        let done = work();
        let last = clock::now();
        let ns = began.elapsed().as_nanos() as f64;
        let span = Span { ticks: last.wrapping_sub(first) as f64, ns };
        if let (Some(before), Some(cpu)) = (cpu, &mut self.cpu) {
            cpu.push(process_cpu_seconds() - before);
        }
        match (self.pick, self.spans.first_mut()) {
            (Pick::Best, Some(best)) => {
                if span.ticks < best.ticks {
                    *best = span;
                }
            }
            _ => self.spans.push(span),
        }
        done
    }

    fn new(pick: Pick) -> Self {
        Self { pick, spans: Vec::new(), cpu: None }
    }

    fn picked(&mut self) -> Span {
        self.spans.sort_by(|one, other| one.ticks.total_cmp(&other.ticks));
        self.spans.get(self.spans.len() / 2).copied().unwrap_or_default()
    }
}

/// Times the work of one thread for about `time`. A stretch does `count` operations.
pub(crate) fn alone(
    time: Duration,
    pick: Pick,
    count: usize,
    work: impl FnOnce(Drive<'_>) -> Result<()>,
) -> Result<Timing> {
    let mut picked = Span::default();
    let mut cpu_seconds = 0.0;
    work(&mut |stretch| {
        stretch(&mut Meter::new(pick))?;
        let mut meter = Meter::new(pick);
        let until = Instant::now() + time;
        loop {
            stretch(&mut meter)?;
            if Instant::now() >= until {
                break;
            }
        }
        picked = meter.picked();
        cpu_seconds = cpu_of(stretch)?;
        Ok(())
    })?;
    let count = count as f64;
    Ok(Timing { each: Span { ticks: picked.ticks / count, ns: picked.ns / count }, cpu_seconds })
}

/// Returns the CPU seconds of a stretch, without the time of reading the clock.
fn cpu_of(stretch: Stretch<'_>) -> Result<f64> {
    const TIMES: usize = 3;
    let least = |cpu: Option<Vec<f64>>| cpu.into_iter().flatten().fold(f64::MAX, f64::min);
    let meter = || Meter { cpu: Some(Vec::new()), ..Meter::new(Pick::Best) };
    let (mut timed, mut empty) = (meter(), meter());
    for _ in 0..TIMES {
        stretch(&mut timed)?;
        empty.time(|| ());
    }
    Ok((least(timed.cpu) - least(empty.cpu)).max(0.0))
}

/// Times the work of several threads at once: five times for a fifth of `time`, of which the best is
/// returned. A stretch does `count` operations. Returns the mean time of an operation on one thread with
/// the CPU seconds of a stretch, and the operations per microsecond of all threads together.
pub(crate) fn together(
    threads: usize,
    time: Duration,
    count: usize,
    work: impl Fn(usize, Drive<'_>) -> Result<()> + Sync,
) -> Result<(Timing, f64)> {
    const PARTS: u32 = 5;
    let mut best = None::<(Timing, f64)>;
    for _ in 0..PARTS {
        let part = part(threads, time / PARTS, count, &work)?;
        if best.as_ref().is_none_or(|best| part.1 > best.1) {
            best = Some(part);
        }
    }
    Ok(best.expect("there are parts"))
}

fn part(
    threads: usize,
    time: Duration,
    count: usize,
    work: &(impl Fn(usize, Drive<'_>) -> Result<()> + Sync),
) -> Result<(Timing, f64)> {
    let ready = Barrier::new(threads);
    let run = |thread: usize| -> Result<Timing> {
        let mut timing = None;
        let mut waited = false;
        let ran = work(thread, &mut |stretch| {
            let warm = stretch(&mut Meter::new(Pick::Best));
            waited = true;
            ready.wait();
            warm?;
            let cpu = thread_cpu_seconds();
            let (mut total, mut stretches) = (Span::default(), 0.0);
            let until = Instant::now() + time;
            while stretches == 0.0 || Instant::now() < until {
                let mut meter = Meter::new(Pick::Best);
                stretch(&mut meter)?;
                let span = meter.picked();
                total = Span { ticks: total.ticks + span.ticks, ns: total.ns + span.ns };
                stretches += 1.0;
            }
            let operations = stretches * count as f64;
            let each = Span { ticks: total.ticks / operations, ns: total.ns / operations };
            let cpu_seconds = (thread_cpu_seconds() - cpu) / stretches;
            timing = Some(Timing { each, cpu_seconds });
            Ok(())
        });
        // The other threads wait at the barrier, even if this one failed.
        if !waited {
            ready.wait();
        }
        ran?;
        timing.ok_or_else(|| Error::msg("the work was not driven"))
    };
    let timings: Result<Vec<Timing>> = thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let own = run(0);
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|_| Err(Error::msg("it panicked"))));
        std::iter::once(own).chain(others).collect()
    });
    let timings = timings?;
    let mean = |of: fn(&Timing) -> f64| timings.iter().map(of).sum::<f64>() / threads as f64;
    let each = Span { ticks: mean(|of| of.each.ticks), ns: mean(|of| of.each.ns) };
    let speed = timings.iter().map(|timing| 1e3 / timing.each.ns).sum();
    Ok((Timing { each, cpu_seconds: mean(|of| of.cpu_seconds) }, speed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_millis(5);

    fn spin(drive: Drive<'_>) -> Result<()> {
        drive(&mut |meter| {
            meter.time(|| {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(500) {}
            });
            Ok(())
        })
    }

    #[test]
    fn time_and_cpu_time_of_a_stretch_are_measured() {
        for pick in [Pick::Best, Pick::Median] {
            let timing = alone(TIME, pick, 10, spin).unwrap();
            assert!(timing.each.ns >= 50_000.0 && timing.each.ticks > 0.0, "{timing:?}");
            assert!(timing.cpu_seconds > 1e-4, "{timing:?}");
        }
    }

    #[test]
    fn threads_run_at_once_and_a_failure_of_one_is_returned() {
        let (timing, speed) = together(2, TIME, 10, |_, drive| spin(drive)).unwrap();
        assert!(timing.each.ns >= 50_000.0 && speed > 0.0 && speed <= 0.05, "{timing:?} {speed}");
        let failed = together(2, TIME, 1, |thread, drive| {
            anyhow::ensure!(thread == 0, "no memory");
            spin(drive)
        });
        assert_eq!(failed.unwrap_err().to_string(), "no memory");
    }
}
