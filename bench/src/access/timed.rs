//! Candidates: the same list of accesses through each door.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::counter::Span;
use super::doors::{self, Buffer, Door, Doors};
use super::memory::{Maps, Memory};
use super::plain::Plain;
use super::random::{Random, shuffle};
use super::stream::{self, Op, Places, Work};
use crate::harness::metric::{ACCESS_RATE, CYCLES, TIME_NS};
use crate::harness::{Candidate, Sample, Trouble};

/// What is done, where, how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) places: Places,
    /// How many do it at the same time, each in places of its own.
    pub(super) threads: u64,
    /// Whether what all of them do together is of interest, also where it is one.
    pub(super) speed: bool,
    pub(super) effort: Effort,
}

/// How long a run goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) time: Duration,
    pub(super) quick: bool,
}

/// One candidate of a case.
pub(super) struct Timed<'m, D> {
    name: String,
    doors: D,
    /// A list for each thread, in the door's addresses.
    lists: Vec<Vec<Op>>,
    task: Task,
    memory: &'m Memory,
    maps: Maps,
    checked: bool,
    note: Option<String>,
    is_ours: bool,
}

impl<'m, D: Doors> Timed<'m, D> {
    pub(super) fn new(
        name: impl Into<String>,
        doors: D,
        task: Task,
        memory: &'m Memory,
        maps: &Maps,
    ) -> Self {
        let lists = (0..task.threads).map(|thread| list(&doors, task, thread)).collect();
        Self {
            name: name.into(),
            doors,
            lists,
            task,
            memory,
            maps: maps.clone(),
            checked: false,
            note: None,
            is_ours: false,
        }
    }

    pub(super) fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }

    /// Of somebody else.
    pub(super) fn theirs(self) -> Self {
        self
    }

    pub(super) fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// A door that leads elsewhere is not to be compared with.
    fn check(&self) -> Result<()> {
        const LOOKED_AT: usize = 64;
        let plain = Plain::new(self.memory, &self.maps);
        for (thread, ops) in self.lists.iter().enumerate() {
            let door = self.doors.open(thread as u64);
            let places = list(&plain, self.task, thread as u64);
            for (op, host) in ops.iter().zip(&places).take(LOOKED_AT) {
                let word = host.at ^ 0x5555_5555;
                plain.write_word(host.at, word);
                let seen = door.read_word(op.at);
                ensure!(seen == word, "{} reads elsewhere: {:#x}", self.name, op.at);
                door.write_word(op.at, !word);
                let seen = plain.read_word(host.at);
                ensure!(seen == !word, "{} writes elsewhere: {:#x}", self.name, op.at);
            }
        }
        Ok(())
    }

    /// The best of many passes: what a machine shared with others takes away is not the work's. Of
    /// all of the space, where a pass is long, the median of its parts.
    fn alone(&self) -> Sample {
        const PART: usize = 2048;
        let door = self.doors.open(0);
        let mut buffer = Buffer::new();
        let mut once = |ops: &[Op]| {
            Span::of(|| doors::pass(self.task.work, &door, ops, &mut buffer)).each(ops.len())
        };
        let until = Instant::now() + self.task.effort.time;
        let each = if self.task.places == Places::Random {
            let mut parts = Vec::new();
            while parts.is_empty() || Instant::now() < until {
                parts.extend(self.lists[0].chunks(PART).map(&mut once));
            }
            parts.sort_by(|one, other| one.ticks.total_cmp(&other.ticks));
            parts[parts.len() / 2]
        } else {
            let mut order = Order::of(&self.lists[0]);
            once(order.next());
            let mut best = once(order.next());
            while Instant::now() < until {
                best = best.best(once(order.next()));
            }
            best
        };
        vec![(CYCLES, each.ticks), (TIME_NS, each.ns)]
    }

    /// The best of a few stretches in which all threads are at it at the same time.
    fn together(&self) -> Sample {
        const STRETCHES: u32 = 5;
        let each = self.task.effort.time / STRETCHES;
        let best = (0..STRETCHES).map(|_| self.stretch(each));
        let best = best.max_by(|one, other| one.1.total_cmp(&other.1));
        let (ticks, speed) = best.expect("there are stretches");
        vec![(CYCLES, ticks), (ACCESS_RATE, speed)]
    }

    /// Cycles of an access as a thread sees it, and accesses a microsecond of all threads.
    fn stretch(&self, time: Duration) -> (f64, f64) {
        let ready = Barrier::new(self.lists.len());
        let work = |thread: usize| {
            let door = self.doors.open(thread as u64);
            let mut buffer = Buffer::new();
            let mut order = Order::of(&self.lists[thread]);
            let mut count = 0;
            doors::pass(self.task.work, &door, order.next(), &mut buffer);
            ready.wait();
            let until = Instant::now() + time;
            let mut span = Span::zero();
            while count == 0 || Instant::now() < until {
                let ops = order.next();
                span = span.and(Span::of(|| doors::pass(self.task.work, &door, ops, &mut buffer)));
                count += ops.len();
            }
            span.each(count)
        };
        let spans: Vec<Span> = thread::scope(|scope| {
            let work = &work;
            let others: Vec<_> =
                (1..self.lists.len()).map(|thread| scope.spawn(move || work(thread))).collect();
            let own = work(0);
            let others = others.into_iter().map(|other| other.join().expect("it does not panic"));
            std::iter::once(own).chain(others).collect()
        });
        let speed = spans.iter().map(|span| 1e3 / span.ns).sum();
        let ticks = spans.iter().map(|span| span.ticks).sum::<f64>() / spans.len() as f64;
        (ticks, speed)
    }
}

/// A list in another order each time, the same orders for each candidate. A processor learns a list of
/// thousands by heart when it is repeated as it is, and predicts every branch that depends on a
/// length: no device model is asked so.
pub(super) struct Order {
    ops: Vec<Op>,
    random: Random,
}

impl Order {
    pub(super) fn of(ops: &[Op]) -> Self {
        Self { ops: ops.to_vec(), random: Random::new(3) }
    }

    pub(super) fn next(&mut self) -> &[Op] {
        shuffle(&mut self.ops, &mut self.random);
        &self.ops
    }
}

pub(super) fn list<D: Doors>(doors: &D, task: Task, thread: u64) -> Vec<Op> {
    let count = task.places.count(task.work, task.effort.quick);
    let mut ops = stream::list(task.work, task.places, thread, count);
    for op in &mut ops {
        op.at = doors.address(op.at);
    }
    ops
}

impl<D: Doors> Candidate for Timed<'_, D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        if !self.checked {
            self.check()?;
            self.checked = true;
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if self.lists.len() > cores {
            return Err(Trouble::NotRun(format!("the machine has {cores} cores")));
        }
        Ok(if self.task.speed { self.together() } else { self.alone() })
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn is_ours(&self) -> bool {
        self.is_ours
    }
}
