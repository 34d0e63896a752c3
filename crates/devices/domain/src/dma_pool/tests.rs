//! Tests that need private state: a warm pool takes no lock, threads wait for each other, and the shared
//! part is freed with its last chunk.
#![expect(unsafe_code, reason = "implements a backend")]

use std::fmt;
use std::sync::mpsc;
use std::sync::{Mutex, Weak};
use std::thread;
use std::time::Duration;

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::Prot;

use super::*;
use crate::Domain;
use crate::backend::{Backend, Limits, Piece, Soft};

fn pool(options: DmaPoolOptions) -> (Domain, DmaPool) {
    let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
    let pool = domain.dma_pool(2048, 64, options).unwrap();
    (domain, pool)
}

/// This thread holds every lock of the pool while another one, whose cache is warm, takes and drops.
#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn a_warm_thread_takes_no_lock() {
    let (_domain, pool) = pool(DmaPoolOptions::new());
    let once = || {
        let elements = [(); 8].map(|()| pool.take().unwrap());
        let slices = elements.map(DmaElement::freeze);
        drop(slices.clone());
        drop(slices);
    };
    let (warm, is_warm) = mpsc::channel();
    let (held, are_held) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            once();
            warm.send(()).unwrap();
            are_held.recv().unwrap();
            (0..1000).for_each(|_| once());
            done.send(()).unwrap();
        });
        is_warm.recv().unwrap();
        let locks = pool.shared.hold();
        held.send(()).unwrap();
        let done = is_done.recv_timeout(Duration::from_secs(60));
        drop(locks);
        done.expect("a warm thread waits for a lock");
    });
}

/// The shared part is freed with the last element of a dropped pool, whichever thread drops it.
#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn nothing_is_left_of_a_pool_whose_elements_are_dropped() {
    for drops_elsewhere in [false, true] {
        let (domain, pool) = pool(DmaPoolOptions::new());
        let shared = Arc::downgrade(&pool.shared);
        let state = Arc::downgrade(domain.state());
        let kept = pool.take().unwrap();
        drop(pool);
        drop(domain);
        assert!(shared.strong_count() == 1 && state.strong_count() == 1);
        if drops_elsewhere {
            thread::spawn(move || drop(kept)).join().unwrap();
        } else {
            drop(kept);
        }
        assert!(shared.upgrade().is_none() && Weak::upgrade(&state).is_none());
    }
}

/// A thread's list of caches keeps no entries for pools that are gone, however many there were.
#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn a_thread_forgets_pools_that_are_gone() {
    let domain = Domain::builder(Soft::new().unwrap()).build();
    for _ in 0..10 {
        let pool = domain.dma_pool(64, 64, DmaPoolOptions::new().limit(1)).unwrap();
        drop(pool.take().unwrap());
        assert_eq!(threads::count(), 1);
    }
    assert_eq!(process_is_at_rest(&domain), (0, 0));
}

fn process_is_at_rest(domain: &Domain) -> (usize, u64) {
    let iovas = domain.iovas();
    (domain.dump().dma_pools.len(), iovas.all_bytes() - iovas.free_bytes())
}

type Hook = Box<dyn FnOnce() + Send>;

/// A backend that calls a function before it maps.
#[derive(Clone)]
struct Hooked(Arc<Soft>, Arc<Mutex<Option<Hook>>>);

impl Hooked {
    fn new() -> Self {
        Self(Arc::new(Soft::new().unwrap()), Arc::default())
    }

    fn before_next_map(&self, hook: impl FnOnce() + Send + 'static) {
        *self.1.lock().unwrap() = Some(Box::new(hook));
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

// SAFETY: the calls are passed on.
unsafe impl Backend for Hooked {
    fn name(&self) -> &'static str {
        "hooked"
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        let hook = self.1.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.map(iova, piece, prot) }
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.unmap(ranges) }
    }
}

const LONG: Duration = Duration::from_secs(60);

/// Returns a pool with two elements per chunk. A thread caches no element before it has dropped one.
fn hooked_pool() -> (Hooked, Arc<DmaPool>) {
    let backend = Hooked::new();
    let domain = Domain::builder(backend.clone()).free_after(None).build();
    let pool = domain.dma_pool(1 << 20, 64, DmaPoolOptions::new()).unwrap();
    (backend, Arc::new(pool))
}

#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn a_backend_may_take_an_element_while_it_maps_a_chunk() {
    let (backend, pool) = hooked_pool();
    let (taken, by_backend) = mpsc::channel();
    let inner = Arc::clone(&pool);
    backend.before_next_map(move || taken.send(inner.take().unwrap()).unwrap());
    let (done, is_done) = mpsc::channel();
    let taker = Arc::clone(&pool);
    thread::spawn(move || done.send(taker.take().unwrap()));
    let element = is_done.recv_timeout(LONG).expect("the backend waits for its own caller");
    assert_ne!(by_backend.recv().unwrap().iova(), element.iova());
    assert_eq!(pool.usage().chunks, 2);
}

#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn a_returned_element_is_taken_while_a_slow_backend_maps() {
    let (backend, pool) = hooked_pool();
    let elements = [pool.take().unwrap(), pool.take().unwrap()];
    let iovas = [&elements[0], &elements[1]].map(DmaElement::iova);
    let (begun, has_begun) = mpsc::channel();
    let (permit, permitted) = mpsc::channel::<()>();
    backend.before_next_map(move || {
        begun.send(()).unwrap();
        let _ = permitted.recv();
    });
    let [slow, waits] = [(); 2].map(|()| Arc::clone(&pool));
    let slow = thread::spawn(move || slow.take().unwrap());
    has_begun.recv().unwrap();
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(waits.take().unwrap()));
    while pool.shared.waiting() == 0 {
        thread::yield_now();
    }
    // A thread that ends gives back its cached elements.
    thread::spawn(move || drop(elements)).join().unwrap();
    let taken = is_done.recv_timeout(LONG).expect("a free element waits for the backend");
    assert!(iovas.contains(&taken.iova()));
    drop(permit);
    assert_ne!(slow.join().unwrap().iova(), taken.iova());
}
