//! The caches of a thread: one for each pool that the thread uses.
#![expect(unsafe_code, reason = "uses the caches as their owning thread")]

use std::cell::RefCell;
use std::iter;
use std::sync::Arc;

use super::cache::Cache;
use super::shared::{CACHED_MAX, Shared, Spare};
use crate::pool::error::PoolError;

thread_local! {
    /// The caches of this thread.
    static CACHES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// A thread's cache of one pool. Its elements go back to the pool when the thread ends.
struct Entry {
    /// Ids are never used twice.
    pool_id: u64,
    cache: Arc<Cache<Spare>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: this was in the list of this thread.
        let mut all = iter::from_fn(|| unsafe { self.cache.pop() });
        if let Some(first) = all.next() {
            let pool = Shared::of(&first);
            pool.give(iter::once(first).chain(all));
        }
    }
}

/// Takes an element from this thread's cache, or from the pool if the cache is empty.
#[inline]
pub(super) fn take(pool: &Arc<Shared>) -> Result<Spare, PoolError> {
    // SAFETY: the cache is this thread's.
    match with(pool.id(), |cache| unsafe { cache.pop() }).flatten() {
        Some(element) => Ok(element),
        None => refill(pool),
    }
}

/// Takes several elements of the pool, returns one, and caches the others.
#[cold]
#[inline(never)]
fn refill(pool: &Arc<Shared>) -> Result<Spare, PoolError> {
    let mut taken = [const { None }; CACHED_MAX.div_ceil(2)];
    pool.take(&mut taken[..pool.cached_max().div_ceil(2)])?;
    let mut taken = taken.into_iter().flatten();
    let first = taken.next().expect("one was taken at least");
    taken.for_each(keep);
    Ok(first)
}

/// Puts an element into this thread's cache.
#[inline]
pub(super) fn keep(element: Spare) {
    let pool_id = element.state().pool().id();
    let mut left = Some(element);
    // SAFETY: the cache is this thread's.
    with(pool_id, |cache| unsafe { cache.push(&mut left) });
    if let Some(element) = left {
        keep_slowly(element);
    }
}

/// As [`keep`], if the cache is full or closed, or there is none.
#[cold]
#[inline(never)]
fn keep_slowly(element: Spare) {
    let pool = Shared::of(&element);
    let mut left = Some(element);
    if with(pool.id(), |_| ()).is_none() {
        open(&pool);
    } else {
        // Half of them, so that the next drops find room and the next takes find elements.
        // SAFETY: the cache is this thread's.
        let all = iter::from_fn(|| with(pool.id(), |cache| unsafe { cache.pop() })?);
        pool.give(all.take(pool.cached_max().div_ceil(2)));
    }
    // SAFETY: the cache is this thread's.
    with(pool.id(), |cache| unsafe { cache.push(&mut left) });
    // The pool was dropped, or this thread is ending.
    if left.is_some() {
        pool.give(left);
    }
}

/// Opens a cache for this thread, unless the thread is ending or the pool was dropped.
fn open(pool: &Shared) {
    let _ = CACHES.try_with(|caches| {
        // It is in use only if an allocator that is called from here uses a pool itself.
        let Ok(mut caches) = caches.try_borrow_mut() else { return };
        caches.retain(|entry| !entry.cache.is_closed());
        let cache = Arc::new(Cache::new(pool.cached_max()));
        if pool.register(&cache) {
            caches.push(Entry { pool_id: pool.id(), cache });
        }
    });
}

/// Calls `then` with this thread's cache of a pool. Returns `None` if there is none.
#[inline]
fn with<R>(pool_id: u64, then: impl FnOnce(&Cache<Spare>) -> R) -> Option<R> {
    let look = |caches: &RefCell<Vec<Entry>>| {
        let caches = caches.try_borrow().ok()?;
        let entry = caches.iter().find(|entry| entry.pool_id == pool_id)?;
        Some(then(&entry.cache))
    };
    CACHES.try_with(look).ok()?
}

/// Returns the number of pools of which this thread has a cache.
#[cfg(test)]
pub(super) fn count() -> usize {
    CACHES.with(|caches| caches.borrow().len())
}
