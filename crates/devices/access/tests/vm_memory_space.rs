//! A space as vm-memory's `GuestAddressSpace`, owned by a device; and memory that must not be written.
#![cfg(not(any(loom, miri)))]

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use longshore_access::dirty::{DirtyLog, Log};
use longshore_access::vm_memory::PinnedMemory;
use longshore_access::{
    Error, Logs, OnUnmap, ReadOnly, Region, RegionAccess, Session, Space, SpaceConfig,
};
use longshore_mem::{AddrRange, FileOffset, Granule, Iova};
use longshore_pagetable::Prot;
use longshore_sys::memfd;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{
    ByteValued, Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryError, Permissions,
};

const PAGE: u64 = 4096;
const START: u64 = 0x4000_0000;

fn at(page: u64, offset: u64) -> GuestAddress {
    GuestAddress(START + page * PAGE + offset)
}

fn iova(page: u64) -> Iova {
    Iova::new(at(page, 0).0)
}

fn region(of: impl AsFd, pages: u64, access: RegionAccess) -> Arc<Region> {
    Arc::new(Region::map_file(of, FileOffset::new(0), pages * PAGE, access).unwrap())
}

/// Makes a space with four pages of memory.
fn space() -> Space {
    let file = memfd::create("guest", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, 4 * PAGE).unwrap();
    let (space, region) = (Space::new().unwrap(), region(&file, 4, RegionAccess::ReadWrite));
    space.attach(&region).unwrap();
    space.map(iova(0), &region, 0, 4 * PAGE, Prot::READ_WRITE).unwrap();
    space
}

/// A typical rust-vmm device: it owns its memory, and runs on a thread of its own.
struct Device<A> {
    space: A,
    queue: Queue,
}

impl<A: GuestAddressSpace + Send + Sync + 'static> Device<A> {
    /// Answers each request with its bytes reversed. Returns the number of requests.
    fn serve(&mut self) -> usize {
        let memory = self.space.memory();
        let chains: Vec<_> = self.queue.iter(memory.clone()).unwrap().collect();
        for chain in &chains {
            let mut request = Vec::new();
            chain.clone().reader(&*memory).unwrap().read_to_end(&mut request).unwrap();
            request.reverse();
            chain.clone().writer(&*memory).unwrap().write_all(&request).unwrap();
            self.queue.add_used(&*memory, chain.head_index(), request.len() as u32).unwrap();
        }
        chains.len()
    }
}

/// Makes a request available: `bytes` in page 3, with a buffer for the answer in page 2. The table is in
/// page 0, the available ring in page 1.
fn request(driver: &Session, count: u16, bytes: &[u8]) {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    driver.write(iova(3), bytes).unwrap();
    let len = bytes.len() as u32;
    for (index, place, flags) in [(0, at(3, 0), NEXT), (1, at(2, 0), WRITE)] {
        let descriptor = RawDescriptor::from(Descriptor::new(place.0, len, flags, index + 1));
        let entry = iova(0).raw() + 16 * u64::from(index);
        driver.write(Iova::new(entry), descriptor.as_slice()).unwrap();
    }
    driver.write_obj(Iova::new(at(1, 4 + 2 * u64::from((count - 1) % 16)).0), 0u16).unwrap();
    driver.store(Iova::new(at(1, 2).0), count, Ordering::Release).unwrap();
}

#[test]
fn a_device_owns_its_space_and_serves_a_queue_on_its_thread() {
    let space = space();
    let driver = space.session();
    let mut queue = Queue::new(16).unwrap();
    queue.set_desc_table_address(Some(at(0, 0).0 as u32), None);
    queue.set_avail_ring_address(Some(at(1, 0).0 as u32), None);
    queue.set_used_ring_address(Some(at(1, 2048).0 as u32), None);
    queue.set_ready(true);
    let mut device = Device { space: space.clone(), queue };
    for round in 1..=3 {
        request(&driver, round, &[round as u8, 2, 3, 4, 5]);
        let thread = thread::spawn(move || (device.serve(), device));
        let (served, again) = thread.join().unwrap();
        device = again;
        assert_eq!(served, 1);
        let mut answer = [0; 5];
        driver.read(iova(2), &mut answer).unwrap();
        assert_eq!(answer, [5, 4, 3, 2, round as u8]);
        // The device holds no memory between two passes, so pages can be remapped.
        space.unmap(iova(2), PAGE).unwrap();
        let file = memfd::create("anew", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&file, PAGE).unwrap();
        let anew = region(&file, 1, RegionAccess::ReadWrite);
        space.attach(&anew).unwrap();
        space.map(iova(2), &anew, 0, PAGE, Prot::READ_WRITE).unwrap();
    }
}

#[test]
fn unmapping_waits_for_memory_that_is_held() {
    let space = space();
    let memory = space.memory();
    memory.write_obj(7u32, at(1, 8)).unwrap();
    let slice = memory.get_slices(at(1, 8), 4, Permissions::Read).unwrap().next();
    let slice = slice.unwrap().unwrap();
    // On the thread that holds the memory, unmapping would wait for itself.
    assert!(matches!(space.unmap(iova(1), PAGE), Err(Error::PinnedByCaller { .. })));
    let is_started = Arc::new(AtomicBool::new(false));
    let is_unmapped = Arc::new(AtomicBool::new(false));
    let unmapper = {
        let (space, is_started, is_unmapped) =
            (space.clone(), is_started.clone(), is_unmapped.clone());
        thread::spawn(move || {
            is_started.store(true, Ordering::SeqCst);
            space.unmap(iova(1), PAGE).unwrap();
            is_unmapped.store(true, Ordering::SeqCst);
        })
    };
    while !is_started.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    for _ in 0..10_000 {
        assert_eq!(slice.load::<u32>(0, Ordering::Relaxed).unwrap(), 7);
        assert!(!is_unmapped.load(Ordering::SeqCst));
        thread::yield_now();
    }
    let second = memory.clone();
    drop(memory);
    assert!(!is_unmapped.load(Ordering::SeqCst), "a clone holds it too");
    drop(second);
    unmapper.join().unwrap();
    assert!(is_unmapped.load(Ordering::SeqCst));
    let error = space.memory().read_obj::<u32>(at(1, 8)).unwrap_err();
    assert!(matches!(error, GuestMemoryError::InvalidGuestAddress(_)), "{error}");
}

#[test]
fn exactly_the_written_pages_are_logged() {
    let space = space();
    let range = AddrRange::new(iova(0), 4 * PAGE).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range).unwrap());
    let by_iova = Log::Internal(Arc::clone(&log));
    space.set_logs(Logs::default().with_iova(by_iova)).unwrap();
    let memory = space.memory();
    memory.read_slice(&mut [0; 9000], at(0, 0)).unwrap();
    memory.write_obj(1u16, at(2, 4095)).unwrap();
    drop(memory);
    let mut pages = Vec::new();
    let visit = |run: AddrRange<Iova>| {
        pages.push(((run.start().raw() - START) / PAGE, run.len() / PAGE));
    };
    space.collect(&log, log.covers(), visit).unwrap();
    assert_eq!(pages, [(2, 2)]);
}

/// Makes a space with `pages` pages of ROM, whose bytes count up.
fn rom(pages: u64, config: SpaceConfig) -> (Space, impl AsFd) {
    let file = memfd::create("rom", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, PAGE).unwrap();
    let filled = region(&file, 1, RegionAccess::ReadWrite);
    let space = Space::with_config(config).unwrap();
    space.attach(&filled).unwrap();
    space.map(iova(0), &filled, 0, PAGE, Prot::READ_WRITE).unwrap();
    let bytes: Vec<u8> = (0..PAGE).map(|byte| byte as u8).collect();
    space.session().write(iova(0), &bytes).unwrap();
    space.unmap(iova(0), PAGE).unwrap();
    let rom = region(&file, 1, RegionAccess::ReadOnly);
    space.attach(&rom).unwrap();
    for page in 0..pages {
        space.map(iova(page), &rom, 0, PAGE, Prot::READ).unwrap();
    }
    (space, file)
}

/// Writes to slices that were requested for reading, which safe code can do. The memory must not change.
fn write_to_read_slices<M: GuestMemory>(memory: &M) {
    let slices = memory.get_slices(at(0, 16), 16, Permissions::Read).unwrap();
    for slice in slices {
        slice.unwrap().write_slice(&[0xee; 16], 0).unwrap();
    }
    let mut read = [0; 16];
    memory.read_slice(&mut read, at(0, 16)).unwrap();
    assert_eq!(read, std::array::from_fn(|byte| byte as u8 + 16), "the memory has not changed");
    let word = memory.load::<u64>(at(0, 8), Ordering::Acquire).unwrap();
    assert_eq!(word.to_ne_bytes(), std::array::from_fn(|byte| byte as u8 + 8));
    memory.write_obj(1u8, at(0, 16)).unwrap_err();
    let none = memory.get_slices(at(0, 16), 16, Permissions::No).unwrap();
    for slice in none {
        slice.unwrap().write_slice(&[0xee; 16], 0).unwrap();
    }
    memory.read_slice(&mut read, at(0, 16)).unwrap();
    assert_eq!(read[0], 16);
}

#[test]
fn slices_cannot_write_to_memory_that_is_mapped_for_reading_only() {
    let (space, _file) = rom(2, SpaceConfig::new());
    space.session().guest_memory(|memory| write_to_read_slices(memory));
    write_to_read_slices(&*space.memory());
}

#[test]
fn pinned_memory_has_no_slices_of_read_only_memory() {
    let (space, _file) = rom(2, SpaceConfig::new());
    let is_refused = |memory: &dyn Fn() -> Option<GuestMemoryError>| match memory() {
        Some(GuestMemoryError::IOError(error)) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    };
    let session = space.session();
    let lease = session.lease(iova(0), PAGE as usize, ReadOnly, OnUnmap::Wait).unwrap();
    let leased = PinnedMemory::from(lease);
    assert!(is_refused(&|| leased.read_obj::<u8>(at(0, 0)).err()));
    assert!(!leased.check_range(at(0, 0), 1, Permissions::Read));
    session
        .pin(iova(0), PAGE as usize, ReadOnly, |view| {
            let pinned = PinnedMemory::from(view);
            assert!(is_refused(&|| pinned.read_obj::<u8>(at(0, 0)).err()));
        })
        .unwrap();
}

#[test]
fn copies_of_read_only_memory_have_a_limit() {
    const LIMIT_PAGES: u64 = (16 << 20) / PAGE;
    let (space, _file) = rom(LIMIT_PAGES + 1, SpaceConfig::new());
    let memory = space.memory();
    let mut all = vec![0; (LIMIT_PAGES * PAGE) as usize];
    memory.read_slice(&mut all, at(0, 0)).unwrap();
    assert!(
        all.chunks(256).all(|run| run.iter().enumerate().all(|(at, byte)| at == *byte as usize))
    );
    let error = memory.read_obj::<u8>(at(0, 0)).unwrap_err();
    let GuestMemoryError::IOError(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    drop(memory);
    // The copies were freed with the memory.
    assert_eq!(space.memory().read_obj::<u8>(at(0, 5)).unwrap(), 5);
}

#[test]
fn small_copies_count_with_their_overhead() {
    let (space, _file) = rom(1, SpaceConfig::new());
    let memory = space.memory();
    let count = (0..).take_while(|_| memory.read_obj::<u8>(at(0, 1)).is_ok()).count();
    assert_eq!(count, (16 << 20) / 64, "each takes an allocation and an entry in a list");
}
