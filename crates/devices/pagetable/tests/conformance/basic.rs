//! Mapping, looking up and unmapping by one thread with enough memory.

use longshore_mem::Iova;
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{HostPages, TableAddr};
use longshore_pagetable::{Check, Error, Image, PageTable, Prot, TlbGather};

use crate::read_write;
use crate::setup::*;

fn table<F: Format>(format: F) -> PageTable<F, HostPages, Coherent> {
    PageTable::new(format, HostPages::new(), Coherent).unwrap()
}

pub(crate) fn empty<F: Format>(format: F) {
    let table = table(format);
    let last_va = format.geometry().last_va();
    for va in [0, last_va / 3, last_va / 2, last_va / 2 + 1, last_va] {
        assert_eq!(table.lookup(at(&format, va)), Ok(None));
    }
    assert_eq!(mappings(&table), []);
}

/// An image is asked for any address and index, as from a corrupt table.
pub(crate) fn entries_of_no_table<F: Format>(format: F) {
    let table = table(format);
    let granule = 1u64 << format.geometry().granule_log2();
    table.map(at(&format, 0), bus(granule), granule, read_write(&format)).unwrap();
    let root = table.root();
    assert!(table.entry(root, 0).is_some());
    for (raw, index) in [
        // Sums and products that wrap around 2^64 to the root's first entry.
        (root.raw(), 1 << 61),
        (root.raw(), 7 << 61),
        (u64::MAX - 7, 1 + (root.raw() / 8) as usize),
        (1 << 63, (1 << 60) + (root.raw() / 8) as usize),
        (u64::MAX - 7, usize::MAX),
        (u64::MAX - 7, 0),
        (root.raw() + 1, 0),
    ] {
        assert_eq!(
            table.entry(TableAddr::new(raw), index),
            None,
            "{} {raw:#x} {index:#x}",
            F::NAME
        );
    }
}

pub(crate) fn every_page_size<F: Format>(format: F) {
    let prot = read_write(&format);
    let all = format.geometry().last_va();
    for page_log2 in usable_sizes(&format) {
        let size = 1u64 << page_log2;
        let table = table(format);
        let places = [0, (all / 2 + 1 - size) & !(size - 1), all - (size - 1)];
        for (nth, va) in places.into_iter().enumerate() {
            let target = nth as u64 * size;
            table.map(at(&format, va), bus(target), size, prot).unwrap();
            for offset in [0, size / 2, size - 1] {
                let iova = at(&format, va + offset);
                let mapping = table.lookup(iova).unwrap().unwrap();
                assert_eq!(mapping.page_log2, page_log2, "{}", F::NAME);
                assert_eq!(mapping.iova, at(&format, va));
                assert_eq!(mapping.translate(iova), Some(bus(target + offset)));
                assert_eq!(mapping.prot.without(Prot::COHERENT), prot);
            }
        }
        assert_eq!(mappings(&table).len(), 3);
        for va in places {
            unmap(&table, at(&format, va), size).unwrap();
        }
        assert_eq!(mappings(&table), []);
        // The same size, mapped by `map_pages`.
        let page = longshore_mem::Granule::new(size).unwrap();
        table.map_pages(at(&format, 0), bus(0), page, 2, prot).unwrap();
        let found = mappings(&table);
        assert_eq!(found.iter().map(|m| m.page_log2).collect::<Vec<_>>(), [page_log2; 2]);
        let mut gather = TlbGather::new();
        table.unmap_pages(at(&format, 0), page, 2, &mut gather).unwrap();
        let Ok(()) = table.finish(gather, &NoTlb);
        assert_eq!(mappings(&table), []);
    }
}

pub(crate) fn overlap<F: Format>(format: F) {
    let prot = read_write(&format);
    let granule = 1u64 << format.geometry().granule_log2();
    for page_log2 in usable_sizes(&format) {
        let size = 1u64 << page_log2;
        let table = table(format);
        let page = at(&format, (size + size / 2) & !(granule - 1));
        table.map(page, bus(0), granule, prot).unwrap();
        let before = mappings(&table);
        // A block over a live page, and ranges that begin or end at that page.
        let tried = table.map(at(&format, size), bus(0), size, prot);
        assert_eq!(tried, Err(Error::Exists { at: page }));
        let tried = table.map(at(&format, 0), bus(0), 3 * size, prot);
        assert_eq!(tried, Err(Error::Exists { at: page }));
        assert_eq!(table.map(page, bus(0), granule, prot), Err(Error::Exists { at: page }));
        assert_eq!(mappings(&table), before);
        // A page inside a live block.
        table.map(at(&format, 2 * size), bus(0), size, prot).unwrap();
        let inside = at(&format, (2 * size + size / 2) & !(granule - 1));
        assert_eq!(table.map(inside, bus(0), granule, prot), Err(Error::Exists { at: inside }));
    }
}

pub(crate) fn remap<F: Format>(format: F) {
    let prot = read_write(&format);
    for page_log2 in usable_sizes(&format) {
        let size = 1u64 << page_log2;
        let table = table(format);
        let iova = at(&format, size);
        for target in [0, size, 2 * size] {
            table.map(iova, bus(target), size, prot).unwrap();
            assert_eq!(table.lookup(iova).unwrap().unwrap().bus, bus(target));
            unmap(&table, iova, size).unwrap();
            assert_eq!(table.lookup(iova), Ok(None));
            assert_eq!(unmap(&table, iova, size), Err(Error::Hole { at: iova }));
        }
        // Two leaves, each unmapped separately.
        table.map(at(&format, 0), bus(0), 2 * size, prot).unwrap();
        if mappings(&table).len() == 2 {
            unmap(&table, at(&format, 0), size).unwrap();
            assert_eq!(table.lookup(at(&format, 0)), Ok(None));
            assert_eq!(table.lookup(iova).unwrap().unwrap().bus, bus(size));
            let whole = unmap(&table, at(&format, 0), 2 * size);
            assert_eq!(whole, Err(Error::Hole { at: at(&format, 0) }));
            table.map(at(&format, 0), bus(0), size, prot).unwrap();
        }
        unmap(&table, at(&format, 0), 2 * size).unwrap();
        assert_eq!(mappings(&table), []);
    }
}

pub(crate) fn partial<F: Format>(format: F) {
    let prot = read_write(&format);
    let granule = 1u64 << format.geometry().granule_log2();
    for page_log2 in usable_sizes(&format) {
        let size = 1u64 << page_log2;
        if size == granule {
            continue;
        }
        let table = table(format);
        let block = at(&format, size);
        table.map(block, bus(0), size, prot).unwrap();
        let before = mappings(&table);
        let refused = Err(Error::PartialBlock { at: block });
        assert_eq!(unmap(&table, block, granule), refused);
        assert_eq!(unmap(&table, block, size - granule), refused);
        assert_eq!(unmap(&table, at(&format, 2 * size - granule), granule), refused);
        table.map(at(&format, size - granule), bus(0), granule, prot).unwrap();
        assert_eq!(unmap(&table, at(&format, size - granule), 2 * granule), refused);
        unmap(&table, at(&format, size - granule), granule).unwrap();
        assert_eq!(mappings(&table), before);
    }
}

pub(crate) fn emptied<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    for level in 1..geometry.levels() {
        let page_log2 = geometry.shift(level);
        if geometry.runs(level) == 0 || !usable_sizes(&format).contains(&page_log2) {
            continue;
        }
        let (size, block) = (1u64 << page_log2, at(&format, 0));
        let table = table(format);
        // Two pages with a hole between them, unmapped one by one: their tables stay.
        table.map(block, bus(0), granule, prot).unwrap();
        table.map(at(&format, size - granule), bus(0), granule, prot).unwrap();
        unmap(&table, block, granule).unwrap();
        unmap(&table, at(&format, size - granule), granule).unwrap();
        let used = table.memory().used();
        assert!(used > u64::from(geometry.levels() - level), "{}", F::NAME);
        let mut gather = TlbGather::new();
        table.reclaim(block, size, &mut gather).unwrap();
        assert!(gather.has_tables());
        assert_eq!(table.memory().used(), used);
        let Ok(()) = table.finish(gather, &NoTlb);
        assert_eq!(table.memory().used(), u64::from(geometry.levels() - level));
        table.map(block, bus(0), size, prot).unwrap();
        assert_eq!(table.lookup(block).unwrap().unwrap().page_log2, page_log2);
        // Unmapped in one call, pages leave no table behind.
        unmap(&table, block, size).unwrap();
        let page = longshore_mem::Granule::new(granule).unwrap();
        table.map_pages(block, bus(0), page, size / granule, prot).unwrap();
        assert_eq!(table.lookup(block).unwrap().unwrap().page_log2, geometry.granule_log2());
        unmap(&table, block, size).unwrap();
        assert_eq!(table.memory().used(), u64::from(geometry.levels() - level));
        if page_log2 >= 30 {
            break;
        }
    }
}

pub(crate) fn out_of_range<F: Format>(format: F) {
    let table = table(format);
    let prot = read_write(&format);
    let geometry = format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let all = geometry.last_va();
    let last = at(&format, all - (granule - 1));
    let refused =
        |tried: Result<(), Error>| assert!(matches!(tried, Err(Error::OutOfRange { .. })));
    refused(table.map(last, bus(0), 2 * granule, prot));
    refused(unmap(&table, last, 2 * granule));
    if geometry.input_bits() < 64 {
        let outside = Iova::new(at(&format, all).raw().wrapping_add(1));
        let outside = if outside.raw() == 0 { Iova::new(0x1000_0000) } else { outside };
        if geometry.va(outside).is_none() {
            refused(table.map(outside, bus(0), granule, prot));
            refused(unmap(&table, outside, granule));
            assert!(matches!(table.lookup(outside), Err(Error::OutOfRange { .. })));
        }
    }
    let beyond = bus(1 << geometry.output_bits());
    let tried = table.map(at(&format, 0), beyond, granule, prot);
    assert!(matches!(tried, Err(Error::BusOutOfRange { .. })));
    for (iova, target, len_bytes) in
        [(1, 0, granule), (0, 1, granule), (0, 0, granule - 1), (0, 0, 0)]
    {
        let tried = table.map(Iova::new(at(&format, 0).raw() + iova), bus(target), len_bytes, prot);
        assert!(matches!(tried, Err(Error::Misaligned { .. })));
    }
    let refused_prot = Prot::all().find(|prot| format.attributes(*prot).is_none()).unwrap();
    let tried = table.map(at(&format, 0), bus(0), granule, refused_prot);
    assert_eq!(tried, Err(Error::Prot { prot: refused_prot }));
    assert_eq!(mappings(&table), []);
}

/// Some small leaves, two of the next size, and a small one again. Addresses and targets are
/// aligned alike, so that the fewest leaves are known.
pub(crate) fn mixed<F: Format>(format: F) {
    let prot = read_write(&format);
    let sizes = usable_sizes(&format);
    let geometry = format.geometry();
    for pair in sizes.windows(2) {
        let (small, large) = (1u64 << pair[0], 1u64 << pair[1]);
        if 8 * large > geometry.last_va() >> 1 || pair[1] + 4 > geometry.output_bits() {
            continue;
        }
        let table = table(format);
        let (head, tail) = (3.min(large / small - 1), 1);
        let start = large - head * small;
        let len = head * small + 2 * large + tail * small;
        table.map(at(&format, start), bus(start + 4 * large), len, prot).unwrap();
        let found: Vec<u32> = mappings(&table).iter().map(|m| m.page_log2).collect();
        // If sizes differ by a factor of two, two adjacent leaves can form one of the next size.
        let mut expected = fewest(&sizes, start, len);
        assert_eq!(found, expected, "{}", F::NAME);
        expected.sort_unstable();
        assert_eq!(expected.last(), Some(&pair[1]));
        unmap(&table, at(&format, start), len).unwrap();
        assert_eq!(mappings(&table), []);
    }
}

/// Returns the sizes of the largest pages that fit, one after another.
fn fewest(sizes: &[u32], mut va: u64, mut len: u64) -> Vec<u32> {
    let mut found = Vec::new();
    while len > 0 {
        let fits = |log2: &&u32| va & ((1 << **log2) - 1) == 0 && 1 << **log2 <= len;
        let log2 = *sizes.iter().rev().find(fits).unwrap();
        found.push(log2);
        va += 1 << log2;
        len -= 1 << log2;
    }
    found
}

/// A range that ends in the middle of a contiguous run is refused at every level, even if the
/// caller is trusted to know that all of it is mapped.
pub(crate) fn part_of_a_run<F: Format>(format: F) {
    let prot = read_write(&format);
    let geometry = format.geometry();
    for level in 0..geometry.levels() {
        let (entry, runs) = (1u64 << geometry.shift(level), geometry.runs(level) & !1);
        if runs == 0 {
            continue;
        }
        let size = entry << runs.trailing_zeros();
        if !usable_sizes(&format).contains(&size.ilog2()) {
            continue;
        }
        for check in [Check::Checked, Check::Trusted] {
            let table = table(format).with_check(check);
            let page = longshore_mem::Granule::new(size).unwrap();
            table.map_pages(at(&format, 0), bus(0), page, 2, prot).unwrap();
            let before = mappings(&table);
            assert_eq!(before.len(), 2, "{}", F::NAME);
            let refused = |va: u64, len: u64, block: u64| {
                let at_block = Err(Error::PartialBlock { at: at(&format, block) });
                assert_eq!(unmap(&table, at(&format, va), len), at_block, "{} {check:?}", F::NAME);
                assert_eq!(mappings(&table), before);
            };
            refused(entry, 2 * size - entry, 0);
            refused(0, 2 * size - entry, size);
            refused(size - entry, entry, 0);
            refused(size, entry, size);
            refused(size - entry, 2 * entry, 0);
            unmap(&table, at(&format, size), size).unwrap();
            unmap(&table, at(&format, 0), size).unwrap();
            assert_eq!(mappings(&table), []);
        }
    }
}

/// If an entry holds the bits of a wide address in two fields, a range across a boundary of the
/// upper field is mapped without a gap, in pages and in blocks.
#[test]
fn a_range_crosses_the_windows_of_the_address_bits() {
    const LEAVES: u64 = 64;
    fn check<F: Format>(format: F, boundary: u64) {
        let table = table(format);
        let geometry = format.geometry();
        for level in 0..2 {
            let size = 1u64 << geometry.shift(level);
            // Aligned like the target, so that runs are possible, and not aligned like it.
            for (nth, skew) in [(1, 0), (2, size)] {
                let va = (nth << 44) + (u64::from(level) << 43) + skew;
                let target = boundary - LEAVES / 2 * size;
                table.map(at(&format, va), bus(target), LEAVES * size, Prot::READ_WRITE).unwrap();
                for offset in (0..LEAVES * size).step_by(size as usize) {
                    let iova = at(&format, va + offset);
                    let found = table.lookup(iova).unwrap().unwrap();
                    let leads = found.translate(iova).unwrap().raw();
                    assert_eq!(leads, target + offset, "{}: level {level} {offset:#x}", F::NAME);
                }
            }
        }
    }
    // FEAT_LPA2 has bits 51:50 at another place.
    for boundary in [1 << 50, 2 << 50, 3 << 50] {
        check(stage1(12, 52, 52), boundary);
        check(stage1(14, 52, 52), boundary);
        check(stage2(12, 48, 52), boundary);
        check(stage2(14, 52, 52), boundary);
    }
    // FEAT_LPA has bits 51:48 at another place.
    for boundary in [1 << 48, 5 << 48, 15 << 48] {
        check(stage1(16, 48, 52), boundary);
        check(stage1(16, 52, 52), boundary);
        check(stage2(16, 48, 52), boundary);
    }
}

/// Hardware that translates more bits than were asked for does not find old entries of a larger
/// table in the root's memory.
#[test]
fn a_small_root_is_cleared_completely() {
    let memory = HostPages::new();
    let hardware = vtd_second(39);
    let before = PageTable::new(hardware, &memory, Coherent).unwrap();
    before.map(Iova::new(1 << 38), bus(0x1234_5000), 0x1000, Prot::READ_WRITE).unwrap();
    let root = before.root();
    drop(before);
    let table = PageTable::new(vtd_second(36), &memory, Coherent).unwrap();
    assert_eq!(table.root(), root);
    let walker = longshore_pagetable::Walker::new(&hardware, &table, table.root());
    assert_eq!(walker.lookup(Iova::new(1 << 38)), Ok(None));
}
