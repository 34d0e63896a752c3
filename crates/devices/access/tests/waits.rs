//! A thread that unmaps, or waits for a grace period, never waits for an access that it could end. This
//! matters most for calls to remote regions, which may be answered only after it has returned.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "makes a segment by its address")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use longshore_access::dirty::{DirtyLog, Log};
use longshore_access::{
    Error, Fault, Logs, OnUnmap, ProcessMemory, ReadOnly, ReadWrite, Reason, Region, RegionAccess,
    RemoteFault, RemoteMemory, Session, Space, SpaceConfig, WriteOnly,
};
use longshore_iov::{Dest, Segment, SegmentSource};
use longshore_mem::{AddrRange, FileOffset, Granule, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};
use longshore_pagetable::Prot;
use longshore_sys::memfd::{self, Backing};

const PAGE: u64 = 4096;
/// A page of this process, which the tests pin.
const PINNED: Iova = Iova::new(0x10_0000);
/// A page of a remote region.
const REMOTE: Iova = Iova::new(0x20_0000);
/// A page of this process, which most tests do not access.
const OTHER: Iova = Iova::new(0x30_0000);

/// The timeout of each wait in a test.
const LONG: Duration = Duration::from_secs(20);

/// A client that answers a call only after [`answer`](Self::answer), or when the call is cancelled.
#[derive(Default)]
struct Client {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    calls: usize,
    answers: bool,
    /// The first cancellations, up to this number, have no effect, as if the call had not begun.
    deaf: usize,
    cancelled: Vec<Range<u64>>,
    /// The number of bytes that a call has done when it is cancelled.
    done: usize,
    /// `true` if `cancel` panics after it has cancelled the call.
    panics: bool,
}

impl Client {
    fn call(&self) -> Result<(), RemoteFault> {
        let mut state = self.state.lock().unwrap();
        state.calls += 1;
        let before = state.cancelled.len();
        self.changed.notify_all();
        let ends =
            |state: &mut State| !state.answers && state.cancelled.len() <= before.max(state.deaf);
        let state = self.changed.wait_while(state, ends).unwrap();
        if state.answers {
            return Ok(());
        }
        Err(RemoteFault::new(state.done, Reason::BackingLost))
    }

    fn wait_until_called(&self, calls: usize) {
        let state = self.state.lock().unwrap();
        let (state, timeout) =
            self.changed.wait_timeout_while(state, LONG, |state| state.calls < calls).unwrap();
        assert!(!timeout.timed_out(), "{} calls", state.calls);
    }

    fn answer(&self) {
        self.state.lock().unwrap().answers = true;
        self.changed.notify_all();
    }

    fn cancelled(&self) -> usize {
        self.state.lock().unwrap().cancelled.len()
    }
}

impl RemoteMemory for Client {
    fn read(&self, _offset: u64, _into: VolatileSliceMut<'_>) -> Result<(), RemoteFault> {
        self.call()
    }

    fn write(&self, _offset: u64, _from: VolatileSlice<'_>) -> Result<(), RemoteFault> {
        self.call()
    }

    fn cancel(&self, range: Range<u64>) {
        let mut state = self.state.lock().unwrap();
        state.cancelled.push(range);
        let panics = state.panics;
        drop(state);
        self.changed.notify_all();
        assert!(!panics, "it is cancelled");
    }
}

struct World {
    space: Space,
    own: Arc<Region>,
    client: Arc<Client>,
}

impl World {
    fn new() -> Self {
        let client = Arc::new(Client::default());
        let space = Space::with_config(SpaceConfig::new()).unwrap();
        let own = own(3);
        let memory = Arc::clone(&client) as Arc<dyn RemoteMemory>;
        let remote = Arc::new(Region::remote(memory, PAGE).unwrap());
        for region in [&own, &remote] {
            space.attach(region).unwrap();
        }
        space.map(PINNED, &own, 0, PAGE, Prot::READ_WRITE).unwrap();
        space.map(REMOTE, &remote, 0, PAGE, Prot::READ_WRITE).unwrap();
        space.map(OTHER, &own, PAGE, PAGE, Prot::READ_WRITE).unwrap();
        Self { space, own, client }
    }

    /// Runs `device` on a thread, and `work` on another one after `device` has called the client. If
    /// `work` does not return in time, the client answers and the test fails.
    fn during<R: Send>(
        &self,
        device: impl FnOnce(&Session) -> R + Send,
        work: impl FnOnce() + Send,
    ) -> R {
        std::thread::scope(|scope| {
            let device = scope.spawn(|| device(&self.space.session()));
            self.client.wait_until_called(1);
            let (through, wait) = mpsc::channel();
            let work = scope.spawn(move || {
                work();
                through.send(()).unwrap();
            });
            let waited = wait.recv_timeout(LONG);
            self.client.answer();
            if waited == Err(RecvTimeoutError::Disconnected) {
                std::panic::resume_unwind(work.join().unwrap_err());
            }
            assert_eq!(waited, Ok(()), "the two threads wait for each other");
            device.join().unwrap()
        })
    }

    fn unmap(&self, iova: Iova) {
        self.space.unmap(iova, PAGE).unwrap();
    }
}

fn own(pages: u64) -> Arc<Region> {
    let file = memfd::create("own", Backing::Shmem).unwrap();
    memfd::set_len(&file, pages * PAGE).unwrap();
    let region = Region::map_file(&file, FileOffset::new(0), pages * PAGE, RegionAccess::ReadWrite);
    Arc::new(region.unwrap())
}

/// Waits until `is_so` returns `true`. Panics after [`LONG`].
fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it takes too long");
        std::thread::yield_now();
    }
}

fn ask(session: &Session) -> Result<(), Fault> {
    session.read(REMOTE, &mut [0; 8])
}

fn revoked() -> Result<(), Fault> {
    Err(Fault::new(REMOTE, 0, Reason::Revoked))
}

#[test]
fn a_call_within_a_pin_is_cancelled_when_it_is_unmapped() {
    let world = World::new();
    let is_unmapped = AtomicBool::new(false);
    let device = |session: &Session| {
        let asked = session.pin(PINNED, 8, ReadWrite, |view| {
            view.write(0, b"pinned").unwrap();
            let asked = ask(session);
            until(|| is_unmapped.load(Ordering::SeqCst));
            // The pin is still valid.
            view.read(0, &mut [0; 8]).unwrap();
            assert_eq!(ask(session).unwrap_err().reason, Reason::Unmapped);
            asked
        });
        asked.unwrap()
    };
    let asked = world.during(device, || {
        world.unmap(REMOTE);
        is_unmapped.store(true, Ordering::SeqCst);
    });
    assert_eq!(asked, revoked());
    assert!(world.client.cancelled() > 0);
    world.unmap(PINNED);
}

#[test]
fn unmapping_waits_for_pins_around_a_call_and_cancels_the_call() {
    let world = World::new();
    let is_over = AtomicBool::new(false);
    let device = |session: &Session| {
        let nested = session.pin(PINNED, 8, ReadOnly, |outer| {
            let asked = session.pin(OTHER, 8, WriteOnly, |inner| {
                let asked = ask(session);
                // The next call is cancelled as well, because the pin has not ended.
                assert_eq!(ask(session), revoked());
                inner.write(0, b"pinned").unwrap();
                asked
            });
            std::thread::sleep(Duration::from_millis(5));
            outer.read(0, &mut [0; 8]).unwrap();
            is_over.store(true, Ordering::SeqCst);
            asked.unwrap()
        });
        nested.unwrap()
    };
    let asked = world.during(device, || {
        assert!(!is_over.load(Ordering::SeqCst));
        let mut batch = world.space.batch();
        batch.unmap(OTHER, PAGE).unwrap();
        batch.unmap(PINNED, PAGE).unwrap();
        batch.finish().unwrap();
        assert!(is_over.load(Ordering::SeqCst), "finishing waits for the pin");
        world.space.detach(&world.own).unwrap();
    });
    assert_eq!(asked, revoked());
}

#[test]
fn unmapping_other_memory_does_not_wait_for_a_call_within_a_pin() {
    let world = World::new();
    let device = |session: &Session| session.pin(PINNED, 8, WriteOnly, |_| ask(session)).unwrap();
    let asked = world.during(device, || {
        world.unmap(OTHER);
        world.space.grace_period().unwrap();
        world.space.set_logs(Logs::default()).unwrap();
        assert!(matches!(world.space.detach(&world.own), Err(Error::StillMapped { .. })));
        world.unmap_and_map_anew();
    });
    assert_eq!(asked, Ok(()));
    assert_eq!(world.client.cancelled(), 0);
    // No pin or call is left.
    world.unmap(PINNED);
    world.unmap(REMOTE);
}

impl World {
    fn unmap_and_map_anew(&self) {
        for _ in 0..3 {
            self.space.map(OTHER, &self.own, PAGE, PAGE, Prot::READ_WRITE).unwrap();
            self.unmap(OTHER);
        }
    }
}

#[test]
fn writes_in_a_pin_around_a_call_are_logged() {
    let world = World::new();
    let covers = AddrRange::new(PINNED, PAGE).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, covers).unwrap());
    let collect = || {
        let mut pages = 0;
        world.space.collect(&log, covers, |run| pages += run.len() / PAGE).unwrap();
        pages
    };
    let device = |session: &Session| {
        let pinned = session.pin(PINNED, 8, WriteOnly, |view| {
            ask(session).unwrap();
            view.write(0, b"late").unwrap();
        });
        pinned.unwrap();
    };
    // The logs are set while the slot is left, and the pin writes after that.
    world.during(device, || {
        let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
        world.space.set_logs(logs).unwrap();
    });
    assert_eq!((collect(), collect()), (1, 0));
}

/// A thread that unmaps and then collects gets all writes.
#[test]
fn the_writes_of_a_call_are_logged_when_its_unmapping_returns() {
    let world = World::new();
    world.client.state.lock().unwrap().done = 4;
    let covers = AddrRange::new(REMOTE, PAGE).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, covers).unwrap());
    let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
    world.space.set_logs(logs).unwrap();
    let remote = Arc::new(Region::remote(Arc::clone(&world.client) as _, PAGE).unwrap());
    world.space.attach(&remote).unwrap();
    world.unmap(REMOTE);
    for round in 1..=200 {
        world.space.map(REMOTE, &remote, 0, PAGE, Prot::READ_WRITE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let fault = world.space.session().write(REMOTE, &[1; 8]).unwrap_err();
                assert_eq!((fault.done, fault.reason), (4, Reason::Revoked));
            });
            world.client.wait_until_called(round);
            world.unmap(REMOTE);
            let mut pages = 0;
            world.space.collect(&log, covers, |_| pages += 1).unwrap();
            assert_eq!(pages, 1, "in round {round}");
        });
    }
}

#[test]
fn a_call_that_begins_late_is_cancelled_again() {
    let world = World::new();
    world.client.state.lock().unwrap().deaf = 5;
    assert_eq!(world.during(ask, || world.unmap(REMOTE)), revoked());
    assert!(world.client.cancelled() > 5);
}

#[test]
fn a_call_that_keeps_another_session_busy_is_cancelled() {
    let world = World::new();
    let device = |session: &Session| {
        let other = world.space.session();
        session.pin(PINNED, 8, ReadOnly, |_| ask(&other)).unwrap()
    };
    assert_eq!(world.during(device, || world.unmap(OTHER)), revoked());
}

/// A cursor that calls a remote region in the middle of a transfer.
struct Asking<'s> {
    session: &'s Session,
    bytes: Vec<u8>,
    asked: Option<Result<(), Fault>>,
}

impl SegmentSource<Dest> for Asking<'_> {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn next_segment(&mut self, _max: usize) -> Option<Segment<'_, Dest>> {
        if self.asked.is_none() {
            self.asked = Some(ask(self.session));
        }
        None
    }

    fn advance(&mut self, _len: usize) {}

    fn revert(&mut self, _len: usize) -> Result<(), longshore_iov::Error> {
        Ok(())
    }
}

/// A cursor with an empty segment.
struct Empty(u8);

impl SegmentSource<Dest> for Empty {
    fn remaining(&self) -> usize {
        8
    }

    fn next_segment(&mut self, _max: usize) -> Option<Segment<'_, Dest>> {
        // SAFETY: the view has no bytes.
        let view =
            unsafe { VolatileSliceMut::from_raw_parts(std::ptr::NonNull::from(&mut self.0), 0) };
        Some(Segment::from(view))
    }

    fn advance(&mut self, _len: usize) {}

    fn revert(&mut self, _len: usize) -> Result<(), longshore_iov::Error> {
        Ok(())
    }
}

#[test]
fn an_empty_segment_needs_no_call() {
    let world = World::new();
    assert_eq!(world.space.session().read_iter(REMOTE, &mut Empty(0), 8), Ok(0));
    assert_eq!(world.client.state.lock().unwrap().calls, 0);
}

#[test]
fn a_call_from_a_cursor_is_cancelled_by_each_waiting_thread() {
    let waits: [fn(&World); 4] = [
        |world| world.unmap(REMOTE),
        |world| world.unmap(OTHER),
        |world| world.space.grace_period().unwrap(),
        |world| world.space.set_logs(Logs::default()).unwrap(),
    ];
    for wait in waits {
        let world = World::new();
        let device = |session: &Session| {
            let mut cursor = Asking { session, bytes: vec![0; 100], asked: None };
            assert_eq!(session.read_iter(PINNED, &mut cursor, 100), Ok(0));
            cursor.asked.unwrap()
        };
        assert_eq!(world.during(device, || wait(&world)), revoked());
    }
}

#[test]
fn a_lease_is_notified_while_unmapping_waits_for_a_pin() {
    let world = World::new();
    let told = Arc::new(AtomicUsize::new(0));
    let device = |session: &Session| {
        let told = Arc::clone(&told);
        let notify = OnUnmap::Notify(Arc::new(move || {
            told.fetch_add(1, Ordering::SeqCst);
        }));
        let lease = session.lease(OTHER, 8, ReadOnly, notify).unwrap();
        session
            .pin(PINNED, 8, ReadOnly, |_| {
                world.client.state.lock().unwrap().calls += 1;
                world.client.changed.notify_all();
                // The pin lasts until the lease is revoked.
                until(|| lease.is_revoked());
            })
            .unwrap();
    };
    world.during(device, || world.unmap(OTHER));
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// The memory is still in use, so its region must not be detached.
#[test]
fn memory_stays_mapped_if_its_notification_panics() {
    let world = World::new();
    let notify = OnUnmap::Notify(Arc::new(|| panic!("told")));
    let lease = world.space.session().lease(PINNED, 8, WriteOnly, notify).unwrap();
    let unmapping = std::panic::AssertUnwindSafe(|| world.unmap(PINNED));
    assert!(std::panic::catch_unwind(unmapping).is_err());
    world.unmap(OTHER);
    let detached = world.space.detach(&world.own);
    assert!(matches!(detached, Err(Error::StillMapped { mapped_bytes: PAGE })), "{detached:?}");
    lease.view().write(0, b"it is there").unwrap_err();
    lease.view().write(0, b"there").unwrap();
}

/// Sessions that were not waited for may be in the middle of using the logs that were replaced.
#[test]
fn logs_outlive_a_callback_that_panics_while_they_are_replaced() {
    let world = World::new();
    let all = AddrRange::new(Iova::new(0), 1 << 30).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, all).unwrap());
    let by_iova = Log::Internal(Arc::clone(&log));
    world.space.set_logs(Logs::default().with_iova(by_iova)).unwrap();
    world.client.state.lock().unwrap().panics = true;
    let device = |session: &Session| {
        let mut cursor = Asking { session, bytes: vec![0; 100], asked: None };
        session.read_iter(PINNED, &mut cursor, 100)
    };
    let replace = || {
        let set = std::panic::AssertUnwindSafe(|| world.space.set_logs(Logs::default()));
        assert!(std::panic::catch_unwind(set).is_err());
    };
    assert_eq!(world.during(device, replace), Ok(0));
    assert_eq!(Arc::strong_count(&log), 2, "the logs were dropped while sessions used them");
}

/// The slot is left only for a moment between two pins.
#[test]
fn unmapping_does_not_wait_for_pins_that_begin_later() {
    let world = World::new();
    let is_through = AtomicBool::new(false);
    let device = |session: &Session| {
        session.read(OTHER, &mut [0; 8]).unwrap();
        let before = world.space.counters().barriers;
        let pinned = session.pin(PINNED, 8, ReadOnly, |_| {
            world.client.state.lock().unwrap().calls += 1;
            world.client.changed.notify_all();
            // Wait for the barrier of the unmapping, after which this session sees the flush.
            until(|| world.space.counters().barriers != before);
            session.read(OTHER, &mut [0; 8]).unwrap_err();
        });
        pinned.unwrap();
        let again = session.pin(PINNED, 8, ReadOnly, |_| {
            // This times out if the unmapping waits for this later pin.
            until(|| is_through.load(Ordering::SeqCst));
        });
        again.unwrap();
    };
    world.during(device, || {
        world.unmap(OTHER);
        is_through.store(true, Ordering::SeqCst);
    });
}

#[test]
fn calls_to_another_process_within_pins_are_cancelled() {
    let there = vec![0u8; 65 * PAGE as usize].leak();
    let address = there.as_mut_ptr().expose_provenance() as u64;
    let pid = std::process::id();
    let remote = Arc::new(ProcessMemory::open(pid, address).unwrap());
    let remote = Arc::new(Region::remote(remote, 64 * PAGE).unwrap());
    let world = World::new();
    world.space.attach(&remote).unwrap();
    let at = Iova::new(0x40_0000);
    let (stop, accesses) = (AtomicBool::new(false), AtomicUsize::new(0));
    let device = |session: &Session| {
        world.client.state.lock().unwrap().calls += 1;
        world.client.changed.notify_all();
        let mut bytes = vec![0; 64 * PAGE as usize];
        while !stop.load(Ordering::SeqCst) {
            let read = session.pin(PINNED, 8, WriteOnly, |_| session.read(at, &mut bytes));
            match read.flatten() {
                Ok(()) => accesses.fetch_add(1, Ordering::SeqCst),
                Err(fault) => {
                    assert!(matches!(fault.reason, Reason::Unmapped | Reason::Revoked), "{fault}");
                    0
                }
            };
        }
    };
    world.during(device, || {
        for round in 0..50 {
            world.space.map(at, &remote, 0, 64 * PAGE, Prot::READ_WRITE).unwrap();
            until(|| accesses.load(Ordering::SeqCst) >= round);
            world.space.unmap(at, 64 * PAGE).unwrap();
            world.unmap(PINNED);
            world.space.map(PINNED, &world.own, 0, PAGE, Prot::READ_WRITE).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    world.space.detach(&remote).unwrap();
}
