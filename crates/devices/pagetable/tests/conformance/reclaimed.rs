//! `reclaim_all` and `reclaim_at`: every empty table, and those on the way to an address.

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::{Coherent, Counting, Counts};
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{PageTable, Prot, TlbGather};

use crate::read_write;
use crate::setup::*;

/// Pages all over the window, unmapped one by one, leave tables that one call detaches.
pub(crate) fn all<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let page = 1u64 << geometry.granule_log2();
    let last = geometry.last_va();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let places: Vec<u64> = [0, last / 3, last / 2, last / 2 + 1, last]
        .into_iter()
        .map(|place| place & !(page - 1))
        .collect();
    // In the first and the last table of pages, and in some between.
    let mut mapped = Vec::new();
    for place in places {
        if !mapped.contains(&place) {
            table.map(at(&format, place), bus(0), page, prot).unwrap();
            mapped.push(place);
        }
    }
    let kept = mapped.remove(1);
    for place in &mapped {
        unmap(&table, at(&format, *place), page).unwrap();
    }
    let mut gather = TlbGather::new();
    table.reclaim_all(&mut gather);
    let Ok(()) = table.finish(gather, &NoTlb);
    // The tables on the way to the page that stays.
    assert_eq!(table.memory().used(), u64::from(geometry.levels()));
    assert_eq!(leads(&table, kept), Some(0));
    assert_eq!(mappings(&table).len(), 1);

    unmap(&table, at(&format, kept), page).unwrap();
    let mut gather = TlbGather::new();
    table.reclaim_all(&mut gather);
    assert_eq!(gather.is_empty(), geometry.levels() == 1);
    // No table is freed before the flush.
    assert_eq!(table.memory().used(), u64::from(geometry.levels()));
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(table.memory().used(), 1);

    let mut gather = TlbGather::new();
    table.reclaim_all(&mut gather);
    assert!(gather.is_empty());
}

/// If each unmapping is followed by `reclaim_at` for its ends, there never is an empty table.
pub(crate) fn on_the_path<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let page = 1u64 << geometry.granule_log2();
    let last = geometry.last_va();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let reclaim = |va: u64| {
        let mut gather = TlbGather::new();
        table.reclaim_at(at(&format, va), &mut gather).unwrap();
        let tables = gather.has_tables();
        let Ok(()) = table.finish(gather, &NoTlb);
        tables
    };
    assert!(!reclaim(0), "the root stays");
    // Each needs fewer tables of its own than the one before, if the format has the levels.
    let mut places: Vec<u64> = vec![0, last & !(page - 1)];
    places.extend((0..geometry.levels()).map(|level| 1 << geometry.shift(level)));
    places.retain(|va| va & (page - 1) == 0 && *va <= last);
    places.sort_unstable();
    places.dedup();
    let mut used = vec![table.memory().used()];
    for place in &places {
        table.map(at(&format, *place), bus(0), page, prot).unwrap();
        used.push(table.memory().used());
    }
    for place in places.iter().rev() {
        assert_eq!(Some(table.memory().used()), used.pop());
        assert!(!reclaim(*place), "it leads to a page");
        unmap(&table, at(&format, *place), page).unwrap();
        reclaim(*place);
        reclaim(*place);
    }
    assert_eq!((table.memory().used(), used), (1, vec![1]));
    let outside = at(&format, last).raw().checked_add(1);
    if let Some(outside) = outside.filter(|_| geometry.input_bits() < 63) {
        let mut gather = TlbGather::new();
        assert!(table.reclaim_at(Iova::new(outside), &mut gather).is_err());
    }
}

/// The lines cleaned, the fences and the addresses to invalidate depend on the detached tables, not
/// on the input range.
#[test]
fn reclaim_all_costs_only_what_it_detaches() {
    const GIB: u64 = 1 << 30;
    let counting = Counting::new(Coherent);
    let table = PageTable::new(vtd_second(48), HostPages::new(), &counting).unwrap();
    // Two neighbours, then one in another table, and one that stays.
    for page in [GIB, GIB + (2 << 20), 5 * GIB, 9 * GIB] {
        table.map(Iova::new(page), bus(0), 1 << 12, Prot::READ_WRITE).unwrap();
    }
    // The root, one table of 512 GiB, three of 1 GiB each, and four of pages.
    assert_eq!(table.memory().used(), 9);
    for page in [GIB, GIB + (2 << 20), 5 * GIB] {
        unmap(&table, Iova::new(page), 1 << 12).unwrap();
    }
    counting.take();
    let mut gather = TlbGather::new();
    table.reclaim_all(&mut gather);
    assert_eq!(counting.take(), Counts { lines: 2, cleans: 2, fences: 1 });
    assert_eq!(gather.touched(), Some((Iova::new(GIB), Iova::new(6 * GIB - 1))));
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(table.memory().used(), 4);

    let mut gather = TlbGather::new();
    table.reclaim_all(&mut gather);
    assert_eq!((counting.take(), gather.is_empty()), (Counts::default(), true));
}
