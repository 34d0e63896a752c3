//! The crate's unsafe code under Miri, in ranges so small that it takes a minute or two:
//! `MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows' cargo +nightly miri test -p
//! longshore-pagetable --test miri`.
//!
//! What is checked is that memory is used as Rust allows; what the tables hold is for the conformance
//! suite. Run without Miri these tests are as good as any.

#![cfg(not(loom))]

#[allow(dead_code, reason = "the conformance suite uses the rest")]
#[path = "conformance/setup.rs"]
mod setup;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::{CacheSync, Coherent};
use longshore_pagetable::table_memory::{
    HostPages, SimulatedDram, Slab, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{Check, Error, Format, PageTable, Prot, TlbGather, Walker};

use setup::*;

const RW: Prot = Prot::READ_WRITE;
/// Where slabs lie for a walker: aligned to every table that is used here.
const BASE: TableAddr = TableAddr::new(1 << 30);

/// A region, for `units` of 4 KiB.
fn region(units: usize) -> (Vec<AtomicU64>, Vec<TableMeta>) {
    let entry = |index: usize| AtomicU64::new(0x7fff_0000_0a5a_5003 ^ (index as u64 & 0xff) << 12);
    ((0..units * 512).map(entry).collect(), (0..units).map(|_| TableMeta::new()).collect())
}

/// Everything there is to do with a table, on both sides of a place where two tables of pages meet.
fn everything<F: Format>(format: F, memory: impl TableMemory, sync: impl CacheSync) {
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let table = PageTable::new(format, memory, sync).unwrap();
    let meet = 1u64 << geometry.shift(1);
    let first = meet - 3 * granule;
    // Unaligned to the target, so that each page is a leaf.
    table.map(at(&format, first), bus(2 * granule), 5 * granule, RW).unwrap();
    for page in 0..5 {
        assert_eq!(leads(&table, first + page * granule), Some((page + 2) * granule));
    }
    assert_eq!(leads(&table, first + 5 * granule), None);
    let taken = table.map(at(&format, first), bus(0), granule, RW);
    assert_eq!(taken, Err(Error::Exists { at: at(&format, first) }));
    let mut gather = TlbGather::new();
    table.set_prot(at(&format, first + granule), granule, Prot::READ, &mut gather).unwrap();
    if format.dirty_test().is_some() {
        for page in [0, 3, 4] {
            let written = mark(&table, at(&format, first + page * granule));
            assert_eq!(written, Some(geometry.granule_log2()));
        }
        let mut told = 0;
        let count = |_| told += 1;
        table.read_dirty(at(&format, first), 4 * granule, true, &mut gather, count).unwrap();
        assert_eq!(told, 2);
        let mut told = 0;
        let count = |_| told += 1;
        table.unmap_dirty(at(&format, first), 5 * granule, &mut gather, count).unwrap();
        assert_eq!(told, 1);
    } else {
        table.unmap(at(&format, first), 5 * granule, &mut gather).unwrap();
    }
    let Ok(()) = table.finish(gather, &NoTlb);
    // The largest leaf of 16 or 32 pages, and of a table of pages.
    for size in [granule << 5, meet] {
        if geometry.input_bits() < 63 - size.leading_zeros() {
            continue;
        }
        let (iova, last) = (at(&format, 2 * meet), 2 * meet + size - granule);
        table.map(iova, bus(2 * meet), size, RW).unwrap();
        assert_eq!(leads(&table, last), Some(last));
        let leaf = table.lookup(iova).unwrap().unwrap();
        let is_large = leaf.page_log2 > geometry.granule_log2();
        let mut gather = TlbGather::new();
        let split = table.split(at(&format, last), granule, &mut gather);
        assert_eq!(split.is_err(), is_large && format.needs_break_before_make(), "{split:?}");
        assert_eq!(leads(&table, last), Some(last));
        table.unmap(iova, size, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
    }
    // The end of the address space.
    let top = geometry.all().last - (granule - 1);
    table.map(at(&format, top), bus(0), granule, RW).unwrap();
    assert_eq!(leads(&table, top), Some(0));
    assert!(table.dump().to_string().lines().count() > 1);
    let mut gather = TlbGather::new();
    table.unmap(at(&format, top), granule, &mut gather).unwrap();
    table.reclaim(at(&format, 0), 4 * meet, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
}

fn in_a_slab<F: Format>(format: F, units: usize) {
    let (entries, metas) = region(units);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    everything(format, &slab, Coherent);
    assert_eq!(slab.used(), 0, "{}", F::NAME);
}

#[test]
fn arm() {
    in_a_slab(stage1_tracking(), 16);
    in_a_slab(stage2_tracking(), 16);
}

#[test]
fn arm_with_larger_granules() {
    in_a_slab(stage1(14, 36, 40), 40);
    in_a_slab(stage1(16, 42, 48), 144);
}

#[test]
fn vtd_and_x86() {
    in_a_slab(vtd_second_tracking(), 16);
    in_a_slab(vtd_first_tracking(), 16);
    in_a_slab(x86_64_tracking(), 16);
}

#[test]
fn amd_and_risc_v() {
    in_a_slab(amd_v1_tracking(), 16);
    in_a_slab(riscv_tracking(), 16);
}

#[test]
fn host_pages() {
    let memory = HostPages::new();
    everything(vtd_second(36), &memory, Coherent);
    everything(stage1_upper(12, 39), &memory, Coherent);
    assert_eq!(memory.used(), 0);
}

#[test]
fn simulated_dram() {
    let memory = SimulatedDram::new(16 << 12);
    everything(vtd_second(36), &memory, &memory);
    assert_eq!(memory.used(), 0);
}

/// Memory runs out at each table in turn.
#[test]
fn out_of_memory() {
    for units in 0..6 {
        let (entries, metas) = region(units);
        let slab = Slab::new(&entries, &metas, BASE).unwrap();
        let Ok(table) = PageTable::new(vtd_second(39), &slab, Coherent) else {
            assert_eq!(units, 0);
            continue;
        };
        let done = table.map(Iova::new((1 << 30) - 0x1000), bus(0), 0x2000, RW);
        assert_eq!(done.is_ok(), units == 5, "{done:?}");
        assert_eq!(slab.used(), if done.is_ok() { 5 } else { 1 });
        drop(table);
        assert_eq!(slab.used(), 0);
    }
}

/// Entries that lead out of the memory, to its last entry and in between of two are held against it.
#[test]
fn entries_lead_anywhere() {
    let format = vtd_second(39);
    let read_all = |table: &PageTable<_, &dyn TableMemory, Coherent>, memory: &dyn TableMemory| {
        let root = &memory.entries(table.root())[0];
        for address in [0, 0xf_f000, 1 << 21, (1 << 21) - 0x1000, 1 << 30, u64::MAX] {
            for offset in [0, 0x2000, 0x3000, 0x4000] {
                let leads_to = TableAddr::new(BASE.raw().wrapping_add(offset));
                for leads_to in [leads_to, TableAddr::new(address)] {
                    let address = TableAddr::new(leads_to.raw() & 0xf_ffff_ffff_f000);
                    root.store(format.table(2, address), Ordering::Release);
                    // Whatever is found there, nothing but memory of tables is read.
                    for va in [0, 0x1ff << 21, 0x1ff << 12] {
                        let _ = table.lookup(Iova::new(va));
                        let _ = Walker::new(&format, table, table.root()).lookup(Iova::new(va));
                    }
                }
            }
        }
        root.store(0, Ordering::Release);
    };
    let (entries, metas) = region(4);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    let memory: &dyn TableMemory = &slab;
    read_all(&PageTable::new(format, memory, Coherent).unwrap(), memory);
    let pages = HostPages::new();
    let memory: &dyn TableMemory = &pages;
    read_all(&PageTable::new(format, memory, Coherent).unwrap(), memory);
}

/// Chunks behind the first one: each is taken when the first table of it is, has its entries and
/// notes, and goes when the memory does.
#[test]
fn further_chunks_of_host_pages() {
    if !cfg!(miri) {
        // The first chunk is of 2 MiB only there.
        return;
    }
    let memory = HostPages::new();
    // The first chunk, and one more as large; then the third, of twice the size.
    let large = [memory.alloc(21).unwrap(), memory.alloc(21).unwrap()];
    assert!(memory.entries(TableAddr::new(large[1].raw() + (1 << 21))).is_empty());
    let table = PageTable::new(vtd_second(36), &memory, Coherent).unwrap();
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
    let (entries, metas) = region(24);
    let slab = Slab::new(&entries, &metas, BASE).unwrap();
    let format = stage2(12, 32, 40);
    for check in [Check::Checked, Check::Trusted] {
        let table = PageTable::new(format, &slab, Coherent).unwrap().with_check(check);
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let table = &table;
                scope.spawn(move || {
                    let first = (1 << 21) - 0x2000 + thread * 0x2000;
                    for _ in 0..2 {
                        table.map(Iova::new(first), bus(0x8000 + first), 0x2000, RW).unwrap();
                        assert_eq!(leads(table, first), Some(0x8000 + first));
                        let mut gather = TlbGather::new();
                        let iova = Iova::new(first);
                        table.set_prot(iova, 0x1000, Prot::READ, &mut gather).unwrap();
                        table.unmap(iova, 0x2000, &mut gather).unwrap();
                        let Ok(()) = table.finish(gather, &NoTlb);
                    }
                });
            }
            for _ in 0..8 {
                for va in [(1 << 21) - 0x2000, 1 << 21] {
                    let found = leads(&table, va);
                    assert!(found.is_none() || found == Some(0x8000 + va), "{found:?}");
                }
            }
        });
        table.map(Iova::new(0), bus(0), 1 << 16, RW).unwrap();
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let table = &table;
                scope.spawn(move || {
                    let mut gather = TlbGather::new();
                    let iova = Iova::new(thread << 15);
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
