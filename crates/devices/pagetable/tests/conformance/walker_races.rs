//! Walkers that set dirty bits while entries change, tables that another thread links while a
//! walker of DRAM reads, and memory that runs out on the way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{
    HostPages, SimulatedDram, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{Error, PageTable, Prot, TlbGather, Walker};

use crate::setup::*;
use crate::together::{Meet, Says};

const RW: Prot = Prot::READ_WRITE;
const MIB: u64 = 1 << 20;
/// The number of rounds of a race. Each takes microseconds, so most of them overlap.
const ROUNDS: u64 = if cfg!(miri) { 4 } else { 300 };

/// Each time that a page becomes dirty it is reported once, however reading and writing overlap.
#[test]
fn no_write_is_lost_or_reported_twice_while_dirty_bits_are_read() {
    fn check<F: Format>(format: F) {
        const PAGES: usize = 24;
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        // Not aligned to the target, so that each page is a leaf.
        table.map(Iova::new(0), bus(0x1000), PAGES as u64 * 4096, RW).unwrap();
        let marked: [AtomicU64; PAGES] = std::array::from_fn(|_| AtomicU64::new(0));
        let mut told = [0; PAGES];
        let done = AtomicBool::new(false);
        let read = |told: &mut [u64; PAGES]| {
            let mut gather = TlbGather::new();
            let note = |range: AddrRange<Iova>| told[range.start().raw() as usize >> 12] += 1;
            table.read_dirty(Iova::new(0), PAGES as u64 * 4096, true, &mut gather, note).unwrap();
            let Ok(()) = table.finish(gather, &NoTlb);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _says = Says(&done);
                for round in 0..ROUNDS * 8 {
                    let page = (round * 7) as usize % PAGES;
                    if mark(&table, Iova::new((page as u64) << 12)).is_some() {
                        marked[page].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            while !done.load(Ordering::Acquire) {
                read(&mut told);
            }
        });
        read(&mut told);
        let marked: Vec<u64> = marked.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(told.as_slice(), marked, "{}", F::NAME);
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(x86_64_tracking());
}

/// If a block is written while it is split, its pages are dirty.
#[test]
fn a_block_written_while_it_is_split_makes_dirty_pages() {
    fn check<F: Format>(format: F) {
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        for _ in 0..ROUNDS.min(60) {
            table.map(Iova::new(0), bus(0), 2 * MIB, RW).unwrap();
            let together = Meet::new(2);
            let mut gather = TlbGather::new();
            let marked = std::thread::scope(|scope| {
                let walker = scope.spawn(|| {
                    let _member = together.join();
                    together.wait();
                    mark(&table, Iova::new(0x5000))
                });
                let _member = together.join();
                together.wait();
                table.split(Iova::new(0), 0x1000, &mut gather).unwrap();
                walker.join().unwrap()
            });
            let Ok(()) = table.finish(gather, &NoTlb);
            let dirty = mappings(&table).iter().filter(|page| page.dirty).count();
            let expected = match marked {
                Some(21) => 512,
                Some(_) => 1,
                None => 0,
            };
            assert_eq!(dirty, expected, "{}", F::NAME);
            unmap(&table, Iova::new(0), 2 * MIB).unwrap();
        }
    }
    check(stage1_tracking());
    check(vtd_second_tracking());
    check(riscv_tracking());
}

/// A page written while it is made read-only stays dirty or is reported.
#[test]
fn a_page_written_while_it_is_made_read_only_is_seen_as_dirty() {
    fn check<F: Format>(format: F) {
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        for _ in 0..ROUNDS.min(100) {
            table.map(Iova::new(0x1000), bus(0), 0x1000, RW).unwrap();
            let together = Meet::new(2);
            let (mut gather, mut told) = (TlbGather::new(), 0);
            let marked = std::thread::scope(|scope| {
                let walker = scope.spawn(|| {
                    let _member = together.join();
                    together.wait();
                    mark(&table, Iova::new(0x1000)).is_some()
                });
                let _member = together.join();
                together.wait();
                let (iova, note) = (Iova::new(0x1000), |_| told += 1);
                table.set_prot_dirty(iova, 0x1000, Prot::READ, &mut gather, note).unwrap();
                walker.join().unwrap()
            });
            let Ok(()) = table.finish(gather, &NoTlb);
            let page = table.lookup(Iova::new(0x1000)).unwrap().unwrap();
            assert!(!page.prot.contains(Prot::WRITE));
            assert_eq!(u32::from(page.dirty) + told, u32::from(marked), "{}", F::NAME);
            unmap(&table, Iova::new(0x1000), 0x1000).unwrap();
        }
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(amd_v1_tracking());
}

/// Lets another thread map when a table is first allocated, so that the new subtree finds its slot
/// in use when it is linked.
struct Interrupted<'a> {
    dram: &'a SimulatedDram,
    armed: AtomicBool,
    meet: Meet,
}

impl TableMemory for Interrupted<'_> {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        if self.armed.swap(false, Ordering::AcqRel) {
            self.meet.wait();
            self.meet.wait();
        }
        self.dram.alloc(size_log2)
    }

    fn free(&self, table: TableAddr, size_log2: u32) {
        self.dram.free(table, size_log2);
    }

    fn entries(&self, table: TableAddr) -> &[AtomicU64] {
        self.dram.entries(table)
    }

    fn meta(&self, table: TableAddr) -> &TableMeta {
        self.dram.meta(table)
    }
}

/// When `map` returns, the walker can see entries that were moved over to another thread's table.
#[test]
fn entries_moved_to_another_threads_table_are_cleaned() {
    let dram = SimulatedDram::new(1 << 20);
    let memory = Interrupted { dram: &dram, armed: AtomicBool::new(false), meet: Meet::new(2) };
    let format = vtd_second(48);
    let table = PageTable::new(format, &memory, &dram).unwrap();
    // In the second case the tables meet one level further up, so that a table is moved over.
    for (ours, theirs) in [(0x1000, 0x3000), (MIB, (1 << 30) - 0x1000), (4 << 39, 6 << 38)] {
        memory.armed.store(true, Ordering::Release);
        let used = dram.used();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _member = memory.meet.join();
                memory.meet.wait();
                table.map(Iova::new(theirs), bus(0x7000), 0x1000, RW).unwrap();
                memory.meet.wait();
            });
            let _member = memory.meet.join();
            table.map(Iova::new(ours), bus(0x5000), 0x2000, RW).unwrap();
        });
        dram.with_view(|view| {
            let walker = Walker::new(&format, view, table.root());
            for (iova, target) in [(ours, 0x5000), (ours + 0x1000, 0x6000), (theirs, 0x7000)] {
                let found = walker.lookup(Iova::new(iova)).unwrap();
                let found = found.map(|mapping| mapping.bus);
                assert_eq!(found, Some(bus(target)), "{iova:#x}");
            }
        });
        assert!(dram.used() > used);
        unmap(&table, Iova::new(ours), 0x2000).unwrap();
        unmap(&table, Iova::new(theirs), 0x1000).unwrap();
        let mut gather = TlbGather::new();
        table.reclaim(Iova::new(0), 1 << 48, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
        assert_eq!(dram.used(), 1);
    }
}

#[test]
fn host_pages_stop_at_their_limit_and_reuse_freed_tables() {
    let memory = HostPages::with_limit(5 * 4096);
    let table = PageTable::new(vtd_second(48), &memory, Coherent).unwrap();
    table.map(Iova::new(0), bus(0), 0x1000, RW).unwrap();
    assert_eq!(memory.used(), 4);
    // Another table of pages is the last one.
    table.map(Iova::new(2 * MIB), bus(0), 0x1000, RW).unwrap();
    assert_eq!(memory.used(), 5);
    let full = table.map(Iova::new(4 * MIB), bus(0), 0x1000, RW);
    assert_eq!(full, Err(Error::OutOfMemory));
    assert_eq!((memory.used(), memory.alloc(12), memory.alloc(21)), (5, None, None));
    // Mappings in existing tables need no memory, and neither does a block.
    table.map(Iova::new(2 * MIB + 0x1000), bus(0), 0x1000, RW).unwrap();
    table.map(Iova::new(4 * MIB), bus(0), 2 * MIB, RW).unwrap();
    unmap(&table, Iova::new(4 * MIB), 2 * MIB).unwrap();
    let mut gather = TlbGather::new();
    table.unmap(Iova::new(2 * MIB), 0x2000, &mut gather).unwrap();
    table.reclaim(Iova::new(2 * MIB), 2 * MIB, &mut gather).unwrap();
    let again = table.map(Iova::new(4 * MIB), bus(0), 0x1000, RW);
    assert_eq!(again, Err(Error::OutOfMemory), "not before the flush");
    let Ok(()) = table.finish(gather, &NoTlb);
    table.map(Iova::new(4 * MIB), bus(0), 0x1000, RW).unwrap();
    assert_eq!(memory.used(), 5);
    drop(table);
    assert_eq!(memory.used(), 0);
}
