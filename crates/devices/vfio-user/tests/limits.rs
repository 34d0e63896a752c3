//! A client that tries to exhaust the device's process: page tables, addresses, descriptors, and the
//! time of threads that signal its eventfds.

#![cfg(not(loom))]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longshore_access::{CLIENT_TABLE_BYTES_MAX, Space, SpaceConfig};
use longshore_mem::{AddrRange, FileOffset, Iova};
use longshore_sys::{event_fd, memfd};
use longshore_vfio_user::client::{Client, ClientError, NoDmaMemory};
use longshore_vfio_user::pci::MSIX_IRQ;
use longshore_vfio_user::wire::{DmaUnmap, IrqData, Request, SetIrqs};
use longshore_vfio_user::{
    ConnectionSummary, DmaBacking, DmaMapping, DmaTarget, Errno, Interrupts, MAPPED_BYTES_MAX,
    Server, SpaceDma,
};
use rustix::fs::OFlags;

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "server/rig.rs"]
mod rig;

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// The size of one table in bytes, which is all that an empty space has.
const TABLE: u64 = 4096;

fn file(len_bytes: u64) -> OwnedFd {
    let file = memfd::create("client", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, len_bytes).unwrap();
    file
}

/// Returns a client of a device whose memory is kept in `space`, and its server.
fn served(space: &Space) -> (Client<NoDmaMemory>, JoinHandle<ConnectionSummary>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let device = rig::device(&rig::Shared::default(), Vec::new());
    let mut server = Server::new(device, SpaceDma::new(space.clone())).unwrap();
    let server = thread::spawn(move || server.serve(theirs).unwrap());
    (Client::from_stream(ours, NoDmaMemory).unwrap(), server)
}

fn errno(done: Result<(), ClientError>) -> Option<Errno> {
    match done {
        Ok(()) => None,
        Err(ClientError::Refused(errno)) => Some(errno),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_long_map_takes_a_few_tables_and_gives_them_back() {
    let space = Space::new().unwrap();
    let (mut client, server) = served(&space);
    let memory = file(1 << 38);
    for log2 in [34, 36, 38] {
        for file in [None, Some((memory.as_fd(), 0))] {
            client.dma_map(0x1000, 1 << log2, file, true).unwrap();
            assert!(space.table_bytes() <= 12 * TABLE, "2^{log2}: {}", space.table_bytes());
            client.dma_unmap(0x1000, 1 << log2).unwrap();
            assert_eq!(space.table_bytes(), TABLE);
        }
    }
    // Half of the addresses that the space translates, unmapped by a message without a range.
    client.dma_map(0x1000, 1 << 47, None, true).unwrap();
    // One table for each 512 GiB.
    assert!(space.table_bytes() <= (256 + 12) * TABLE, "{}", space.table_bytes());
    let all = DmaUnmap { argsz: DmaUnmap::LEN_BYTES, flags: DmaUnmap::ALL, iova: 0, len_bytes: 0 };
    client.request(&Request::DmaUnmap(all), &[]).unwrap();
    assert_eq!(space.table_bytes(), TABLE);
    // The same, if the client disconnects.
    client.dma_map(0x1000, 1 << 47, None, true).unwrap();
    client.dma_map(PAGE + (1 << 47), PAGE, None, true).unwrap();
    drop(client);
    assert_eq!(server.join().unwrap().maps_left_count, 0);
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn maps_that_need_more_tables_than_a_client_may_have_are_refused() {
    let limit_bytes = 64 * TABLE;
    let config = SpaceConfig::new().with_table_bytes_max(Some(limit_bytes));
    let space = Space::with_config(config).unwrap();
    let (mut client, server) = served(&space);
    let mut maps = 0;
    let refused = loop {
        match errno(client.dma_map(maps * GIB, PAGE, None, true)) {
            None => maps += 1,
            Some(errno) => break errno,
        }
        assert!(space.table_bytes() <= limit_bytes);
    };
    // The root, one below it, and two for each map.
    assert_eq!((refused, maps), (Errno::ENOSPC, 31));
    // The client is still served, and can use again what it unmaps.
    client.dma_unmap(0, PAGE).unwrap();
    client.dma_map(maps * GIB, PAGE, None, true).unwrap();
    assert_eq!(errno(client.dma_map(0, PAGE, None, true)), Some(Errno::ENOSPC));
    drop(client);
    server.join().unwrap();
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn a_space_without_a_limit_gets_the_limit_of_a_client() {
    let space = Space::new().unwrap();
    let (mut client, server) = served(&space);
    let mut maps = 0;
    while errno(client.dma_map(maps * GIB, PAGE, None, true)).is_none() {
        maps += 1;
    }
    assert!(space.table_bytes() <= CLIENT_TABLE_BYTES_MAX);
    assert!(maps > 8_000, "{maps}");
    drop(client);
    server.join().unwrap();
    assert_eq!(space.table_bytes(), TABLE);
}

fn range(page: u64, pages: u64) -> AddrRange<Iova> {
    AddrRange::new(Iova::new(page * PAGE), pages * PAGE).unwrap()
}

fn by_mmap(page: u64, pages: u64, file: &OwnedFd, offset: u64) -> DmaMapping {
    let (file, offset) = (file.try_clone().unwrap(), FileOffset::new(offset));
    let backing = DmaBacking::Mmap { file, offset };
    DmaMapping::new(range(page, pages), backing)
}

fn by_file_io(page: u64, pages: u64, file: &OwnedFd, offset: u64) -> DmaMapping {
    let (file, offset) = (file.try_clone().unwrap(), FileOffset::new(offset));
    let backing = DmaBacking::FileIo { file, offset };
    DmaMapping::new(range(page, pages), backing)
}

#[test]
fn memory_behind_the_end_of_its_file_is_refused() {
    let space = Space::new().unwrap();
    let mut dma = SpaceDma::new(space.clone());
    let two = file(2 * PAGE);
    for map in [by_mmap, by_file_io] {
        for (pages, offset) in [(3, 0), (1, 2 * PAGE), (2, PAGE), (1, 1 << 46), (1 << 26, 0)] {
            assert_eq!(dma.dma_map(map(1, pages, &two, offset)), Err(Errno::EINVAL));
        }
        dma.dma_map(map(1, 1, &two, PAGE)).unwrap();
        dma.dma_unmap(range(1, 1)).unwrap();
    }
    // A character device has no end, and reading it may block.
    let zero = OwnedFd::from(File::open("/dev/zero").unwrap());
    assert_eq!(dma.dma_map(by_file_io(1, 1, &zero, 0)), Err(Errno::EINVAL));
    assert_eq!(space.table_bytes(), TABLE);
}

#[test]
fn a_page_far_into_a_file_takes_the_addresses_of_a_page() {
    let space = Space::new().unwrap();
    let mut dma = SpaceDma::new(space.clone());
    // If files were mapped from their beginning, three of these would need more than all addresses.
    let (len_bytes, count) = (1_u64 << 46, 64);
    let far = file(len_bytes);
    let file = File::from(far.try_clone().unwrap());
    for page in 0..count {
        let offset = len_bytes - (1 + page) * PAGE;
        dma.dma_map(by_mmap(page, 1, &far, offset)).unwrap();
        let here = [page as u8; 4];
        space.session().write(Iova::new(page * PAGE), &here).unwrap();
        let mut there = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, offset).unwrap();
        assert_eq!(there, here);
    }
    (0..count).for_each(|page| dma.dma_unmap(range(page, 1)).unwrap());
}

#[test]
fn addresses_of_a_client_are_limited() {
    let mut dma = SpaceDma::new(Space::new().unwrap());
    let long = file(4 * MAPPED_BYTES_MAX);
    let half = MAPPED_BYTES_MAX / 2 / PAGE;
    assert_eq!(dma.dma_map(by_mmap(1, 2 * half + 1, &long, 0)), Err(Errno::ENOSPC));
    dma.dma_map(by_mmap(1, half, &long, 0)).unwrap();
    // The rest of the huge page would exceed the limit.
    let other = by_mmap(1 + half, half, &long, PAGE);
    assert_eq!(dma.dma_map(other), Err(Errno::ENOSPC));
    dma.dma_map(by_mmap(1 + half, half, &long, 0)).unwrap();
    dma.dma_unmap(range(1, half)).unwrap();
    dma.dma_map(by_mmap(1, half - 512, &long, PAGE)).unwrap();
    dma.dma_unmap(range(1, half - 512)).unwrap();
    dma.dma_unmap(range(1 + half, half)).unwrap();
}

/// Makes `event` blocking and keeps its counter at the maximum, until it is stopped.
fn keep_full(event: &OwnedFd, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (event, stop) = (event.try_clone().unwrap(), Arc::clone(stop));
    thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            let flags = rustix::fs::fcntl_getfl(&event).unwrap();
            rustix::fs::fcntl_setfl(&event, flags | OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes());
            let _ = rustix::io::write(&event, &1_u64.to_ne_bytes());
            rustix::fs::fcntl_setfl(&event, flags & !OFlags::NONBLOCK).unwrap();
        }
    })
}

#[test]
fn full_and_blocking_eventfds_block_neither_device_nor_server() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let device = rig::device(&rig::Shared::default(), Vec::new());
    let mut server = Server::new(device, SpaceDma::new(Space::new().unwrap())).unwrap();
    let interrupts: Interrupts = server.responder().interrupts().clone();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(server.serve(theirs).unwrap()));
    let mut client = Client::from_stream(ours, NoDmaMemory).unwrap();
    let event = event_fd::create().unwrap();
    client.set_irq_events(MSIX_IRQ, 0, &[event.as_fd()]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let hostile = keep_full(&event, &stop);

    // A thread of the device.
    let (tell_raised, told_raised) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..20_000 {
            assert!(interrupts.raise(MSIX_IRQ, 0).unwrap());
        }
        tell_raised.send(()).unwrap();
    });
    // The server's own thread: the client asks it to signal the interrupt.
    let (action, data) = (SetIrqs::TRIGGER, IrqData::None);
    let trigger = SetIrqs { action, index: MSIX_IRQ, start: 0, count: 1, data };
    for _ in 0..1000 {
        client.request(&Request::DeviceSetIrqs(trigger), &[]).unwrap();
    }
    let patience = Duration::from_secs(60);
    told_raised.recv_timeout(patience).expect("the device's thread waits for the client");
    // The client disconnects, while another thread still keeps the eventfd full.
    drop(client);
    told.recv_timeout(patience).expect("the server waits for a client that is gone");
    stop.store(true, Ordering::Release);
    hostile.join().unwrap();
}
