//! Accesses while a driver maps and unmaps buffers: their cost, and the rate of the remaps.
//!
//! One thread makes the accesses of the mix in its hot set. Another thread maps and unmaps a buffer that
//! is never accessed, a thousand times a second or without a pause, like a driver with streaming
//! mappings.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::accessor::{self, Accessor, Buffer};
use super::memory::{BASE, Maps, Memory, SPACE_BYTES};
use super::ours::{self, Log};
use super::stream::{Op, Places, Work};
use super::timed::{Address, Order, Task, list};
use super::vm_memory::v0_18;
use crate::harness::cost::Cost;
use crate::harness::metric::{CYCLES, REMAP_TIME, REMAPS, TIME_NS};
use crate::harness::timed::{Pick, alone};
use crate::harness::{Against, Candidate, CommonOptions, Run, Session};

/// The offset of the buffer: beyond all other mappings.
const PLACE: u64 = SPACE_BYTES;
const BUFFER_BYTES: u64 = 64 << 10;

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let case = "remapped beside, mix, hot, 16 maps";
    if !options.wants(case) {
        return Ok(());
    }
    let maps = &Maps::new(16);
    let task = Task::new(Work::Mix, Places::Hot, options);
    let ops = list(task, 0, memory, maps, Address::Iova);
    let space = ours::space(memory, maps, Log::None)?;
    let region = ours::region(memory)?;
    space.attach(&region)?;
    let iommu = Arc::new(v0_18::iommu(memory, maps)?);
    let remap = || {
        let iova = Iova::new(BASE + PLACE);
        space.map(iova, &region, 0, BUFFER_BYTES, Prot::READ_WRITE)?;
        Ok(space.unmap(iova, BUFFER_BYTES)?)
    };
    let peers_remap = || iommu.map_and_unmap(PLACE, BUFFER_BYTES);
    let (ops, remap, peers_remap) = (&ops, &remap, &peers_remap);
    let paces = [
        ("nothing remapped", None),
        ("1,000 a second", Some(Duration::from_millis(1))),
        ("without a pause", Some(Duration::ZERO)),
    ];
    let mut candidates = Vec::new();
    for (pace, pause) in paces {
        let name = format!("longshore, {pace}");
        let (time, space) = (options.timed(), &space);
        let run = move || Ok(beside(time, ops, || Box::new(space.session()), pause, remap)?);
        candidates.push(Candidate::new(name, run).ours().needs_cores(cores(pause)));
    }
    for (pace, pause) in paces {
        let name = format!("vm-memory 0.18, IOMMU, {pace}");
        let open = || Arc::clone(&iommu);
        let run = move || Ok(beside(options.timed(), ops, open, pause, peers_remap)?);
        candidates.push(Candidate::new(name, run).needs_cores(cores(pause)));
    }
    let names: Vec<String> = candidates.iter().map(|one| one.name.clone()).collect();
    let against: Vec<Against<'_>> = (0..names.len())
        .map(|at| {
            let still = &names[at / paces.len() * paces.len()];
            Against::new(CYCLES, still).only(&names[at])
        })
        .collect();
    session.compare(case, candidates, &against)
}

fn cores(pause: Option<Duration>) -> usize {
    if pause.is_some() { 2 } else { 1 }
}

/// Remaps until `stop` is set, with a pause before each remap; if `pause` is `None`, it only waits.
/// Returns the number of remaps, the time that they took, and the whole time.
fn remaps(
    pause: Option<Duration>,
    remap: &impl Fn() -> Result<()>,
    stop: &AtomicBool,
) -> Result<(u32, Duration, Duration)> {
    let (mut count, mut busy, began) = (0, Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(pause.unwrap_or(Duration::from_millis(1)));
        if pause.is_some() {
            let this = Instant::now();
            remap()?;
            busy += this.elapsed();
            count += 1;
        }
    }
    Ok((count, busy, began.elapsed()))
}

/// Times accesses beside a remapping thread, and returns the median pass. CPU time is that of both
/// threads.
fn beside<P: Deref<Target: Accessor + Sized>>(
    time: Duration,
    ops: &[Op],
    open: impl Fn() -> P,
    pause: Option<Duration>,
    remap: &(impl Fn() -> Result<()> + Sync),
) -> Result<Run> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let remapper = scope.spawn(|| remaps(pause, remap, &stop));
        let timing = alone(time, Pick::Median, ops.len(), |drive| {
            let (accessor, mut buffer, mut order) = (open(), Buffer::new(), Order::of(ops));
            drive(&mut |meter| {
                let ops = order.next();
                meter.time(|| accessor::pass(Work::Mix, &*accessor, ops, &mut buffer));
                Ok(())
            })
        });
        stop.store(true, Ordering::Relaxed);
        let (count, busy, all) = remapper.join().expect("it does not panic")?;
        let timing = timing?;
        let sample = vec![
            (CYCLES, timing.each.ticks),
            (TIME_NS, timing.each.ns),
            (REMAPS, f64::from(count) / all.as_secs_f64()),
            (REMAP_TIME, busy.as_secs_f64() * 1e6 / f64::from(count.max(1))),
        ];
        Ok(Run { sample, cost: Some(Cost::of_stretch(timing.cpu_seconds)), note: None })
    })
}
