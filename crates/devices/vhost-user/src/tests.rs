//! Tests of the limits on mappings for the front-ends of one user.

use std::os::fd::{AsFd, OwnedFd};

use longshore_access::client::{MappingAccounts, MappingQuota};
use longshore_access::{Error, Space};
use longshore_mem::{FileOffset, GuestPhys};
use longshore_sys::closing::User;
use longshore_sys::memfd;

use crate::{MemoryError, SpaceMemory, TableRegion, UserAddr};

const PAGE: u64 = 4096;

fn region(file: &OwnedFd, page: u64) -> TableRegion<'_> {
    TableRegion {
        guest_phys: GuestPhys::new(page * PAGE),
        len_bytes: PAGE,
        user: UserAddr::new(0x7f00_0000_0000 + page * PAGE),
        file: file.as_fd(),
        offset: FileOffset::new(0),
    }
}

/// Returns a quota from new accounts, which allow this much to one user and twice as much to all users.
fn quota(files: u64, bytes: u64) -> MappingQuota {
    let accounts = Box::leak(Box::new(MappingAccounts::new(files, bytes)));
    MappingQuota::new(accounts, User::own().uid())
}

fn file(len_bytes: u64) -> OwnedFd {
    let file = memfd::create("front-end", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, len_bytes).unwrap();
    file
}

fn memory_of(quota: MappingQuota) -> SpaceMemory {
    SpaceMemory::new(Space::new().unwrap()).with_quota(quota)
}

fn is_over_limit(done: &Result<(), MemoryError>) -> bool {
    matches!(done, Err(MemoryError::Space(Error::ClientLimit(_))))
}

#[test]
fn tables_and_logs_of_all_front_ends_of_a_user_are_limited_and_return() {
    let (quota, file) = (quota(4, 1 << 40), file(PAGE));
    let (mut first, mut second) = (memory_of(quota), memory_of(quota));
    first.set_table(&[region(&file, 0), region(&file, 1)]).unwrap();
    first.set_log(&file, FileOffset::new(0), PAGE).unwrap();
    assert!(is_over_limit(&second.set_table(&[region(&file, 0), region(&file, 1)])));
    second.set_table(&[region(&file, 0)]).unwrap();
    assert!(is_over_limit(&second.set_log(&file, FileOffset::new(0), PAGE)));
    // Tables that are refused for another reason.
    for _ in 0..3 {
        assert!(first.set_table(&[region(&file, 0), region(&file, 0)]).is_err());
    }
    // An empty table replaces the former one; the log stays.
    first.set_table(&[]).unwrap();
    // The new table is mapped while the former one still is.
    second.set_table(&[region(&file, 0), region(&file, 1)]).unwrap();
    first.reset().unwrap();
    second.set_log(&file, FileOffset::new(0), PAGE).unwrap();
    drop(second);
    first.set_table(&[0, 1, 2, 3].map(|page| region(&file, page))).unwrap();
}
