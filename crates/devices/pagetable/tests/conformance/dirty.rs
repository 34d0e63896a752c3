//! Dirty pages.

use longshore_mem::{AddrRange, Granule, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::{HostPages, SimulatedDram};
use longshore_pagetable::{Error, PageTable, Prot, TlbGather};

use crate::setup::*;

const RW: Prot = Prot::READ_WRITE;
const MIB: u64 = 1 << 20;

type Table<F> = PageTable<F, HostPages, Coherent>;

/// Writes to `iova` as a device would.
fn write<F: Format>(table: &Table<F>, iova: Iova) {
    assert!(mark(table, iova).is_some(), "{}: {iova:#x} is not clean and writable", F::NAME);
}

fn read<F: Format>(table: &Table<F>, iova: u64, len: u64, clear: bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut gather = TlbGather::new();
    let note = |range: AddrRange<Iova>| found.push((range.start().raw(), range.len()));
    table.read_dirty(Iova::new(iova), len, clear, &mut gather, note).unwrap();
    assert_eq!(gather.is_empty(), found.is_empty() || !clear);
    let Ok(()) = table.finish(gather, &NoTlb);
    found
}

fn suite<F: Format>(format: F) {
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    // Pages, in the runs that the format has, and a block.
    table.map(Iova::new(0), bus(0x1000), 2 * MIB, RW).unwrap();
    table.map(Iova::new(2 * MIB), bus(0), 2 * MIB, RW).unwrap();
    assert_eq!(read(&table, 0, 4 * MIB, false), []);
    for page in [3, 4, 200, 511] {
        write(&table, Iova::new(page << 12));
    }
    write(&table, Iova::new(2 * MIB + 0x5000));
    let pages = [(3 << 12, 4096), (4 << 12, 4096), (200 << 12, 4096), (511 << 12, 4096)];
    let all = [pages.as_slice(), &[(2 * MIB, 2 * MIB)]].concat();
    assert_eq!(read(&table, 0, 4 * MIB, false), all, "{}", F::NAME);
    assert!(table.lookup(Iova::new(3 << 12)).unwrap().unwrap().dirty);
    assert!(!table.lookup(Iova::new(5 << 12)).unwrap().unwrap().dirty);
    assert_eq!(read(&table, 4 << 12, 0x1000, true), [(4 << 12, 4096)]);
    assert_eq!(read(&table, 0, 4 * MIB, true).len(), 4);
    assert_eq!(read(&table, 0, 4 * MIB, true), []);
    // A clean page is still writable.
    assert!(table.lookup(Iova::new(3 << 12)).unwrap().unwrap().prot.contains(RW));

    // A dirty page that is unmapped is reported.
    write(&table, Iova::new(7 << 12));
    write(&table, Iova::new(2 * MIB));
    let mut gather = TlbGather::new();
    let mut told = Vec::new();
    table.unmap_dirty(Iova::new(0), 4 * MIB, &mut gather, |range| told.push(range)).unwrap();
    assert!(gather.saw_dirty());
    let told: Vec<u64> = told.iter().map(|range| range.start().raw()).collect();
    assert_eq!(told, [7 << 12, 2 * MIB], "{}", F::NAME);
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(mappings(&table), []);

    // If a dirty block is split, its pages are dirty.
    table.map(Iova::new(0), bus(0), 2 * MIB, RW).unwrap();
    write(&table, Iova::new(0));
    let mut gather = TlbGather::new();
    table.split(Iova::new(0), 0x1000, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(read(&table, 0, 2 * MIB, true).len(), 512);
    // If a dirty page is made read-only, it stays dirty or is reported.
    write(&table, Iova::new(0x3000));
    let mut gather = TlbGather::new();
    let mut told = 0;
    let set = |range: AddrRange<Iova>| told += range.len();
    table.set_prot_dirty(Iova::new(0), 2 * MIB, Prot::READ, &mut gather, set).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
    let kept = read(&table, 0, 2 * MIB, false).len();
    assert_eq!((kept, told), if F::READ_ONLY_KEEPS_DIRTY { (1, 0) } else { (0, 4096) });
}

#[test]
fn stage_1() {
    suite(stage1_tracking());
}

#[test]
fn stage_2() {
    suite(stage2_tracking());
}

#[test]
fn vtd() {
    suite(vtd_second_tracking());
    suite(vtd_first_tracking());
}

#[test]
fn x86() {
    suite(x86_64_tracking());
}

#[test]
fn amd() {
    suite(amd_v1_tracking());
}

#[test]
fn risc_v() {
    suite(riscv_tracking());
}

/// If any entry of a contiguous run is dirty, the run is.
#[test]
fn runs_are_dirty_as_a_whole() {
    fn check<F: Format>(format: F) {
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        let page = Granule::SIZE_64K;
        for item in 0..16 {
            table.map_pages(Iova::new(0x1_0000), bus(0), page, 2, RW).unwrap();
            write(&table, Iova::new(0x2_0000 + (item << 12)));
            let found = table.lookup(Iova::new(0x2_3000)).unwrap().unwrap();
            assert!(found.dirty && found.page_log2 == 16, "{}", F::NAME);
            assert!(!table.lookup(Iova::new(0x1_3000)).unwrap().unwrap().dirty);
            assert_eq!(read(&table, 0, MIB, true), [(0x2_0000, 0x1_0000)]);
            assert_eq!(read(&table, 0, MIB, false), []);
            write(&table, Iova::new(0x2_0000 + (item << 12)));
            let mut told = Vec::new();
            let mut gather = TlbGather::new();
            table
                .unmap_dirty(Iova::new(0x1_0000), 0x2_0000, &mut gather, |range| told.push(range))
                .unwrap();
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].len(), 0x1_0000);
            let Ok(()) = table.finish(gather, &NoTlb);
        }
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(amd_v1_tracking());
    check(riscv_tracking());
}

#[test]
fn tracking_must_be_set_up_and_needs_a_coherent_walker() {
    let table = PageTable::new(vtd_second(48), HostPages::new(), Coherent).unwrap();
    let read = table.read_dirty(Iova::new(0), 4096, false, &mut TlbGather::new(), |_| {});
    assert_eq!(read, Err(Error::NoDirtyTracking));
    let memory = SimulatedDram::new(1 << 16);
    let made = PageTable::new(vtd_second_tracking(), &memory, &memory);
    assert_eq!(made.err(), Some(Error::TrackingNeedsCoherence));
    assert_eq!(memory.used(), 0);
}

/// If only a part of a leaf is read, the whole leaf is reported, cleared and gathered, whichever of
/// its entries is dirty. Its neighbours are not.
#[test]
fn a_leaf_is_reported_whole_if_a_part_is_read() {
    fn check<F: Format>(format: F) {
        let geometry = *format.geometry();
        for (level, run_log2) in large_leaves(&format) {
            let entry = 1u64 << geometry.shift(level);
            let size = entry << run_log2;
            let page = Granule::new(size).unwrap();
            let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
            table.map_pages(Iova::new(0), bus(0), page, 4, RW).unwrap();
            // Read: the first, a middle and the last page of the leaf. Dirty: each entry.
            for asked in [size, size + size / 2, 2 * size - 0x1000] {
                for item in 0..1 << run_log2 {
                    for iova in [0, size + item * entry, 2 * size] {
                        write(&table, Iova::new(iova));
                    }
                    let told = read(&table, asked, 0x1000, false);
                    assert_eq!(told, [(size, size)], "{}: entry {item}", F::NAME);
                    let mut gather = TlbGather::new();
                    let mut told = Vec::new();
                    let note = |range: AddrRange<Iova>| told.push(range.start().raw());
                    table.read_dirty(Iova::new(asked), 0x1000, true, &mut gather, note).unwrap();
                    assert_eq!(told, [size], "{}: entry {item}", F::NAME);
                    let whole = (Iova::new(size), Iova::new(2 * size - 1));
                    assert_eq!(gather.touched(), Some(whole), "{}: entry {item}", F::NAME);
                    assert_eq!(gather.leaf_levels(), 1 << level);
                    assert!(gather.saw_dirty());
                    let Ok(()) = table.finish(gather, &NoTlb);
                    let dirty: Vec<bool> = mappings(&table).iter().map(|leaf| leaf.dirty).collect();
                    assert_eq!(dirty, [true, false, true, false], "{}: entry {item}", F::NAME);
                    assert_eq!(read(&table, 0, 4 * size, true), [(0, size), (2 * size, size)]);
                }
            }
            // From the middle of one leaf to the middle of another.
            for iova in [0, size, 2 * size, 3 * size] {
                write(&table, Iova::new(iova));
            }
            let mut gather = TlbGather::new();
            let (asked, len) = (Iova::new(2 * size - 0x1000), 0x2000);
            table.read_dirty(asked, len, true, &mut gather, |_| {}).unwrap();
            assert_eq!(gather.touched(), Some((Iova::new(size), Iova::new(3 * size - 1))));
            let Ok(()) = table.finish(gather, &NoTlb);
            assert_eq!(read(&table, 0, 4 * size, false), [(0, size), (3 * size, size)]);
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

/// The last leaf of the address space is read, cleared and unmapped like any other.
#[test]
fn the_last_leaf_of_the_address_space() {
    fn check<F: Format>(format: F) {
        let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
        let all = format.geometry().last_va();
        let (page, block) = (at(&format, all - 0xfff), at(&format, all - (2 * MIB - 1)));
        for (iova, len) in [(page, 0x1000), (block, 2 * MIB)] {
            table.map(iova, bus(0), len, RW).unwrap();
            write(&table, iova);
            let mut gather = TlbGather::new();
            let mut told = Vec::new();
            let note = |range: AddrRange<Iova>| told.push((range.start(), range.len()));
            table.read_dirty(page, 0x1000, true, &mut gather, note).unwrap();
            assert_eq!(told, [(iova, len)], "{}", F::NAME);
            assert_eq!(gather.touched(), Some((iova, at(&format, all))));
            write(&table, page);
            let mut told = Vec::new();
            let note = |range: AddrRange<Iova>| told.push((range.start(), range.len()));
            table.unmap_dirty(iova, len, &mut gather, note).unwrap();
            assert_eq!(told, [(iova, len)], "{}", F::NAME);
            let Ok(()) = table.finish(gather, &NoTlb);
            let mut gather = TlbGather::new();
            table.reclaim(block, 2 * MIB, &mut gather).unwrap();
            let Ok(()) = table.finish(gather, &NoTlb);
        }
    }
    check(stage1_tracking());
    check(stage2_tracking());
    check(vtd_second_tracking());
    check(x86_64_tracking());
    check(riscv_tracking());
    check(amd_v1_6_levels_tracking());
}

/// If a writable run is split, all of its pages are dirty, because a walker may have marked any entry
/// for a write anywhere in the run. Splitting a read-only run makes no page dirty.
#[test]
fn pages_of_a_split_run_are_dirty() {
    fn check<F: Format>(format: F) {
        for (level, run_log2) in large_leaves(&format) {
            let size = 1u64 << (format.geometry().shift(level) + run_log2);
            let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
            for (prot, written) in [(RW, false), (RW, true), (Prot::READ, false)] {
                table.map(Iova::new(size), bus(size), size, prot).unwrap();
                assert_eq!(mappings(&table).len(), 1);
                if written {
                    write(&table, Iova::new(2 * size - 0x1000));
                }
                let mut gather = TlbGather::new();
                table.split(Iova::new(size), 0x1000, &mut gather).unwrap();
                let Ok(()) = table.finish(gather, &NoTlb);
                let pages = mappings(&table);
                let dirty = pages.iter().filter(|page| page.dirty).count() as u64;
                let all = written || (run_log2 > 0 && prot == RW);
                assert_eq!(dirty, if all { size >> 12 } else { 0 }, "{} {prot}", F::NAME);
                assert!(pages.iter().all(|page| page.prot.without(Prot::COHERENT) == prot));
                assert_eq!(read(&table, size, size, true).len() as u64, dirty);
                unmap(&table, Iova::new(size), size).unwrap();
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
