//! What accesses cost while a driver maps and unmaps buffers beside them, and how often it can.
//!
//! One thread makes the mix in its hot set; another maps and unmaps a buffer that nobody accesses, a
//! thousand times a second or without a pause, as a driver with streaming mappings does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use longshore_access::Region;
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::cases::{Candidates, effort};
use super::counter::Span;
use super::doors::{self, Buffer, Doors};
use super::memory::{BASE, Maps, Memory, SPACE_BYTES};
use super::ours::{self, Ours};
use super::stream::{Places, Work};
use super::timed::{Effort, Order, Task, list};
use super::vm_memory::v0_18::ByIommu;
use crate::harness::metric::{CYCLES, REMAP_TIME, REMAPS, TIME_NS};
use crate::harness::{Against, Candidate, CommonOptions, Sample, Session, Trouble};

/// The buffer: beyond everything else that is mapped.
const PLACE: u64 = SPACE_BYTES;
const BUFFER_BYTES: u64 = 64 << 10;

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let case = "remapped beside, mix, hot, 16 maps";
    if !options.wants(case) {
        return Ok(());
    }
    let maps = &Maps::new(16);
    let mut candidates = Candidates::new();
    let mut pairs = Vec::new();
    macro_rules! each_pace {
        ($of:literal, $doors:expr) => {
            let still = concat!($of, ", nothing remapped");
            for (name, pace) in [
                (still, Pace::Never),
                (concat!($of, ", 1,000 a second"), Pace::Every(Duration::from_millis(1))),
                (concat!($of, ", without a pause"), Pace::Always),
            ] {
                let effort = effort(options);
                candidates.push(Box::new(Remapped { name, doors: $doors, pace, effort }));
                pairs.push((name, still));
            }
        };
    }
    each_pace!("longshore", WithRegion::new(memory, maps)?);
    each_pace!("vm-memory 0.18, IOMMU", ByIommu::<RwLock<_>>::new(memory, maps)?);
    let measured = session.run(case, candidates);
    let against: Vec<Against<'_>> = pairs
        .iter()
        .map(|&(name, still)| Against { metric: CYCLES, baseline: still, only: Some(name) })
        .collect();
    session.publish(measured.rows(session.bench(), &against))
}

/// How often a buffer is mapped and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Never,
    Every(Duration),
    Always,
}

/// Doors to a space in which more can be mapped.
trait Remaps: Doors {
    /// Maps `len_bytes` of the memory at `place`, and unmaps them.
    fn remap(&self, place: u64, len_bytes: u64) -> Result<()>;
}

/// Longshore, by its safe door.
struct WithRegion<'m> {
    ours: Ours<'m>,
    region: Arc<Region>,
}

impl<'m> WithRegion<'m> {
    fn new(memory: &'m Memory, maps: &Maps) -> Result<Self> {
        let ours = Ours::new(memory, maps)?;
        let region = ours::region(memory)?;
        ours.space().attach(&region)?;
        Ok(Self { ours, region })
    }
}

impl<'m> Doors for WithRegion<'m> {
    type Door<'a>
        = <Ours<'m> as Doors>::Door<'a>
    where
        Self: 'a;

    fn open(&self, thread: u64) -> Self::Door<'_> {
        self.ours.open(thread)
    }

    fn address(&self, place: u64) -> u64 {
        self.ours.address(place)
    }
}

impl Remaps for WithRegion<'_> {
    fn remap(&self, place: u64, len_bytes: u64) -> Result<()> {
        let (space, iova) = (self.ours.space(), Iova::new(BASE + place));
        space.map(iova, &self.region, 0, len_bytes, Prot::READ_WRITE)?;
        Ok(space.unmap(iova, len_bytes)?)
    }
}

impl Remaps for ByIommu<'_, RwLock<vm_memory::Iotlb>> {
    fn remap(&self, place: u64, len_bytes: u64) -> Result<()> {
        self.map_and_unmap(place, len_bytes)
    }
}

struct Remapped<D> {
    name: &'static str,
    doors: D,
    pace: Pace,
    effort: Effort,
}

impl<D: Remaps> Remapped<D> {
    /// The median of the passes that the accesses make meanwhile.
    fn run(&self) -> Result<Sample> {
        let (work, places, effort) = (Work::Mix, Places::Hot, self.effort);
        let task = Task { work, places, threads: 1, speed: false, effort };
        let ops = list(&self.doors, task, 0);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let remapper = scope.spawn(|| self.remaps(&stop));
            let door = self.doors.open(0);
            let (mut buffer, mut order) = (Buffer::new(), Order::of(&ops));
            let until = Instant::now() + effort.time;
            let mut passes = Vec::new();
            while passes.is_empty() || Instant::now() < until {
                let ops = order.next();
                let span = Span::of(|| doors::pass(work, &door, ops, &mut buffer));
                passes.push(span.each(ops.len()));
            }
            drop(door);
            stop.store(true, Ordering::Relaxed);
            let (count, busy, all) = remapper.join().expect("it does not panic")?;
            passes.sort_by(|one, other| one.ticks.total_cmp(&other.ticks));
            let median = passes[passes.len() / 2];
            Ok(vec![
                (CYCLES, median.ticks),
                (TIME_NS, median.ns),
                (REMAPS, f64::from(count) / all.as_secs_f64()),
                (REMAP_TIME, busy.as_secs_f64() * 1e6 / f64::from(count.max(1))),
            ])
        })
    }

    /// How many were made, the time that they took, and the time in which they were made.
    fn remaps(&self, stop: &AtomicBool) -> Result<(u32, Duration, Duration)> {
        let (mut count, mut busy, began) = (0, Duration::ZERO, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            match self.pace {
                Pace::Never => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Pace::Every(period) => thread::sleep(period),
                Pace::Always => {}
            }
            let this = Instant::now();
            self.doors.remap(PLACE, BUFFER_BYTES)?;
            busy += this.elapsed();
            count += 1;
        }
        Ok((count, busy, began.elapsed()))
    }
}

impl<D: Remaps> Candidate for Remapped<D> {
    fn name(&self) -> &str {
        self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if self.pace != Pace::Never && cores < 2 {
            return Err(Trouble::NotRun("the machine has one core".to_owned()));
        }
        Ok(self.run()?)
    }

    fn is_ours(&self) -> bool {
        self.name.starts_with("longshore")
    }
}
