//! Memory that runs out, and memory that must not be allocated or reused.

use std::cell::Cell;

use longshore_pagetable::cache_sync::{CacheSync, Coherent};
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{
    HostPages, SimulatedDram, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{Error, Invalidate, PageTable, TlbGather};

use crate::read_write;
use crate::setup::*;

/// Returns the content of a table as text.
fn content<F: Format, M: TableMemory, S: CacheSync>(table: &PageTable<F, M, S>) -> String {
    table.dump().to_string()
}

/// Returns a range that needs tables on both sides of a boundary of every level.
fn awkward(format: &impl Format) -> (u64, u64) {
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let middle = geometry.last_va() / 2 + 1;
    (middle - 3 * granule, 6 * granule)
}

pub(crate) fn out_of_memory<F: Format>(format: F) {
    let prot = read_write(&format);
    let granule = 1u64 << format.geometry().granule_log2();
    let (va, len) = awkward(&format);
    let memory = SimulatedDram::new(16 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let (low, high) = halves(&format, va, len);
    // A mapping beside the range, which must stay as it is.
    table.map(at(&format, 0), bus(0), 2 * granule, prot).unwrap();
    let before = content(&table);
    let mut failures = 0;
    for budget in 0.. {
        memory.set_budget(budget);
        let used = memory.used();
        let tried = map_both(&table, low, high, prot);
        memory.set_budget(u64::MAX);
        if tried.is_ok() {
            break;
        }
        assert_eq!(tried, Err(Error::OutOfMemory));
        assert_eq!(memory.used(), used, "{}: a table is lost", F::NAME);
        assert_eq!(content(&table), before, "{}: after {budget} tables", F::NAME);
        failures += 1;
    }
    assert!(failures > 0 || format.geometry().levels() == 1);
    assert_eq!(mappings(&table).iter().map(|m| 1 << m.page_log2).sum::<u64>(), len + 2 * granule);
    drop(table);
    assert_eq!(memory.used(), 0);
}

type Part = (longshore_mem::Iova, u64);

/// Returns the two parts of a range that the middle of the window divides. The halves of a signed
/// window are not adjacent, so the parts must be mapped separately there.
fn halves(format: &impl Format, va: u64, len: u64) -> (Part, Option<Part>) {
    if format.geometry().contains(at(format, va), len) {
        return ((at(format, va), len), None);
    }
    ((at(format, va), len / 2), Some((at(format, va + len / 2), len / 2)))
}

fn map_both<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    low: Part,
    high: Option<Part>,
    prot: longshore_pagetable::Prot,
) -> Result<(), Error> {
    table.map(low.0, bus(0), low.1, prot)?;
    let Some(high) = high else { return Ok(()) };
    let done = table.map(high.0, bus(0), high.1, prot);
    if done.is_err() {
        // Unmaps it and detaches the empty tables, as a single range would have been rolled back.
        let mut gather = TlbGather::new();
        table.unmap(low.0, low.1, &mut gather).unwrap();
        let half = 1u64 << (table.format().geometry().input_bits() - 1);
        table.reclaim(at(table.format(), 0), half, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
    }
    done
}

/// A memory that panics if a table is allocated while unmapping, or freed before the flush, and
/// that counts frees.
struct Watched {
    inner: HostPages,
    unmapping: Cell<bool>,
    freed: Cell<u64>,
}

impl TableMemory for Watched {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        assert!(!self.unmapping.get(), "a table is allocated while unmapping");
        self.inner.alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        assert!(!self.unmapping.get(), "a table is freed before the flush");
        self.freed.set(self.freed.get() + 1);
        self.inner.free(table, size_log2);
    }

    fn entries(&self, table: TableAddr) -> &[std::sync::atomic::AtomicU64] {
        self.inner.entries(table)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        self.inner.meta(table)
    }
}

/// Allows freeing when it is called, and then succeeds or fails.
struct FlushOf<'a>(&'a Watched, bool);

impl Invalidate for FlushOf<'_> {
    type Error = ();

    fn flush(&self, gather: &TlbGather) -> Result<(), ()> {
        assert!(gather.touched().is_some());
        assert!(self.0.unmapping.replace(false));
        if self.1 { Ok(()) } else { Err(()) }
    }
}

pub(crate) fn no_reuse<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let page = longshore_mem::Granule::new(granule).unwrap();
    if geometry.levels() < 2 {
        return;
    }
    let size = 1u64 << geometry.shift(1);
    let inner = HostPages::new();
    let memory = Watched { inner, unmapping: Cell::new(false), freed: Cell::new(0) };
    let table = PageTable::new(format, &memory, Coherent).unwrap();
    let count = 2 * size / granule;
    for flushes in [true, false] {
        let used = memory.inner.used();
        table.map_pages(at(&format, 0), bus(0), page, count, prot).unwrap();
        memory.unmapping.set(true);
        memory.freed.set(0);
        let mut gather = TlbGather::new();
        table.unmap(at(&format, 0), 2 * size, &mut gather).unwrap();
        assert!(gather.has_tables());
        // A map before the flush: it must not get any of these tables.
        memory.unmapping.set(false);
        let other = at(&format, geometry.last_va() / 2 + 1);
        table.map(other, bus(0), granule, prot).unwrap();
        assert_eq!(memory.freed.get(), 0);
        memory.unmapping.set(true);
        let held = memory.inner.used();
        assert!(held >= used + 2);
        assert_eq!(table.finish(gather, &FlushOf(&memory, flushes)).is_ok(), flushes);
        assert_eq!(memory.freed.get(), if flushes { held - memory.inner.used() } else { 0 });
        assert_eq!(memory.inner.used() < held, flushes);
        unmap(&table, other, granule).unwrap();
    }
}
