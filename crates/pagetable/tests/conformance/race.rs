//! Several threads, disjoint ranges, one page table, and readers meanwhile.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::{CacheSync, Coherent};
use longshore_pagetable::table_memory::{HostPages, SimulatedDram, TableMemory};
use longshore_pagetable::{Format, PageTable, Prot, TlbGather, Walker};

use crate::setup::*;

const RW: Prot = Prot::READ_WRITE;

/// Threads map neighbouring ranges that need the same tables at the same moment, look at them and
/// unmap them. A reader checks that what it finds was meant by somebody.
fn neighbours<F: Format>(format: F, rounds: u64) {
    const THREADS: u64 = 3;
    let memory = HostPages::new();
    let table = PageTable::new(format, &memory, Coherent).unwrap();
    let (barrier, stop) = (Barrier::new(THREADS as usize), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (table, barrier) = (&table, &barrier);
                scope.spawn(move || {
                    for round in 0..rounds {
                        barrier.wait();
                        // Ranges that begin and end inside tables that the neighbours use too.
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
        stop.store(true, Ordering::Relaxed);
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

/// What a thread has mapped a non-coherent walker finds, even where another thread linked the
/// tables on the way and has not fenced yet.
#[test]
fn a_walker_of_dram_finds_what_map_returned_for() {
    let format = vtd_second(48);
    let memory = SimulatedDram::new(8 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for thread in 0..2u64 {
            let (table, barrier, memory) = (&table, &barrier, &memory);
            scope.spawn(move || {
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

/// Holds up the thread that maps first, after it has linked its tables and before it cleans the
/// link.
struct HeldUp<'a> {
    dram: &'a SimulatedDram,
    /// Cleanings until then, of the thread that is held up; negative for never.
    cleans_left: AtomicI64,
    barrier: Barrier,
}

impl CacheSync for HeldUp<'_> {
    const COHERENT: bool = false;

    fn clean(&self, entries: &[AtomicU64]) {
        if self.cleans_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            // The other thread maps between these two.
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
    let barrier = Barrier::new(2);
    let sync = HeldUp { dram: &memory, cleans_left: AtomicI64::new(-1), barrier };
    let table = PageTable::new(vtd_second(48), &memory, &sync).unwrap();
    // Three new tables, then the slot of the root.
    sync.cleans_left.store(3, Ordering::Relaxed);
    thread::scope(|scope| {
        let table = &table;
        scope.spawn(move || table.map(Iova::new(0), bus(0x7000), 0x1000, RW).unwrap());
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
