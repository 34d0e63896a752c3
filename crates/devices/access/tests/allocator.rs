//! Tests with a global allocator that uses a session while that session allocates.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use longshore_access::{
    Error, OnUnmap, ReadOnly, ReadWrite, Region, RegionAccess, RemoteFault, RemoteMemory, Session,
    Space,
};
use longshore_mem::{FileOffset, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::memfd;

thread_local! {
    /// A function that the allocator calls, but not recursively.
    static ALSO: Cell<Option<fn(&'static Session)>> = const { Cell::new(None) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
    static SESSION: Cell<Option<&'static Session>> = const { Cell::new(None) };
    /// The number of failed checks within the allocator, which must not panic.
    static WRONG: Cell<u32> = const { Cell::new(0) };
}

/// The number of the allocator call in which [`lease_and_drop`] makes a lease.
static NTH: AtomicU32 = AtomicU32::new(0);

struct Hooked;

#[global_allocator]
static ALLOCATOR: Hooked = Hooked;

fn hook() {
    if let Ok(Some(also)) = ALSO.try_with(Cell::take) {
        CALLS.set(CALLS.get() + 1);
        also(SESSION.get().unwrap());
        ALSO.set(Some(also));
    }
}

// SAFETY: it calls the system's allocator.
unsafe impl GlobalAlloc for Hooked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        hook();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, len) }
    }
}

/// Runs `work` while the allocator calls `also`, and checks that it did.
fn with_hook<R>(also: fn(&'static Session), work: impl FnOnce() -> R) -> R {
    CALLS.set(0);
    WRONG.set(0);
    ALSO.set(Some(also));
    let result = work();
    ALSO.set(None);
    assert_ne!(CALLS.get(), 0, "nothing is allocated");
    assert_eq!(WRONG.get(), 0, "of {} calls of the allocator", CALLS.get());
    result
}

fn expect(is_so: bool) {
    WRONG.set(WRONG.get() + u32::from(!is_so));
}

/// Runs a test with a new session on a thread. Fails if the thread waits for itself for too long.
fn in_time(test: fn(&'static Session)) {
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        let session = Box::leak(Box::new(space().session()));
        // Fill the TLB, so that the first accesses do not allocate.
        for (page, byte) in (0..PAGES).zip(1..) {
            session.write(at(page), &[byte; 16]).unwrap();
        }
        SESSION.set(Some(session));
        test(session);
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it waits for itself"),
        _ => thread.join().unwrap(),
    }
}

const PAGE: u64 = 4096;
/// The number of mapped pages of this process, of which no two are contiguous.
const PAGES: u64 = 32;
const REMOTE: Iova = Iova::new(1 << 40);
/// A page of this process that nothing accesses.
const UNUSED: Iova = Iova::new(1 << 41);

fn at(page: u64) -> Iova {
    // Swap neighbours, so that no two of them are one extent.
    Iova::new((page ^ 1) * PAGE)
}

/// Memory whose every byte is 7.
struct Sevens;

impl RemoteMemory for Sevens {
    fn read(&self, _offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        into.write(0, &[7; PAGE as usize][..into.len()]).unwrap();
        Ok(())
    }

    fn write(&self, _offset: u64, _from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        Ok(())
    }

    fn cancel(&self, _range: Range<u64>) {}
}

fn space() -> Space {
    let space = Space::new().unwrap();
    let file = memfd::create("allocator", memfd::Backing::Shmem).unwrap();
    let len_bytes = (PAGES + 1) * PAGE;
    memfd::set_len(&file, len_bytes).unwrap();
    let local = Region::map_file(&file, FileOffset::new(0), len_bytes, RegionAccess::ReadWrite);
    let local = Arc::new(local.unwrap());
    let remote = Arc::new(Region::remote(Arc::new(Sevens), PAGE).unwrap());
    space.attach(&local).unwrap();
    space.attach(&remote).unwrap();
    for page in 0..PAGES {
        space.map(at(page), &local, page * PAGE, PAGE, Prot::READ_WRITE).unwrap();
    }
    space.map(UNUSED, &local, PAGES * PAGE, PAGE, Prot::READ_WRITE).unwrap();
    space.map(REMOTE, &remote, 0, PAGE, Prot::READ_WRITE).unwrap();
    space
}

fn first_byte(session: &Session, iova: Iova) -> Option<u8> {
    let mut byte = [0];
    session.read(iova, &mut byte).is_ok().then_some(byte[0])
}

/// Makes an access. After it the slot must still be busy, so this thread cannot unmap anything.
fn access_and_unmap(session: &'static Session) {
    expect(first_byte(session, at(3)) == Some(4));
    let unmapped = session.space().unmap(UNUSED, PAGE);
    expect(matches!(unmapped, Err(Error::PinnedByCaller { .. })));
}

/// Pins a page, and accesses the remote region within the pin.
fn pin_and_call(session: &'static Session) {
    let pinned = session.pin(at(3), 16, ReadOnly, |view| {
        expect(first_byte(session, REMOTE) == Some(7));
        let mut bytes = [0; 16];
        view.read(0, &mut bytes).is_ok() && bytes == [4; 16]
    });
    expect(pinned == Ok(true));
}

/// Makes a lease in only one of the calls, so that the list has room for the next lease.
fn lease_and_drop(session: &'static Session) {
    expect(
        CALLS.get() != NTH.load(Ordering::Relaxed)
            || session.lease(at(3), 16, ReadWrite, OnUnmap::Wait).is_ok(),
    );
}

#[test]
fn memory_is_not_unmapped_while_a_lease_of_it_is_made() {
    in_time(|session| {
        let len = (PAGES * PAGE) as usize;
        let lease = || session.lease(Iova::new(0), len, ReadWrite, OnUnmap::Wait).unwrap();
        let lease = with_hook(access_and_unmap, lease);
        assert_eq!(lease.view().slices().count(), PAGES as usize);
        drop(lease);
        session.space().unmap(UNUSED, PAGE).unwrap();
    });
}

#[test]
fn memory_is_not_unmapped_while_a_call_is_added_to_the_list() {
    in_time(|session| {
        // The list has no room for the call, so it allocates.
        let lease = || session.lease(at(0), 16, ReadOnly, OnUnmap::Wait).unwrap();
        let leases = [(); 4].map(|()| lease());
        let byte = with_hook(access_and_unmap, || first_byte(session, REMOTE));
        assert_eq!(byte, Some(7));
        drop(leases);
        session.space().unmap(UNUSED, PAGE).unwrap();
    });
}

#[test]
fn an_allocator_that_leases_does_not_wait_for_its_own_thread() {
    for nth in 1..=8 {
        NTH.store(nth, Ordering::Relaxed);
        in_time(|session| {
            let lease = || session.lease(at(0), 16, ReadWrite, OnUnmap::Wait).unwrap();
            let leases: Vec<_> = (0..40).map(|_| with_hook(lease_and_drop, lease)).collect();
            drop(leases);
            session.space().unmap(Iova::new(0), PAGES * PAGE).unwrap();
        });
    }
}

#[test]
fn an_allocator_that_pins_finds_the_session_consistent() {
    in_time(|session| {
        let len = (PAGES * PAGE) as usize;
        with_hook(pin_and_call, || {
            // The pin has more extents than the lists have room for, and as many leases.
            let pinned = session.pin(Iova::new(0), len, ReadWrite, |view| {
                expect(first_byte(session, REMOTE) == Some(7));
                let mut byte = [0];
                (0..PAGES).for_each(|page| {
                    let offset = at(page).raw() as usize;
                    expect(view.read(offset, &mut byte) == Ok(()) && byte[0] == page as u8 + 1);
                });
            });
            expect(pinned == Ok(()));
        });
        // All pins and leases have ended.
        session.space().unmap(Iova::new(0), PAGES * PAGE).unwrap();
    });
}
