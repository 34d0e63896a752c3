//! Callbacks that panic: nothing is unmapped twice, leaked, or left mapped.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use longshore_access::{Lease, OnUnmap, ReadOnly, Session};
use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_domain::{Bounce, Builder, Direction, Domain, Error, Mapping};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

const PAGE: u64 = 4096;

/// The space of this process, which refuses to unmap ranges that are not mapped, and lists them.
#[derive(Debug)]
struct Strict {
    soft: Soft,
    mapped: Mutex<BTreeSet<u64>>,
    twice: Arc<Mutex<Vec<u64>>>,
}

// SAFETY: the calls are passed on to a space.
#[allow(unsafe_code, reason = "passes on what a domain maps")]
unsafe impl Backend for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn limits(&self) -> Limits {
        self.soft.limits()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        self.mapped.lock().unwrap().insert(iova.raw());
        // SAFETY: the caller's promise.
        unsafe { self.soft.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        let mut mapped = self.mapped.lock().unwrap();
        let is_twice = |range: &&AddrRange<Iova>| !mapped.remove(&range.start().raw());
        let twice: Vec<_> =
            ranges.iter().filter(is_twice).map(|range| range.start().raw()).collect();
        self.twice.lock().unwrap().extend(twice);
        drop(mapped);
        // SAFETY: the caller's promise.
        unsafe { self.soft.unmap(ranges) }
    }
}

struct Rig {
    domain: Domain,
    device: Session,
    twice: Arc<Mutex<Vec<u64>>>,
}

fn rig(set_up: impl FnOnce(Builder) -> Builder) -> Rig {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    let twice = Arc::default();
    let strict = Strict { soft, mapped: Mutex::default(), twice: Arc::clone(&twice) };
    let builder = Domain::builder(strict).bounce(Bounce::Never).free_after(None);
    Rig { domain: set_up(builder).build(), device, twice }
}

fn buffer(len_bytes: u64) -> Buffer {
    Heap::Memfd.allocate(len_bytes).unwrap()
}

#[track_caller]
fn assert_at_rest(Rig { domain, twice, .. }: &Rig) {
    assert!(twice.lock().unwrap().is_empty(), "unmapped twice: {twice:?}");
    domain.shrink(Duration::ZERO).unwrap();
    let counters = domain.counters();
    assert_eq!((counters.maps, counters.leaked), (counters.unmaps, 0));
    assert_eq!(domain.iovas().free_bytes(), domain.iovas().all_bytes());
}

#[test]
fn a_callback_of_a_batch_that_panics_leaves_nothing_mapped() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let rig = rig(|builder| builder.bounce(bounce));
        let mut batch = rig.domain.batch();
        let mut iovas = Vec::new();
        // The odd lengths have bounced ends.
        for len_bytes in [PAGE, 300_001, 2 * PAGE, 300_001, PAGE] {
            let mapping = rig.domain.map(buffer(len_bytes), Direction::FromDevice).unwrap();
            iovas.push(mapping.iova());
            mapping.unmap_deferred(&mut batch).unwrap();
        }
        let mut count = 0;
        let flushed = catch_unwind(AssertUnwindSafe(|| {
            batch.flush(|_| {
                count += 1;
                assert!(count < 2, "a callback that panics");
            })
        }));
        assert!(flushed.is_err());
        if bounce == Bounce::Never {
            assert!(iovas.iter().all(|iova| rig.device.write(*iova, &[1]).is_err()));
        }
        assert!(batch.is_empty());
        batch.flush(|_| panic!("nothing is left")).unwrap();
        drop(batch);
        assert_at_rest(&rig);
    }
}

#[test]
fn a_report_that_panics_leaves_nothing_mapped() {
    for bounce in [Bounce::Never, Bounce::Always] {
        let rig = rig(|builder| builder.bounce(bounce).on_misuse(|misuse| panic!("{misuse}")));
        // The number of bytes that the device wrote is unknown.
        let mapping = rig.domain.map_reported(buffer(PAGE)).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| mapping.unmap().is_ok())).is_err());
        let mut batch = rig.domain.batch();
        for _ in 0..3 {
            let mapping = rig.domain.map_reported(buffer(PAGE)).unwrap();
            mapping.unmap_deferred(&mut batch).unwrap();
        }
        assert!(catch_unwind(AssertUnwindSafe(|| batch.flush(drop).is_ok())).is_err());
        drop(batch);
        assert_at_rest(&rig);
    }
}

fn lease_that_panics(device: &Session, iova: Iova) -> Lease<ReadOnly> {
    device.lease(iova, 8, ReadOnly, OnUnmap::Notify(Arc::new(|| panic!("a callback")))).unwrap()
}

/// A panic in a destructor of a thread-local value would abort the process.
#[test]
fn a_lease_whose_callback_panics_does_not_abort_the_process() {
    thread_local! {
        static LAST: RefCell<Option<Mapping<'static, Buffer>>> = const { RefCell::new(None) };
    }
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    let domain: &Domain = Box::leak(Box::new(Domain::builder(soft).free_after(None).build()));
    let (sender, receiver) = mpsc::channel();
    let (leased, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mapping = domain.map(buffer(PAGE), Direction::ToDevice).unwrap();
        sender.send(mapping.iova()).unwrap();
        LAST.set(Some(mapping));
        wait.recv().unwrap();
    });
    let lease = lease_that_panics(&device, receiver.recv().unwrap());
    leased.send(()).unwrap();
    thread.join().unwrap();
    let counters = domain.counters();
    assert_eq!((counters.unmaps, counters.leaked), (0, 1));
    // The memory was leaked, so the lease can still be used.
    lease.view().read(0, &mut [0; 8]).unwrap();
    drop(lease);

    // A caller that handles the error gets the mapping back.
    let mapping = domain.map(buffer(PAGE), Direction::ToDevice).unwrap();
    let lease = lease_that_panics(&device, mapping.iova());
    let failed = mapping.unmap().unwrap_err();
    let Error::Backend { source, .. } = *failed.error else { panic!("{:?}", failed.error) };
    assert!(matches!(source, BackendError::CallbackPanicked), "{source:?}");
    drop(failed.value);
    lease.view().read(0, &mut [0; 8]).unwrap();
    assert_eq!(domain.counters().leaked, 2);
}

/// The space of this process, whose first unmapping panics.
#[derive(Debug)]
struct PanicsOnce(Soft, Arc<AtomicBool>);

// SAFETY: the calls are passed on to a space.
#[allow(unsafe_code, reason = "passes on what a domain maps")]
unsafe impl Backend for PanicsOnce {
    fn name(&self) -> &'static str {
        "panics once"
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        let unmapped = unsafe { self.0.unmap(ranges) };
        assert!(self.1.swap(true, Ordering::Relaxed), "the first unmapping panics");
        unmapped
    }
}

/// One thread frees the idle memory of all domains.
#[test]
fn a_backend_that_panics_does_not_end_the_reclaim_thread() {
    #[track_caller]
    fn wait_until(is_so: impl Fn() -> bool) {
        let mut rounds = (0..20_000).map(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(rounds.any(|()| is_so()), "timed out");
    }
    let has_panicked = Arc::default();
    let backend = PanicsOnce(Soft::new().unwrap(), Arc::clone(&has_panicked));
    let pooled = |builder: Builder| {
        let idle = Some(Duration::from_millis(2));
        let domain = builder.bounce(Bounce::Always).free_after(idle).build();
        drop(domain.map(buffer(PAGE), Direction::ToDevice).unwrap());
        domain
    };
    let first = pooled(Domain::builder(backend));
    wait_until(|| has_panicked.load(Ordering::Relaxed));
    let other = pooled(Domain::builder(Soft::new().unwrap()));
    wait_until(|| other.counters().pool_bytes == 0);
    // The chunk whose unmapping panicked counts as held.
    assert_ne!(first.counters().pool_bytes, 0);
}
