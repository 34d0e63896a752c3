//! Runs code written for rust-vmm (of vm-memory and virtio-queue) on the memory of sessions, pins and
//! leases.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "makes regions of memory that Miri can look at")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::num::Wrapping;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use longshore_access::dirty::{DirtyLog, Log};
use longshore_access::vm_memory::{PinnedMemory, SessionMemory};
use longshore_access::{
    Error, Fault, Logs, OnUnmap, ReadOnly, ReadWrite, Reason, Region, RemoteFault, RemoteMemory,
    Session, Space, SpaceConfig, WriteOnly,
};
use longshore_mem::{AddrRange, DmaMemory, FileOffset, Granule, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::bitmap::Bitmap;
use vm_memory::{
    Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryBackend, GuestMemoryError,
    GuestMemoryRegion, MemoryRegionAddress, Permissions,
};

const PAGE: u64 = 4096;
const START: u64 = 0x4000_0000;
/// The number of pages of a region.
const PAGES: u64 = 8;

/// A driver's memory, mapped as follows. Adjacent pages here are not always adjacent in their regions.
///
/// ```text
///   page    0     1  │  2     3  │  4   │   5   │  6     7  │   8   │   9
///          A 4   A 5 │ B 0   B 1 │ hole │  A 0  │ A 1   A 2 │  A 3  │ remote
///           read and write       │      │ read  │ both      │ write │ both
/// ```
struct World {
    space: Space,
    session: Session,
}

const LAST: u64 = 10;

struct NoAnswer;

impl RemoteMemory for NoAnswer {
    fn read(&self, _: u64, _: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        Err(RemoteFault::new(0, Reason::BackingLost))
    }

    fn write(&self, _: u64, _: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        Err(RemoteFault::new(0, Reason::BackingLost))
    }

    fn cancel(&self, _: Range<u64>) {}
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE as usize]);

/// The memory of a region.
struct Own(NonNull<[Page]>);

// SAFETY: the memory is valid on every thread.
unsafe impl Send for Own {}

// SAFETY: the memory stays mapped until this is dropped, and no reference to it exists.
unsafe impl DmaMemory for Own {
    fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0.cast(), (PAGES * PAGE) as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: `memory` leaked the box.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

fn memory() -> Arc<Region> {
    let pages = Vec::leak(vec![Page([0; PAGE as usize]); PAGES as usize]);
    Arc::new(Region::from_memory(Own(NonNull::from(pages))).unwrap())
}

fn iova(page: u64) -> Iova {
    Iova::new(START + page * PAGE)
}

fn at(page: u64, offset: u64) -> GuestAddress {
    GuestAddress(START + page * PAGE + offset)
}

impl World {
    fn new() -> Self {
        Self::with_config(SpaceConfig::new())
    }

    fn with_config(config: SpaceConfig) -> Self {
        let space = Space::with_config(config).unwrap();
        let (a, b) = (memory(), memory());
        let remote = Arc::new(Region::remote(Arc::new(NoAnswer), PAGE).unwrap());
        for region in [&a, &b, &remote] {
            space.attach(region).unwrap();
        }
        let map = |page, region: &Arc<Region>, offset: u64, pages: u64, prot| {
            space.map(iova(page), region, offset * PAGE, pages * PAGE, prot).unwrap();
        };
        map(0, &a, 4, 2, Prot::READ_WRITE);
        map(2, &b, 0, 2, Prot::READ_WRITE);
        map(5, &a, 0, 1, Prot::READ);
        map(6, &a, 1, 2, Prot::READ_WRITE);
        map(8, &a, 3, 1, Prot::WRITE);
        map(9, &remote, 0, 1, Prot::READ_WRITE);
        let session = space.session();
        Self { space, session }
    }

    fn log(&self) -> Arc<DirtyLog<Iova>> {
        let range = AddrRange::new(iova(0), LAST * PAGE).unwrap();
        let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, range).unwrap());
        let by_iova = Log::Internal(Arc::clone(&log));
        self.space.set_logs(Logs::default().with_iova(by_iova)).unwrap();
        log
    }

    /// Returns the pages that were written since the last call.
    fn collect(&self, log: &DirtyLog<Iova>) -> Vec<u64> {
        let mut pages = Vec::new();
        let visit = |run: AddrRange<Iova>| {
            let first = (run.start().raw() - START) / PAGE;
            pages.extend(first..first + run.len() / PAGE);
        };
        self.space.collect(log, log.covers(), visit).unwrap();
        pages
    }
}

fn some_bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Calls all of vm-memory's methods on pages 0 to 3, which may be read and written. Writes to each of
/// these pages.
fn use_bytes<M: GuestMemory + ?Sized>(memory: &M) {
    // An access that crosses from A into B.
    let (start, len) = (at(0, 4000), 8300);
    let bytes = some_bytes(len, 1);
    assert_eq!(memory.write(&bytes, start).unwrap(), len);
    let mut read = vec![0; len];
    assert_eq!(memory.read(&mut read, start).unwrap(), len);
    assert_eq!(read, bytes);

    let bytes = some_bytes(300, 2);
    memory.write_slice(&bytes, at(1, 3900)).unwrap();
    let mut read = [0; 300];
    memory.read_slice(&mut read, at(1, 3900)).unwrap();
    assert_eq!(read[..], bytes);

    // An object may cross the boundary, but an atomic access must not.
    memory.write_obj(0x0123_4567_89ab_cdef_u64, at(1, 4093)).unwrap();
    assert_eq!(memory.read_obj::<u64>(at(1, 4093)).unwrap(), 0x0123_4567_89ab_cdef);
    memory.store(7u16, at(3, 2), Ordering::Release).unwrap();
    assert_eq!(memory.load::<u16>(at(3, 2), Ordering::Acquire).unwrap(), 7);
    memory.store(u64::MAX - 1, at(1, 4088), Ordering::SeqCst).unwrap();
    assert_eq!(memory.load::<u64>(at(1, 4088), Ordering::SeqCst).unwrap(), u64::MAX - 1);
    for wrong in [at(1, 4093), at(1, 4089)] {
        let error = memory.load::<u64>(wrong, Ordering::Relaxed).unwrap_err();
        assert!(matches!(error, GuestMemoryError::InvalidBackendAddress), "{error}");
        let error = memory.store(0u64, wrong, Ordering::Relaxed).unwrap_err();
        assert!(matches!(error, GuestMemoryError::InvalidBackendAddress), "{error}");
    }

    // Methods that transfer from a reader and to a writer.
    let bytes = some_bytes(5000, 3);
    memory.read_exact_volatile_from(at(1, 100), &mut &bytes[..], 5000).unwrap();
    let mut read = vec![0; 5000];
    memory.write_all_volatile_to(at(1, 100), &mut &mut read[..], 5000).unwrap();
    assert_eq!(read, bytes);
    // A source that ends early.
    assert_eq!(memory.read_volatile_from(at(2, 4000), &mut &bytes[..150], 200).unwrap(), 150);

    for access in [Permissions::Read, Permissions::Write, Permissions::ReadWrite] {
        assert!(memory.check_range(at(0, 0), 4 * PAGE as usize, access));
        assert!(!memory.check_range(at(0, 1), 4 * PAGE as usize, access));
        assert!(memory.check_range(at(77, 0), 0, access));
        let slices = memory.get_slices(at(0, 10), 3 * PAGE as usize, access).unwrap();
        let lens: Vec<usize> = slices.map(|slice| slice.unwrap().len()).collect();
        assert_eq!(lens.iter().sum::<usize>(), 3 * PAGE as usize);
        assert!(lens.len() >= 2, "A and B are not contiguous: {lens:?}");
        assert_eq!(memory.get_slices(at(77, 0), 0, access).unwrap().count(), 0);
    }
}

/// Checks the last writes of [`use_bytes`] by reads of the session.
fn assert_written(session: &Session) {
    for (at, bytes) in [((1, 100), some_bytes(5000, 3)), ((2, 4000), some_bytes(150, 3))] {
        let mut read = vec![0; bytes.len()];
        session.read(Iova::new(self::at(at.0, at.1).0), &mut read).unwrap();
        assert_eq!(read, bytes, "at {at:?}");
    }
}

#[test]
fn vm_memorys_methods_access_the_memory_of_a_session() {
    let world = World::new();
    world.session.guest_memory(|memory| {
        use_bytes(memory);
        assert!(memory.physical_memory().is_none(), "it is translated");
    });
    assert_written(&world.session);
}

#[test]
fn vm_memorys_methods_access_pinned_memory() {
    let world = World::new();
    let len = 4 * PAGE as usize;
    world
        .session
        .pin(iova(0), len, ReadWrite, |view| use_bytes(&PinnedMemory::from(view)))
        .unwrap();
    assert_written(&world.session);
}

#[test]
fn leased_memory_can_be_used_on_other_threads() {
    let world = World::new();
    let lease = world.session.lease(iova(0), 4 * PAGE as usize, ReadWrite, OnUnmap::Wait).unwrap();
    let memory = Arc::new(PinnedMemory::from(lease));
    assert!(memory.lease().is_some_and(|lease| !lease.is_revoked()));
    // Devices that own their memory need this bound.
    fn run(space: impl GuestAddressSpace + Send + 'static) {
        std::thread::spawn(move || use_bytes(&*space.memory())).join().unwrap();
    }
    run(Arc::clone(&memory));
    assert_written(&world.session);
    let unmap = || world.space.unmap(iova(0), 2 * PAGE);
    assert!(matches!(unmap(), Err(Error::PinnedByCaller { .. })), "it is leased");
    drop(memory);
    unmap().unwrap();
}

#[test]
fn pinned_memory_can_be_used_by_threads_of_its_scope() {
    let world = World::new();
    let len = 4 * PAGE as usize;
    let pinned = world.session.pin(iova(0), len, ReadWrite, |view| {
        let memory = PinnedMemory::from(view);
        assert!(memory.lease().is_none());
        std::thread::scope(|scope| scope.spawn(|| use_bytes(&memory)).join().unwrap());
    });
    pinned.unwrap();
    assert_written(&world.session);
}

#[test]
fn memory_pinned_for_reading_and_writing_is_a_backend() {
    let world = World::new();
    let len = 4 * PAGE as usize;
    let pinned = world.session.pin(iova(0), len, ReadWrite, |view| {
        use_bytes(PinnedMemory::from(view).regions());
    });
    pinned.unwrap();
    assert_written(&world.session);
    let (start, len) = (iova(0).raw() + 16, 4 * PAGE as usize - 16);
    let pinned = world.session.pin(Iova::new(start), len, ReadWrite, |view| {
        let memory = PinnedMemory::from(view);
        let regions = memory.regions();
        // Adjacent host memory is merged, as in the layout of the world above.
        if !cfg!(miri) {
            let layout: Vec<_> =
                regions.iter().map(|region| (region.start_addr(), region.len())).collect();
            assert_eq!(layout, [(at(0, 16), 2 * PAGE - 16), (at(2, 0), 2 * PAGE)]);
            assert_eq!(regions.num_regions(), 2);
            assert_eq!(regions.get_slice(at(0, 20), 2 * PAGE as usize - 20).unwrap().len(), 8172);
        }
        assert_eq!(regions.last_addr(), at(3, PAGE - 1));
        for address in [at(0, 16), at(1, 4095), at(2, 0), at(3, 4095)] {
            let (region, offset) = regions.to_region_addr(address).unwrap();
            assert_eq!(region.start_addr().0 + offset.0, address.0);
            region.write_obj(0x5au8, offset).unwrap();
            assert_eq!(world.session.read_obj::<u8>(Iova::new(address.0)), Ok(0x5a));
            let host = regions.get_host_address(address).unwrap();
            assert_eq!(host, region.get_host_address(offset).unwrap());
        }
        for outside in [at(0, 15), at(4, 0), GuestAddress(0), GuestAddress(u64::MAX)] {
            assert!(regions.find_region(outside).is_none());
            let error = regions.read_obj::<u8>(outside).unwrap_err();
            assert!(matches!(error, GuestMemoryError::InvalidGuestAddress(a) if a == outside));
        }
        let (region, _) = regions.to_region_addr(at(3, 0)).unwrap();
        let end = MemoryRegionAddress(region.len());
        assert!(region.get_host_address(end).is_err());
        assert!(region.get_slice(end, 1).is_err());
        assert!(region.get_slice(MemoryRegionAddress(u64::MAX), 2).is_err());
        assert_eq!(region.get_slice(end, 0).unwrap().len(), 0);
        assert!(region.write_slice(&[1; 2], MemoryRegionAddress(region.len() - 1)).is_err());
    });
    pinned.unwrap();
}

/// Returns the fault that is the source of an error of vm-memory.
fn fault_in(error: &GuestMemoryError) -> Fault {
    let GuestMemoryError::IOError(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    *error.get_ref().unwrap().downcast_ref().unwrap()
}

#[test]
fn failed_accesses_return_the_documented_errors() {
    let world = World::new();
    let byte = &mut [0u8];
    world.session.guest_memory(|memory| {
        // Nothing is mapped.
        for address in [at(4, 0), at(LAST, 0), GuestAddress(0), GuestAddress(u64::MAX)] {
            for error in [memory.read(byte, address), memory.write(byte, address)] {
                let error = error.unwrap_err();
                assert!(matches!(error, GuestMemoryError::InvalidGuestAddress(a) if a == address));
            }
            assert!(!memory.check_range(address, 1, Permissions::No));
        }
        // The mapping does not permit it.
        let forbidden = |page, done| Fault::new(iova(page), done, Reason::Permission);
        let error = memory.write_obj(1u32, at(5, 0)).unwrap_err();
        assert_eq!(fault_in(&error), forbidden(5, 0));
        assert_eq!(fault_in(&memory.read_obj::<u32>(at(8, 0)).unwrap_err()), forbidden(8, 0));
        memory.read_obj::<u32>(at(5, 0)).unwrap();
        memory.write_obj(1u32, at(8, 0)).unwrap();
        for (page, permitted) in [(5, Permissions::Read), (8, Permissions::Write)] {
            for access in [Permissions::Read, Permissions::Write, Permissions::ReadWrite] {
                assert_eq!(memory.check_range(at(page, 9), 9, access), access == permitted);
            }
            assert!(memory.check_range(at(page, 9), 9, Permissions::No));
        }
        // The reason is that of the first byte that cannot be accessed; the bytes before it are done.
        let slices = memory.get_slices(at(6, 1), 3 * PAGE as usize, Permissions::Read).unwrap();
        let slices: Vec<_> = slices.collect();
        let (last, before) = slices.split_last().unwrap();
        let done: usize = before.iter().map(|slice| slice.as_ref().unwrap().len()).sum();
        assert_eq!(done, 2 * PAGE as usize - 1);
        assert_eq!(fault_in(last.as_ref().unwrap_err()), forbidden(8, done));
        // The memory is not of this process.
        let error = memory.read_obj::<u8>(at(9, 0)).unwrap_err();
        assert!(matches!(error, GuestMemoryError::HostAddressNotAvailable), "{error}");
        // The range passes the end of the address space.
        let error = memory.read(&mut [0; 2], GuestAddress(u64::MAX)).unwrap_err();
        assert!(matches!(error, GuestMemoryError::GuestAddressOverflow), "{error}");
        assert!(!memory.check_range(GuestAddress(2), usize::MAX, Permissions::No));
    });
}

#[test]
fn pinned_memory_permits_the_same_accesses_as_the_pin() {
    let world = World::new();
    let outside = |error: GuestMemoryError, address| {
        assert!(matches!(error, GuestMemoryError::InvalidGuestAddress(a) if a == address));
    };
    // The permissions are those of the pin; the mapping permits both.
    let pinned = world.session.pin(iova(1), 2 * PAGE as usize, ReadOnly, |view| {
        let memory = PinnedMemory::from(view);
        let error = memory.write_obj(1u32, at(1, 0)).unwrap_err();
        assert_eq!(fault_in(&error).reason, Reason::Permission);
        assert!(memory.get_slices(at(1, 0), 1, Permissions::ReadWrite).is_err());
        assert!(!memory.check_range(at(1, 0), 1, Permissions::Write));
        assert!(memory.check_range(at(1, 0), 1, Permissions::Read));
        memory.read_obj::<u32>(at(1, 0)).unwrap();
        outside(memory.read_obj::<u8>(at(0, 4095)).unwrap_err(), at(0, 4095));
        outside(memory.read_obj::<u8>(at(3, 0)).unwrap_err(), at(3, 0));
        let error = memory.read_slice(&mut [0; 16], at(2, 4088)).unwrap_err();
        let GuestMemoryError::PartialBuffer { expected: 16, completed: 8 } = error else {
            panic!("{error}")
        };
        let error = memory.read(&mut [0; 2], GuestAddress(u64::MAX)).unwrap_err();
        assert!(matches!(error, GuestMemoryError::GuestAddressOverflow), "{error}");
    });
    pinned.unwrap();
    let pinned = world.session.pin(iova(1), PAGE as usize, WriteOnly, |view| {
        let memory = PinnedMemory::from(view);
        assert_eq!(fault_in(&memory.read_obj::<u8>(at(1, 0)).unwrap_err()).iova, iova(1));
        memory.write_obj(1u32, at(1, 0)).unwrap();
    });
    pinned.unwrap();
    // An empty pin.
    let pinned = world.session.pin(iova(4), 0, ReadWrite, |view| {
        let memory = PinnedMemory::from(view);
        assert_eq!((memory.regions().num_regions(), memory.regions().last_addr().0), (0, 0));
        outside(memory.read_obj::<u8>(at(4, 0)).unwrap_err(), at(4, 0));
    });
    pinned.unwrap();
}

/// The session's own accesses are the oracle: both must transfer the same number of bytes, and the same
/// bytes.
#[test]
fn each_access_ends_at_the_same_byte_as_the_sessions() {
    let world = World::new();
    let mut compared = [0; 2];
    let lens: &[usize] = if cfg!(miri) { &[1, 100, 1500] } else { &[1, 8, 100, 4096, 9000] };
    // The remote page is left out, because only a session can read it.
    for start in (0..9 * PAGE).step_by(if cfg!(miri) { 3001 } else { 509 }) {
        for &len in lens {
            let len = len.min((9 * PAGE - start) as usize);
            let (there, address) = (Iova::new(START + start), GuestAddress(START + start));
            let bytes = some_bytes(len, start as u8);
            let done = |result: Result<(), Fault>| result.map_or_else(|fault| fault.done, |()| len);
            let theirs =
                world.session.guest_memory(|memory| memory.write(&bytes, address).unwrap_or(0));
            assert_eq!(theirs, done(world.session.write(there, &bytes)), "to {there:#x} + {len}");
            compared[usize::from(theirs == len)] += 1;
            let (mut own, mut read) = (vec![0; len], vec![0; len]);
            let theirs =
                world.session.guest_memory(|memory| memory.read(&mut read, address).unwrap_or(0));
            assert_eq!(theirs, done(world.session.read(there, &mut own)), "at {there:#x} + {len}");
            assert_eq!(read, own);
        }
    }
    assert!(compared.iter().all(|count| *count > 5), "some end early, some do not: {compared:?}");
}

#[test]
fn slices_of_a_read_only_region_are_copies() {
    let world = World::new();
    let pages = Vec::leak(vec![Page([7; PAGE as usize]); PAGES as usize]);
    let rom = Region::from_memory(Own(NonNull::from(pages))).unwrap().read_only();
    let rom = Arc::new(rom);
    world.space.attach(&rom).unwrap();
    world.space.map(iova(4), &rom, 0, PAGE, Prot::READ).unwrap();
    world.session.guest_memory(|memory| {
        let slices = memory.get_slices(at(4, 3), 9, Permissions::Read).unwrap();
        slices.for_each(|slice| slice.unwrap().write_slice(&[8; 9], 0).unwrap());
        assert_eq!(
            memory.load::<u64>(at(4, 8), Ordering::Acquire).unwrap(),
            u64::from_ne_bytes([7; 8])
        );
    });
    let memory = world.space.memory();
    let slices = memory.get_slices(at(4, 3), 9, Permissions::Read).unwrap();
    slices.for_each(|slice| slice.unwrap().write_slice(&[8; 9], 0).unwrap());
    assert_eq!(memory.read_obj::<[u8; 9]>(at(4, 3)).unwrap(), [7; 9]);
    memory.write_obj(1u8, at(4, 3)).unwrap_err();
    drop(memory);
    world.space.unmap(iova(4), PAGE).unwrap();
}

#[test]
fn exactly_the_written_pages_of_a_scope_are_logged() {
    let world = World::new();
    // Fill the TLB with entries from before the log.
    world.session.guest_memory(|memory| use_bytes(memory));
    let log = world.log();
    world.session.guest_memory(|memory| {
        memory.read_slice(&mut [0; 9000], at(0, 0)).unwrap();
        memory.load::<u32>(at(1, 0), Ordering::Relaxed).unwrap();
        assert!(memory.check_range(at(0, 0), 9000, Permissions::Write));
        memory.get_slices(at(0, 0), 9000, Permissions::ReadWrite).unwrap().for_each(drop);
        memory.write_obj(1u8, at(5, 0)).unwrap_err();
        memory.store(1u64, at(1, 4089), Ordering::Relaxed).unwrap_err();
    });
    assert!(world.collect(&log).is_empty());
    type Writes = fn(&SessionMemory<'_>) -> Result<(), GuestMemoryError>;
    let ways: [(Writes, &[u64]); 7] = [
        (|memory| memory.write_obj(1u16, at(1, 4094)), &[1]),
        (|memory| memory.write_obj(1u16, at(1, 4095)), &[1, 2]),
        (|memory| memory.write_slice(&[1; 5000], at(6, 100)), &[6, 7]),
        (|memory| memory.store(1u64, at(8, 0), Ordering::Release), &[8]),
        (|memory| memory.read_exact_volatile_from(at(3, 0), &mut &[1; 8][..], 8), &[3]),
        // A write that ends early.
        (|memory| memory.write(&[1; 5000], at(3, 4000)).map(|done| assert_eq!(done, 96)), &[3]),
        (
            |memory| {
                let slices = memory.get_slices(at(0, 0), 2 * PAGE as usize, Permissions::Write)?;
                let all: Vec<_> = slices.map(Result::unwrap).collect();
                let last = all.last().unwrap();
                let part = last.offset(last.len() - 20).unwrap().subslice(8, 8).unwrap();
                part.write_obj(1u32, 4).unwrap();
                assert!(part.bitmap().dirty_at(4) && last.bitmap().dirty_at(last.len() - 1));
                // A slice does not mark bytes outside of itself.
                part.bitmap().mark_dirty(8, usize::MAX);
                part.bitmap().mark_dirty(usize::MAX, usize::MAX);
                part.bitmap().slice_at(usize::MAX).mark_dirty(0, 1);
                Ok(())
            },
            &[1],
        ),
    ];
    for (index, (write, pages)) in ways.into_iter().enumerate() {
        world.session.guest_memory(write).unwrap();
        assert_eq!(world.collect(&log), pages, "way {index}");
    }
    assert_eq!(world.space.counters().unlogged, 0);
    world.space.set_logs(Logs::default()).unwrap();
    world.session.guest_memory(|memory| {
        memory.write_obj(1u8, at(1, 0)).unwrap();
        let mut slices = memory.get_slices(at(1, 0), 1, Permissions::Read).unwrap();
        assert!(!slices.next().unwrap().unwrap().bitmap().dirty_at(0), "there is no log");
    });
    assert!(world.collect(&log).is_empty());
}

#[test]
fn all_of_a_pin_is_logged_when_it_ends() {
    let world = World::new();
    let log = world.log();
    let len = 2 * PAGE as usize;
    let pinned = world.session.pin(iova(1), len, ReadWrite, |view| {
        PinnedMemory::from(view).write_obj(1u8, at(1, 0)).unwrap();
        assert_eq!(log.count(log.covers()), 0, "nothing is logged before that");
    });
    pinned.unwrap();
    assert_eq!(world.collect(&log), [1, 2]);
    let lease = world.session.lease(iova(6), len, WriteOnly, OnUnmap::Wait).unwrap();
    let memory = PinnedMemory::from(lease);
    memory.write_obj(1u8, at(6, 0)).unwrap();
    assert_eq!(world.collect(&log), [6, 7], "a live lease is always reported");
    drop(memory);
    assert_eq!(world.collect(&log), [6, 7]);
    let read = world.session.pin(iova(1), len, ReadOnly, |view| {
        PinnedMemory::from(view).read_obj::<u8>(at(1, 0)).unwrap()
    });
    assert_eq!((read.unwrap(), world.collect(&log)), (1, vec![]));
}

#[test]
fn dirty_bits_are_set_by_writes_only() {
    let world = World::with_config(SpaceConfig::new().with_dirty_bits(true));
    let dirty = || {
        let mut pages = Vec::new();
        let visit = |run: AddrRange<Iova>| pages.push((run.start().raw() - START) / PAGE);
        world.space.read_dirty(iova(0), LAST * PAGE, true, visit).unwrap();
        pages
    };
    world.session.guest_memory(|memory| memory.read_slice(&mut [0; 9000], at(0, 0)).unwrap());
    assert!(dirty().is_empty());
    for _ in 0..2 {
        world.session.guest_memory(|memory| memory.write_obj(1u16, at(1, 4095)).unwrap());
        assert_eq!(dirty(), [1, 2]);
    }
}

#[test]
fn unmapping_waits_for_the_scope() {
    let world = World::new();
    let unmapped = AtomicBool::new(false);
    let (space, session) = (&world.space, &world.session);
    let (start, begin) = mpsc::channel();
    std::thread::scope(|scope| {
        let (flag, other) = (&unmapped, space.clone());
        scope.spawn(move || {
            begin.recv().unwrap();
            other.unmap(iova(0), 2 * PAGE).unwrap();
            flag.store(true, Ordering::SeqCst);
        });
        session.guest_memory(|memory| {
            let mut slices = memory.get_slices(at(0, 0), 8, Permissions::ReadWrite).unwrap();
            let slice = slices.next().unwrap().unwrap();
            let own = space.unmap(iova(6), PAGE);
            assert!(matches!(own, Err(Error::PinnedByCaller { .. })), "it would wait for itself");
            start.send(()).unwrap();
            // Wait until the other thread has cleared the entry, and waits for this scope.
            while memory.check_range(at(0, 0), 8, Permissions::Read) {
                std::thread::yield_now();
            }
            slice.write_obj(7u64, 0).unwrap();
            assert_eq!(slice.read_obj::<u64>(0).unwrap(), 7);
            // Pins and scopes can be nested.
            session.guest_memory(|inner| inner.write_obj(1u8, at(2, 0)).unwrap());
            session.pin(iova(2), 8, ReadOnly, |view| view.read_obj::<u8>(0).unwrap()).unwrap();
            assert!(!unmapped.load(Ordering::SeqCst));
        });
    });
    assert!(unmapped.load(Ordering::SeqCst));
    space.unmap(iova(6), PAGE).unwrap();
}

/// The driver's side of a split virtqueue of 16 entries, accessed by a session: the table is in page 0,
/// the available ring in page 1, the used ring in page 3.
struct Driver<'w>(&'w Session, u16);

const DESCRIPTORS: GuestAddress = GuestAddress(START);
const AVAILABLE: GuestAddress = GuestAddress(START + PAGE);
const USED: GuestAddress = GuestAddress(START + 3 * PAGE);
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

impl Driver<'_> {
    fn describe(
        &self,
        table: GuestAddress,
        index: u16,
        address: GuestAddress,
        len: u32,
        flags: u16,
    ) {
        let descriptor = Descriptor::new(address.0, len, flags, index + 1);
        let bytes = vm_memory::ByteValued::as_slice(&RawDescriptor::from(descriptor)).to_vec();
        self.0.write(Iova::new(table.0 + 16 * u64::from(index)), &bytes).unwrap();
    }

    fn make_available(&mut self, head: u16) {
        let entry = 4 + 2 * u64::from(self.1 % 16);
        self.0.write_obj(Iova::new(AVAILABLE.0 + entry), head).unwrap();
        self.1 += 1;
        self.0.store(Iova::new(AVAILABLE.0 + 2), self.1, Ordering::Release).unwrap();
    }

    /// Returns the index of the used ring, and its entry `index`: the head of a chain and a length.
    fn used(&self, index: u16) -> (u16, [u32; 2]) {
        let entry = |more| Iova::new(USED.0 + 4 + 8 * u64::from(index) + more);
        let word = |at| self.0.read_obj::<u32>(at).unwrap();
        let used = self.0.load(Iova::new(USED.0 + 2), Ordering::Acquire).unwrap();
        (used, [word(entry(0)), word(entry(4))])
    }
}

fn queue() -> Queue {
    let mut queue = Queue::new(16).unwrap();
    let halves = |address: GuestAddress| (Some(address.0 as u32), Some((address.0 >> 32) as u32));
    let (low, high) = halves(DESCRIPTORS);
    queue.set_desc_table_address(low, high);
    let (low, high) = halves(AVAILABLE);
    queue.set_avail_ring_address(low, high);
    let (low, high) = halves(USED);
    queue.set_used_ring_address(low, high);
    queue.set_ready(true);
    queue
}

/// Serves a queue like a typical rust-vmm device, which answers each request with its bytes reversed.
/// Returns the number of chains, and how many of them failed.
fn serve<M: GuestMemory>(queue: &mut Queue, memory: &M) -> [usize; 2] {
    let (mut served, mut refused) = (0, 0);
    while let Some(chain) = queue.pop_descriptor_chain(memory) {
        let head = chain.head_index();
        let answer = || -> Option<usize> {
            let mut request = Vec::new();
            chain.clone().reader(memory).ok()?.read_to_end(&mut request).ok()?;
            request.reverse();
            let mut writer = chain.clone().writer(memory).ok()?;
            writer.write_all(&request).ok()?;
            Some(writer.bytes_written())
        };
        let len = answer();
        refused += usize::from(len.is_none());
        queue.add_used(memory, head, len.unwrap_or(0) as u32).unwrap();
        served += 1;
    }
    assert!(queue.needs_notification(memory).unwrap() || served == 0);
    [served, refused]
}

#[test]
fn a_virtqueue_of_rust_vmm_is_served() {
    let world = World::new();
    let mut driver = Driver(&world.session, 0);
    let request = some_bytes(300, 9);
    let reversed: Vec<u8> = request.iter().rev().copied().collect();
    world.session.write(Iova::new(at(1, 3946).0), &request).unwrap();
    // A chain that is read from A into B, and written in two parts, the second of them across a
    // boundary.
    driver.describe(DESCRIPTORS, 0, at(1, 3946), 300, NEXT);
    driver.describe(DESCRIPTORS, 1, at(2, 2000), 100, NEXT | WRITE);
    driver.describe(DESCRIPTORS, 2, at(6, 4000), 200, WRITE);
    driver.make_available(0);
    // The same request by an indirect table, in memory that the device may only read.
    world.space.unmap(iova(5), PAGE).unwrap();
    let rom = memory();
    world.space.attach(&rom).unwrap();
    world.space.map(iova(5), &rom, 0, PAGE, Prot::READ_WRITE).unwrap();
    driver.describe(at(5, 0), 0, at(1, 3946), 300, NEXT);
    driver.describe(at(5, 0), 1, at(7, 1000), 300, WRITE);
    world.space.unmap(iova(5), PAGE).unwrap();
    world.space.map(iova(5), &rom, 0, PAGE, Prot::READ).unwrap();
    driver.describe(DESCRIPTORS, 5, at(5, 0), 32, INDIRECT);
    driver.make_available(5);
    // Two chains that must fail: one writes to read-only memory, one into a hole.
    driver.describe(DESCRIPTORS, 6, at(1, 3946), 8, NEXT);
    driver.describe(DESCRIPTORS, 7, at(5, 100), 8, WRITE);
    driver.make_available(6);
    driver.describe(DESCRIPTORS, 8, at(1, 3946), 8, NEXT);
    driver.describe(DESCRIPTORS, 9, at(3, 4092), 8, WRITE);
    driver.make_available(8);

    let log = world.log();
    let mut queue = queue();
    let (valid, served) = world.session.guest_memory(|memory| {
        let index = queue.avail_idx(memory, Ordering::Acquire).unwrap();
        assert_eq!(index, Wrapping(4));
        (queue.is_valid(memory), serve(&mut queue, memory))
    });
    assert!(valid);
    assert_eq!(served, [4, 2]);
    let used = [(0, 300), (5, 300), (6, 0), (8, 0)];
    for (index, (head, len)) in used.into_iter().enumerate() {
        assert_eq!(driver.used(index as u16), (4, [head, len]));
    }
    let mut read = [0; 300];
    world.session.read(Iova::new(at(2, 2000).0), &mut read[..100]).unwrap();
    world.session.read(Iova::new(at(6, 4000).0), &mut read[100..]).unwrap();
    assert_eq!(read[..], reversed);
    world.session.read(Iova::new(at(7, 1000).0), &mut read).unwrap();
    assert_eq!(read[..], reversed);
    // Only the used ring and the written buffers are logged.
    assert_eq!(world.collect(&log), [2, 3, 6, 7]);

    // A queue whose used ring the device may not write to.
    queue.set_used_ring_address(Some(at(5, 0).0 as u32), None);
    assert!(!world.session.guest_memory(|memory| queue.is_valid(memory)));
}

#[test]
fn a_virtqueue_is_served_from_a_lease_on_another_thread() {
    let world = World::new();
    let mut driver = Driver(&world.session, 0);
    let lease = world.session.lease(iova(0), 4 * PAGE as usize, ReadWrite, OnUnmap::Wait).unwrap();
    let (memory, mut queue) = (Arc::new(PinnedMemory::from(lease)), queue());
    assert!(queue.is_valid(&*memory));
    for round in 1..=3u16 {
        world.session.write(Iova::new(at(1, 4093).0), &[round as u8, 2, 3, 4, 5]).unwrap();
        driver.describe(DESCRIPTORS, 0, at(1, 4093), 5, NEXT);
        driver.describe(DESCRIPTORS, 1, at(2, 100), 5, WRITE);
        driver.make_available(0);
        let device = Arc::clone(&memory);
        let thread = std::thread::spawn(move || (serve(&mut queue, &*device), queue));
        let (served, again) = thread.join().unwrap();
        queue = again;
        assert_eq!((served, driver.used(round - 1)), ([1, 0], (round, [0, 5])));
        let mut read = [0; 5];
        world.session.read(Iova::new(at(2, 100).0), &mut read).unwrap();
        assert_eq!(read, [5, 4, 3, 2, round as u8]);
    }
}
