//! A walker that sees only cleaned lines. At every moment each page is mapped either as before the
//! running operation or as after it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use longshore_mem::Granule;
use longshore_pagetable::cache_sync::CacheSync;
use longshore_pagetable::format::{Entry, Format};
use longshore_pagetable::table_memory::{SimulatedDram, TableAddr, TableMemory};
use longshore_pagetable::{Image, PageTable, Prot, TlbGather, Walker};

use crate::model::Random;
use crate::read_write;
use crate::setup::*;

/// Checks that a walker of `memory` sees all entries of all tables as the CPU does, which must be
/// so whenever no call is running.
pub(crate) fn assert_settled<F: Format, M: TableMemory, S: CacheSync>(
    table: &PageTable<F, M, S>,
    memory: &SimulatedDram,
) {
    fn check<F: Format>(
        format: &F,
        memory: &impl TableMemory,
        view: &impl Image,
        level: u32,
        address: TableAddr,
    ) {
        let geometry = format.geometry();
        // All memory of the table, of which a root may use only a part.
        let all = 1 << (geometry.table_log2(level) - 3);
        for (index, slot) in memory.entries(address)[..all].iter().enumerate() {
            let entry = slot.load(Ordering::Acquire);
            let seen = view.entry(address, index);
            assert_eq!(seen, Some(entry), "{}: entry {index} of level {level}", F::NAME);
            if entry == 0 {
                continue;
            }
            assert!(index < geometry.slots(level), "{}: left behind beyond the slots", F::NAME);
            if let Entry::Table(child) = format.decode(level, entry)
                && level > 0
            {
                check(format, memory, view, level - 1, child);
            }
        }
    }
    let (format, root) = (table.format(), table.root());
    memory.with_view(|view| {
        check(format, table.memory(), view, format.geometry().root_level(), root);
    });
}

/// A walker sees a new table empty, whatever its memory held before. This includes memory that the
/// root does not use, because hardware may translate more bits than were asked for.
pub(crate) fn a_new_root_is_empty<F: Format>(format: F) {
    let geometry = *format.geometry();
    // Every entry of this memory looks present, for the CPU and for the walker.
    let memory = SimulatedDram::new(2 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let all = 1 << (geometry.table_log2(geometry.root_level()) - 3);
    for (index, slot) in memory.entries(table.root())[..all].iter().enumerate() {
        assert_eq!(slot.load(Ordering::Acquire), 0, "{}: slot {index}", F::NAME);
    }
    assert_settled(&table, &memory);
    drop(table);
    assert_eq!(memory.used(), 0);
}

/// The bus address of each page, before and after the running operation.
type Expected = Arc<Mutex<Vec<(u64, [Option<u64>; 2])>>>;

pub(crate) fn never_half_written<F: Format + 'static>(format: F) {
    let prot = read_write(&format);
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let memory = SimulatedDram::new(4 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let root = table.root();
    // Pages around a boundary of two tables.
    let middle = (1u64 << geometry.shift(1).min(geometry.input_bits() - 2)).max(64 * granule);
    let base = middle - 32 * granule;
    let pages: Vec<u64> = (0..64).map(|page| base + page * granule).collect();
    let expected: Expected =
        Arc::new(Mutex::new(pages.iter().map(|page| (*page, [None, None])).collect()));
    let seen = Arc::clone(&expected);
    memory.observe(move |view| {
        let walker = Walker::new(&format, view, root);
        for (va, allowed) in seen.lock().unwrap().iter() {
            let iova = at(&format, *va);
            let found = walker.lookup(iova).unwrap();
            let found = found.map(|mapping| mapping.translate(iova).unwrap().raw());
            assert!(allowed.contains(&found), "{}: {va:#x} leads to {found:x?}", F::NAME);
        }
    });
    let mut random = Random(0xfeed_beef_0bad_cafe);
    for round in 0..40 {
        let first = random.below(60) as usize;
        let count = 1 + random.below(64 - first as u64) as usize;
        let range = first..first + count;
        let target = |page: usize| (round + 1) * 256 * granule + page as u64 * granule;
        let (iova, len) = (at(&format, pages[first]), count as u64 * granule);
        let before: Vec<Option<u64>> = {
            let mut expected = expected.lock().unwrap();
            expected[range.clone()]
                .iter_mut()
                .map(|(_, allowed)| {
                    allowed[0] = allowed[1];
                    allowed[0]
                })
                .collect()
        };
        let set = |after: &dyn Fn(usize) -> [Option<u64>; 2]| {
            let mut expected = expected.lock().unwrap();
            for page in range.clone() {
                expected[page].1 = after(page);
            }
        };
        if before.iter().all(Option::is_none) {
            set(&|page| [None, Some(target(page))]);
            table.map(iova, bus(target(first)), len, prot).unwrap();
            set(&|page| [Some(target(page)); 2]);
        } else {
            // Unmaps all that is mapped, leaf by leaf.
            let mut gather = TlbGather::new();
            let all = std::mem::take(&mut *expected.lock().unwrap());
            let mut page = 0;
            let mut now = all.clone();
            while page < 64 {
                let Some(mapping) = table.lookup(at(&format, pages[page])).unwrap() else {
                    page += 1;
                    continue;
                };
                let va = geometry.va(mapping.iova).unwrap();
                let size = 1u64 << mapping.page_log2;
                for (page, allowed) in &mut now {
                    if *page >= va && *page - va < size {
                        *allowed = [allowed[1], None];
                    }
                }
                *expected.lock().unwrap() = now.clone();
                table.unmap(mapping.iova, size, &mut gather).unwrap();
                for (page, allowed) in &mut now {
                    if *page >= va && *page - va < size {
                        *allowed = [None; 2];
                    }
                }
                page += 1;
            }
            *expected.lock().unwrap() = now;
            let Ok(()) = table.finish(gather, &NoTlb);
        }
        if round % 8 == 0 {
            assert_settled(&table, &memory);
        }
    }
    assert_settled(&table, &memory);
    // Now the walker sees everything.
    memory.observe_no_more();
    memory.with_view(|view| {
        let walker = Walker::new(&format, view, root);
        for page in &pages {
            let iova = at(&format, *page);
            assert_eq!(walker.lookup(iova), table.lookup(iova));
        }
    });
}

/// Splitting, changing permissions and reclaiming tables change live entries. At every moment each
/// page has the same bus address as before, and when a call returns the walker sees all changes.
pub(crate) fn changed_in_place<F: Format + 'static>(format: F) {
    let prot = read_write(&format);
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    // A block if the format has blocks that can be split, and otherwise its pages.
    let leaf = large_leaves(&format).into_iter().find(|(level, _)| *level == 1);
    let Some((_, run_log2)) = leaf else { return };
    let size = 1u64 << (geometry.shift(1) + run_log2);
    let memory = SimulatedDram::new(4 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let (iova, root) = (at(&format, size), table.root());
    if format.needs_break_before_make() {
        let page = Granule::new(granule).unwrap();
        table.map_pages(iova, bus(size), page, size / granule, prot).unwrap();
    } else {
        table.map(iova, bus(size), size, prot).unwrap();
        assert_eq!(mappings(&table).len(), 1);
    }
    assert_settled(&table, &memory);
    let vas = [size, size + granule, size + size / 2, 2 * size - granule];
    memory.observe(move |view| {
        let walker = Walker::new(&format, view, root);
        for va in vas {
            let iova = at(&format, va);
            let page =
                walker.lookup(iova).unwrap().unwrap_or_else(|| panic!("{va:#x} is not mapped"));
            assert_eq!(page.translate(iova), Some(bus(va)), "{}", F::NAME);
            let now = page.prot.without(Prot::COHERENT);
            assert!(now == prot || now == Prot::READ, "{}: {now}", F::NAME);
        }
        for va in [size - granule, 2 * size] {
            assert_eq!(walker.lookup(at(&format, va)), Ok(None));
        }
    });
    let mut gather = TlbGather::new();
    if !format.needs_break_before_make() {
        table.split(at(&format, size + granule), granule, &mut gather).unwrap();
        assert_settled(&table, &memory);
    }
    assert_eq!(mappings(&table).len() as u64, size / granule);
    let (second, len) = (at(&format, size + granule), 3 * granule);
    table.set_prot(second, len, Prot::READ, &mut gather).unwrap();
    assert_settled(&table, &memory);
    let seen = memory.with_view(|view| Walker::new(&format, view, root).lookup(second).unwrap());
    assert_eq!(seen.unwrap().prot.without(Prot::COHERENT), Prot::READ);
    memory.observe_no_more();
    // In two parts, so that the tables stay.
    for part in 0..2 {
        table.unmap(at(&format, size + part * size / 2), size / 2, &mut gather).unwrap();
        assert_settled(&table, &memory);
    }
    assert_eq!(mappings(&table), []);
    let before = reachable(&table);
    table.reclaim(iova, size, &mut gather).unwrap();
    assert!(gather.has_tables() && reachable(&table) < before, "{}", F::NAME);
    assert_settled(&table, &memory);
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(memory.used(), reachable(&table));
}
