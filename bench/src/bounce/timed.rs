//! Candidates: the same number of transfers, made and ended, by each one's own way.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use crate::access::counter::Span;
use crate::harness::metric::{CYCLES, TIME_NS, TRANSFER_RATE};
use crate::harness::{Candidate, CommonOptions, Sample, Trouble};

/// Transfers of one stretch.
pub(super) const STRETCH: usize = 64;

/// Makes and ends the transfers of one stretch.
pub(super) type Stretch<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Runs stretches until it has seen enough.
pub(super) type Drive<'a> = &'a mut dyn FnMut(Stretch<'_>) -> Result<()>;

/// What is timed.
pub(super) trait Work: Sync {
    /// Gets ready for the calling thread, the `thread`th, and has `drive` run its stretches.
    fn run(&self, thread: usize, drive: Drive<'_>) -> Result<()>;
}

/// One candidate of a case.
pub(super) struct Timed<'w> {
    name: String,
    work: Box<dyn Work + 'w>,
    threads: usize,
    /// Whether what all threads do together is of interest, also where it is one.
    speed: bool,
    time: Duration,
    is_ours: bool,
    /// Cores without which it is not run.
    cores: usize,
    note: Option<String>,
}

impl<'w> Timed<'w> {
    pub(super) fn new(
        name: impl Into<String>,
        work: impl Work + 'w,
        options: &CommonOptions,
    ) -> Self {
        Self {
            name: name.into(),
            work: Box::new(work),
            threads: 1,
            speed: false,
            time: Duration::from_millis(if options.quick { 1 } else { 30 }),
            is_ours: false,
            cores: 1,
            note: None,
        }
    }

    pub(super) fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }

    /// How many do it at the same time, and what they do together.
    pub(super) fn threads(self, threads: usize) -> Self {
        Self { threads, speed: true, cores: threads, ..self }
    }

    pub(super) fn needs_cores(self, cores: usize) -> Self {
        Self { cores, ..self }
    }

    pub(super) fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    pub(super) fn boxed(self) -> Box<dyn Candidate + 'w> {
        Box::new(self)
    }

    /// The best of many stretches: what a machine shared with others takes away is not the work's.
    fn alone(&self) -> Result<Sample> {
        let mut best = None::<Span>;
        self.work.run(0, &mut |stretch| {
            stretch()?;
            let until = Instant::now() + self.time;
            while best.is_none() || Instant::now() < until {
                let mut done = Ok(());
                let span = Span::of(|| done = stretch());
                done?;
                best = Some(best.map_or(span, |best| best.best(span)));
            }
            Ok(())
        })?;
        let each = best.expect("it was driven").each(STRETCH);
        Ok(vec![(TIME_NS, each.ns), (CYCLES, each.ticks)])
    }

    /// The best of a few parts of the time, in each of which all threads are at it at once.
    fn together(&self) -> Result<Sample> {
        const PARTS: u32 = 5;
        let mut best = 0f64;
        for _ in 0..PARTS {
            best = best.max(self.part(self.time / PARTS)?);
        }
        Ok(vec![(TRANSFER_RATE, best)])
    }

    /// Transfers a microsecond of all threads.
    fn part(&self, time: Duration) -> Result<f64> {
        let ready = Barrier::new(self.threads);
        let run = |thread: usize| -> Result<f64> {
            let mut each = 0.0;
            let mut waited = false;
            let ran = self.work.run(thread, &mut |stretch| {
                let warm = stretch();
                waited = true;
                ready.wait();
                warm?;
                let began = Instant::now();
                let mut count = 0;
                while count == 0 || began.elapsed() < time {
                    stretch()?;
                    count += STRETCH;
                }
                each = began.elapsed().as_nanos() as f64 / count as f64;
                Ok(())
            });
            // The others wait for this one, whatever became of it.
            if !waited {
                ready.wait();
            }
            ran.map(|()| 1e3 / each)
        };
        let speeds: Vec<Result<f64>> = thread::scope(|scope| {
            let run = &run;
            let others: Vec<_> =
                (1..self.threads).map(|thread| scope.spawn(move || run(thread))).collect();
            let own = run(0);
            let others = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|_| Err(Error::msg("it panicked"))));
            std::iter::once(own).chain(others).collect()
        });
        speeds.into_iter().sum()
    }
}

impl Candidate for Timed<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if cores < self.cores {
            let why = format!("it needs {} cores, and the machine has {cores}", self.cores);
            return Err(Trouble::NotRun(why));
        }
        Ok(if self.speed { self.together()? } else { self.alone()? })
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn is_ours(&self) -> bool {
        self.is_ours
    }
}
