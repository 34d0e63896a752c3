//! Memory of the hugetlb pool into which a client punches holes. The only test of its program, because
//! it changes the size of the machine's pool.

#![cfg(all(target_os = "linux", not(loom)))]
#![expect(unsafe_code, reason = "maps pages to take them out of the pool")]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longshore_access::dirty::ExternalLog;
use longshore_access::{Fault, Reason, Region, RegionAccess, Space};
use longshore_mem::{FileOffset, Granule, GuestPhys, Iova};
use longshore_pagetable::Prot;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing, Seals};
use rustix::fs::FallocateFlags;

const HUGE: u64 = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// The pages that this test has added to the pool. Dropping it removes them.
struct Pool {
    before: String,
}

impl Pool {
    /// Adds `pages` to the pool, or returns the reason why it cannot.
    fn grow(pages: u64) -> Result<Self, String> {
        let read = || fs::read_to_string(POOL).map_err(|error| format!("{POOL}: {error}"));
        let before = read()?;
        let wanted = before.trim().parse::<u64>().map_err(|error| error.to_string())? + pages;
        let pool = Self { before };
        fs::write(POOL, wanted.to_string()).map_err(|error| format!("{POOL}: {error}"))?;
        match read()?.trim() == wanted.to_string() {
            true => Ok(pool),
            false => Err("the kernel has no memory for huge pages".to_owned()),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, &self.before);
    }
}

fn huge_file(pages: u64) -> OwnedFd {
    let file = memfd::create("huge", Backing::Hugetlb2M).unwrap();
    memfd::set_len(&file, pages * HUGE).unwrap();
    file
}

fn punch(file: &OwnedFd, offset: u64, len: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, offset, len).is_ok()
}

/// Takes every free page out of the pool, until the result is dropped.
fn empty_pool() -> Vec<Mapping> {
    let mut taken = Vec::new();
    loop {
        let file = huge_file(1);
        let Ok(mapping) = Mapping::of_file(&file, HUGE, Granule::SIZE_2M, Access::ReadWrite) else {
            return taken;
        };
        // SAFETY: it is the first byte of the mapping, for which a page is reserved.
        unsafe { mapping.start().write_volatile(1) };
        taken.push(mapping);
    }
}

#[test]
fn a_punched_hole_in_a_sealed_hugetlb_file_is_a_fault() {
    let _pool = match Pool::grow(4) {
        Ok(pool) => pool,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    let file = huge_file(2);
    memfd::add_seals(&file, Seals { shrink: true, grow: true, ..Seals::default() }).unwrap();
    // The region begins in the middle of the second page, and ends with it.
    let offset = FileOffset::new(HUGE + 0x1000);
    let region = Region::map_file(file.as_fd(), offset, HUGE - 0x1000, RegionAccess::ReadWrite);
    let region = Arc::new(region.unwrap());
    assert!(region.is_guarded());
    assert_eq!(region.address_bytes(), HUGE);
    let log = ExternalLog::<GuestPhys>::map_file(&file, FileOffset::new(HUGE + 8), 64).unwrap();

    let (space, at) = (Space::new().unwrap(), Iova::new(0x20_0000));
    space.attach(&region).unwrap();
    space.map(at, &region, 0, region.len(), Prot::READ_WRITE).unwrap();
    let session = space.session();
    session.write(at, b"fine").unwrap();
    assert_eq!(log.mark(GuestPhys::new(0), 1), Ok(()));
    let mut four = [0; 4];
    rustix::io::pread(&file, &mut four, HUGE + 0x1000).unwrap();
    assert_eq!(&four, b"fine");

    assert!(punch(&file, HUGE, HUGE));
    let taken = empty_pool();
    let lost = Fault::new(at, 0, Reason::BackingLost);
    assert_eq!(session.read(at, &mut four), Err(lost));
    assert_eq!(session.write(at, &four), Err(lost));
    assert!(log.mark(GuestPhys::new(0), 1).is_err());
    drop(taken);
    assert_eq!(session.write(at, &four), Ok(()), "the pool has a page for it again");
}
