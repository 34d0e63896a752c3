//! Changing mappings without unmapping them.

use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{HostPages, SimulatedDram};
use longshore_pagetable::{Error, PageTable, Prot, TlbGather};

use crate::dram::assert_settled;
use crate::read_write;
use crate::setup::*;

/// The largest block to split: larger ones take too many tables to wait for.
const SPLIT_LOG2_MAX: u32 = 30;

pub(crate) fn split<F: Format>(format: F) {
    let prot = read_write(&format);
    let granule_log2 = format.geometry().granule_log2();
    let granule = 1u64 << granule_log2;
    for page_log2 in usable_sizes(&format) {
        if page_log2 == granule_log2 || page_log2 > SPLIT_LOG2_MAX {
            continue;
        }
        let (size, table) =
            (1u64 << page_log2, PageTable::new(format, HostPages::new(), Coherent).unwrap());
        table.map(at(&format, size), bus(0), size, prot).unwrap();
        let inside = at(&format, size + granule);
        let mut gather = TlbGather::new();
        let done = table.split(inside, granule, &mut gather);
        if format.needs_break_before_make() {
            assert_eq!(done, Err(Error::BreakBeforeMake { at: at(&format, size) }));
            assert_eq!(mappings(&table).len(), 1);
            continue;
        }
        done.unwrap();
        let whole = (at(&format, size), at(&format, 2 * size - 1));
        assert_eq!(gather.touched(), Some(whole));
        let Ok(()) = table.finish(gather, &NoTlb);
        let found = mappings(&table);
        assert_eq!(found.len() as u64, size / granule, "{}", F::NAME);
        for (mapping, page) in found.iter().zip(0..) {
            assert_eq!(mapping.iova, at(&format, size + page * granule));
            assert_eq!(mapping.bus, bus(page * granule));
            assert_eq!(mapping.page_log2, granule_log2);
            assert_eq!(mapping.prot.without(Prot::COHERENT), prot);
        }
        unmap(&table, inside, granule).unwrap();
        table.map(inside, bus(0), granule, prot).unwrap();
        unmap(&table, at(&format, size), size).unwrap();
    }
}

pub(crate) fn set_prot<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let size = 1u64 << usable_sizes(&format).into_iter().find(|log2| 1 << log2 > granule).unwrap();
    // Not aligned to the target, so that no page is larger than the granule.
    table.map(at(&format, 0), bus(granule), 2 * size, prot).unwrap();
    let (iova, len) = (at(&format, size), granule);
    let mut gather = TlbGather::new();
    table.set_prot(iova, len, Prot::READ, &mut gather).unwrap();
    assert_eq!(gather.touched(), Some((iova, at(&format, size + granule - 1))));
    let Ok(()) = table.finish(gather, &NoTlb);
    for mapping in mappings(&table) {
        let expected = if mapping.iova == iova { Prot::READ } else { prot };
        assert_eq!(mapping.prot.without(Prot::COHERENT), expected, "{}", F::NAME);
        let va = geometry.va(mapping.iova).unwrap();
        assert_eq!(mapping.bus, bus(va + granule));
    }
    let mut gather = TlbGather::new();
    let beyond = table.set_prot(at(&format, 2 * size - granule), 2 * granule, prot, &mut gather);
    assert_eq!(beyond, Err(Error::Hole { at: at(&format, 2 * size) }));
    unmap(&table, at(&format, 0), 2 * size).unwrap();

    // A block, completely and in part; a run needs break-before-make.
    for page_log2 in usable_sizes(&format) {
        let size = 1u64 << page_log2;
        if size == granule {
            continue;
        }
        table.map(at(&format, size), bus(0), size, prot).unwrap();
        let mut gather = TlbGather::new();
        let part = table.set_prot(at(&format, size), granule, Prot::READ, &mut gather);
        assert_eq!(part, Err(Error::PartialBlock { at: at(&format, size) }));
        let done = table.set_prot(at(&format, size), size, Prot::READ, &mut gather);
        let is_run = (0..geometry.levels()).all(|level| geometry.shift(level) != page_log2);
        if is_run && format.needs_break_before_make() {
            assert_eq!(done, Err(Error::BreakBeforeMake { at: at(&format, size) }));
        } else {
            done.unwrap();
            let found = mappings(&table);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].prot.without(Prot::COHERENT), Prot::READ);
            assert_eq!((found[0].bus, found[0].page_log2), (bus(0), page_log2));
        }
        let Ok(()) = table.finish(gather, &NoTlb);
        unmap(&table, at(&format, size), size).unwrap();
    }
}

/// If memory runs out, nothing is split, even if there was memory for some of the leaves.
pub(crate) fn out_of_memory<F: Format>(format: F) {
    const LEAVES: u64 = 3;
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let prot = read_write(&format);
    if format.needs_break_before_make() {
        return;
    }
    let memory = SimulatedDram::new(4 << 20);
    for (level, run_log2) in large_leaves(&format) {
        let size = 1u64 << (geometry.shift(level) + run_log2);
        let needed = if level == 0 { 0 } else { LEAVES << run_log2 };
        if (needed << geometry.table_log2(0)) > 1 << 20 {
            continue;
        }
        for budget in 0..=needed {
            let table = PageTable::new(format, &memory, &memory).unwrap();
            let page = longshore_mem::Granule::new(size).unwrap();
            table.map_pages(at(&format, 0), bus(0), page, LEAVES, prot).unwrap();
            // Pages beside them.
            table.map(at(&format, LEAVES * size), bus(granule), granule, prot).unwrap();
            let (before, used) = (table.dump().to_string(), memory.used());
            memory.set_budget(budget);
            let mut gather = TlbGather::new();
            // Only a part of the last leaf.
            let len = (LEAVES - 1) * size + granule;
            let done = table.split(at(&format, 0), len, &mut gather);
            memory.set_budget(u64::MAX);
            assert_settled(&table, &memory);
            if budget < needed {
                assert_eq!(done, Err(Error::OutOfMemory), "{}", F::NAME);
                assert_eq!(table.dump().to_string(), before, "{}: {budget} tables", F::NAME);
                assert_eq!(memory.used(), used, "{}: a table is lost", F::NAME);
                assert!(gather.is_empty() && gather.leaf_levels() == 0);
            } else {
                done.unwrap();
                assert_eq!(memory.used(), used + needed);
                assert_eq!(mappings(&table).len() as u64, LEAVES * size / granule + 1);
                let Ok(()) = table.finish(gather, &NoTlb);
            }
            drop(table);
            assert_eq!(memory.used(), 0);
        }
    }
}
