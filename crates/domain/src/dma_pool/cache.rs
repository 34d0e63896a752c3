//! The elements that a thread keeps for its next use of a pool.
//!
//! A thread has a list of caches, one for each pool that it uses. Its own accesses take no lock; other
//! threads empty a cache by a claim ([`Biased`]) when the pool is dropped, shrunk or exhausted.
#![expect(unsafe_code, reason = "is the owner of what its thread keeps")]

use std::cell::RefCell;
use std::iter;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::shared::{Shared, Spare};
use longshore_sync::Barrier;
use longshore_sync::Biased;

thread_local! {
    /// The caches of this thread.
    static CACHES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// A thread's cache of one pool. Its elements go back to the pool when the thread ends.
struct Entry {
    /// Never the id of another pool.
    pool_id: u64,
    cache: Arc<Cache>,
}

/// What a thread keeps of one pool.
pub(super) struct Cache {
    /// They never need more than the capacity, so nothing is allocated under the bias.
    elements: Biased<Vec<Spare>>,
    len_max: usize,
    /// How many there are, for other threads.
    len: AtomicU32,
    /// The pool was dropped: nothing is kept any more. Changed by a claim alone.
    is_closed: AtomicBool,
}

impl Cache {
    fn new(len_max: usize) -> Self {
        Self {
            elements: Biased::new(Vec::with_capacity(len_max), Barrier::best()),
            len_max,
            len: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// # Safety
    /// Only the thread whose cache this is may call it.
    #[inline]
    unsafe fn pop(&self) -> Option<Spare> {
        let pop = |elements: &mut Vec<Spare>| {
            let element = elements.pop();
            self.len.store(elements.len() as u32, Ordering::Relaxed);
            element
        };
        // SAFETY: the caller's promise.
        unsafe { self.elements.own(pop) }?
    }

    /// Takes the element out of `from`, unless there is no room, or the pool was dropped.
    ///
    /// # Safety
    /// As [`pop`](Self::pop).
    #[inline]
    unsafe fn push(&self, from: &mut Option<Spare>) {
        let push = |elements: &mut Vec<Spare>| {
            if elements.len() < self.len_max && !self.is_closed.load(Ordering::Relaxed) {
                elements.extend(from.take());
                self.len.store(elements.len() as u32, Ordering::Relaxed);
            }
        };
        // SAFETY: the caller's promise.
        let _within_itself = unsafe { self.elements.own(push) }.is_none();
    }

    /// Moves all elements to `to`, by any thread. If `closes`, no more are kept from then on.
    pub(super) fn empty(&self, closes: bool, to: &mut Vec<Spare>) {
        // Allocated before the claim: an allocator that uses the pool itself would wait for the claim.
        let mut taken = Vec::with_capacity(self.len_max);
        self.elements.claim(|elements| {
            self.is_closed.fetch_or(closes, Ordering::Relaxed);
            mem::swap(elements, &mut taken);
            self.len.store(0, Ordering::Relaxed);
        });
        to.append(&mut taken);
    }

    /// How many there are, or were a moment ago.
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: the list that this was in is this thread's.
        let mut all = iter::from_fn(|| unsafe { self.cache.pop() });
        if let Some(first) = all.next() {
            let pool = Shared::of(&first);
            pool.give(iter::once(first).chain(all));
        }
    }
}

/// Takes an element that this thread keeps.
#[inline]
pub(super) fn take(pool: &Shared) -> Option<Spare> {
    // SAFETY: it is this thread's.
    with(pool.id(), |cache| unsafe { cache.pop() })?
}

/// Keeps an element for this thread.
#[inline]
pub(super) fn keep(element: Spare) {
    let pool_id = element.state().pool().id();
    let mut left = Some(element);
    // SAFETY: it is this thread's.
    with(pool_id, |cache| unsafe { cache.push(&mut left) });
    if let Some(element) = left {
        keep_slowly(element);
    }
}

/// The same where the cache is full or closed, or there is none.
#[cold]
#[inline(never)]
fn keep_slowly(element: Spare) {
    let pool = Shared::of(&element);
    let mut left = Some(element);
    if with(pool.id(), |_| ()).is_none() {
        open(&pool);
    } else {
        // Half of them, so that the next ones find room, and the next to be taken are there.
        // SAFETY: it is this thread's.
        let all = iter::from_fn(|| with(pool.id(), |cache| unsafe { cache.pop() })?);
        pool.give(all.take(pool.cached_max().div_ceil(2)));
    }
    // SAFETY: it is this thread's.
    with(pool.id(), |cache| unsafe { cache.push(&mut left) });
    // The pool was dropped, or this thread ends.
    if left.is_some() {
        pool.give(left);
    }
}

/// Gives this thread a cache, unless it ends or the pool was dropped.
fn open(pool: &Shared) {
    let _ = CACHES.try_with(|caches| {
        // In use only where an allocator that is called from here uses a pool itself.
        let Ok(mut caches) = caches.try_borrow_mut() else { return };
        caches.retain(|entry| !entry.cache.is_closed.load(Ordering::Relaxed));
        let cache = Arc::new(Cache::new(pool.cached_max()));
        if pool.register(&cache) {
            caches.push(Entry { pool_id: pool.id(), cache });
        }
    });
}

/// Calls `then` with this thread's cache of a pool. `None` if there is none.
#[inline]
fn with<R>(pool_id: u64, then: impl FnOnce(&Cache) -> R) -> Option<R> {
    let look = |caches: &RefCell<Vec<Entry>>| {
        let caches = caches.try_borrow().ok()?;
        let entry = caches.iter().find(|entry| entry.pool_id == pool_id)?;
        Some(then(&entry.cache))
    };
    CACHES.try_with(look).ok()?
}

/// How many pools this thread has a cache of.
#[cfg(test)]
pub(super) fn count() -> usize {
    CACHES.with(|caches| caches.borrow().len())
}
