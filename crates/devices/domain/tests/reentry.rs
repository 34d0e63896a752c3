//! A backend that uses its own domain during a call, or panics in it.
#![cfg(not(any(loom, miri)))]
#![expect(unsafe_code, reason = "passes on what a domain maps")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use longshore_domain::backend::{Backend, BackendError, Limits, Piece, Soft};
use longshore_domain::{Bounce, Direction, DmaPool, DmaPoolOptions, Domain, process_pool_bytes};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

type Action = Box<dyn FnOnce(&'static Rig) -> Result<(), BackendError> + Send>;

/// The space of this process. The next call of its `map` or `check_unmap` runs an action first.
struct Rig {
    soft: Soft,
    domain: OnceLock<Domain>,
    pool: OnceLock<DmaPool>,
    in_map: Mutex<Option<Action>>,
    in_check: Mutex<Option<Action>>,
    /// The number of mapped ranges.
    mapped: AtomicUsize,
}

struct Calls(&'static Rig);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Calls")
    }
}

// SAFETY: the calls are passed on to a space. An action runs before anything is mapped.
unsafe impl Backend for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn limits(&self) -> Limits {
        self.0.soft.limits()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        self.0.run(&self.0.in_map)?;
        // SAFETY: the caller's promise.
        unsafe { self.0.soft.map(iova, piece, prot) }?;
        self.0.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.soft.unmap(ranges) }?;
        self.0.mapped.fetch_sub(ranges.len(), Ordering::Relaxed);
        Ok(())
    }

    fn check_unmap(&self, range: AddrRange<Iova>) -> Result<(), BackendError> {
        self.0.run(&self.0.in_check)?;
        self.0.soft.check_unmap(range)
    }
}

impl Rig {
    /// Returns a rig with a domain that bounces everything, and a pool of two chunks.
    fn new() -> &'static Self {
        let rig: &'static Self = Box::leak(Box::new(Self {
            soft: Soft::new().unwrap(),
            domain: OnceLock::new(),
            pool: OnceLock::new(),
            in_map: Mutex::default(),
            in_check: Mutex::default(),
            mapped: AtomicUsize::new(0),
        }));
        let builder = Domain::builder(Calls(rig)).bounce(Bounce::Always).free_after(None);
        let domain = rig.domain.get_or_init(|| builder.build());
        let pool = domain.dma_pool(1 << 20, 64, DmaPoolOptions::new().limit(4)).unwrap();
        rig.pool.set(pool).ok().unwrap();
        rig
    }

    fn run(&'static self, action: &Mutex<Option<Action>>) -> Result<(), BackendError> {
        let action = action.lock().unwrap_or_else(PoisonError::into_inner).take();
        action.map_or(Ok(()), |action| action(self))
    }

    fn domain(&self) -> &Domain {
        self.domain.get().unwrap()
    }

    fn pool(&self) -> &DmaPool {
        self.pool.get().unwrap()
    }

    fn bounce(&self) {
        drop(self.domain().map(buffer(), Direction::ToDevice).unwrap());
    }

    /// Asserts that all memory can be freed, and that then all addresses are free.
    #[track_caller]
    fn assert_at_rest(&self) {
        self.domain().shrink(Duration::ZERO).unwrap();
        assert_eq!((self.pool().usage().chunks, self.domain().counters().pool_bytes), (0, 0));
        assert_eq!(self.domain().iovas().free_bytes(), self.domain().iovas().all_bytes());
    }
}

fn buffer() -> Buffer {
    Heap::Memfd.allocate(4096).unwrap()
}

fn next(place: &Mutex<Option<Action>>, action: Action) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(action);
}

/// Runs one test at a time, because they compare the number of bytes in the pools of the process.
static ONE: Mutex<()> = Mutex::new(());

/// Runs a test that may deadlock.
fn in_time(test: fn(&'static Rig)) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, is_done) = mpsc::channel();
    let thread = thread::spawn(move || {
        let before = process_pool_bytes();
        let rig = Rig::new();
        test(rig);
        rig.assert_at_rest();
        assert_eq!(process_pool_bytes(), before);
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock"),
        _ => thread.join().unwrap(),
    }
}

fn refusal() -> BackendError {
    BackendError::CallbackPanicked
}

#[test]
fn a_backend_takes_elements_and_maps_in_check_unmap() {
    in_time(|rig| {
        drop(rig.pool().take().unwrap());
        let action = |rig: &'static Rig| {
            rig.bounce();
            drop(rig.pool().take().unwrap());
            Ok(())
        };
        next(&rig.in_check, Box::new(action));
        rig.pool().shrink().unwrap();
        rig.bounce();
        next(&rig.in_check, Box::new(action));
        rig.domain().shrink(Duration::ZERO).unwrap();
    });
}

#[test]
fn a_chunk_whose_unmapping_is_refused_is_used_again() {
    in_time(|rig| {
        let iova = rig.pool().take().unwrap().iova();
        next(
            &rig.in_check,
            Box::new(|rig| {
                // No other chunk gets the number of this chunk.
                drop(rig.pool().take().unwrap());
                Err(refusal())
            }),
        );
        rig.pool().shrink().unwrap_err();
        assert_eq!(rig.pool().usage().chunks, 2);
        let elements = [rig.pool().take().unwrap(), rig.pool().take().unwrap()];
        assert!(elements.iter().any(|element| element.iova() == iova));
        drop(elements);

        // The same if the backend panics.
        next(&rig.in_check, Box::new(|_| panic!("in check_unmap")));
        let shrunk = catch_unwind(AssertUnwindSafe(|| rig.pool().shrink().map(drop)));
        assert!(shrunk.is_err());
        assert_eq!(rig.pool().usage().chunks, 2);
    });
}

#[test]
fn a_backend_maps_by_its_own_domain_while_it_maps() {
    in_time(|rig| {
        next(
            &rig.in_map,
            Box::new(|rig| {
                rig.bounce();
                Ok(())
            }),
        );
        let first = rig.domain().map(buffer(), Direction::ToDevice).unwrap();
        let second = rig.domain().map(buffer(), Direction::ToDevice).unwrap();
        assert_ne!(first.iova(), second.iova());
    });
}

#[test]
fn bounce_buffers_are_given_back_while_the_backend_maps_more_of_them() {
    in_time(|rig| {
        let mut mappings: Vec<_> = Vec::new();
        // Maps until the next mapping needs a new chunk.
        let chunks = |rig: &Rig| rig.domain().counters().pool_grows;
        while chunks(rig) < 2 {
            mappings.push(rig.domain().map(buffer(), Direction::ToDevice).unwrap());
        }
        let last = mappings.pop().unwrap();
        let first = mappings.pop().unwrap();
        mappings.push(last);
        while mappings.len() % 512 != 0 {
            mappings.push(rig.domain().map(buffer(), Direction::ToDevice).unwrap());
        }
        next(
            &rig.in_map,
            Box::new(move |_| {
                // Another thread drops it, and this one waits for that.
                thread::spawn(|| drop(first)).join().unwrap();
                Ok(())
            }),
        );
        while rig.in_map.lock().unwrap().is_some() {
            mappings.push(rig.domain().map(buffer(), Direction::ToDevice).unwrap());
        }
    });
}

#[test]
fn a_backend_that_panics_while_it_maps_a_chunk_costs_nothing() {
    in_time(|rig| {
        let panics = || next(&rig.in_map, Box::new(|_| panic!("the backend maps")));
        for _ in 0..3 {
            panics();
            assert!(catch_unwind(AssertUnwindSafe(|| rig.pool().take().is_ok())).is_err());
            panics();
            assert!(catch_unwind(AssertUnwindSafe(|| rig.bounce())).is_err());
        }
        rig.assert_at_rest();
        // The pool can still have two chunks.
        drop([(); 4].map(|()| rig.pool().take().unwrap()));
        assert_eq!(rig.pool().usage().chunks, 2);
        rig.bounce();
    });
}

#[test]
fn a_backend_that_panics_between_the_pieces_of_a_transfer_leaves_none_mapped() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::new();
    // Its ends are bounced, and the middle is mapped.
    let map = || {
        let buffer = Heap::Memfd.allocate(300_001).unwrap();
        rig.domain().map(buffer, Direction::ToDevice)
    };
    drop(map().unwrap());
    let before = rig.mapped.load(Ordering::Relaxed);
    let then_panic = |rig: &'static Rig| {
        next(&rig.in_map, Box::new(|_| panic!("the backend maps the second piece")));
        Ok(())
    };
    next(&rig.in_map, Box::new(then_panic));
    assert!(catch_unwind(AssertUnwindSafe(|| map().is_ok())).is_err());
    assert!(rig.in_map.lock().unwrap().is_none());
    assert_eq!(rig.mapped.load(Ordering::Relaxed), before);
}
