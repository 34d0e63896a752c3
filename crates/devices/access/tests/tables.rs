//! The number of page tables of a space: counting, freeing and limits.
#![cfg(not(loom))]

use std::sync::Arc;

use longshore_access::{
    CLIENT_TABLE_BYTES_MAX, Error, Reason, Region, RegionAccess, RemoteFault, RemoteMemory, Space,
    SpaceConfig,
};
use longshore_mem::{FileOffset, Iova, VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::memfd;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The bytes of one table.
const TABLE: u64 = 4096;

/// Missing memory of any length.
struct Nothing;

impl RemoteMemory for Nothing {
    fn read(&self, _: u64, _: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        Err(RemoteFault::new(0, Reason::BackingLost))
    }

    fn write(&self, _: u64, _: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        Err(RemoteFault::new(0, Reason::BackingLost))
    }

    fn cancel(&self, _: std::ops::Range<u64>) {}
}

fn space_with(config: SpaceConfig, len_bytes: u64) -> (Space, Arc<Region>) {
    let space = Space::with_config(config).unwrap();
    let region = Arc::new(Region::remote(Arc::new(Nothing), len_bytes).unwrap());
    space.attach(&region).unwrap();
    (space, region)
}

#[test]
fn unmapping_frees_the_tables_that_it_leaves_empty() {
    let (space, region) = space_with(SpaceConfig::for_client(), 4 * MIB);
    let map = |iova, len| space.map(Iova::new(iova), &region, 0, len, Prot::READ).unwrap();
    let unmap = |iova, len| space.unmap(Iova::new(iova), len).unwrap();
    assert_eq!(space.table_bytes(), TABLE, "the root");
    map(0x1000, PAGE);
    assert_eq!(space.table_bytes(), 4 * TABLE, "a table of each level");
    map(0x3000, PAGE);
    unmap(0x1000, PAGE);
    assert_eq!(space.table_bytes(), 4 * TABLE, "one page is left");
    map(2 * MIB, PAGE);
    map(GIB, PAGE);
    map(512 * GIB, PAGE);
    assert_eq!(space.table_bytes(), (4 + 1 + 2 + 3) * TABLE);
    unmap(0x3000, PAGE);
    assert_eq!(space.table_bytes(), (4 + 2 + 3) * TABLE);
    unmap(2 * MIB, PAGE);
    assert_eq!(space.table_bytes(), (4 + 3) * TABLE);
    unmap(GIB, PAGE);
    assert_eq!(space.table_bytes(), 4 * TABLE);
    unmap(512 * GIB, PAGE);
    assert_eq!(space.table_bytes(), TABLE);

    // A range that begins and ends in the middle of tables is unmapped as a whole and in parts.
    for parts in [&[4 * MIB][..], &[PAGE, 2 * MIB, MIB, MIB - PAGE]] {
        let start = GIB - MIB - PAGE;
        map(start, 4 * MIB);
        let mut at = start;
        for len in parts {
            unmap(at, *len);
            at += len;
        }
        assert_eq!(space.table_bytes(), TABLE);
    }
    // A batch with one grace period frees tables, too.
    let mut batch = space.batch();
    for at in [0, GIB, 3 * GIB] {
        map(at, PAGE);
        batch.unmap(Iova::new(at), PAGE).unwrap();
    }
    batch.finish().unwrap();
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn other_spaces_keep_their_tables() {
    let (space, region) = space_with(SpaceConfig::new(), PAGE);
    space.map(Iova::new(0x1000), &region, 0, PAGE, Prot::READ).unwrap();
    space.unmap(Iova::new(0x1000), PAGE).unwrap();
    assert_eq!(space.table_bytes(), 4 * TABLE);
}

#[test]
fn a_mapping_that_needs_too_many_tables_is_refused_and_leaves_none() {
    let config = SpaceConfig::for_client().with_table_bytes_max(Some(8 * TABLE));
    let (space, region) = space_with(config, GIB);
    let map = |iova, len| space.map(Iova::new(iova), &region, 0, len, Prot::READ);
    // The IOVA is not congruent to the region, so there is a table for each 2 MiB: five with the ends.
    map(0x1000, 8 * MIB).unwrap();
    assert_eq!(space.table_bytes(), 8 * TABLE);
    for (iova, len) in [(GIB, PAGE), (16 * MIB + PAGE, GIB)] {
        let error = map(iova, len).unwrap_err();
        let Error::TableLimit { limit_bytes, .. } = error else { panic!("{error}") };
        assert_eq!(limit_bytes, 8 * TABLE);
        assert_eq!(space.table_bytes(), 8 * TABLE);
    }
    // A mapping in existing tables needs no more.
    map(9 * MIB, PAGE).unwrap();
    space.unmap(Iova::new(9 * MIB), PAGE).unwrap();
    space.unmap(Iova::new(0x1000), 8 * MIB).unwrap();
    map(GIB, PAGE).unwrap();
    assert_eq!(space.table_bytes(), 4 * TABLE);
}

#[test]
fn the_limit_of_a_client_holds_to_the_last_table() {
    if cfg!(miri) {
        return;
    }
    // 2^38 bytes that are not congruent to the region would take 512 MiB.
    let (space, region) = space_with(SpaceConfig::for_client(), 1 << 38);
    let mapped = space.map(Iova::new(0x1000), &region, 0, 1 << 38, Prot::READ);
    assert!(matches!(mapped, Err(Error::TableLimit { .. })), "{mapped:?}");
    assert_eq!(space.table_bytes(), TABLE);
    let mut pages = 0;
    while space.map(Iova::new(pages * GIB), &region, 0, PAGE, Prot::READ).is_ok() {
        pages += 1;
        assert!(space.table_bytes() <= CLIENT_TABLE_BYTES_MAX);
    }
    assert!(space.table_bytes() > CLIENT_TABLE_BYTES_MAX - 4 * TABLE, "{pages} pages");
    for page in 0..pages {
        space.unmap(Iova::new(page * GIB), PAGE).unwrap();
    }
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn parts_of_regions_must_be_whole_pages() {
    let file = memfd::create("region", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, 4 * PAGE).unwrap();
    let (start, access) = (FileOffset::new(0), RegionAccess::ReadWrite);
    let whole = Arc::new(Region::map_file(&file, start, 4 * PAGE, access).unwrap());
    let len_of = |offset, len| Region::part(&whole, offset, len).map(|part| part.len());
    assert_eq!(len_of(PAGE, 3 * PAGE), Some(3 * PAGE));
    for (offset, len) in [(1, PAGE), (PAGE, 1), (0, 0), (PAGE, 4 * PAGE), (u64::MAX, PAGE)] {
        assert_eq!(len_of(offset, len), None, "{offset:#x} + {len:#x}");
    }
    let space = Space::new().unwrap();
    let refused = space.attach_for(&whole, Iova::new(PAGE + 1)).unwrap_err();
    assert!(matches!(refused, Error::RegionAlignment { start: 0x1001, .. }), "{refused}");
    space.attach_for(&whole, Iova::new(3 * PAGE)).unwrap();
}
