//! The cases of the host: mappings and bounces of one thread and of two.

use anyhow::Result;
use longshore_domain::{Bounce, Direction};

use super::copies::{Copies, Routine, Ways};
use super::elements::{Elements, List, Use};
use super::ours::{Beside, Buffers, How, Ours};
use super::parts::{Part, parts};
use super::plain::{Locked, RustVmm, Slots, Trees};
use super::timed::{STRETCH, Timed};
use crate::harness::metric::{TIME_NS, TRANSFER_RATE};
use crate::harness::{Against, CommonOptions, Session};

const PAGE_BYTES: u64 = 4096;
/// The memory of the transfers of a stretch, where a case does not say otherwise.
const TOUCHED_BYTES: u64 = 256 << 10;

const NO_SESSION: &str = "no session";
const TREES: &str = "a mutex and B-trees";
const RUST_VMM: &str = "vm-allocator and vm-memory's IOTLB";
const TREES_64: &str = "a mutex and B-trees, 64 at once";
const RUST_VMM_64: &str = "vm-allocator and vm-memory's IOTLB, 64 at once";
const AT_ONCE: &str = "no session, 64 at once";
const NO_TABLES: &str = "behind a lock; nobody walks its tables, and nothing is invalidated";

pub(super) fn run(options: &CommonOptions, session: &mut Session) -> Result<()> {
    map_and_unmap(options, session)?;
    batches(options, session)?;
    bounces(options, session)?;
    elements(options, session)?;
    two_threads(options, session)
}

/// Transfers, as many as one stretch has at least, whose memory has `touched_bytes`.
fn stretch(len_bytes: u64, touched_bytes: u64) -> Result<Vec<Part>> {
    let different = (touched_bytes / len_bytes) as usize;
    let parts = parts(different, len_bytes)?;
    Ok(parts.into_iter().cycle().take(different.max(STRETCH)).collect())
}

fn pages() -> Result<Vec<Vec<Part>>> {
    Ok(vec![stretch(PAGE_BYTES, TOUCHED_BYTES)?])
}

fn map_and_unmap(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "map + unmap 4K, soft";
    if !options.wants(case) {
        return Ok(());
    }
    let ours = |how: How, beside: Beside| -> Result<Ours> {
        Ok(Ours::new(Bounce::Never, pages()?, how)?.beside(beside))
    };
    let mut candidates = Vec::new();
    for (name, how, beside, cores) in [
        (NO_SESSION, How::Each, Beside::Page, 1),
        ("all parked", How::Each, Beside::Parked, 1),
        ("idle, unparked", How::Each, Beside::Idle, 1),
        ("one busy", How::Each, Beside::Busy, 2),
        (AT_ONCE, How::AllAtOnce, Beside::Page, 1),
        ("no session, by the domain", How::ByDomain, Beside::Page, 1),
        ("no session, nothing else mapped", How::Each, Beside::Nothing, 1),
    ] {
        let timed = Timed::new(name, ours(how, beside)?, options).ours().needs_cores(cores);
        candidates.push(timed.boxed());
    }
    let name = "no session, buffers of the heap";
    candidates.push(Timed::new(name, Buffers::new()?, options).ours().boxed());
    for (name, at_once) in [(TREES, false), (TREES_64, true)] {
        let work = Locked::new(Trees::new(), pages()?, at_once);
        candidates.push(Timed::new(name, work, options).with_note(NO_TABLES).boxed());
    }
    for (name, at_once) in [(RUST_VMM, false), (RUST_VMM_64, true)] {
        let work = Locked::new(RustVmm::new()?, pages()?, at_once);
        candidates.push(Timed::new(name, work, options).with_note(NO_TABLES).boxed());
    }
    let measured = session.run(case, candidates);
    let against = |baseline, only| Against { metric: TIME_NS, baseline, only: Some(only) };
    let against = [
        against(TREES, NO_SESSION),
        against(RUST_VMM, NO_SESSION),
        against(TREES_64, AT_ONCE),
        against(RUST_VMM_64, AT_ONCE),
    ];
    session.publish(measured.rows(session.bench(), &against))
}

fn batches(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "map + unmap 4K, soft, a batch of 64";
    if !options.wants(case) {
        return Ok(());
    }
    let mut candidates = Vec::new();
    for (name, beside, cores) in [
        (NO_SESSION, Beside::Page, 1),
        ("all parked", Beside::Parked, 1),
        ("idle, unparked", Beside::Idle, 1),
        ("one busy", Beside::Busy, 2),
    ] {
        let work = Ours::new(Bounce::Never, pages()?, How::Batch)?.beside(beside);
        candidates.push(Timed::new(name, work, options).ours().needs_cores(cores).boxed());
    }
    let measured = session.run(case, candidates);
    session.publish(measured.rows(session.bench(), &[]))
}

const OURS: &str = "longshore";
const REPORTED: &str = "longshore, reported";
const MAPPED: &str = "longshore, mapped";
const COPIES: &str = "the copies alone";
const COPY: &str = "one copy alone";
const MEMCPY: &str = "the copies alone, memcpy";
const SLOTS: &str = "a mutex and a list of slots";

/// A bounce beside its copies.
fn bounces(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let cases = [
        ("bounce 4K", PAGE_BYTES, TOUCHED_BYTES),
        ("bounce 4K, one page", PAGE_BYTES, PAGE_BYTES),
        ("bounce 4K, 64M of pages", PAGE_BYTES, 64 << 20),
        ("bounce 16K", 4 * PAGE_BYTES, TOUCHED_BYTES),
        ("bounce 64K", 16 * PAGE_BYTES, TOUCHED_BYTES),
    ];
    for (case, len_bytes, touched_bytes) in cases {
        if !options.wants(case) {
            continue;
        }
        let all = stretch(len_bytes, touched_bytes)?;
        let ours = |bounce, how| Ours::new(bounce, vec![all.clone()], how);
        let copies = |routine, ways| Copies::new(&all, routine, ways);
        let to_device = ours(Bounce::Always, How::Each)?.direction(Direction::ToDevice);
        let candidates = vec![
            Timed::new(OURS, ours(Bounce::Always, How::Each)?, options).ours().boxed(),
            Timed::new(COPIES, copies(Routine::Ours, Ways::InAndOut)?, options).boxed(),
            Timed::new(MEMCPY, copies(Routine::Libc, Ways::InAndOut)?, options).boxed(),
            Timed::new(SLOTS, Slots::new(&all)?, options).boxed(),
            Timed::new(REPORTED, ours(Bounce::Always, How::Reported)?, options)
                .ours()
                .with_note("nothing is copied in: the device says how much it has written")
                .boxed(),
            Timed::new("longshore, to the device", to_device, options).ours().boxed(),
            Timed::new(COPY, copies(Routine::Ours, Ways::Out)?, options).boxed(),
            Timed::new(MAPPED, ours(Bounce::Never, How::Each)?, options).ours().boxed(),
        ];
        let measured = session.run(case, candidates);
        let against = |baseline, only| Against { metric: TIME_NS, baseline, only: Some(only) };
        let against = [
            against(COPIES, OURS),
            against(MEMCPY, OURS),
            against(SLOTS, OURS),
            against(COPY, REPORTED),
        ];
        session.publish(measured.rows(session.bench(), &against))?;
    }
    Ok(())
}

const ELEMENT: &str = "longshore, a DMA pool";
const LIST: &str = "a mutex and a list";

/// An element of a pool, taken and dropped, beside a map and an unmap.
fn elements(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let case = "take + drop an element of 4K";
    if !options.wants(case) {
        return Ok(());
    }
    let ours = |of| Elements::new(PAGE_BYTES, of);
    let zeroed = "longshore, a DMA pool, zeroed";
    let sliced = "longshore, a DMA pool, frozen and sliced";
    let mapped = Ours::new(Bounce::Never, pages()?, How::Each)?;
    let candidates = vec![
        Timed::new(ELEMENT, ours(Use::Unzeroed)?, options).ours().boxed(),
        Timed::new(zeroed, ours(Use::Zeroed)?, options).ours().boxed(),
        Timed::new(sliced, ours(Use::Sliced)?, options).ours().boxed(),
        Timed::new(MAPPED, mapped, options).ours().boxed(),
        Timed::new(LIST, List::new(), options)
            .with_note("neither maps, nor counts, nor grows")
            .boxed(),
    ];
    let measured = session.run(case, candidates);
    let against = |baseline| Against { metric: TIME_NS, baseline, only: Some(ELEMENT) };
    session.publish(measured.rows(session.bench(), &[against(MAPPED), against(LIST)]))
}

/// One thread, and two of one domain, each with a door and memory of its own.
fn two_threads(options: &CommonOptions, session: &mut Session) -> Result<()> {
    let both = || -> Result<Vec<Vec<Part>>> {
        Ok(vec![stretch(PAGE_BYTES, TOUCHED_BYTES)?, stretch(PAGE_BYTES, TOUCHED_BYTES)?])
    };
    let cases = [
        ("two threads, map + unmap 4K", Bounce::Never),
        ("two threads, bounce 4K", Bounce::Always),
    ];
    for (case, bounce) in cases {
        if !options.wants(case) {
            continue;
        }
        let mut candidates = Vec::new();
        let mut pairs = Vec::new();
        for (name, how) in [(OURS, How::Each), ("longshore, by the domain", How::ByDomain)] {
            let [one, two] = [1, 2].map(|threads| threads_name(name, threads));
            for (threads, name) in [(1, &one), (2, &two)] {
                let timed = Timed::new(name, Ours::new(bounce, both()?, how)?, options);
                candidates.push(timed.ours().threads(threads).boxed());
            }
            pairs.push((one, two));
        }
        if bounce == Bounce::Never {
            let [one, two] = [1, 2].map(|threads| threads_name(TREES, threads));
            for (threads, name) in [(1, &one), (2, &two)] {
                let timed = Timed::new(name, Locked::new(Trees::new(), both()?, false), options);
                candidates.push(timed.threads(threads).boxed());
            }
            pairs.push((one, two));
        }
        let measured = session.run(case, candidates);
        let against: Vec<Against<'_>> = pairs
            .iter()
            .map(|(one, two)| Against { metric: TRANSFER_RATE, baseline: one, only: Some(two) })
            .collect();
        session.publish(measured.rows(session.bench(), &against))?;
    }
    Ok(())
}

fn threads_name(of: &str, threads: usize) -> String {
    format!("{of}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}
