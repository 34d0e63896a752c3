//! Hostile callers of the safe API: they unmap memory of others, drop memory in the middle of an access,
//! and return another file from each call of `as_fd`.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "maps memory by its address")]

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use longshore_access::dirty::ExternalLog;
use longshore_access::{
    Error, Region, RegionAccess, RemoteFault, RemoteMemory, Space, SpaceConfig,
};
use longshore_mem::{BusAddr, FileOffset, Granule, GuestPhys, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::mapping::{Access, Mapping};
use longshore_sys::memfd::{self, Backing};

const PAGE: u64 = 4096;

/// An owner of a space that lends out sessions thereby lends the space, too. No safe method may unmap
/// its raw mappings.
#[test]
fn the_safe_methods_fail_on_a_raw_only_space() {
    for dirty_bits in [false, true] {
        let config = SpaceConfig::new().with_raw_only(true).with_dirty_bits(dirty_bits);
        let space = Space::with_config(config).unwrap();
        let file = memfd::create("raw", Backing::Shmem).unwrap();
        memfd::set_len(&file, PAGE).unwrap();
        let memory = Mapping::of_file(&file, PAGE, Granule::SIZE_4K, Access::ReadWrite).unwrap();
        let bus = BusAddr::new(memory.start().expose_provenance().get() as u64);
        let iova = Iova::new(0x1000);
        // SAFETY: the memory stays mapped until the end, and has no references.
        unsafe { space.map_raw(iova, bus, PAGE, Prot::READ_WRITE) }.unwrap();
        let session = space.session();
        session.write(iova, b"mine").unwrap();
        session.park();

        let lent = session.space();
        let refused = |tried: Result<(), Error>| {
            assert!(matches!(tried, Err(Error::RawOnly)), "dirty bits {dirty_bits}: {tried:?}");
        };
        refused(lent.unmap(iova, PAGE));
        refused(lent.unmap_dirty(iova, PAGE, |_| {}));
        let mut batch = lent.batch();
        refused(batch.unmap(iova, PAGE));
        refused(batch.unmap_dirty(iova, PAGE));
        batch.finish().unwrap();
        drop(batch);
        let region =
            Region::map_file(&file, FileOffset::new(0), PAGE, RegionAccess::ReadWrite).unwrap();
        refused(lent.attach(&Arc::new(region)));

        let mut bytes = [0; 4];
        session.read(iova, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mine");
        // SAFETY: mapped above, and no other thread maps or unmaps.
        unsafe { space.unmap_raw(iova, PAGE) }.unwrap();
    }
}

/// A type whose `as_fd` returns another file each time.
struct Lying {
    files: [OwnedFd; 4],
    next: Cell<usize>,
}

impl Lying {
    fn new() -> Self {
        let files = std::array::from_fn(|_| {
            let file = memfd::create("lying", Backing::Shmem).unwrap();
            memfd::set_len(&file, PAGE).unwrap();
            file
        });
        Self { files, next: Cell::new(0) }
    }

    /// Returns the number of the file whose first byte was changed.
    fn changed(&self) -> usize {
        let is_changed = |file: &OwnedFd| {
            let mut byte = [0];
            rustix::io::pread(file, &mut byte, 0).unwrap();
            byte != [0]
        };
        self.files.iter().position(is_changed).unwrap()
    }
}

impl AsFd for Lying {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let next = self.next.get();
        self.next.set((next + 1) % self.files.len());
        self.files[next].as_fd()
    }
}

/// The file that is mapped is the one whose length was checked.
#[test]
fn the_file_that_is_mapped_is_the_one_that_was_checked() {
    let lying = Lying::new();
    let region =
        Region::map_file(&lying, FileOffset::new(0), PAGE, RegionAccess::ReadWrite).unwrap();
    let (region, space, iova) = (Arc::new(region), Space::new().unwrap(), Iova::new(0x1000));
    space.attach(&region).unwrap();
    space.map(iova, &region, 0, PAGE, Prot::READ_WRITE).unwrap();
    space.session().write(iova, b"!").unwrap();
    assert_eq!(lying.changed(), 0);

    let lying = Lying::new();
    let log = ExternalLog::<GuestPhys>::map_file(&lying, FileOffset::new(0), PAGE).unwrap();
    log.mark(GuestPhys::new(0), 1).unwrap();
    assert_eq!(lying.changed(), 0);
}

/// Memory that answers a read only when it is cancelled. Then the accessing thread or the unmapping
/// thread drops the last reference.
struct Fleeting {
    space: Space,
    called: Arc<Barrier>,
    is_cancelled: Arc<AtomicBool>,
    dropped_within: Arc<AtomicUsize>,
}

impl RemoteMemory for Fleeting {
    fn read(&self, _offset: u64, _into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        self.called.wait();
        while !self.is_cancelled.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn write(&self, _offset: u64, _from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        Ok(())
    }

    fn cancel(&self, _range: Range<u64>) {
        self.is_cancelled.store(true, Ordering::Release);
    }
}

impl Drop for Fleeting {
    fn drop(&mut self) {
        // An access here would leave the slot in the middle of the outer access.
        if self.space.grace_period().is_err() {
            self.dropped_within.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Dropping memory runs code of its owner, which must not happen in the middle of an access.
#[test]
fn remote_memory_is_never_dropped_within_an_access() {
    const ROUNDS: usize = 3000;
    let dropped_within = Arc::new(AtomicUsize::new(0));
    let space = Space::new().unwrap();
    let file = memfd::create("own", Backing::Shmem).unwrap();
    memfd::set_len(&file, PAGE).unwrap();
    let own = Region::map_file(&file, FileOffset::new(0), PAGE, RegionAccess::ReadWrite).unwrap();
    let own = Arc::new(own);
    space.attach(&own).unwrap();
    space.map(Iova::new(PAGE), &own, 0, PAGE, Prot::READ_WRITE).unwrap();
    let (mapped, called) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = space.session();
            let mut bytes = [0; 2 * PAGE as usize];
            for _ in 0..ROUNDS {
                mapped.wait();
                // Reads the remote page first, and then the page of this process.
                session.read(Iova::new(0), &mut bytes).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            let memory = Arc::new(Fleeting {
                space: space.clone(),
                called: Arc::clone(&called),
                is_cancelled: Arc::default(),
                dropped_within: Arc::clone(&dropped_within),
            });
            let remote = Arc::new(Region::remote(memory, PAGE).unwrap());
            space.attach(&remote).unwrap();
            space.map(Iova::new(0), &remote, 0, PAGE, Prot::READ).unwrap();
            mapped.wait();
            called.wait();
            space.unmap(Iova::new(0), PAGE).unwrap();
            space.detach(&remote).unwrap();
        }
    });
    assert_eq!(dropped_within.load(Ordering::Relaxed), 0, "of {ROUNDS} rounds");
}
