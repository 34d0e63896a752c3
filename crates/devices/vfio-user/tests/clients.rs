//! Clients that map more addresses than all clients of one user may. The limits are those of the
//! process, so there is one test.

#![cfg(not(loom))]

use std::os::fd::OwnedFd;

use longshore_access::Space;
use longshore_mem::{AddrRange, FileOffset, Iova};
use longshore_sys::memfd;
use longshore_vfio_user::{DmaBacking, DmaMapping, DmaTarget, Errno, MAPPED_BYTES_MAX, SpaceDma};

fn range() -> AddrRange<Iova> {
    AddrRange::new(Iova::new(0), MAPPED_BYTES_MAX).unwrap()
}

/// Returns a map of as many addresses as a client may have.
fn all_of(file: &OwnedFd) -> DmaMapping {
    let backing = DmaBacking::Mmap { file: file.try_clone().unwrap(), offset: FileOffset::new(0) };
    DmaMapping::new(range(), backing)
}

#[test]
fn addresses_of_all_clients_of_a_user_are_limited() {
    let file = memfd::create("client", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, MAPPED_BYTES_MAX).unwrap();
    let mut clients = [(); 3].map(|()| SpaceDma::new(Space::new().unwrap()));
    let [first, second, third] = &mut clients;
    first.dma_map(all_of(&file)).unwrap();
    second.dma_map(all_of(&file)).unwrap();
    assert_eq!(third.dma_map(all_of(&file)), Err(Errno::ENOSPC));
    first.dma_unmap(range()).unwrap();
    third.dma_map(all_of(&file)).unwrap();
    assert_eq!(first.dma_map(all_of(&file)), Err(Errno::ENOSPC));
}
