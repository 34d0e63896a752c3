//! Candidates: the same loop over the tables of each library.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::layout::Layout;
use super::tables::Tables;
use crate::harness::cost::Cost;
use crate::harness::metric::TIME_NS;
use crate::harness::timed::{Meter, Pick, alone};
use crate::harness::{Candidate, CommonOptions, Run, Sample};

/// The operations that are timed.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// Maps each piece. With `fresh` no table exists yet, otherwise all of them do.
    Map { fresh: bool },
    /// Unmaps each stretch; the invalidation and the freeing of tables are not timed.
    Unmap,
    /// Unmaps each stretch page by page.
    UnmapByPage,
    /// Unmaps each stretch, with a no-op invalidation and the freeing of its tables.
    UnmapAndFinish,
    /// Looks up each address.
    LookUp(Vec<u64>),
    /// Scans each stretch for dirty pages; there are none.
    ScanDirty,
}

impl Work {
    /// Returns `true` if the work does not change the tables.
    fn only_reads(&self) -> bool {
        matches!(self, Self::LookUp(_) | Self::ScanDirty)
    }
}

/// Makes a candidate of `work` on `tables`; `counted` are the counts of the same work.
pub(super) fn candidate<T: Tables + 'static>(
    name: impl Into<String>,
    mut tables: T,
    (layout, work): (&Layout, &Work),
    options: &CommonOptions,
    counted: Sample,
) -> Candidate<'static> {
    let (layout, work, time) = (layout.clone(), work.clone(), timed(options));
    Candidate::new(name, move || {
        if work.only_reads() {
            map_all(&mut tables, &layout);
            check_lookups(&tables, &layout)?;
        }
        let count = match &work {
            Work::LookUp(addresses) => addresses.len(),
            Work::Map { .. } => layout.pieces.len(),
            _ => layout.stretches.len(),
        };
        let timing = alone(time, Pick::Best, count, |drive| {
            drive(&mut |meter| {
                once(&mut tables, &layout, &work, meter);
                Ok(())
            })
        })?;
        if work.only_reads() {
            tables.reset(&layout.pieces);
        }
        let mut sample = vec![(TIME_NS, timing.each.ns)];
        sample.extend(&counted);
        Ok(Run { sample, cost: Some(Cost::of_stretch(timing.cpu_seconds)), note: None })
    })
}

/// Returns twice the time of the other benches, because some stretches take milliseconds.
fn timed(options: &CommonOptions) -> Duration {
    options.timed() * 2
}

fn map_all<T: Tables>(tables: &mut T, layout: &Layout) {
    for piece in &layout.pieces {
        tables.map(piece);
    }
}

/// Checks that the library maps the right addresses.
fn check_lookups<T: Tables>(tables: &T, layout: &Layout) -> Result<()> {
    for piece in &layout.pieces {
        for offset in [8, piece.len_bytes - 8] {
            let found = tables.lookup(piece.iova + offset);
            ensure!(found == piece.bus + offset, "{:#x} leads to {found:#x}", piece.iova + offset);
        }
    }
    Ok(())
}

/// Does the work once from its initial state, and restores that state.
fn once<T: Tables>(tables: &mut T, layout: &Layout, work: &Work, meter: &mut Meter) {
    if !work.only_reads() && !matches!(work, Work::Map { .. }) {
        map_all(tables, layout);
    }
    meter.time(|| {
        match work {
            Work::Map { .. } => map_all(tables, layout),
            Work::Unmap => layout.stretches.iter().for_each(|stretch| tables.unmap(stretch)),
            Work::UnmapByPage => {
                for piece in &layout.pieces {
                    let page_bytes = 1 << piece.page_log2;
                    let mut page = piece.stretch();
                    page.len_bytes = page_bytes;
                    for _ in 0..piece.len_bytes >> piece.page_log2 {
                        tables.unmap(&page);
                        page.iova += page_bytes;
                    }
                }
            }
            Work::UnmapAndFinish => {
                for stretch in &layout.stretches {
                    tables.unmap(stretch);
                    tables.settle();
                }
            }
            Work::LookUp(addresses) => {
                let sum = |sum: u64, address| sum.wrapping_add(tables.lookup(address));
                black_box(addresses.iter().copied().fold(0u64, sum));
            }
            Work::ScanDirty => {
                for stretch in &layout.stretches {
                    assert_eq!(tables.count_dirty(stretch), 0, "nothing was written");
                }
            }
        }
        // Include the stores that are still in the core's buffers: without this fence, the clock could
        // be read before they are done.
        fence(Ordering::SeqCst);
    });
    match work {
        Work::Map { fresh: true } => tables.reset(&layout.pieces),
        Work::Map { fresh: false } => {
            layout.pieces.iter().for_each(|piece| tables.unmap(&piece.stretch()));
            tables.settle();
        }
        Work::Unmap | Work::UnmapByPage => tables.settle(),
        Work::UnmapAndFinish | Work::LookUp(_) | Work::ScanDirty => {}
    }
}
