//! Exact counts of lines, fences and invalidations.

use std::cell::Cell;
use std::convert::Infallible;

use longshore_mem::{Granule, Iova};
use longshore_pagetable::cache_sync::{Coherent, Counting, Counts};
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Check, Error, Invalidate, PageTable, Prot, TlbGather};

use crate::setup::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const RW: Prot = Prot::READ_WRITE;

/// Counts flushes.
#[derive(Default)]
struct Flushes(Cell<u64>);

impl Invalidate for Flushes {
    type Error = Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Infallible> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
}

type Counted<'a, F> = PageTable<F, &'a HostPages, &'a Counting<Coherent>>;

fn with<F: Format>(format: F, test: impl Fn(&Counted<'_, F>, &Counting<Coherent>)) {
    for check in [Check::Checked, Check::Trusted] {
        let memory = HostPages::new();
        let counting = Counting::new(Coherent);
        let table = PageTable::new(format, &memory, &counting).unwrap().with_check(check);
        counting.take();
        test(&table, &counting);
        drop(table);
        assert_eq!(memory.used(), 0);
    }
}

/// Unmaps with one `unmap`, and returns the counts and the number of freed tables.
fn unmap_counted<F: Format>(
    table: &Counted<'_, F>,
    counting: &Counting<Coherent>,
    iova: u64,
    len_bytes: u64,
) -> (Counts, u64) {
    let (used, flushes) = (table.memory().used(), Flushes::default());
    counting.take();
    let mut gather = TlbGather::new();
    table.unmap(Iova::new(iova), len_bytes, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &flushes);
    assert_eq!(flushes.0.get(), 1, "one invalidation");
    (counting.take(), used - table.memory().used())
}

#[test]
fn a_block_beside_pages_is_unmapped_as_one_run() {
    fn check<F: Format>(format: F) {
        with(format, |table, counting| {
            let start = 1 << 30;
            // 2 MiB as a block, then 1 MiB + 1 MiB of pages.
            table.map(Iova::new(start), bus(0), 2 * MIB, RW).unwrap();
            let page = Granule::SIZE_4K;
            for part in 0..2 {
                let iova = Iova::new(start + (2 + part) * MIB);
                table.map_pages(iova, bus(part * MIB), page, 256, RW).unwrap();
            }
            let counted = unmap_counted(table, counting, start, 4 * MIB);
            assert_eq!(counted, (Counts { lines: 1, cleans: 1, fences: 1 }, 1), "{}", F::NAME);
        });
    }
    check(stage1(12, 48, 48));
    check(stage2(12, 48, 48));
    check(vtd_second(48));
    check(vtd_first(false));
    check(x86_64(false));
    check(amd_v1(4));
    check(riscv(48));
}

#[test]
fn a_run_of_pages_is_cleaned_once() {
    with(vtd_second(48), |table, counting| {
        for (len, lines) in [(4 * KIB, 1), (32 * KIB, 1), (64 * KIB, 2), (512 * KIB, 16), (MIB, 32)]
        {
            // Not a whole table: the end stays mapped.
            table.map(Iova::new(0), bus(0), MIB + 4 * KIB, RW).unwrap();
            let counted = unmap_counted(table, counting, 0, len);
            assert_eq!(counted, (Counts { lines, cleans: 1, fences: 1 }, 0));
            unmap(table, Iova::new(len), MIB + 4 * KIB - len).unwrap();
        }
    });
}

#[test]
fn a_subtree_is_one_entry() {
    with(vtd_second(48), |table, counting| {
        let count = (1 << 30) / (4 * KIB);
        table.map_pages(Iova::new(1 << 30), bus(0), Granule::SIZE_4K, count, RW).unwrap();
        let counted = unmap_counted(table, counting, 1 << 30, 1 << 30);
        assert_eq!(counted, (Counts { lines: 1, cleans: 1, fences: 1 }, 513));
    });
}

#[test]
fn mapping_fences_once_for_new_tables_and_once_at_the_end() {
    with(vtd_second(48), |table, counting| {
        // Three tables of 64 lines, and the root's slot.
        table.map(Iova::new(0), bus(0x1000), 4 * KIB, RW).unwrap();
        assert_eq!(counting.take(), Counts { lines: 3 * 64 + 1, cleans: 4, fences: 2 });
        // Into existing tables.
        table.map(Iova::new(0x1000), bus(0), 4 * KIB, RW).unwrap();
        assert_eq!(counting.take(), Counts { lines: 1, cleans: 1, fences: 1 });
        // A new table beside an existing one: its lines, its slot, and the pages before it.
        table.map(Iova::new(MIB), bus(0x1000), 2 * MIB, RW).unwrap();
        assert_eq!(counting.take(), Counts { lines: 64 + 1 + 32, cleans: 3, fences: 2 });
        unmap(table, Iova::new(0), 8 * KIB).unwrap();
        unmap(table, Iova::new(MIB), 2 * MIB).unwrap();
        // 512 new tables below one: each line is cleaned once.
        counting.take();
        let count = (1 << 30) / (4 * KIB);
        table.map_pages(Iova::new(1 << 30), bus(0), Granule::SIZE_4K, count, RW).unwrap();
        assert_eq!(counting.take(), Counts { lines: 513 * 64 + 1, cleans: 514, fences: 2 });
    });
}

#[test]
fn failed_calls_clean_nothing_and_fence_nothing() {
    with(vtd_second(48), |table, counting| {
        table.map(Iova::new(0x10_0000), bus(0), 4 * KIB, RW).unwrap();
        counting.take();
        let tried = table.map(Iova::new(0), bus(0), 2 * MIB, RW);
        assert_eq!(tried, Err(Error::Exists { at: Iova::new(0x10_0000) }));
        let mut gather = TlbGather::new();
        assert!(table.unmap(Iova::new(0), 2 * MIB + 4 * KIB, &mut gather).is_err());
        assert!(gather.is_empty());
        assert_eq!(counting.take(), Counts::default());
    });
}

#[test]
fn the_published_mixed_range() {
    // 14 x 2 MiB + 3 x 1 GiB + 3 x 2 MiB.
    with(vtd_second(48), |table, _| {
        let (start, len) = ((1 << 30) - 28 * MIB, 28 * MIB + (3 << 30) + 6 * MIB);
        table.map(Iova::new(start), bus((5 << 30) - 28 * MIB), len, RW).unwrap();
        let found: Vec<u32> = mappings(table).iter().map(|mapping| mapping.page_log2).collect();
        assert_eq!(found, [[21; 14].as_slice(), &[30; 3], &[21; 3]].concat());
        assert_eq!(found.len(), 20);
        unmap(table, Iova::new(start), len).unwrap();
    });
}

/// However many blocks are split, there is one fence before the first table is linked and one at
/// the end. Each line is cleaned once: those of the new tables, and those of the slots.
#[test]
fn splitting_fences_once_for_new_tables_and_once_at_the_end() {
    with(vtd_second(48), |table, counting| {
        for blocks in [1, 8, 9, 300] {
            table.map(Iova::new(1 << 30), bus(1 << 30), blocks * 2 * MIB, RW).unwrap();
            counting.take();
            let mut gather = TlbGather::new();
            table.split(Iova::new(1 << 30), blocks * 2 * MIB, &mut gather).unwrap();
            let counted = counting.take();
            let slots = blocks.div_ceil(8);
            assert_eq!((counted.fences, gather.is_empty()), (2, false), "{blocks} blocks");
            assert!(counted.lines >= blocks * 64 + slots, "{counted:?}");
            // At most one line of slots for each block.
            assert!(counted.lines <= blocks * (64 + 1) && counted.cleans <= 2 * blocks);
            let Ok(()) = table.finish(gather, &NoTlb);
            // There is nothing more to split.
            counting.take();
            let mut gather = TlbGather::new();
            table.split(Iova::new(1 << 30), blocks * 2 * MIB, &mut gather).unwrap();
            assert_eq!((counting.take(), gather.is_empty()), (Counts::default(), true));
            unmap(table, Iova::new(1 << 30), blocks * 2 * MIB).unwrap();
            let mut gather = TlbGather::new();
            table.reclaim(Iova::new(1 << 30), 1 << 30, &mut gather).unwrap();
            let Ok(()) = table.finish(gather, &NoTlb);
        }
    });
    // A run of blocks is one run of slots. A run of pages needs no table, and therefore no first
    // fence.
    with(amd_v1(4), |table, counting| {
        table.map(Iova::new(32 * MIB), bus(32 * MIB), 32 * MIB, RW).unwrap();
        assert_eq!(mappings(table).len(), 1);
        counting.take();
        let mut gather = TlbGather::new();
        table.split(Iova::new(40 * MIB), 4 * KIB, &mut gather).unwrap();
        assert_eq!(counting.take(), Counts { lines: 16 * 64 + 2, cleans: 17, fences: 2 });
        let Ok(()) = table.finish(gather, &NoTlb);
        unmap(table, Iova::new(32 * MIB), 32 * MIB).unwrap();

        table.map(Iova::new(64 * KIB), bus(64 * KIB), 64 * KIB, RW).unwrap();
        assert_eq!(mappings(table).len(), 1);
        counting.take();
        let mut gather = TlbGather::new();
        table.split(Iova::new(64 * KIB), 4 * KIB, &mut gather).unwrap();
        assert_eq!(counting.take(), Counts { lines: 2, cleans: 1, fences: 1 });
        let Ok(()) = table.finish(gather, &NoTlb);
        unmap(table, Iova::new(64 * KIB), 64 * KIB).unwrap();
    });
}

/// Changes of entries in place clean each run of entries once and issue one fence.
#[test]
fn in_place_changes_fence_once() {
    with(vtd_second(48), |table, counting| {
        let page = Granule::SIZE_4K;
        table.map_pages(Iova::new(0), bus(0), page, 1024, RW).unwrap();
        counting.take();
        let mut gather = TlbGather::new();
        table.set_prot(Iova::new(8 * KIB), 64 * KIB, Prot::READ, &mut gather).unwrap();
        // Entries 2 to 17.
        assert_eq!(counting.take(), Counts { lines: 3, cleans: 1, fences: 1 });
        table.set_prot(Iova::new(0), 4 * MIB, Prot::READ, &mut gather).unwrap();
        assert_eq!(counting.take(), Counts { lines: 128, cleans: 2, fences: 1 });
        for part in 0..4 {
            table.unmap(Iova::new(part * MIB), MIB, &mut gather).unwrap();
        }
        counting.take();
        table.reclaim(Iova::new(0), 4 * MIB, &mut gather).unwrap();
        assert_eq!(counting.take(), Counts { lines: 1, cleans: 1, fences: 1 });
        table.reclaim(Iova::new(0), 4 * MIB, &mut gather).unwrap();
        assert_eq!(counting.take(), Counts::default());
        let Ok(()) = table.finish(gather, &NoTlb);
    });
}
