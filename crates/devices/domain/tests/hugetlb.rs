//! Shared memory of the hugetlb pool, into which another process punches a hole. One test, because it
//! changes the number of pages in the machine's pool.
#![cfg(all(target_os = "linux", not(loom), not(miri)))]

use std::fs;
use std::sync::Arc;

use longshore_access::{Reason, Region, Space};
use longshore_domain::backend::Soft;
use longshore_domain::{Direction, Domain};
use longshore_heap::{Buffer, Heap, Sealing};
use longshore_iov::{Cursor, Source, copy};
use longshore_mem::{DmaMemory, Iova};
use longshore_pagetable::Prot;
use rustix::fs::FallocateFlags;

const HUGE: u64 = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Restores the size of the pool when it is dropped.
struct Pool(String);

impl Pool {
    /// Adds two pages, or returns the reason that this is not possible.
    fn grow() -> Result<Self, String> {
        let read = || fs::read_to_string(POOL).map_err(|error| format!("{POOL}: {error}"));
        let pool = Self(read()?);
        let wanted = pool.0.trim().parse::<u64>().map_err(|error| error.to_string())? + 2;
        fs::write(POOL, wanted.to_string()).map_err(|error| format!("{POOL}: {error}"))?;
        match read()?.trim() == wanted.to_string() {
            true => Ok(pool),
            false => Err("the kernel has no memory for huge pages".to_owned()),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, &self.0);
    }
}

/// Takes every free page out of the pool.
fn empty_pool() -> Vec<Buffer> {
    let take = || {
        let mut buffer = Heap::Hugetlb.allocate(HUGE).ok()?;
        buffer.write().unwrap()[0] = 1;
        Some(buffer)
    };
    std::iter::from_fn(take).collect()
}

#[test]
fn a_hole_in_shared_memory_is_an_error() {
    let _pool = match Pool::grow() {
        Ok(pool) => pool,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    let mut buffer = Heap::Hugetlb.allocate(HUGE).unwrap();
    buffer.write().unwrap().fill(7);
    let shared = Arc::new(buffer.share(Sealing::Size).unwrap());
    let memfd = shared.memfd().unwrap();

    let at = Iova::new(HUGE);
    let space = Space::new().unwrap();
    let region = Arc::new(Region::from_memory(Arc::clone(&shared)).unwrap());
    assert!(region.is_guarded());
    space.attach(&region).unwrap();
    space.map(at, &region, 0, HUGE, Prot::READ_WRITE).unwrap();
    let session = space.session();
    let mut four = [0; 4];
    session.read(at, &mut four).unwrap();
    assert_eq!(four, [7; 4]);

    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memfd, mode, 0, HUGE).unwrap();
    let taken = empty_pool();
    assert_eq!(session.read(at, &mut four).unwrap_err().reason, Reason::BackingLost);
    // Without a region, the buffer keeps the guard.
    drop((session, space, region));
    let view = shared.view().unwrap();
    let mut cursor = Cursor::<Source>::foreign_buf(view.bytes());
    copy::read(&mut cursor, &mut four).unwrap_err();
    let lost = view.read(5, &mut four).unwrap_err();
    assert!(matches!(lost, longshore_heap::Error::Lost { offset: 5, .. }), "{lost}");
    drop(view);
    drop((shared, taken));

    // Memory that is also sealed against writes cannot get a hole.
    let buffer = Heap::Hugetlb.allocate(HUGE).unwrap();
    let shared = buffer.share(Sealing::Content).unwrap();
    rustix::fs::fallocate(shared.memfd().unwrap(), mode, 0, HUGE).unwrap_err();
    drop(shared);

    // The file is rounded up to whole pages of the pool, which are zero after the content. A device
    // that reads beyond the content reads zeros.
    for sealing in [Sealing::Size, Sealing::Content] {
        let mut buffer = Heap::Hugetlb.allocate(HUGE + 4999).unwrap();
        buffer.write().unwrap().fill(7);
        let shared = buffer.share(sealing).unwrap();
        assert_eq!((shared.len(), shared.host().len() as u64), (HUGE + 4999, HUGE + 4999));
        let memfd = shared.memfd().unwrap();
        assert_eq!(longshore_sys::file::status(memfd).unwrap().version.len_bytes(), 2 * HUGE);
        let mut end = vec![1; (HUGE - 4998) as usize];
        assert_eq!(rustix::io::pread(memfd, &mut end, HUGE + 4998).unwrap(), end.len());
        assert!(end[0] == 7 && end[1..].iter().all(|byte| *byte == 0));
        let soft = Soft::new().unwrap();
        let device = soft.space().session();
        let domain = Domain::builder(soft).free_after(None).build();
        let mapping = domain.map(shared, Direction::ToDevice).unwrap();
        // To the end of its granule.
        let mut last = vec![1; 8192 - 4998];
        device.read(Iova::new(mapping.iova().raw() + HUGE + 4998), &mut last).unwrap();
        assert!(last[0] == 7 && last[1..].iter().all(|byte| *byte == 0));
        mapping.unmap().unwrap();
    }
}
