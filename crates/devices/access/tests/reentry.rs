//! Callbacks that run in the middle of an access, a pin or a transfer: they use the same session, panic,
//! or run while the memory is freed. Memory is overwritten before it is freed, so that a late access
//! reads other bytes.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "owns memory that is freed when it is no longer mapped")]

use std::alloc::Layout;
use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use longshore_access::{
    Barrier, Error, OnUnmap, ReadOnly, ReadWrite, Readable, Reason, Region, RemoteFault,
    RemoteMemory, Session, Space, SpaceConfig, View,
};
use longshore_iov::{Cursor, Dest, Segment, SegmentSource};
use longshore_mem::{DmaMemory, FileOffset, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;

const PAGE: u64 = 4096;
/// A remote page, with a page of this process before it and one after it.
const BEFORE: Iova = Iova::new(0x10_0000);
const REMOTE: Iova = Iova::new(0x10_1000);
const BEHIND: Iova = Iova::new(0x10_2000);
/// A page of this process far from them.
const OTHER: Iova = Iova::new(0x20_0000);
const LAYOUT: Layout = match Layout::from_size_align(PAGE as usize, PAGE as usize) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

/// A page of the heap.
struct Page(NonNull<u8>);

impl Page {
    fn region(byte: u8) -> Arc<Region> {
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(LAYOUT) }).unwrap();
        // SAFETY: allocated above.
        unsafe { start.write_bytes(byte, PAGE as usize) };
        Arc::new(Region::from_memory(Self(start)).unwrap())
    }
}

// SAFETY: the value is the only owner of the page.
unsafe impl Send for Page {}

// SAFETY: the page stays allocated until this is dropped, is writable, and has no references.
unsafe impl DmaMemory for Page {
    fn host(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0, PAGE as usize)
    }

    fn is_writable(&self) -> bool {
        true
    }

    unsafe fn file(&self) -> Option<(BorrowedFd<'_>, FileOffset)> {
        None
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this owns the page. A late reader finds other bytes.
        unsafe { self.0.write_bytes(0xee, PAGE as usize) };
        // SAFETY: the page was allocated with this layout.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

thread_local! {
    /// The session, for callbacks that run on this thread.
    static SESSION: OnceCell<Session> = const { OnceCell::new() };
    /// The action of the next call of the remote region on this thread.
    static NEXT: Cell<Option<fn(&Session)>> = const { Cell::new(None) };
}

/// Memory whose every byte is 7, and whose reads run the next callback.
struct Calls {
    begun: Sender<()>,
}

impl RemoteMemory for Calls {
    fn read(&self, _offset: u64, mut into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        // The receiver is dropped after everything is unmapped.
        let _ = self.begun.send(());
        come_back();
        let bytes = [7; PAGE as usize];
        into.write(0, &bytes[..into.len()]).unwrap();
        Ok(())
    }

    fn write(&self, _offset: u64, _from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        Ok(())
    }

    fn cancel(&self, _range: Range<u64>) {}
}

/// Runs the next callback, with the session that is in the middle of an access.
fn come_back() {
    if let Some(next) = NEXT.take() {
        SESSION.with(|cell| next(cell.get().unwrap()));
    }
}

/// A cursor that runs the next callback each time that it advances.
struct Curious<'b>(Cursor<'b, Dest>);

impl SegmentSource<Dest> for Curious<'_> {
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    fn next_segment(&mut self, len_max: usize) -> Option<Segment<'_, Dest>> {
        self.0.next_segment(len_max)
    }

    fn advance(&mut self, len_bytes: usize) {
        self.0.advance(len_bytes);
        come_back();
    }

    fn revert(&mut self, len_bytes: usize) -> Result<(), longshore_iov::Error> {
        self.0.revert(len_bytes)
    }
}

/// Reads from `iova` and checks that each byte that was read is `byte`.
fn read(session: &Session, iova: Iova, byte: u8) {
    let mut bytes = [0; 16];
    let done = session.read(iova, &mut bytes).map_or_else(|fault| fault.done, |()| bytes.len());
    assert!(bytes[..done].iter().all(|read| *read == byte), "{iova:#x}: {bytes:?}");
}

fn read_view<A: Readable>(view: &View<'_, A>, byte: u8) {
    let mut bytes = [0; 16];
    view.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [byte; 16]);
}

/// The accesses during which the remote region is called.
const OUTER: [fn(&Session); 4] = [
    |session| {
        let mut bytes = vec![0; 3 * PAGE as usize];
        let done = session
            .read(BEFORE, &mut bytes)
            .map_or_else(|fault| fault.done, |()| 3 * PAGE as usize);
        for (page, byte) in bytes[..done].chunks(PAGE as usize).zip([1, 7, 2]) {
            assert!(page.iter().all(|read| *read == byte));
        }
    },
    |session| {
        let _ = session.pin(BEFORE, 16, ReadOnly, |outer| {
            let _ = session.pin(BEHIND, 16, ReadWrite, |inner| {
                read(session, REMOTE, 7);
                read_view(&inner, 2);
            });
            read(session, REMOTE, 7);
            read_view(&outer, 1);
        });
    },
    |session| {
        let mut bytes = vec![0; 3 * PAGE as usize];
        let view = VolatileSliceMut::from(&mut bytes[..]);
        let _ = session.read_iter(
            BEFORE,
            &mut Curious(Cursor::<Dest>::foreign_buf(view)),
            3 * PAGE as usize,
        );
    },
    |session| {
        let lease = session.lease(BEFORE, 16, ReadOnly, OnUnmap::Wait);
        read(session, REMOTE, 7);
        if let Ok(lease) = lease {
            read_view(&lease.view(), 1);
        }
    },
];

/// The callbacks that run within these accesses.
const INNER: [fn(&Session); 7] = [
    |session| read(session, OTHER, 3),
    |session| session.park(),
    |session| {
        let _ = session.pin(OTHER, 16, ReadOnly, |view| {
            session.park();
            read(session, BEHIND, 2);
            read_view(&view, 3);
        });
    },
    |session| {
        NEXT.set(Some(|session| read(session, OTHER, 3)));
        let _ = session.pin(OTHER, 16, ReadOnly, |view| {
            read(session, REMOTE, 7);
            read_view(&view, 3);
        });
    },
    |session| {
        let _ = session.space().unmap(OTHER, PAGE);
        read(session, BEHIND, 2);
    },
    |_| panic!("in the middle"),
    |session| {
        let _ = session.pin(OTHER, 16, ReadOnly, |_| -> () { panic!("in a pin in the middle") });
    },
];

/// Maps four pages, and runs `outer` with the callback `inner` while another thread unmaps and frees all
/// of them.
fn attack(outer: fn(&Session), inner: fn(&Session), backwards: bool) {
    // Miri has no membarrier.
    let config = SpaceConfig::new().with_barrier(Some(Barrier::Fence));
    let space = Space::with_config(config).unwrap();
    let (begun, wait): (_, Receiver<()>) = channel();
    let calls = Calls { begun: begun.clone() };
    let remote = Arc::new(Region::remote(Arc::new(calls), PAGE).unwrap());
    let mut pages = [
        (BEFORE, Page::region(1)),
        (REMOTE, remote),
        (BEHIND, Page::region(2)),
        (OTHER, Page::region(3)),
    ];
    for (iova, region) in &pages {
        space.attach(region).unwrap();
        let prot = if *iova == REMOTE { Prot::READ } else { Prot::READ_WRITE };
        space.map(*iova, region, 0, PAGE, prot).unwrap();
    }
    if backwards {
        pages.reverse();
    }
    std::thread::scope(|scope| {
        let space = &space;
        scope.spawn(move || {
            wait.recv().unwrap();
            for (iova, region) in pages {
                // The other thread may have unmapped it.
                let unmapped = space.unmap(iova, PAGE);
                assert!(matches!(unmapped, Ok(()) | Err(Error::Table { .. })), "{unmapped:?}");
                // The memory that it unmaps may still be in use.
                while space.detach(&region).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            // The session is dropped with the thread.
            SESSION.with(|cell| {
                let session = cell.get_or_init(|| space.session());
                NEXT.set(Some(inner));
                let outcome = catch_unwind(AssertUnwindSafe(|| outer(session)));
                NEXT.set(None);
                // An access that panicked may not have called the remote region.
                let _ = begun.send(());
                if let Err(panicked) = outcome {
                    let message = panicked.downcast_ref::<&str>().copied();
                    assert!(
                        message.is_some_and(|said| said.contains("in the middle")),
                        "{message:?}"
                    );
                }
                // The slot must have been left, or an unmapping thread would wait for ever.
                space.grace_period().unwrap();
                assert_eq!(session.pin(Iova::new(0), 0, ReadOnly, |view| view.len()), Ok(0));
            });
        });
    });
    let session = space.session();
    for iova in [BEFORE, REMOTE, BEHIND, OTHER] {
        let fault = session.read(iova, &mut [0; 1]).unwrap_err();
        assert_eq!((fault.done, fault.reason), (0, Reason::Unmapped));
    }
}

#[test]
fn freed_memory_is_not_accessed_and_no_slot_stays_busy() {
    for outer in OUTER {
        for inner in INNER {
            attack(outer, inner, false);
            attack(outer, inner, true);
        }
    }
}
