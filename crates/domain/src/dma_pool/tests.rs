//! What only the crate itself can see: locks that a warm pool does not take, and the shared part that
//! ends with its last chunk.

use std::sync::Weak;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::Domain;
use crate::backend::Soft;

fn pool(options: DmaPoolOptions) -> (Domain, DmaPool) {
    let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
    let pool = domain.dma_pool(2048, 64, options).unwrap();
    (domain, pool)
}

/// Every lock of the pool is held here while another thread, which is warm, takes and drops.
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

/// The shared part goes with the last element of a dropped pool, whichever thread drops it.
#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn nothing_is_left_of_a_pool_whose_elements_are_dropped() {
    for drops_elsewhere in [false, true] {
        let (domain, pool) = pool(DmaPoolOptions::new());
        let shared = Arc::downgrade(&pool.shared);
        let inner = Arc::downgrade(domain.inner());
        let kept = pool.take().unwrap();
        drop(pool);
        drop(domain);
        assert!(shared.strong_count() == 1 && inner.strong_count() == 1);
        if drops_elsewhere {
            thread::spawn(move || drop(kept)).join().unwrap();
        } else {
            drop(kept);
        }
        assert!(shared.upgrade().is_none() && Weak::upgrade(&inner).is_none());
    }
}

/// A list of caches has no entry for pools that are gone, however many there were.
#[test]
#[cfg_attr(miri, ignore = "allocates memory by the kernel")]
fn a_thread_forgets_pools_that_are_gone() {
    let domain = Domain::builder(Soft::new().unwrap()).build();
    for _ in 0..10 {
        let pool = domain.dma_pool(64, 64, DmaPoolOptions::new().limit(1)).unwrap();
        drop(pool.take().unwrap());
        assert_eq!(cache::count(), 1);
    }
    assert_eq!(process_is_at_rest(&domain), (0, 0));
}

fn process_is_at_rest(domain: &Domain) -> (usize, u64) {
    let iovas = domain.iovas();
    (domain.dump().dma_pools.len(), iovas.all_bytes() - iovas.free_bytes())
}
