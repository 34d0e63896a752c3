//! All interleavings of threads that end handles of elements of a DMA pool, and of one that drops it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p longshore-domain --test loom`
#![cfg(loom)]
#![allow(unsafe_code, reason = "calls functions of the owning thread")]

use longshore_domain::dma_pool_refs::Refs;
use longshore_sync::{Barrier, OwnerBiased};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A DMA pool of one chunk with two elements: `Refs` count the handles, one thread has a cache, which it
/// uses under the bias, and the pool's free elements are under its lock.
struct Elements {
    refs: [Refs; 2],
    /// The elements' bytes. Loom detects concurrent accesses.
    bytes: [UnsafeCell<u32>; 2],
    kept: OwnerBiased<Vec<usize>>,
    home: Mutex<Home>,
}

#[derive(Default)]
struct Home {
    free: Vec<usize>,
    is_closed: bool,
    /// The number of times that the chunk was unmapped.
    ended: u32,
}

// SAFETY: the test checks that accesses to the bytes are exclusive.
unsafe impl Sync for Elements {}
// SAFETY: as above.
unsafe impl Send for Elements {}

impl Elements {
    fn new(barrier: Barrier) -> Self {
        Self {
            refs: [Refs::default(), Refs::default()],
            bytes: [UnsafeCell::new(0), UnsafeCell::new(0)],
            kept: OwnerBiased::new(Vec::new(), barrier),
            home: Mutex::new(Home::default()),
        }
    }

    fn read(&self, element: usize) {
        // SAFETY: the caller has a handle, and no thread writes while there are several.
        self.bytes[element].with(|bytes| unsafe { assert!(*bytes <= 4) });
    }

    fn write(&self, element: usize) {
        // SAFETY: the caller has the only handle.
        self.bytes[element].with_mut(|bytes| unsafe { *bytes += 1 });
    }

    fn give(&self, elements: impl IntoIterator<Item = usize>) {
        let mut home = self.home.lock().unwrap();
        home.free.extend(elements);
        if home.is_closed && home.free.len() == self.refs.len() {
            home.ended += 1;
            home.free.drain(..).for_each(|element| self.write(element));
        }
    }

    /// Ends a handle of an element, by a thread without a cache.
    fn end(&self, element: usize) {
        if self.refs[element].end() {
            self.write(element);
            self.give([element]);
        }
    }

    /// Ends a handle by the thread with the cache, which keeps nothing once the pool is closed.
    ///
    /// # Safety
    /// Only one thread may call it.
    unsafe fn end_cached(&self, element: usize, is_closed: &UnsafeCell<bool>) {
        if !self.refs[element].end() {
            return;
        }
        self.write(element);
        let keep = |kept: &mut Vec<usize>| {
            // SAFETY: under the bias.
            let is_open = is_closed.with(|is_closed| unsafe { !*is_closed });
            if is_open {
                kept.push(element);
            }
            is_open
        };
        // SAFETY: the caller's promise.
        if !unsafe { self.kept.own(keep) }.unwrap() {
            self.give([element]);
        }
    }

    /// Drops the pool.
    fn close(&self, is_closed: &UnsafeCell<bool>) {
        let cached = self.kept.claim(|kept| {
            // SAFETY: under the claim.
            is_closed.with_mut(|is_closed| unsafe { *is_closed = true });
            std::mem::take(kept)
        });
        self.home.lock().unwrap().is_closed = true;
        self.give(cached);
    }
}

/// Shared by the threads of `pools`.
struct Pooled(Elements, UnsafeCell<bool>);

// SAFETY: the flag is used under the bias, and by a claim.
unsafe impl Sync for Pooled {}
// SAFETY: as above.
unsafe impl Send for Pooled {}

/// One thread, which has a cache, and another drop the two handles of element 0; the first drops
/// element 1, and a third drops the pool.
fn pools(barrier: Barrier) {
    loom::model(move || {
        let pool = Arc::new(Pooled(Elements::new(barrier), UnsafeCell::new(false)));
        pool.0.refs[0].add();
        let [other, closer] = [(); 2].map(|()| Arc::clone(&pool));
        let other = thread::spawn(move || {
            other.0.read(0);
            other.0.end(0);
        });
        let closer = thread::spawn(move || closer.0.close(&closer.1));
        pool.0.read(0);
        for element in [0, 1] {
            // SAFETY: only this thread calls it.
            unsafe { pool.0.end_cached(element, &pool.1) };
        }
        other.join().unwrap();
        closer.join().unwrap();
        let home = pool.0.home.lock().unwrap();
        assert_eq!((home.ended, home.free.len()), (1, 0), "the chunk is unmapped once");
        assert!(pool.0.refs.iter().all(Refs::is_only), "a free element has one handle");
    });
}

#[test]
fn a_pool_ends_with_its_last_element() {
    // To loom the two barriers are the same, and this takes a minute.
    pools(Barrier::Expedited);
}

#[test]
#[should_panic]
fn without_barriers_an_element_is_lost() {
    pools(Barrier::None);
}
