//! Several threads that change disjoint ranges of one page table, with readers at the same time.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::{self, LocalKey};

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::{CacheSync, Coherent};
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{
    HostPages, SimulatedDram, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{PageTable, Prot, TlbGather, Walker};

use crate::setup::*;
use crate::together::{Meet, Says};

const RW: Prot = Prot::READ_WRITE;

/// Threads map neighbouring ranges that need the same tables at the same moment, look them up and
/// unmap them. A reader checks that it finds only what a thread has mapped.
fn neighbours<F: Format>(format: F, rounds: u64) {
    const THREADS: u64 = 3;
    let memory = HostPages::new();
    let table = PageTable::new(format, &memory, Coherent).unwrap();
    let (barrier, stop) = (Meet::new(THREADS as usize), AtomicBool::new(false));
    thread::scope(|scope| {
        let says = Says(&stop);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (table, barrier) = (&table, &barrier);
                scope.spawn(move || {
                    let _member = barrier.join();
                    for round in 0..rounds {
                        barrier.wait();
                        // Ranges that begin and end inside tables that the neighbours also use.
                        let base = round * (1 << 33);
                        let len = 0x40_5000;
                        let iova = Iova::new(base + thread * len);
                        table.map(iova, bus(iova.raw() + 0x1000), len, RW).unwrap();
                        for offset in (0..len).step_by(0x1000) {
                            let at = Iova::new(iova.raw() + offset);
                            let found = table.lookup(at).unwrap().unwrap();
                            assert_eq!(found.translate(at), Some(bus(at.raw() + 0x1000)));
                        }
                        if round % 2 == 0 {
                            barrier.wait();
                            let mut gather = TlbGather::new();
                            table.unmap(iova, len, &mut gather).unwrap();
                            let Ok(()) = table.finish(gather, &NoTlb);
                            assert_eq!(table.lookup(iova), Ok(None));
                        } else {
                            barrier.wait();
                        }
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut seen = 0u64;
            while !stop.load(Ordering::Relaxed) {
                for round in (1..rounds).step_by(2) {
                    let iova = Iova::new(round * (1 << 33) + 0x40_4000);
                    if let Some(found) = table.lookup(iova).unwrap() {
                        assert_eq!(found.translate(iova), Some(bus(iova.raw() + 0x1000)));
                        seen += 1;
                    }
                }
            }
            seen
        });
        for thread in threads {
            thread.join().unwrap();
        }
        drop(says);
        reader.join().unwrap();
    });
    for round in (1..rounds).step_by(2) {
        unmap(&table, Iova::new(round * (1 << 33)), THREADS * 0x40_5000).unwrap();
    }
    assert_eq!(mappings(&table), []);
    let mut gather = TlbGather::new();
    table.reclaim(Iova::new(0), 1 << 47, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(memory.used(), 1);
}

#[test]
fn neighbours_share_tables() {
    neighbours(stage1_without_runs(12, 48), 60);
    neighbours(vtd_second(48), 60);
    neighbours(amd_v1(4), 30);
}

/// A non-coherent walker finds a page when `map` returns, even if another thread linked the tables
/// on the way and has not issued its fence yet.
#[test]
fn a_walker_of_dram_finds_pages_when_map_returns() {
    let format = vtd_second(48);
    let memory = SimulatedDram::new(8 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let barrier = Meet::new(2);
    thread::scope(|scope| {
        for thread in 0..2u64 {
            let (table, barrier, memory) = (&table, &barrier, &memory);
            scope.spawn(move || {
                let _member = barrier.join();
                for round in 0..200u64 {
                    barrier.wait();
                    let iova = Iova::new((round << 30) + thread * 0x1000);
                    table.map(iova, bus(0x5000), 0x1000, RW).unwrap();
                    memory.with_view(|view| {
                        let found = Walker::new(table.format(), view, table.root()).lookup(iova);
                        assert!(found.unwrap().is_some(), "round {round}, thread {thread}");
                    });
                }
            });
        }
    });
}

/// Delays the thread that maps first, after it has linked its tables and before it cleans the link.
struct HeldUp<'a> {
    dram: &'a SimulatedDram,
    /// The number of cleans until then; negative for never.
    cleans_left: AtomicI64,
    barrier: Meet,
}

impl CacheSync for HeldUp<'_> {
    const COHERENT: bool = false;

    fn clean(&self, entries: &[AtomicU64]) {
        if self.cleans_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            // The other thread maps between these two calls.
            self.barrier.wait();
            self.barrier.wait();
        }
        self.dram.clean(entries);
    }

    fn fence(&self) {
        self.dram.fence();
    }
}

#[test]
fn a_link_that_another_thread_has_not_cleaned_yet_is_cleaned() {
    let memory = SimulatedDram::new(8 << 20);
    let barrier = Meet::new(2);
    let sync = HeldUp { dram: &memory, cleans_left: AtomicI64::new(-1), barrier };
    let table = PageTable::new(vtd_second(48), &memory, &sync).unwrap();
    // Three new tables, then the root's slot.
    sync.cleans_left.store(3, Ordering::Relaxed);
    thread::scope(|scope| {
        let (table, barrier) = (&table, &sync.barrier);
        scope.spawn(move || {
            let _member = barrier.join();
            table.map(Iova::new(0), bus(0x7000), 0x1000, RW).unwrap();
        });
        let _member = barrier.join();
        sync.barrier.wait();
        let iova = Iova::new(0x1000);
        table.map(iova, bus(0x5000), 0x1000, RW).unwrap();
        let seen = memory.with_view(|view| {
            Walker::new(table.format(), view, table.root()).lookup(iova).unwrap()
        });
        sync.barrier.wait();
        assert_eq!(seen.map(|mapping| mapping.bus), Some(bus(0x5000)));
    });
}

#[test]
fn a_memory_gives_each_table_to_one_thread() {
    let memory = HostPages::new();
    thread::scope(|scope| {
        for thread in 1..4u64 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..2000u64 {
                    let tables: Vec<_> =
                        (0..8).map(|_| memory.alloc(12 + (round % 3) as u32).unwrap()).collect();
                    for table in &tables {
                        memory.entries(*table)[0].store(thread, Ordering::Relaxed);
                    }
                    for table in &tables {
                        assert_eq!(memory.entries(*table)[0].load(Ordering::Relaxed), thread);
                        memory.free(*table, 12 + (round % 3) as u32);
                    }
                }
            });
        }
    });
    assert_eq!(memory.used(), 0);
}

/// Delays two of three threads that map below one slot: one before it allocates its first table,
/// one before it cleans its link.
struct ThreeMaps<'a> {
    dram: &'a SimulatedDram,
    alloc: Meet,
    clean: Meet,
}

thread_local! {
    /// The number of tables until this thread is delayed; negative for never.
    static TABLES_LEFT: Cell<i64> = const { Cell::new(-1) };
    /// The number of cleans until this thread is delayed; negative for never.
    static CLEANS_LEFT: Cell<i64> = const { Cell::new(-1) };
}

fn hold_up(left: &'static LocalKey<Cell<i64>>, at: &Meet) {
    left.set(left.get() - 1);
    if left.get() == -1 {
        at.wait();
        at.wait();
    }
}

impl TableMemory for ThreeMaps<'_> {
    fn alloc(&self, size_log2: u32) -> Option<TableAddr> {
        hold_up(&TABLES_LEFT, &self.alloc);
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

impl CacheSync for ThreeMaps<'_> {
    const COHERENT: bool = false;

    fn clean(&self, entries: &[AtomicU64]) {
        hold_up(&CLEANS_LEFT, &self.clean);
        self.dram.clean(entries);
    }

    fn fence(&self) {
        self.dram.fence();
    }
}

/// A subtree moves over into a second thread's table, and further down into the table of a third
/// thread, which has linked it and is delayed before it cleans the link. When the first thread's
/// map returns, the walker must nevertheless find its page.
#[test]
fn a_link_of_a_third_thread_is_cleaned_when_a_subtree_moves_over() {
    let dram = SimulatedDram::new(1 << 20);
    let sync = ThreeMaps { dram: &dram, alloc: Meet::new(2), clean: Meet::new(2) };
    let table = PageTable::new(vtd_second(48), &sync, &sync).unwrap();
    let seen = |iova: Iova| {
        dram.with_view(|view| {
            let found = Walker::new(table.format(), view, table.root()).lookup(iova);
            found.unwrap().map(|mapping| mapping.bus)
        })
    };
    let first = Iova::new(0x1000);
    thread::scope(|scope| {
        let (table, sync) = (&table, &sync);
        let _members = (sync.alloc.join(), sync.clean.join());
        // This thread finds nothing mapped, and is delayed.
        let mapping = scope.spawn(move || {
            let _member = sync.alloc.join();
            TABLES_LEFT.set(0);
            table.map(first, bus(0x5000), 0x1000, RW).unwrap();
        });
        sync.alloc.wait();
        table.map(Iova::new(1 << 30), bus(0x7000), 0x1000, RW).unwrap();
        // Two new tables, then the slot that leads to them.
        scope.spawn(move || {
            let _member = sync.clean.join();
            CLEANS_LEFT.set(2);
            table.map(Iova::new(0x3000), bus(0x9000), 0x1000, RW).unwrap();
        });
        sync.clean.wait();
        sync.alloc.wait();
        mapping.join().unwrap();
        let found = seen(first);
        sync.clean.wait();
        assert_eq!(found, Some(bus(0x5000)));
    });
    for (iova, target) in [(0x1000, 0x5000), (1 << 30, 0x7000), (0x3000, 0x9000)] {
        assert_eq!(seen(Iova::new(iova)), Some(bus(target)));
    }
    // The root, one table below it, and two in each of the two places.
    assert_eq!((dram.used(), reachable(&table)), (6, 6));
}

/// Threads split parts of one leaf at the same moment, and one of them unmaps a page of its part.
#[test]
fn threads_split_parts_of_one_leaf() {
    fn check<F: Format>(format: F, rounds: u64) {
        let memory = HostPages::new();
        let (level, run_log2) = large_leaves(&format).into_iter().next_back().unwrap();
        let size = 1u64 << (format.geometry().shift(level) + run_log2);
        let together = Meet::new(2);
        for _ in 0..rounds {
            let table = PageTable::new(format, &memory, Coherent).unwrap();
            table.map(Iova::new(0), bus(size), size, RW).unwrap();
            let split = |iova| {
                let mut gather = TlbGather::new();
                together.wait();
                table.split(Iova::new(iova), 0x1000, &mut gather).unwrap();
                let Ok(()) = table.finish(gather, &NoTlb);
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _member = together.join();
                    split(0);
                    unmap(&table, Iova::new(0), 0x1000).unwrap();
                });
                let _member = together.join();
                split(size - 0x1000);
            });
            assert_eq!(leads(&table, 0), None, "{}: mapped again", F::NAME);
            assert_eq!(mappings(&table).len() as u64, (size >> 12) - 1);
            assert_eq!(memory.used(), reachable(&table), "{}: a table is lost", F::NAME);
        }
    }
    let rounds = if cfg!(miri) { 2 } else { 200 };
    check(vtd_second(48), rounds);
    check(stage2(12, 48, 48), rounds / 8);
    check(amd_v1(4), rounds);
    check(riscv(48), rounds);
}
