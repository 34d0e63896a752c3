//! Dirty pages.

use longshore_mem::{AddrRange, Granule, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::table_memory::{HostPages, SimulatedDram, TableMemory};
use longshore_pagetable::{Error, Format, PageTable, Prot, TlbGather};
use std::sync::atomic::Ordering;

use crate::setup::*;

const RW: Prot = Prot::READ_WRITE;
const MIB: u64 = 1 << 20;

type Table<F> = PageTable<F, HostPages, Coherent>;

/// Writes to `iova` as a device would: sets the dirty state of one entry.
fn write<F: Format>(table: &Table<F>, iova: Iova) {
    let (format, geometry) = (table.format(), table.format().geometry());
    let (mut address, mut level) = (table.root(), geometry.root_level());
    let va = geometry.va(iova).unwrap();
    loop {
        let slot = &table.memory().entries(address)[geometry.index(level, va)];
        let entry = slot.load(Ordering::Acquire);
        match format.decode(level, entry) {
            longshore_pagetable::format::Entry::Table(child) => address = child,
            longshore_pagetable::format::Entry::Leaf(_) => {
                slot.store(format.with_dirty(entry, true), Ordering::Release);
                return;
            }
            other => panic!("{iova} leads to {other:?}"),
        }
        level -= 1;
    }
}

fn read<F: Format>(table: &Table<F>, iova: u64, len: u64, clear: bool) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut gather = TlbGather::new();
    let note = |range: AddrRange<Iova>| found.push((range.start().raw(), range.len_bytes()));
    table.read_dirty(Iova::new(iova), len, clear, &mut gather, note).unwrap();
    assert_eq!(gather.is_empty(), found.is_empty() || !clear);
    let Ok(()) = table.finish(gather, &NoTlb);
    found
}

fn suite<F: Format>(format: F) {
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    // Pages, and a block; pages in whatever runs the format has.
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
    // Cleared is still writable.
    assert!(table.lookup(Iova::new(3 << 12)).unwrap().unwrap().prot.contains(RW));

    // What is unmapped is told.
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

    // A block split while dirty makes dirty pages.
    table.map(Iova::new(0), bus(0), 2 * MIB, RW).unwrap();
    write(&table, Iova::new(0));
    let mut gather = TlbGather::new();
    table.split(Iova::new(0), 0x1000, &mut gather).unwrap();
    let Ok(()) = table.finish(gather, &NoTlb);
    assert_eq!(read(&table, 0, 2 * MIB, true).len(), 512);
    // Read-only afterwards: what was dirty is kept or told.
    write(&table, Iova::new(0x3000));
    let mut gather = TlbGather::new();
    let mut told = 0;
    let set = |range: AddrRange<Iova>| told += range.len_bytes();
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

/// Any dirty item of a contiguous run dirties the run.
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
            assert_eq!(told[0].len_bytes(), 0x1_0000);
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
