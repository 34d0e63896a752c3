//! The cost of unmapping, by the state of the other sessions.
#![expect(unsafe_code, reason = "unmaps what it mapped by the raw call")]

use std::time::Duration;

use anyhow::Result;
use longshore_access::Space;
use longshore_mem::Iova;
use longshore_pagetable::Prot;

use super::memory::{BASE, Memory};
use super::other::Sessions;
use super::ours;
use crate::harness::cost::Cost;
use crate::harness::metric::{BARRIERS, CYCLES, TIME_NS, WAITED};
use crate::harness::timed::{Pick, alone};
use crate::harness::{Candidate, CommonOptions, Run, Session};

const PAGE_BYTES: u64 = 4096;
/// The pages that are unmapped in one stretch, one by one or in one batch. A page that stays mapped
/// keeps their table alive, so that it is not allocated and freed each time.
const PAGES: u64 = 64;

/// The calls that unmap, and whether all pages share one grace period.
#[derive(Clone, Copy, Debug)]
struct How {
    regions: bool,
    batch: bool,
}

pub(super) fn run(options: &CommonOptions, memory: &Memory, session: &mut Session) -> Result<()> {
    for (case, regions, batch) in [
        ("unmap 4K", false, false),
        ("unmap 4K, a batch of 64", false, true),
        ("unmap 4K, regions", true, false),
        ("unmap 4K, regions, a batch of 64", true, true),
    ] {
        if !options.wants(case) {
            continue;
        }
        let how = How { regions, batch };
        let candidate = |(name, sessions): (&str, Sessions)| {
            Candidate::new(name, move || Ok(how.run(sessions, memory, options.timed())?))
                .ours()
                .needs_cores(sessions.cores())
        };
        session.compare(case, Sessions::ALL.map(candidate).into(), &[])?;
    }
    Ok(())
}

impl How {
    fn run(self, sessions: Sessions, memory: &Memory, time: Duration) -> Result<Run> {
        let space = Space::new()?;
        let region = ours::region(memory)?;
        space.attach(&region)?;
        // Stays mapped, for the other sessions and to keep the table.
        let kept = PAGES * PAGE_BYTES;
        ours::map_raw(&space, memory, kept, kept, PAGE_BYTES)?;
        let others = sessions.start(&space, Iova::new(BASE + kept))?;
        let iovas = || (0..PAGES).map(|page| Iova::new(BASE + page * PAGE_BYTES));
        let before = space.counters();
        let mut stretches = 0;
        let timing = alone(time, Pick::Best, PAGES as usize, |drive| {
            drive(&mut |meter| {
                for page in (0..PAGES).map(|page| page * PAGE_BYTES) {
                    if self.regions {
                        let iova = Iova::new(BASE + page);
                        space.map(iova, &region, page, PAGE_BYTES, Prot::READ_WRITE)?;
                    } else {
                        ours::map_raw(&space, memory, page, page, PAGE_BYTES)?;
                    }
                }
                stretches += 1;
                meter.time(|| self.unmap(&space, iovas()))
            })
        })?;
        let after = space.counters();
        drop(others);
        let calls = if self.batch { stretches } else { stretches * PAGES };
        let per_call = |count: u64| count as f64 / calls as f64;
        let sample = vec![
            (TIME_NS, timing.each.ns),
            (CYCLES, timing.each.ticks),
            (BARRIERS, per_call(after.barriers - before.barriers)),
            (WAITED, per_call(after.waited - before.waited)),
        ];
        Ok(Run { sample, cost: Some(Cost::of_stretch(timing.cpu_seconds)), note: None })
    }

    fn unmap(self, space: &Space, mut iovas: impl Iterator<Item = Iova>) -> Result<()> {
        if self.batch {
            let mut batch = space.batch();
            iovas.try_for_each(|iova| {
                if self.regions {
                    batch.unmap(iova, PAGE_BYTES)
                } else {
                    // SAFETY: the raw call mapped it before, and no other thread maps here; the memory
                    // outlives the space.
                    unsafe { batch.unmap_raw(iova, PAGE_BYTES) }
                }
            })?;
            return Ok(batch.finish()?);
        }
        iovas.try_for_each(|iova| {
            if self.regions {
                space.unmap(iova, PAGE_BYTES)
            } else {
                // SAFETY: the raw call mapped it before, and no other thread maps here.
                unsafe { space.unmap_raw(iova, PAGE_BYTES) }
            }
        })?;
        Ok(())
    }
}
