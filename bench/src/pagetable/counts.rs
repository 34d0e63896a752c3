//! Counts that do not depend on the machine: lines, fences, invalidations and tables of a unit of work.

use std::cell::Cell;
use std::convert::Infallible;

use longshore_mem::{BusAddr, Iova};
use longshore_pagetable::cache_sync::{CacheSync, Counting};
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Check, Invalidate, PageTable, Prot, TlbGather};

use super::layout::{Layout, Stretch};
use super::timed::Work;
use crate::harness::Sample;
use crate::harness::metric::{FENCES, INVALIDATIONS, LINES_CLEANED, TABLES};

/// A non-coherent walker for which cleaning does nothing.
#[derive(Clone, Copy, Debug)]
struct NoSnoop;

impl CacheSync for NoSnoop {
    const COHERENT: bool = false;

    fn clean(&self, _entries: &[std::sync::atomic::AtomicU64]) {}

    fn fence(&self) {}
}

#[derive(Default)]
struct Flushes(Cell<u64>);

impl Invalidate for Flushes {
    type Error = Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Infallible> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
}

/// Counts the work on the first piece or stretch of `layout`. The counts are exact, and the same on
/// every machine.
pub(super) fn of<F: Format>(format: F, check: Check, layout: &Layout, work: &Work) -> Sample {
    if matches!(work, Work::UnmapByPage | Work::LookUp(_) | Work::ScanDirty) {
        return Sample::new();
    }
    let memory = HostPages::new();
    let sync = Counting::new(NoSnoop);
    let table = PageTable::new(format, &memory, &sync).expect("there is memory").with_check(check);
    let flushes = Flushes::default();
    let map = |at: usize| {
        let piece = &layout.pieces[at];
        let (iova, bus) = (Iova::new(piece.iova), BusAddr::new(piece.bus));
        table.map(iova, bus, piece.len_bytes, Prot::READ_WRITE).expect("there is memory");
    };
    let unmap = |stretch: &Stretch| {
        let mut gather = TlbGather::new();
        table
            .unmap(Iova::new(stretch.iova), stretch.len_bytes, &mut gather)
            .expect("what was mapped can be unmapped");
        let Ok(()) = table.finish(gather, &flushes);
    };
    let before;
    if let Work::Map { fresh } = work {
        if !fresh {
            map(0);
            unmap(&layout.pieces[0].stretch());
        }
        before = memory.used();
        sync.take();
        flushes.0.take();
        map(0);
    } else {
        (0..layout.pieces.len()).for_each(map);
        before = memory.used();
        sync.take();
        unmap(&layout.stretches[0]);
    }
    let counts = sync.take();
    let mut sample = vec![(LINES_CLEANED, counts.lines as f64), (FENCES, counts.fences as f64)];
    if !matches!(work, Work::Map { .. }) {
        sample.push((INVALIDATIONS, flushes.0.get() as f64));
    }
    sample.push((TABLES, memory.used().abs_diff(before) as f64));
    sample
}
