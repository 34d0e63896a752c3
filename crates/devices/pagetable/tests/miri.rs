//! The crate's unsafe code under Miri, in tables so small that it takes half a minute:
//!
//! ```text
//! MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-tree-borrows-no-precise-interior-mut'
//! cargo +nightly miri test --package longshore-pagetable --test miri
//! ```
//!
//! Without the last flag Miri checks each slice of a memory's entries entry by entry whenever it is
//! passed on, because all entries are atomics. That takes far longer and finds nothing more.
//!
//! These tests check that memory is used as Rust allows; the conformance suite checks the content
//! of tables. They also run without Miri.

#![cfg(not(loom))]

#[allow(dead_code, reason = "the conformance suite uses the rest")]
#[path = "conformance/setup.rs"]
mod setup;

use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, thread};

use longshore_mem::{AddrRange, BusAddr, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{
    DirtyTest, Entry, Fields, Format, Geometry, LEVELS_MAX, LeafEntry, Shape,
};
use longshore_pagetable::table_memory::{
    HostPages, SimulatedDram, Slab, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{Check, Error, PageTable, Prot, TlbGather, Walker};

use setup::*;

const RW: Prot = Prot::READ_WRITE;
/// The walker's address of slabs, aligned to every table that is used here.
const BASE: TableAddr = TableAddr::new(1 << 30);

const PRESENT: u64 = 1 << 0;
const TABLE: u64 = 1 << 1;
const DIRTY: u64 = 1 << 2;
const WRITE: u64 = 1 << 3;
const RUN: u64 = 1 << 4;
const RUN_LOG2: u32 = 2;

/// Tables of sixteen entries in three levels, with pages of 4 KiB, blocks, and runs of four pages.
/// They are small because Miri takes time for each entry.
#[derive(Clone, Copy, Debug)]
struct Small(Geometry);

impl Small {
    fn new() -> Self {
        Self(Geometry::new(Shape::new(12, 3, 24, 40).with_index_log2(4).with_runs([
            1 | 1 << RUN_LOG2,
            1,
            0,
            0,
            0,
            0,
        ])))
    }
}

impl Format for Small {
    const NAME: &'static str = "small";
    const RUNS_REPEAT: bool = false;
    const READ_ONLY_KEEPS_DIRTY: bool = true;
    const LEVEL_NAMES: [&'static str; LEVELS_MAX] = ["page", "middle", "root", "", "", ""];

    fn geometry(&self) -> &Geometry {
        &self.0
    }

    fn present_mask(&self) -> u64 {
        PRESENT
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        let address = entry & !0xfff;
        if entry & PRESENT == 0 {
            return Entry::Absent;
        }
        if entry & TABLE != 0 {
            return Entry::Table(TableAddr::new(address));
        }
        let run_log2 = if level == 0 && entry & RUN != 0 { RUN_LOG2 } else { 0 };
        Entry::Leaf(LeafEntry { bus: bus(address), run_log2 })
    }

    fn attributes(&self, prot: Prot) -> Option<u64> {
        Some(if prot.contains(Prot::WRITE) { WRITE } else { 0 })
    }

    fn prot(&self, leaf: u64) -> Prot {
        if leaf & WRITE != 0 { RW } else { Prot::READ }
    }

    fn attributes_of(&self, leaf: u64) -> u64 {
        leaf & (DIRTY | WRITE)
    }

    fn leaf(&self, _level: u32, run_log2: u32, bus: BusAddr, attributes: u64) -> u64 {
        bus.raw() | PRESENT | attributes | if run_log2 > 0 { RUN } else { 0 }
    }

    fn table(&self, _level: u32, table: TableAddr) -> u64 {
        table.raw() | PRESENT | TABLE
    }

    fn dirty_test(&self) -> Option<DirtyTest> {
        Some(DirtyTest { mask: PRESENT | DIRTY, value: PRESENT | DIRTY })
    }

    fn with_dirty(&self, leaf: u64, dirty: bool) -> u64 {
        leaf & !DIRTY | if dirty { DIRTY } else { 0 }
    }

    fn fields(&self, _level: u32, _entry: u64) -> Fields {
        &[]
    }

    fn needs_break_before_make(&self) -> bool {
        false
    }
}

/// Returns a region of `units` times 4 KiB.
fn region(units: usize) -> (Vec<AtomicU64>, Vec<TableMeta>) {
    let entries = iter::repeat_with(AtomicU64::default).take(units * 512).collect();
    (entries, iter::repeat_with(TableMeta::new).take(units).collect())
}

/// Calls every operation of a table, on both sides of a boundary of two tables of pages.
fn everything(memory: impl TableMemory) {
    const PAGE: u64 = 1 << 12;
    const MEET: u64 = 16 * PAGE;
    let table = PageTable::new(Small::new(), memory, Coherent).unwrap();
    // Pages, a run and a block. The pages are not aligned to the target, so that each is a leaf.
    table.map(Iova::new(MEET - 3 * PAGE), bus(0x10_0000), 5 * PAGE, RW).unwrap();
    table.map(Iova::new(2 * MEET), bus(2 * MEET), MEET, RW).unwrap();
    table.map(Iova::new(3 * MEET), bus(3 * MEET), 4 * PAGE, RW).unwrap();
    let sizes: Vec<u32> = mappings(&table).iter().map(|leaf| leaf.page_log2).collect();
    assert_eq!(sizes, [12, 12, 12, 12, 12, 16, 14]);
    for page in 0..5 {
        assert_eq!(leads(&table, MEET + page * PAGE - 3 * PAGE), Some(0x10_0000 + page * PAGE));
    }
    let taken = table.map(Iova::new(2 * MEET), bus(0), PAGE, RW);
    assert_eq!(taken, Err(Error::Exists { at: Iova::new(2 * MEET) }));
    let mut gather = TlbGather::new();
    table.set_prot(Iova::new(MEET), PAGE, Prot::READ, &mut gather).unwrap();
    for (iova, log2) in [(MEET - PAGE, 12), (MEET + PAGE, 12), (2 * MEET, 16), (3 * MEET, 14)] {
        assert_eq!(mark(&table, Iova::new(iova)), Some(log2));
    }
    let mut told = Vec::new();
    let note = |range: AddrRange<Iova>| told.push(range.start().raw());
    table.read_dirty(Iova::new(MEET - PAGE), MEET + 2 * PAGE, true, &mut gather, note).unwrap();
    assert_eq!(told, [MEET - PAGE, MEET + PAGE, 2 * MEET]);
    for last in [3 * MEET - PAGE, 3 * MEET + 3 * PAGE] {
        table.split(Iova::new(last), PAGE, &mut gather).unwrap();
        assert_eq!(leads(&table, last), Some(last));
    }
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(mappings(&table).len(), 5 + 16 + 4);
    assert!(table.dump().to_string().lines().count() > 1);
    let mut gather = TlbGather::new();
    let mut told = 0;
    let count = |_| told += 1;
    table.unmap_dirty(Iova::new(2 * MEET), MEET + 4 * PAGE, &mut gather, count).unwrap();
    assert_eq!(told, 4);
    table.unmap(Iova::new(MEET - 3 * PAGE), 5 * PAGE, &mut gather).unwrap();
    assert!(gather.has_tables());
    table.reclaim(Iova::new(0), 16 * MEET, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!((mappings(&table).len(), reachable(&table)), (0, 1));
}

#[test]
fn everything_in_a_slab() {
    let (entries, metas) = region(8);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    everything(&slab);
    assert_eq!(slab.used(), 0);
}

#[test]
fn everything_in_host_pages() {
    let memory = HostPages::new();
    everything(&memory);
    assert_eq!(memory.used(), 0);
}

#[test]
fn simulated_dram() {
    let memory = SimulatedDram::new(4 << 12);
    let table = PageTable::new(vtd_second(36), &memory, &memory).unwrap();
    table.map(Iova::new(0x1000), bus(0x3000), 0x2000, RW).unwrap();
    let seen = memory.with_view(|view| {
        Walker::new(table.format(), view, table.root()).lookup(Iova::new(0x2000)).unwrap()
    });
    assert_eq!(seen, table.lookup(Iova::new(0x2000)).unwrap());
    assert_eq!(seen.unwrap().bus, bus(0x4000));
    unmap(&table, Iova::new(0x1000), 0x2000).unwrap();
    drop(table);
    assert_eq!(memory.used(), 0);
}

/// Maps the last two pages of the input range of a real format, where no entry follows the last
/// one.
fn two_pages<F: Format>(format: F) {
    let memory = HostPages::new();
    let table = PageTable::new(format, &memory, Coherent).unwrap();
    let granule = 1u64 << format.geometry().granule_log2();
    let first = format.geometry().last_va() - (2 * granule - 1);
    table.map(at(&format, first), bus(3 * granule), 2 * granule, RW).unwrap();
    for page in 0..2 {
        assert_eq!(leads(&table, first + page * granule), Some((page + 3) * granule));
    }
    unmap(&table, at(&format, first), 2 * granule).unwrap();
    assert_eq!(leads(&table, first), None, "{}", F::NAME);
}

#[test]
fn arm() {
    two_pages(stage1_upper(12, 39));
    two_pages(stage2(12, 32, 40));
    two_pages(stage1(14, 36, 40));
}

#[test]
fn vtd_and_x86() {
    two_pages(vtd_second(48));
    two_pages(vtd_first(false));
    two_pages(x86_64(false));
}

#[test]
fn amd_and_risc_v() {
    two_pages(amd_v1(3));
    two_pages(riscv(39));
}

/// Memory runs out at each table in turn.
#[test]
fn out_of_memory() {
    let (entries, metas) = region(5);
    for units in 0..6 {
        let slab = Slab::new(&entries[..units * 512], &metas, BASE).unwrap();
        let Ok(table) = PageTable::new(Small::new(), &slab, Coherent) else {
            assert_eq!(units, 0);
            continue;
        };
        let done = table.map(Iova::new((1 << 20) - 0x1000), bus(0), 0x2000, RW);
        assert_eq!(done.is_ok(), units == 5, "{done:?}");
        assert_eq!(slab.used(), if done.is_ok() { 5 } else { 1 });
        drop(table);
        assert_eq!(slab.used(), 0);
    }
}

/// Addresses in entries, outside the memory and at its end, are checked against the memory.
#[test]
fn entries_lead_anywhere() {
    fn check(memory: &impl TableMemory, base: u64, size: u64) {
        let table = PageTable::new(Small::new(), memory, Coherent).unwrap();
        let root = &memory.entries(table.root())[0];
        let last = base + size - 0x1000;
        for address in [last, last + 0x1000, base.wrapping_sub(0x1000), 0, u64::MAX - 0xfff] {
            root.store(address & !0xfff | PRESENT | TABLE, Ordering::Release);
            // Whatever the result is, only memory of tables is read.
            for va in [0, 0xf << 16 | 0xf << 12] {
                let _ = table.lookup(Iova::new(va));
            }
        }
        root.store(0, Ordering::Release);
    }
    let (entries, metas) = region(2);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    check(&slab, BASE.raw(), 2 << 12);
    check(&HostPages::with_limit(1 << 21), 0, 1 << 21);
}

/// Chunks after the first one are allocated with their first table, have their entries and
/// metadata, and are freed with the memory.
#[test]
fn further_chunks_of_host_pages() {
    if !cfg!(miri) {
        // Only under Miri the first chunk is 2 MiB.
        return;
    }
    let memory = HostPages::new();
    // The first chunk, and the second of the same size; then the third, of twice the size.
    let large = [memory.alloc(21).unwrap(), memory.alloc(21).unwrap()];
    assert!(memory.entries(TableAddr::new(large[1].raw() + (1 << 21))).is_empty());
    let table = PageTable::new(Small::new(), &memory, Coherent).unwrap();
    assert!(table.root().raw() >= 2 << 21);
    table.map(Iova::new(0), bus(0x1000), 0x1000, RW).unwrap();
    assert_eq!(leads(&table, 0), Some(0x1000));
    for address in large {
        let entries = memory.entries(address);
        entries[(1 << 18) - 1].store(7, Ordering::Relaxed);
        memory.meta(address).set_next(Some(address));
        memory.free(address, 21);
    }
    assert_eq!(memory.alloc(21), Some(large[1]));
    assert_eq!(memory.entries(large[1])[(1 << 18) - 1].load(Ordering::Relaxed), 7);
    unmap(&table, Iova::new(0), 0x1000).unwrap();
    memory.free(large[1], 21);
    drop(table);
    assert_eq!(memory.used(), 0);
}

/// Two threads need the same new chunk at once.
#[test]
fn two_threads_take_a_chunk() {
    let memory = HostPages::new();
    let large = memory.alloc(21).unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            let memory = &memory;
            scope.spawn(move || {
                let table = memory.alloc(12).unwrap();
                memory.entries(table)[511].store(1, Ordering::Relaxed);
                memory.free(table, 12);
            });
        }
    });
    memory.free(large, 21);
    assert_eq!(memory.used(), 0);
}

/// Two threads map, split and unmap neighbours, and a third looks them up.
#[test]
fn threads() {
    let (entries, metas) = region(10);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    for check in [Check::Checked, Check::Trusted] {
        let table = PageTable::new(Small::new(), &slab, Coherent).unwrap().with_check(check);
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let table = &table;
                scope.spawn(move || {
                    let first = (1 << 16) - 0x2000 + thread * 0x2000;
                    for _ in 0..2 {
                        table.map(Iova::new(first), bus(0x10_1000 + first), 0x2000, RW).unwrap();
                        assert_eq!(leads(table, first), Some(0x10_1000 + first));
                        let mut gather = TlbGather::new();
                        let iova = Iova::new(first);
                        table.set_prot(iova, 0x1000, Prot::READ, &mut gather).unwrap();
                        table.unmap(iova, 0x2000, &mut gather).unwrap();
                        let Ok(()) = table.finish(gather, &NoTlb);
                    }
                });
            }
            for _ in 0..8 {
                for va in [(1 << 16) - 0x2000, 1 << 16] {
                    let found = leads(&table, va);
                    assert!(found.is_none() || found == Some(0x10_1000 + va), "{found:?}");
                }
            }
        });
        // A block of sixteen pages.
        table.map(Iova::new(4 << 16), bus(0), 1 << 16, RW).unwrap();
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let table = &table;
                scope.spawn(move || {
                    let mut gather = TlbGather::new();
                    let iova = Iova::new((4 << 16) + (thread << 15));
                    table.split(iova, 0x1000, &mut gather).unwrap();
                    table.unmap(iova, 0x1000, &mut gather).unwrap();
                    let Ok(()) = table.finish(gather, &NoTlb);
                });
            }
        });
        assert_eq!(mappings(&table).len(), 14);
        assert_eq!(slab.used(), reachable(&table));
        drop(table);
        assert_eq!(slab.used(), 0);
    }
}
