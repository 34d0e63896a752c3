//! A call in the middle of another one, at each of its steps; every run is the same.

use std::cell::RefCell;

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::{Entry, Format};
use longshore_pagetable::table_memory::SimulatedDram;
use longshore_pagetable::{Error, PageTable, Prot, TlbGather};
use std::sync::atomic::Ordering;

use crate::dram::assert_settled;
use crate::read_write;
use crate::setup::*;
use crate::together::{Shared, Stepping, at_every_step, at_step};

type Table<F> = PageTable<Stepping<F>, Stepping<Shared>, Stepping<Coherent>>;

fn table<F: Format>(format: F, memory: &Shared) -> Table<F> {
    PageTable::new(Stepping(format), Stepping(memory.clone()), Stepping(Coherent)).unwrap()
}

fn split<F: Format>(table: &Table<F>, va: u64, len: u64) -> Result<(), Error> {
    let mut gather = TlbGather::new();
    table.split(at(table.format(), va), len, &mut gather)?;
    let Ok(()) = table.finish(gather, &NoTlb);
    Ok(())
}

/// Returns a table with one leaf of `size` bytes, at the va `size`, mapped to the same address.
fn with_leaf<F: Format>(format: F, memory: &Shared, size: u64) -> Table<F> {
    let table = table(format, memory);
    table.map(at(&format, size), bus(size), size, read_write(&format)).unwrap();
    table
}

/// Returns `true` if the root is so large that making one for each step takes long. Other input
/// sizes with the same tables have smaller roots.
fn is_slow(format: &impl Format) -> bool {
    let geometry = format.geometry();
    geometry.slots_log2(geometry.root_level()) > 11
}

/// Two threads split disjoint parts of one leaf, and one of them unmaps a page of its part. The
/// leaf is split once, the page stays unmapped, and no table is lost.
pub(crate) fn two_splits<F: Format + 'static>(format: F) {
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let memory = Shared::new();
    if format.needs_break_before_make() || is_slow(&format) {
        return;
    }
    for (level, run_log2) in large_leaves(&format) {
        let size = 1u64 << (geometry.shift(level) + run_log2);
        let last = 2 * size - granule;
        at_every_step(
            || with_leaf(format, &memory, size),
            |table| split(table, last, granule).unwrap(),
            move |table| {
                split(table, size, granule).unwrap();
                unmap(table, at(table.format(), size), granule).unwrap();
            },
            |table, (), ()| {
                assert_eq!(leads(&table, size), None, "{}: mapped again", F::NAME);
                for va in [size + granule, size + size / 2, last] {
                    let va = va.max(size + granule);
                    assert_eq!(leads(&table, va), Some(va), "{}", F::NAME);
                }
                let page = table.lookup(at(&format, last)).unwrap().unwrap();
                assert_eq!(page.page_log2, geometry.granule_log2(), "{}", F::NAME);
                let used = table.memory().0.used();
                assert_eq!(used, reachable(&table), "{}: a table is lost", F::NAME);
                unmap(&table, at(&format, size + granule), size - granule).unwrap();
                assert_eq!(mappings(&table), []);
            },
        );
    }
}

/// A call that has read an entry does not restore it after another thread has unmapped it: neither
/// a split nor a change of permissions.
pub(crate) fn gone_stays_gone<F: Format + 'static>(format: F) {
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let prot = read_write(&format);
    if is_slow(&format) {
        return;
    }
    let memory = Shared::new();
    // One of three pages.
    at_every_step(
        || {
            let table = table(format, &memory);
            table.map(at(&format, 0), bus(granule), 3 * granule, prot).unwrap();
            table
        },
        |table| {
            let mut gather = TlbGather::new();
            table.set_prot(at(table.format(), 0), 3 * granule, Prot::READ, &mut gather)
        },
        move |table| unmap(table, at(table.format(), granule), granule).unwrap(),
        |table, done, ()| {
            let gone = at(&format, granule);
            assert!(done.is_ok() || done == Err(Error::Hole { at: gone }), "{done:?}");
            assert_eq!(table.lookup(gone), Ok(None), "{}: mapped again", F::NAME);
            for va in [0, 2 * granule] {
                let page = table.lookup(at(&format, va)).unwrap().unwrap();
                let expected = if done.is_ok() { Prot::READ } else { prot };
                assert_eq!(page.prot.without(Prot::COHERENT), expected, "{}", F::NAME);
            }
        },
    );
    for (level, run_log2) in large_leaves(&format) {
        let size = 1u64 << (geometry.shift(level) + run_log2);
        let is_gone = |table: Table<F>| {
            assert_eq!(mappings(&table), [], "{}: mapped again", F::NAME);
        };
        let whole = move |table: &Table<F>| unmap(table, at(table.format(), size), size).unwrap();
        at_every_step(
            || with_leaf(format, &memory, size),
            |table| {
                let mut gather = TlbGather::new();
                let _ = table.set_prot(at(table.format(), size), size, Prot::READ, &mut gather);
            },
            whole,
            |table, (), ()| is_gone(table),
        );
        if !format.needs_break_before_make() {
            at_every_step(
                || with_leaf(format, &memory, size),
                |table| split(table, size, granule).unwrap(),
                whole,
                |table, (), ()| is_gone(table),
            );
        }
    }
}

/// Two threads map neighbours that need the same tables. Both are mapped, no table is lost, and a
/// walker that does not snoop finds everything.
pub(crate) fn two_maps<F: Format + 'static>(format: F) {
    type Dram<F> =
        PageTable<Stepping<F>, Stepping<&'static SimulatedDram>, Stepping<&'static SimulatedDram>>;
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let prot = read_write(&format);
    if is_slow(&format) {
        return;
    }
    let memory: &'static SimulatedDram = Box::leak(Box::new(SimulatedDram::new(4 << 20)));
    // First in one table of pages, then below a table further up that both threads build.
    let far = 1u64 << (geometry.shift(1) + 1).min(geometry.input_bits() - 2);
    for (ours, theirs) in [(granule, 3 * granule), (far, granule)] {
        at_every_step(
            || -> Dram<F> {
                PageTable::new(Stepping(format), Stepping(memory), Stepping(memory)).unwrap()
            },
            |table| table.map(at(table.format(), ours), bus(ours), 2 * granule, prot).unwrap(),
            move |table| {
                table.map(at(table.format(), theirs), bus(theirs), granule, prot).unwrap();
            },
            |table, (), ()| {
                for va in [ours, ours + granule, theirs] {
                    assert_eq!(leads(&table, va), Some(va), "{}", F::NAME);
                }
                assert_eq!(
                    mappings(&table).iter().map(|m| 1 << m.page_log2).sum::<u64>(),
                    3 * granule
                );
                assert_eq!(memory.used(), reachable(&table), "{}: a table is lost", F::NAME);
                assert_settled(&table, memory);
            },
        );
        assert_eq!(memory.used(), 0);
    }
}

/// A device writes in the middle of each call that clears or changes dirty entries. Each write is
/// either reported or still visible in the dirty bit, but never both.
#[test]
fn a_write_in_the_middle_of_a_call_is_seen_once() {
    fn check<F: Format + 'static>(format: F) {
        const PAGES: u64 = 3;
        let memory = Shared::new();
        let pages = || {
            let table = table(format, &memory);
            // Not aligned to the target, so that each page is a leaf.
            table.map(Iova::new(0), bus(0x1000), PAGES << 12, Prot::READ_WRITE).unwrap();
            // One page is dirty before the call.
            assert!(mark(&table, Iova::new(0)).is_some());
            table
        };
        type Call<F> = fn(&Table<F>, &mut TlbGather, &mut dyn FnMut(AddrRange<Iova>));
        let calls: [(&str, Call<F>); 3] = [
            ("unmap_dirty", |table, gather, told| {
                table.unmap_dirty(Iova::new(0), PAGES << 12, gather, told).unwrap();
            }),
            ("read_dirty", |table, gather, told| {
                table.read_dirty(Iova::new(0), PAGES << 12, true, gather, told).unwrap();
            }),
            ("set_prot_dirty", |table, gather, told| {
                let prot = Prot::READ;
                table.set_prot_dirty(Iova::new(0), PAGES << 12, prot, gather, told).unwrap();
            }),
        ];
        for (name, call) in calls {
            for page in 0..PAGES {
                at_every_step(
                    pages,
                    |table| {
                        let mut told = [0; PAGES as usize];
                        let mut gather = TlbGather::new();
                        call(table, &mut gather, &mut |range| {
                            told[(range.start().raw() >> 12) as usize] += 1;
                        });
                        let Ok(()) = table.finish(gather, &NoTlb);
                        told
                    },
                    move |table| u32::from(mark(table, Iova::new(page << 12)).is_some()),
                    |table, told, marked| {
                        for other in 0..PAGES {
                            let iova = Iova::new(other << 12);
                            let left = table.lookup(iova).unwrap().is_some_and(|page| page.dirty);
                            let written =
                                u32::from(other == 0) + if other == page { marked } else { 0 };
                            let known = told[other as usize] + u32::from(left);
                            assert_eq!(known, written, "{}: {name}, page {other}", F::NAME);
                        }
                    },
                );
            }
        }
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(vtd_first_tracking());
    check(x86_64_tracking());
    check(amd_v1_tracking());
    check(riscv_tracking());
}

/// If a leaf is written in the middle of its split, its pages are dirty; if a page is written after
/// the split, only that page is.
#[test]
fn a_write_in_the_middle_of_a_split_makes_dirty_pages() {
    fn check<F: Format + 'static>(format: F) {
        let memory = Shared::new();
        for (level, run_log2) in large_leaves(&format) {
            let size_log2 = format.geometry().shift(level) + run_log2;
            let size = 1u64 << size_log2;
            at_every_step(
                || with_leaf(format, &memory, size),
                |table| split(table, size, 0x1000).unwrap(),
                move |table| mark(table, Iova::new(size + 0x1000)),
                |table, (), marked| {
                    let pages = mappings(&table);
                    assert_eq!(pages.len() as u64, size >> 12, "{}", F::NAME);
                    let dirty = pages.iter().filter(|page| page.dirty).count() as u64;
                    let expected = match marked {
                        // In a run, a write may have marked any entry.
                        _ if run_log2 > 0 => size >> 12,
                        Some(log2) if log2 == size_log2 => size >> 12,
                        Some(_) => 1,
                        None => 0,
                    };
                    assert_eq!(dirty, expected, "{}: {marked:?}", F::NAME);
                },
            );
        }
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(vtd_first_tracking());
    check(x86_64_tracking());
    check(amd_v1_tracking());
    check(riscv_tracking());
}

/// Clearing a dirty bit keeps the bits that a walker sets in the same entry meanwhile.
#[test]
fn clearing_a_dirty_bit_keeps_other_bits_of_a_walker() {
    /// Ignored by VT-d in the entry of a page, so only a lost update can clear it.
    const IGNORED: u64 = 1 << 52;
    let memory = Shared::new();
    let format = vtd_second_tracking();
    let steps = at_every_step(
        || {
            let table = table(format, &memory);
            table.map(Iova::new(0x1000), bus(0), 0x1000, Prot::READ_WRITE).unwrap();
            assert_eq!(mark(&table, Iova::new(0x1000)), Some(12));
            table
        },
        |table| {
            let mut told = 0;
            let mut gather = TlbGather::new();
            let (iova, note) = (Iova::new(0x1000), |_| told += 1);
            table.read_dirty(iova, 0x1000, true, &mut gather, note).unwrap();
            told
        },
        |table| {
            let (level, slot) = last_slot(table, Iova::new(0x1000));
            let before = slot.fetch_or(IGNORED, Ordering::AcqRel);
            assert!(matches!(table.format().decode(level, before), Entry::Leaf(_)));
        },
        |table, told, ()| {
            let entry = last_slot(&table, Iova::new(0x1000)).1.load(Ordering::Acquire);
            assert_eq!((told, entry & IGNORED), (1, IGNORED));
            assert!(!format.dirty_test().unwrap().matches(entry));
        },
    );
    assert!(steps >= 4, "{steps}");
}

/// The harness itself: a call in the middle runs at the step that is asked for, and not at all if
/// the outer call has fewer steps.
#[test]
fn steps_run_in_order() {
    let format = vtd_second(48);
    let memory = Shared::new();
    let steps = RefCell::new(Vec::new());
    for nth in [0, 1, 1000] {
        let table = table(format, &memory);
        let (done, met) =
            at_step(nth, || {}, || table.map(Iova::new(0), bus(0), 0x1000, Prot::READ));
        done.unwrap();
        steps.borrow_mut().push(met);
    }
    assert_eq!(steps.into_inner(), [true, true, false]);
}
