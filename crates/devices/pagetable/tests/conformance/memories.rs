//! Memories and cache maintenance that the other tests do not use, and the text of `dump`.

use std::sync::atomic::AtomicU64;

use longshore_mem::isa::IsaToken;
use longshore_mem::{Granule, Iova};
use longshore_pagetable::cache_sync::{CacheSync, Coherent};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use longshore_pagetable::cache_sync::{ClFlushOpt, Clwb};
use longshore_pagetable::table_memory::{
    HostPages, Slab, SlabError, TableAddr, TableMemory, TableMeta,
};
use longshore_pagetable::{Error, PageTable, Prot};

use crate::setup::*;

const RW: Prot = Prot::READ_WRITE;
const MIB: u64 = 1 << 20;

#[test]
fn a_slab_uses_the_walkers_addresses() {
    let entries: Vec<AtomicU64> = (0..8 * 512).map(|_| AtomicU64::new(0)).collect();
    let metas: Vec<TableMeta> = (0..8).map(|_| TableMeta::new()).collect();
    let base = TableAddr::new(0x1_2340_0000);
    let refused = Slab::new(&entries, &metas[..7], base).err();
    assert_eq!(refused, Some(SlabError::Metas { needed: 8, given: 7 }));
    let odd = TableAddr::new(0x800);
    assert_eq!(Slab::new(&entries, &metas, odd).err(), Some(SlabError::Base { base: odd }));

    let slab = Slab::new(&entries, &metas, base).unwrap();
    let table = PageTable::new(vtd_second(48), &slab, Coherent).unwrap();
    assert_eq!(table.root(), base);
    table.map(Iova::new(0), bus(0x1000), 2 * MIB, RW).unwrap();
    assert_eq!(slab.used(), 4);
    // The root leads to the next table of the region.
    assert_eq!(entries[0].load(std::sync::atomic::Ordering::Relaxed), 0x1_2340_1003);
    // Four more units, but the range needs six.
    let full = table.map(Iova::new((1 << 39) - 0x1000), bus(0), 0x2000, RW);
    assert_eq!(full, Err(Error::OutOfMemory));
    assert_eq!(slab.used(), 4);
    assert!(slab.entries(TableAddr::new(0)).is_empty());
    assert!(slab.entries(TableAddr::new(base.raw() + 8 * 4096)).is_empty());
    drop(table);
    assert_eq!(slab.used(), 0);
    // A table whose size is larger than the alignment of the base.
    let slab = Slab::new(&entries, &metas, TableAddr::new(0x1000)).unwrap();
    assert_eq!(slab.alloc(14), None);
    assert!(slab.alloc(12).is_some());
}

#[test]
fn a_table_beyond_the_output_bits_is_out_of_memory() {
    let entries: Vec<AtomicU64> = (0..8 * 512).map(|_| AtomicU64::new(0)).collect();
    let metas: Vec<TableMeta> = (0..8).map(|_| TableMeta::new()).collect();
    let slab = Slab::new(&entries, &metas, TableAddr::new(1 << 48)).unwrap();
    let made = PageTable::new(vtd_second(48), &slab, Coherent);
    assert_eq!(made.err(), Some(Error::OutOfMemory));
    assert_eq!(slab.used(), 0);
}

fn map_and_unmap(sync: impl CacheSync) {
    for token in IsaToken::all() {
        let memory = HostPages::new();
        let table = PageTable::new(stage1(12, 48, 48), &memory, &sync).unwrap().with_isa(token);
        table.map(Iova::new(0x1000), bus(0x3000), 3 * MIB, RW).unwrap();
        let pages: u64 = mappings(&table).iter().map(|mapping| 1 << mapping.page_log2).sum();
        assert_eq!(pages, 3 * MIB);
        unmap(&table, Iova::new(0x1000), 3 * MIB).unwrap();
        assert_eq!(mappings(&table), []);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn lines_are_cleaned_by_the_machines_instructions() {
    match Clwb::new() {
        Some(clwb) => map_and_unmap(clwb),
        None => println!("SKIPPED: the machine has no clwb"),
    }
    match ClFlushOpt::new() {
        Some(clflushopt) => map_and_unmap(clflushopt),
        None => println!("SKIPPED: the machine has no clflushopt"),
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[test]
fn lines_are_cleaned_by_the_machines_instructions() {
    map_and_unmap(longshore_pagetable::cache_sync::DcCvac::new());
}

#[test]
fn every_instruction_set_maps_and_unmaps() {
    map_and_unmap(Coherent);
}

#[test]
fn a_dump_prints_the_tree() {
    let table = PageTable::new(stage1(12, 48, 48), HostPages::new(), Coherent).unwrap();
    table.map(Iova::new(1 << 30), bus(1 << 31), 4 * MIB, RW).unwrap();
    let page = Granule::SIZE_4K;
    table.map_pages(Iova::new((1 << 30) + 4 * MIB), bus(0x5000), page, 3, RW).unwrap();
    table.map(Iova::new((1 << 30) + 5 * MIB), bus(0x10_0000), 0x1_0000, Prot::READ).unwrap();
    let expected = "\
Arm LPAE stage 1, root 0x0 of level 3
[0] 0x0: table 0x1000 of level 2
  [1] 0x40000000: table 0x2000 of level 1
    [0..=1] 0x40000000: 2 x 2 MiB -> 0x80000000 rw----
    [2] 0x40400000: table 0x3000 of level 0
      [0..=2] 0x40400000: 3 x 4 KiB -> 0x5000 rw----
      [256..=271] 0x40500000: 64 KiB -> 0x100000 r-----
";
    assert_eq!(table.dump().to_string(), expected);
    let first = mappings(&table)[0];
    assert_eq!(first.to_string(), "0x40000000 + 2 MiB -> 0x80000000 rw----");
}

/// A failed allocation is not counted as used. It fails at the limit, and also if the process is
/// out of memory: this test runs a child that may have 1 GiB of addresses, which is less than the
/// first three chunks.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_failed_allocation_is_not_counted_as_used() {
    let memory = HostPages::with_limit(3 * 4096);
    let tables: Vec<_> = (0..3).map(|_| memory.alloc(12).unwrap()).collect();
    assert_eq!((memory.alloc(12), memory.alloc(14), memory.alloc(30)), (None, None, None));
    assert_eq!(memory.used(), 3);
    tables.iter().for_each(|table| memory.free(*table, 12));
    assert_eq!(memory.used(), 0);
    // The tables of the first limit can be allocated again, and more only with a higher limit.
    memory.set_limit(4096);
    let tables: Vec<_> = (0..3).map(|_| memory.alloc(12).unwrap()).collect();
    assert_eq!(memory.alloc(12), None);
    memory.set_limit(u64::MAX);
    assert_eq!(memory.alloc(12), None, "no more than the chunk of the first limit");
    tables.iter().for_each(|table| memory.free(*table, 12));
    let memory = HostPages::new();
    memory.set_limit(2 * 4096);
    assert_eq!([(); 3].map(|()| memory.alloc(12).is_some()), [true, true, false]);
    memory.set_limit(3 * 4096);
    assert!(memory.alloc(12).is_some());

    let test = std::env::current_exe().unwrap();
    let child = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 1048576 && exec \"$0\" \"$@\""])
        .arg(test)
        .args(["--exact", "memories::host_pages_in_a_small_address_space", "--ignored"])
        .args(["--nocapture", "--test-threads", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
#[ignore = "needs a limit of the address space, which `a_failed_allocation_is_not_counted_as_used` sets"]
fn host_pages_in_a_small_address_space() {
    let memory = HostPages::new();
    let mut tables: Vec<TableAddr> = Vec::new();
    while let Some(table) = memory.alloc(21) {
        tables.push(table);
        assert!(tables.len() < 1 << 10, "there is no limit");
    }
    let had = tables.len() as u64;
    assert!(had >= 128, "less than the first chunk: {had}");
    for _ in 0..10 {
        assert_eq!(memory.alloc(21), None);
        assert_eq!(memory.used(), had, "a failed allocation is counted");
    }
    // A freed table can be allocated again.
    let last = tables.pop().unwrap();
    memory.free(last, 21);
    assert_eq!(memory.used(), had - 1);
    assert_eq!(memory.alloc(21), Some(last));
    tables.push(last);
    for table in tables {
        memory.free(table, 21);
    }
    assert_eq!(memory.used(), 0);
}
