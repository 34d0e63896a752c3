//! Candidates: the same list of accesses through each accessor.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::accessor::{self, Accessor, Buffer};
use super::memory::{BASE, Maps, Memory};
use super::plain::{Copies, Translated};
use super::random::{Random, shuffle};
use super::stream::{self, Op, Places, Work};
use crate::harness::cost::Cost;
use crate::harness::metric::{ACCESS_RATE, CYCLES, TIME_NS};
use crate::harness::timed::{Drive, Pick, alone, together};
use crate::harness::{Candidate, CommonOptions, Run};

/// The accesses, their places, and the time to spend on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) work: Work,
    pub(super) places: Places,
    /// The number of threads that run at the same time, each with its own places.
    pub(super) threads: usize,
    /// `true` to report the accesses per second of all threads together, also if there is only one
    /// thread.
    pub(super) speed: bool,
    pub(super) time: Duration,
    pub(super) quick: bool,
}

impl Task {
    /// Creates a task of one thread.
    pub(super) fn new(work: Work, places: Places, options: &CommonOptions) -> Self {
        let (time, quick) = (options.timed(), options.quick);
        Self { work, places, threads: 1, speed: false, time, quick }
    }

    pub(super) fn threads(self, threads: usize) -> Self {
        Self { threads, speed: true, ..self }
    }
}

/// The kind of address that an accessor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// The IOVA, as the device uses it.
    Iova,
    /// The offset into the memory.
    Offset,
    /// [`BASE`] plus the offset into the memory.
    Slot,
    /// The address in this process.
    Host,
}

impl Address {
    fn of(self, place: u64, memory: &Memory, maps: &Maps) -> u64 {
        match self {
            Self::Iova => BASE + place,
            Self::Offset => maps.memory_offset(place),
            Self::Slot => BASE + maps.memory_offset(place),
            Self::Host => memory.address(maps.memory_offset(place)),
        }
    }
}

/// Creates a candidate whose threads each get a pointer to an accessor from `open`. Before the timing,
/// the accessor is checked to reach the right memory.
pub(super) fn candidate<'m, P: Deref<Target: Accessor + Sized>>(
    name: impl Into<String>,
    task: Task,
    (memory, maps): (&'m Memory, &Maps),
    address: Address,
    open: impl Fn(usize) -> P + Sync + 'm,
) -> Candidate<'m> {
    let lists = |address| -> Vec<Vec<Op>> {
        (0..task.threads).map(|thread| list(task, thread, memory, maps, address)).collect()
    };
    let (mut hosts, lists) = (Some(lists(Address::Host)), lists(address));
    Candidate::new(name, move || {
        if let Some(hosts) = hosts.take() {
            for (thread, (ops, hosts)) in lists.iter().zip(&hosts).enumerate() {
                check(&*open(thread), ops, hosts)?;
            }
        }
        Ok(run(task, &lists, &open)?)
    })
    .needs_cores(task.threads)
}

/// Returns an `open` function for an accessor that all threads share.
pub(super) fn shared<D>(accessor: D) -> impl Fn(usize) -> Arc<D> {
    let accessor = Arc::new(accessor);
    move |_| Arc::clone(&accessor)
}

fn check(accessor: &impl Accessor, ops: &[Op], hosts: &[Op]) -> Result<()> {
    const LOOKED_AT: usize = 64;
    let plain = Copies(Translated);
    for (op, host) in ops.iter().zip(hosts).take(LOOKED_AT) {
        let word = host.at ^ 0x5555_5555;
        plain.write_word(host.at, word);
        ensure!(accessor.read_word(op.at) == word, "it reads elsewhere: {:#x}", op.at);
        accessor.write_word(op.at, !word);
        ensure!(plain.read_word(host.at) == !word, "it writes elsewhere: {:#x}", op.at);
    }
    Ok(())
}

fn run<P: Deref<Target: Accessor + Sized>>(
    task: Task,
    lists: &[Vec<Op>],
    open: &(impl Fn(usize) -> P + Sync),
) -> Result<Run> {
    let in_turns = |thread: usize, drive: Drive<'_>| {
        let (accessor, mut buffer) = (open(thread), Buffer::new());
        let mut order = Order::of(&lists[thread]);
        drive(&mut |meter| {
            let ops = order.next();
            meter.time(|| accessor::pass(task.work, &*accessor, ops, &mut buffer));
            Ok(())
        })
    };
    let count = lists[0].len();
    let (sample, cpu_seconds) = if task.speed {
        let (timing, speed) = together(task.threads, task.time, count, in_turns)?;
        (vec![(CYCLES, timing.each.ticks), (ACCESS_RATE, speed)], timing.cpu_seconds)
    } else {
        let timing = if task.places == Places::Random {
            // A pass over the whole space takes long, so each part of it is a stretch.
            let part = count.min(2048);
            alone(task.time, Pick::Median, part, |drive| {
                let (accessor, mut buffer) = (open(0), Buffer::new());
                let mut parts = lists[0].chunks_exact(part).cycle();
                drive(&mut |meter| {
                    let ops = parts.next().expect("it begins anew");
                    meter.time(|| accessor::pass(task.work, &*accessor, ops, &mut buffer));
                    Ok(())
                })
            })?
        } else {
            alone(task.time, Pick::Best, count, |drive| in_turns(0, drive))?
        };
        (vec![(CYCLES, timing.each.ticks), (TIME_NS, timing.each.ns)], timing.cpu_seconds)
    };
    Ok(Run { sample, cost: Some(Cost::of_stretch(cpu_seconds)), note: None })
}

/// A list that is shuffled anew for each pass, in the same orders for each candidate. If a list of
/// thousands of accesses is repeated in the same order, the processor learns it and predicts every
/// branch that depends on a length. That never happens to a device model.
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

/// Returns the accesses of one thread.
pub(super) fn list(
    task: Task,
    thread: usize,
    memory: &Memory,
    maps: &Maps,
    address: Address,
) -> Vec<Op> {
    let count = task.places.count(task.work, task.quick);
    let mut ops = stream::list(task.work, task.places, thread as u64, count);
    for op in &mut ops {
        op.at = address.of(op.at, memory, maps);
    }
    ops
}
