//! What unmapping costs, by what the sessions are doing meanwhile.
#![expect(unsafe_code, reason = "unmaps what it mapped by the raw door")]

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use longshore_access::{Region, Space};
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::cases::{Candidates, effort};
use super::counter::Span;
use super::memory::{BASE, Memory};
use super::other::Other;
use super::ours;
use super::timed::Effort;
use crate::harness::metric::{BARRIERS, CYCLES, TIME_NS, WAITED};
use crate::harness::{Candidate, CommonOptions, Sample, Session, Trouble};

const PAGE_BYTES: u64 = 4096;
/// Pages that are unmapped in one stretch, each by itself or all as one batch. They have no table of
/// their own, which would come and go with them.
const PAGES: u64 = 64;
/// Parked sessions, where all are.
const PARKED: usize = 4;

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    let cases = [
        ("unmap 4K", How::EachRaw),
        ("unmap 4K, a batch of 64", How::BatchRaw),
        ("unmap 4K, regions", How::EachRegion),
        ("unmap 4K, regions, a batch of 64", How::BatchRegion),
    ];
    for (case, how) in cases {
        if !options.wants(case) {
            continue;
        }
        let mut candidates = Candidates::new();
        for (name, others) in [
            ("no session", Others::None),
            ("all parked", Others::Parked),
            ("idle, unparked", Others::Idle),
            ("one busy", Others::Busy),
        ] {
            let name = name.to_owned();
            candidates.push(Box::new(Unmap { name, how, others, memory, effort: effort(options) }));
        }
        let measured = session.run(case, candidates);
        session.publish(measured.rows(session.bench(), &[]))?;
    }
    Ok(())
}

/// By which door, and whether each page has a grace period of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    EachRaw,
    BatchRaw,
    EachRegion,
    BatchRegion,
}

/// What sessions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    None,
    Parked,
    /// One that has made an access, and whose thread sleeps.
    Idle,
    /// One whose thread makes accesses without a pause.
    Busy,
}

struct Unmap<'m> {
    name: String,
    how: How,
    others: Others,
    memory: &'m Memory,
    effort: Effort,
}

impl Unmap<'_> {
    fn run(&self) -> Result<Sample> {
        let space = Space::new()?;
        let region = ours::region(self.memory)?;
        space.attach(&region)?;
        // Stays mapped: for the other sessions, and for the table.
        let kept = PAGES * PAGE_BYTES;
        ours::map_raw(&space, self.memory, kept, kept, PAGE_BYTES)?;
        let busy = matches!(self.others, Others::Busy);
        let other = match self.others {
            Others::Idle | Others::Busy => Some(Other::start(&space, BASE + kept, busy)?),
            Others::None | Others::Parked => None,
        };
        let parked = if self.others == Others::Parked { PARKED } else { 0 };
        let parked: Vec<_> = (0..parked).map(|_| space.session()).collect();
        for session in &parked {
            session.read_obj::<u64>(Iova::new(BASE + kept))?;
            session.park();
        }
        self.once(&space, &region)?;
        let before = space.counters();
        let until = Instant::now() + self.effort.time;
        let mut best = self.once(&space, &region)?;
        let mut turns = 1;
        while Instant::now() < until {
            best = best.best(self.once(&space, &region)?);
            turns += 1;
        }
        let after = space.counters();
        let calls = match self.how {
            How::EachRaw | How::EachRegion => turns * PAGES,
            How::BatchRaw | How::BatchRegion => turns,
        };
        drop(parked);
        drop(other);
        let each = best.each(PAGES as usize);
        let per_call = |count: u64| count as f64 / calls as f64;
        Ok(vec![
            (TIME_NS, each.ns),
            (CYCLES, each.ticks),
            (BARRIERS, per_call(after.barriers - before.barriers)),
            (WAITED, per_call(after.waited - before.waited)),
        ])
    }

    /// Maps the pages, which is not timed, and unmaps them.
    fn once(&self, space: &Space, region: &Arc<Region>) -> Result<Span> {
        let pages = || (0..PAGES).map(|page| page * PAGE_BYTES);
        for page in pages() {
            match self.how {
                How::EachRaw | How::BatchRaw => {
                    ours::map_raw(space, self.memory, page, page, PAGE_BYTES)?;
                }
                How::EachRegion | How::BatchRegion => {
                    let iova = Iova::new(BASE + page);
                    space.map(iova, region, page, PAGE_BYTES, Prot::READ_WRITE)?;
                }
            }
        }
        let iovas = || pages().map(|page| Iova::new(BASE + page));
        let mut done = Ok(());
        let span = Span::of(|| {
            done = match self.how {
                How::EachRaw => iovas().try_for_each(|iova| {
                    // SAFETY: mapped above by the raw door, and nobody else maps here.
                    unsafe { space.unmap_raw(iova, PAGE_BYTES) }
                }),
                How::EachRegion => iovas().try_for_each(|iova| space.unmap(iova, PAGE_BYTES)),
                How::BatchRaw => {
                    let mut batch = space.batch();
                    let unmapped = iovas().try_for_each(|iova| {
                        // SAFETY: mapped above by the raw door, and nobody else maps here; the memory
                        // outlives the space.
                        unsafe { batch.unmap_raw(iova, PAGE_BYTES) }
                    });
                    unmapped.and_then(|()| batch.finish())
                }
                How::BatchRegion => {
                    let mut batch = space.batch();
                    let unmapped = iovas().try_for_each(|iova| batch.unmap(iova, PAGE_BYTES));
                    unmapped.and_then(|()| batch.finish())
                }
            };
        });
        done?;
        Ok(span)
    }
}

impl Candidate for Unmap<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measure(&mut self) -> Result<Sample, Trouble> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        if self.others == Others::Busy && cores < 2 {
            return Err(Trouble::NotRun("the machine has one core".to_owned()));
        }
        Ok(self.run()?)
    }

    fn is_ours(&self) -> bool {
        true
    }
}
