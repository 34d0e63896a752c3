//! The content of a gather, and its use with one page table only.

use std::panic::{AssertUnwindSafe, catch_unwind};

use longshore_mem::{Granule, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Error, PageTable, Prot, TlbGather};

use crate::read_write;
use crate::setup::*;

const MIB: u64 = 1 << 20;

/// A gather has the levels of all changes, both of single leaves and of whole tables.
pub(crate) fn levels<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = *format.geometry();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let page = |log2: u32| Granule::new(1u64 << log2).unwrap();
    for page_log2 in usable_sizes(&format) {
        let runs = |level: &u32| {
            let run_log2 = page_log2.checked_sub(geometry.shift(*level));
            run_log2.is_some_and(|run| run < 32 && geometry.runs(*level) >> run & 1 != 0)
        };
        let level = (0..geometry.levels()).find(runs).unwrap();
        let (size, iova) = (1u64 << page_log2, at(&format, 1 << page_log2));
        table.map_pages(iova, bus(0), page(page_log2), 1, prot).unwrap();
        let is_run = geometry.shift(level) != page_log2;
        let mut gather = TlbGather::new();
        assert_eq!((gather.leaf_levels(), gather.touched()), (0, None));
        if !(is_run && format.needs_break_before_make()) {
            table.set_prot(iova, size, Prot::READ, &mut gather).unwrap();
            assert_eq!(gather.leaf_levels(), 1 << level, "{}: set_prot", F::NAME);
            assert!(!gather.has_tables());
            let Ok(()) = table.finish(gather, &NoTlb);
        }
        let mut gather = TlbGather::new();
        table.unmap(iova, size, &mut gather).unwrap();
        assert_eq!(gather.leaf_levels(), 1 << level, "{}: 2^{page_log2}", F::NAME);
        assert_eq!(gather.touched(), Some((iova, at(&format, 2 * size - 1))));
        assert!(!gather.has_tables() && !gather.saw_dirty() && !gather.is_empty());
        let Ok(()) = table.finish(gather, &NoTlb);
    }
    // Whole tables below the root: all levels below the slot are set.
    for level in 1..geometry.levels().min(3) {
        let below = geometry.shift(level - 1);
        if geometry.runs(level - 1) == 0 || geometry.shift(level) + 1 >= geometry.input_bits() {
            continue;
        }
        let size = 1u64 << geometry.shift(level);
        let iova = at(&format, size);
        // The largest leaves are those of the level below.
        table.map_pages(iova, bus(0), page(below), size >> below, prot).unwrap();
        let mut gather = TlbGather::new();
        table.unmap(iova, size, &mut gather).unwrap();
        assert_eq!(gather.leaf_levels(), (1 << level) - 1, "{}: level {level}", F::NAME);
        assert!(gather.has_tables());
        let Ok(()) = table.finish(gather, &NoTlb);
    }
}

/// A gather with changes of one page table panics if it is used with another one, even if both
/// roots have the same address. The other table stays unchanged.
#[test]
fn a_gather_takes_the_changes_of_one_page_table() {
    const GRANULE: Granule = Granule::SIZE_4K;
    let new = || {
        let table = PageTable::new(vtd_second_tracking(), HostPages::new(), Coherent).unwrap();
        table.map_pages(Iova::new(0), bus(0), GRANULE, 512, Prot::READ_WRITE).unwrap();
        table.map(Iova::new(2 * MIB), bus(2 * MIB), 2 * MIB, Prot::READ_WRITE).unwrap();
        table
    };
    type Table = PageTable<longshore_pagetable::format::VtdSecond, HostPages, Coherent>;
    type Call = fn(&Table, TlbGather);
    let (iova, len) = (Iova::new(0), 2 * MIB);
    let calls: [(&str, Call); 7] = [
        ("unmap", |other, mut gather| {
            other.unmap(Iova::new(0), 2 * MIB, &mut gather).unwrap();
        }),
        ("unmap_pages", |other, mut gather| {
            other.unmap_pages(Iova::new(0), GRANULE, 512, &mut gather).unwrap();
        }),
        ("set_prot", |other, mut gather| {
            other.set_prot(Iova::new(0), 2 * MIB, Prot::READ, &mut gather).unwrap();
        }),
        ("split", |other, mut gather| {
            other.split(Iova::new(2 * MIB), 2 * MIB, &mut gather).unwrap();
        }),
        ("read_dirty", |other, mut gather| {
            other.read_dirty(Iova::new(0), 2 * MIB, true, &mut gather, |_| {}).unwrap();
        }),
        ("reclaim", |other, mut gather| {
            other.reclaim(Iova::new(0), 2 * MIB, &mut gather).unwrap();
        }),
        ("finish", |other, gather| {
            let Ok(()) = other.finish(gather, &NoTlb);
        }),
    ];
    for (name, call) in calls {
        let (one, other) = (new(), new());
        assert_eq!(one.root(), other.root(), "each has its own memory, with the root in one place");
        let (before, used) = (mappings(&other), other.memory().used());
        let mut gather = TlbGather::new();
        one.unmap(iova, len, &mut gather).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| call(&other, gather))).unwrap_err();
        let message = panicked.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(message.contains("one page table only"), "{name}: {message}");
        assert_eq!(mappings(&other), before, "{name}");
        assert_eq!(other.memory().used(), used, "{name}");
    }
    // A gather can be used again with its own table, and an empty one with any table.
    let (one, other) = (new(), new());
    let mut gather = TlbGather::new();
    one.unmap(iova, len, &mut gather).unwrap();
    one.unmap(Iova::new(2 * MIB), len, &mut gather).unwrap();
    let Ok(()) = one.finish(gather, &NoTlb);
    let Ok(()) = other.finish(TlbGather::new(), &NoTlb);
}

/// Arm does not allow a change of the memory type of a live entry, whatever
/// `with_live_size_changes` declares. Other formats allow it.
#[test]
fn the_memory_type_changes_only_if_the_format_allows_it() {
    const PAGE: u64 = 0x1_0000;
    const RW: Prot = Prot::READ_WRITE;
    fn check<F: Format>(format: F, from: Prot, to: Prot, allowed: bool) {
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        // The permissions of the first page may change; the second page is the first that may not
        // change.
        let of = |other: Prot| Prot::READ | other.without(RW);
        table.map(Iova::new(0), bus(2 * PAGE), PAGE, RW | of(to)).unwrap();
        table.map(Iova::new(PAGE), bus(4 * PAGE), PAGE, from).unwrap();
        let before = mappings(&table);
        let mut gather = TlbGather::new();
        let done = table.set_prot(Iova::new(0), 2 * PAGE, to, &mut gather);
        if allowed {
            done.unwrap();
            let now: Vec<Prot> = mappings(&table).iter().map(|page| page.prot).collect();
            assert!(now.iter().all(|prot| prot.contains(to)), "{}: {now:?}", F::NAME);
            assert!(gather.touched().is_some());
        } else {
            let at = Iova::new(PAGE);
            assert_eq!(done, Err(Error::BreakBeforeMake { at }), "{}: {from} {to}", F::NAME);
            assert_eq!(mappings(&table), before);
            assert!(gather.is_empty());
            // It can be changed by unmapping and mapping again.
            table.unmap(Iova::new(0), 2 * PAGE, &mut gather).unwrap();
            let Ok(()) = table.finish(gather, &NoTlb);
            table.map(Iova::new(0), bus(2 * PAGE), 2 * PAGE, to).unwrap();
            assert!(mappings(&table).iter().all(|page| page.prot == to));
        }
    }
    let (device, coherent) = (Prot::DEVICE, Prot::COHERENT);
    for (from, to) in [
        (RW, RW | device),
        (RW | device, RW),
        (RW, RW | coherent),
        (RW | coherent, RW),
        (RW | coherent, RW | device),
        (RW | device, Prot::READ | coherent),
    ] {
        // 64 KiB granules, and 4 KiB without runs, so that the result does not depend on runs.
        check(stage1(16, 48, 48), from, to, false);
        check(stage1_without_runs(12, 48), from, to, false);
        check(stage1_tracking_without_runs(), from, to, false);
        check(stage2(16, 48, 48), from, to, false);
        check(stage2_tracking(), from, to, false);
    }
    for prot in [RW, RW | device, RW | coherent] {
        check(stage1_without_runs(12, 48), prot, prot.without(Prot::WRITE), true);
        check(stage2(12, 48, 48), prot, prot.without(Prot::WRITE), true);
    }
    check(vtd_second(48), RW, RW | coherent, true);
    check(vtd_second(48), RW | coherent, RW, true);
    check(x86_64(false), RW, RW | device, true);
    check(riscv(48), RW | device, RW, true);
}

/// If a callback panics, a part of the range is changed. Walkers may have old translations cached,
/// so the gather must still cover the range, with all levels that changed.
#[test]
fn a_gather_covers_the_changes_if_a_callback_panics() {
    let table = PageTable::new(vtd_second_tracking(), HostPages::new(), Coherent).unwrap();
    let len = 8 * MIB;
    type Table = PageTable<longshore_pagetable::format::VtdSecond, HostPages, Coherent>;
    let calls: [fn(&Table, &mut TlbGather); 3] = [
        |table, gather| {
            table.unmap_dirty(Iova::new(0), 8 * MIB, gather, |_| panic!("dirty")).unwrap();
        },
        |table, gather| {
            table
                .set_prot_dirty(Iova::new(0), 8 * MIB, Prot::READ, gather, |_| panic!("dirty"))
                .unwrap();
        },
        |table, gather| {
            table.read_dirty(Iova::new(0), 8 * MIB, true, gather, |_| panic!("dirty")).unwrap();
        },
    ];
    for call in calls {
        table.map(Iova::new(0), bus(0), len, Prot::READ_WRITE).unwrap();
        let dirty = 2 * MIB;
        assert_eq!(mark(&table, Iova::new(dirty)), Some(21));
        let mut gather = TlbGather::new();
        let attack = AssertUnwindSafe(|| call(&table, &mut gather));
        let panicked = catch_unwind(attack).is_err();
        // Some formats keep the dirty bit of a read-only page; then nothing is reported.
        let changed = gather.touched().expect("something changed");
        assert!(changed.0.raw() <= dirty && changed.1.raw() >= dirty + 2 * MIB - 1, "{changed:?}");
        assert_eq!((gather.leaf_levels(), panicked), (1 << 1, panicked));
        let Ok(()) = table.finish(gather, &NoTlb);
        let left = mappings(&table).iter().map(|mapping| mapping.iova).collect::<Vec<_>>();
        for iova in left {
            unmap(&table, iova, 2 * MIB).unwrap();
        }
    }
}
