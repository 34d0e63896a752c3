//! The cases on the host: mappings and bounces by one thread and by two.
#![expect(unsafe_code, reason = "copies between memory of transfers and a slot")]

use std::hint::black_box;
use std::ptr;
use std::rc::Rc;
use std::sync::Mutex;

use anyhow::{Context, Result};
use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, DmaPoolOptions, Domain};
use longshore_mem::copy;

use super::ours::{How, Ours};
use super::parts::{Part, STRETCH, each, parts};
use super::trees::{Trees, lock};
use crate::access::other::Sessions;
use crate::harness::cost::Cost;
use crate::harness::metric::{CYCLES, TIME_NS, TRANSFER_RATE};
use crate::harness::timed::{Drive, Pick, alone, together};
use crate::harness::{Against, Candidate, CommonOptions, Run, Session};

const PAGE_BYTES: u64 = 4096;
/// The bytes that the transfers of a stretch touch.
const TOUCHED_BYTES: u64 = 256 << 10;

const NO_SESSION: &str = Sessions::ALL[0].0;
const TREES: &str = "a mutex and B-trees";
const TREES_64: &str = "a mutex and B-trees, 64 at once";
const AT_ONCE: &str = "no session, 64 at once";
const NO_TABLES: &str = "behind a lock; without page tables and without invalidations";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    map_and_unmap(options, session)?;
    batches(options, session)?;
    bounces(options, session)?;
    elements(options, session)?;
    two_threads(options, session)
}

/// Returns transfers for one stretch or more.
fn stretch(len_bytes: u64) -> Result<Vec<Part>> {
    let different = (TOUCHED_BYTES / len_bytes) as usize;
    let parts = parts(different, len_bytes)?;
    Ok(parts.into_iter().cycle().take(different.max(STRETCH)).collect())
}

/// Creates a candidate of one thread, whose figure is the time of each transfer.
fn candidate<'w>(
    name: &str,
    options: &CommonOptions,
    work: impl Fn(usize, Drive<'_>) -> Result<()> + 'w,
) -> Candidate<'w> {
    let time = options.timed();
    Candidate::new(name, move || {
        let timing = alone(time, Pick::Best, STRETCH, |drive| work(0, drive))?;
        let sample = vec![(TIME_NS, timing.each.ns), (CYCLES, timing.each.ticks)];
        Ok(Run { sample, cost: Some(Cost::of_stretch(timing.cpu_seconds)), note: None })
    })
}

fn map_and_unmap(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "map + unmap 4K, soft";
    if !options.wants(case) {
        return Ok(());
    }
    let mut candidates = Vec::new();
    let sessions = Sessions::ALL.map(|(name, sessions)| (name, How::Each, sessions));
    let others = [
        (AT_ONCE, How::AllAtOnce, Sessions::None),
        ("no session, by the domain", How::ByDomain, Sessions::None),
    ];
    for (name, how, sessions) in sessions.into_iter().chain(others) {
        let ours = Ours::new(Bounce::Never, vec![stretch(PAGE_BYTES)?], how, sessions)?;
        let work = move |thread, drive: Drive<'_>| ours.run(thread, drive);
        candidates.push(candidate(name, options, work).ours().needs_cores(sessions.cores()));
    }
    for (name, at_once) in [(TREES, false), (TREES_64, true)] {
        let (trees, parts) = (Trees::locked(), vec![stretch(PAGE_BYTES)?]);
        let work = move |thread: usize, drive: Drive<'_>| trees.run(&parts[thread], at_once, drive);
        candidates.push(candidate(name, options, work).with_note(NO_TABLES));
    }
    let against = |baseline, only| Against::new(TIME_NS, baseline).only(only);
    let against = [against(TREES, NO_SESSION), against(TREES_64, AT_ONCE)];
    session.compare(case, candidates, &against)
}

fn batches(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "map + unmap 4K, soft, a batch of 64";
    if !options.wants(case) {
        return Ok(());
    }
    let mut candidates = Vec::new();
    for (name, sessions) in Sessions::ALL {
        let ours = Ours::new(Bounce::Never, vec![stretch(PAGE_BYTES)?], How::Batch, sessions)?;
        let work = move |thread, drive: Drive<'_>| ours.run(thread, drive);
        candidates.push(candidate(name, options, work).ours().needs_cores(sessions.cores()));
    }
    session.compare(case, candidates, &[])
}

const OURS: &str = "longshore";
const MAPPED: &str = "longshore, mapped";

/// Compares a bounce with its copies alone.
fn bounces(options: &CommonOptions, session: &mut Session) -> Result<()> {
    const REPORTED: &str = "longshore, reported";
    const COPIES: &str = "the copies alone";
    const COPY: &str = "one copy alone";
    const MEMCPY: &str = "the copies alone, memcpy";
    const SLOTS: &str = "a mutex and a list of slots";
    for (case, pages) in [("bounce 4K", 1), ("bounce 16K", 4), ("bounce 64K", 16)] {
        if !options.wants(case) {
            continue;
        }
        let len_bytes = pages * PAGE_BYTES;
        let all = &stretch(len_bytes)?;
        let ours = |name, bounce, how| -> Result<Candidate<'_>> {
            let ours = Ours::new(bounce, vec![all.clone()], how, Sessions::None)?;
            let work = move |thread, drive: Drive<'_>| ours.run(thread, drive);
            Ok(candidate(name, options, work).ours())
        };
        // The memory of the transfers, and one slot at a fixed address.
        let slot = parts(1, len_bytes)?[0];
        let free = &Mutex::new(parts(8, len_bytes)?);
        let candidates = vec![
            ours(OURS, Bounce::Always, How::Each)?,
            candidate(COPIES, options, |_, drive| {
                each(all, drive, |part| {
                    copied(*part, slot)?;
                    copied(black_box(slot), *part)
                })
            }),
            candidate(MEMCPY, options, |_, drive| {
                each(all, drive, |part| {
                    memcpy(*part, slot);
                    memcpy(black_box(slot), *part);
                    Ok(())
                })
            }),
            // A list of slots without size classes, growth or reclaim.
            candidate(SLOTS, options, |_, drive| {
                each(all, drive, |part| {
                    let slot = lock(free).pop().context("there is no slot left")?;
                    memcpy(*part, slot);
                    memcpy(black_box(slot), *part);
                    lock(free).push(slot);
                    Ok(())
                })
            }),
            ours(REPORTED, Bounce::Always, How::Reported)?
                .with_note("nothing is copied in: the device reports how much it has written"),
            candidate(COPY, options, |_, drive| {
                each(all, drive, |part| copied(black_box(slot), *part))
            }),
            ours(MAPPED, Bounce::Never, How::Each)?,
        ];
        let against = |baseline, only| Against::new(TIME_NS, baseline).only(only);
        let against = [
            against(COPIES, OURS),
            against(MEMCPY, OURS),
            against(SLOTS, OURS),
            against(COPY, REPORTED),
        ];
        session.compare(case, candidates, &against)?;
    }
    Ok(())
}

/// Copies with the routine that bounces use.
#[inline(always)]
fn copied(from: Part, to: Part) -> Result<()> {
    // SAFETY: both have as many bytes, and no other thread uses them.
    unsafe { copy::copy_bytes(from.start(), to.start(), from.len()) }?;
    Ok(())
}

/// Copies with the C library's routine.
#[inline(always)]
fn memcpy(from: Part, to: Part) {
    // SAFETY: both have as many bytes, and no other thread uses them.
    unsafe { ptr::copy_nonoverlapping(from.start(), to.start(), from.len()) }
}

/// Compares taking and dropping an element of a DMA pool with a map and an unmap.
fn elements(options: &CommonOptions, session: &mut Session) -> Result<()> {
    const ELEMENT: &str = "longshore, a DMA pool";
    const LIST: &str = "a mutex and a list";
    let case = "take + drop an element of 4K";
    if !options.wants(case) {
        return Ok(());
    }
    let domain = Domain::builder(Soft::new()?).free_after(None).build();
    let pool = domain.dma_pool(PAGE_BYTES, PAGE_BYTES, DmaPoolOptions::new())?;
    let list = Mutex::new((0u64..64).collect::<Vec<_>>());
    let mapped = Ours::new(Bounce::Never, vec![stretch(PAGE_BYTES)?], How::Each, Sessions::None)?;
    let candidates = vec![
        candidate(ELEMENT, options, |_, drive| {
            repeat(drive, || {
                black_box(pool.take_unzeroed()?.iova());
                Ok(())
            })
        })
        .ours(),
        candidate("longshore, a DMA pool, zeroed", options, |_, drive| {
            repeat(drive, || {
                black_box(pool.take()?.iova());
                Ok(())
            })
        })
        .ours(),
        candidate("longshore, a DMA pool, frozen and sliced", options, |_, drive| {
            repeat(drive, || {
                let whole = pool.take_unzeroed()?.freeze();
                let slice = whole.slice(16..64)?;
                drop(whole);
                black_box(slice.iova());
                Ok(())
            })
        })
        .ours(),
        candidate(MAPPED, options, move |thread, drive| mapped.run(thread, drive)).ours(),
        candidate(LIST, options, |_, drive| {
            repeat(drive, || {
                let element = lock(&list).pop().context("the list is empty")?;
                lock(&list).push(black_box(element));
                Ok(())
            })
        })
        .with_note("does not map, count or grow"),
    ];
    let against = |baseline| Against::new(TIME_NS, baseline).only(ELEMENT);
    session.compare(case, candidates, &[against(MAPPED), against(LIST)])
}

fn repeat(drive: Drive<'_>, work: impl Fn() -> Result<()>) -> Result<()> {
    drive(&mut |meter| meter.time(|| (0..STRETCH).try_for_each(|_| work())))
}

/// Work that several threads can run.
type Work = Box<dyn Fn(usize, Drive<'_>) -> Result<()> + Sync>;

/// Compares one thread with two threads of one domain, each with its own memory.
fn two_threads(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let both =
        || -> Result<Vec<Vec<Part>>> { Ok(vec![stretch(PAGE_BYTES)?, stretch(PAGE_BYTES)?]) };
    let cases = [
        ("two threads, map + unmap 4K", Bounce::Never),
        ("two threads, bounce 4K", Bounce::Always),
    ];
    for (case, bounce) in cases {
        if !options.wants(case) {
            continue;
        }
        let (mut candidates, mut pairs) = (Vec::new(), Vec::new());
        let mut push = |name: &str, is_ours, work: Work| {
            let work = Rc::new(work);
            let [one, two] = ["1 thread", "2 threads"].map(|count| format!("{name}, {count}"));
            for (threads, name) in [(1, &one), (2, &two)] {
                let (work, time) = (Rc::clone(&work), options.timed());
                let run = move || {
                    let (timing, speed) = together(threads, time, STRETCH, &*work)?;
                    let cost = Some(Cost::of_stretch(timing.cpu_seconds));
                    Ok(Run { sample: vec![(TRANSFER_RATE, speed)], cost, note: None })
                };
                let candidate = Candidate::new(name, run).needs_cores(threads);
                candidates.push(if is_ours { candidate.ours() } else { candidate });
            }
            pairs.push((one, two));
        };
        for (name, how) in [(OURS, How::Each), ("longshore, by the domain", How::ByDomain)] {
            let ours = Ours::new(bounce, both()?, how, Sessions::None)?;
            push(name, true, Box::new(move |thread, drive| ours.run(thread, drive)));
        }
        if bounce == Bounce::Never {
            let (trees, parts) = (Trees::locked(), both()?);
            push(
                TREES,
                false,
                Box::new(move |thread, drive| trees.run(&parts[thread], false, drive)),
            );
        }
        let against: Vec<Against<'_>> =
            pairs.iter().map(|(one, two)| Against::new(TRANSFER_RATE, one).only(two)).collect();
        session.compare(case, candidates, &against)?;
    }
    Ok(())
}
