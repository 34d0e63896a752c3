//! The part of a pool that its elements share.
//!
//! ```text
//!   DmaPool ──► Shared ──► chunks ──► elements ──► Shared
//!                 ▲                                  │ an uncounted pointer: an element that was
//!                 └──────────────────────────────────┘ taken keeps its chunk, which keeps this
//! ```
//!
//! The `DmaPool` owns this. After the `DmaPool` is dropped, this owns itself until the last chunk is
//! gone.
#![expect(unsafe_code, reason = "elements find their pool by its address")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::cache::Cache;
use super::options::DmaPoolOptions;
use super::refs::Refs;
use super::usage::DmaPoolUsage;
use crate::backend::BackendError;
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::pool::budget;
use crate::pool::chunk::{Chunk, Slot};
use crate::pool::chunks::{self, Chunks};
use crate::pool::error::{NotFreed, PoolError};
use crate::pool::layout::Layout;
use crate::pool::reclaim_thread;
use crate::state::{DmaChunks, State};
use crate::trace::span;
use crate::undo::Undo;

/// An element without a handle: free, or about to be.
pub(super) type Spare = Slot<Element>;

/// The state of an element.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) refs: Refs,
    pool: *const Shared,
}

// SAFETY: any thread may use the pool that the pointer leads to.
unsafe impl Send for Element {}
// SAFETY: as above.
unsafe impl Sync for Element {}

impl Element {
    /// Returns the pool, which lives at least until the element is given back.
    #[inline]
    pub(super) fn pool(&self) -> &Shared {
        // SAFETY: an element that was taken keeps its chunk, and so the pool's shared part, which
        // the `DmaPool` or `More::itself` owns.
        unsafe { &*self.pool }
    }
}

/// The state that the elements of a pool share.
pub(crate) struct Shared {
    id: u64,
    domain: Arc<State>,
    layout: Layout,
    direction: Direction,
    chunks_max: u64,
    /// The number of chunks that are kept as long as the pool lives.
    chunks_min: u64,
    cached_max: usize,
    /// The chunks, with the elements that are neither in use nor cached.
    chunks: Chunks<Element, More>,
    caches: Mutex<Caches>,
}

type Locked = chunks::Locked<Element, More>;

/// The state under the lock of the chunks.
#[derive(Default)]
struct More {
    /// The number of chunks, including those that are being made or freed, and those that could not be
    /// unmapped.
    held_chunks: u64,
    /// The maximum number of elements that were in use or cached.
    peak: u64,
    /// `true` if the pool was dropped: idle chunks are freed at once.
    is_closed: bool,
    /// The pool itself, from its drop until the last chunk is gone.
    itself: Option<Arc<Shared>>,
}

#[derive(Default)]
struct Caches {
    of_threads: Vec<Weak<Cache<Spare>>>,
    is_closed: bool,
}

/// The limits of a thread's cache, in elements and in bytes. A cache keeps at least two elements.
pub(super) const CACHED_MAX: usize = 64;
const CACHED_BYTES: u64 = 256 << 10;

impl Shared {
    pub(super) fn new(
        domain: &Arc<State>,
        element_len: u64,
        align: u64,
        options: &DmaPoolOptions,
    ) -> Result<Arc<Self>, Error> {
        /// The id of the next pool. 2^64 of them are never made.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let granule = domain.core.limits.granule;
        let (layout, chunks_max, chunks_min) = options.layout(element_len, align, granule)?;
        let shared = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            domain: Arc::clone(domain),
            layout,
            direction: options.direction,
            chunks_max,
            chunks_min,
            cached_max: (CACHED_BYTES / element_len).clamp(2, CACHED_MAX as u64) as usize,
            chunks: Chunks::default(),
            caches: Mutex::default(),
        });
        Ok(shared)
    }

    /// Makes the chunks that are kept all the time.
    pub(super) fn reserve(self: &Arc<Self>) -> Result<(), PoolError> {
        (0..self.chunks_min).try_for_each(|_| self.grow(&mut []))
    }

    /// Returns the pool of an element as an owner, so that it lives on when the element is given back.
    pub(super) fn of(element: &Spare) -> Arc<Self> {
        // The raw pointer, because a pointer made from a `&Shared` may not access the reference counts.
        let shared = element.state().pool;
        // SAFETY: it came from an `Arc`, which the element keeps (see `Element::pool`).
        unsafe { Arc::increment_strong_count(shared) };
        // SAFETY: the count that was just added.
        unsafe { Arc::from_raw(shared) }
    }

    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn cached_max(&self) -> usize {
        self.cached_max
    }

    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    pub(super) fn element_len(&self) -> u32 {
        self.layout.slot_bytes() as u32
    }

    /// Registers a thread's cache, which is emptied when elements are needed or the pool is dropped.
    /// Returns false if the pool was dropped already.
    pub(super) fn register(&self, cache: &Arc<Cache<Spare>>) -> bool {
        let mut caches = lock(&self.caches);
        if !caches.is_closed {
            caches.of_threads.retain(|cache| cache.strong_count() != 0);
            caches.of_threads.push(Arc::downgrade(cache));
        }
        !caches.is_closed
    }

    /// Takes at least one element, and at most as many as `to` has room for.
    pub(super) fn take(self: &Arc<Self>, to: &mut [Option<Spare>]) -> Result<(), PoolError> {
        if self.chunks.lock().take(to) {
            return Ok(());
        }
        let _span = span!("grow", element_len = self.element_len(), direction = self.direction);
        let Some(_turn) = self.chunks.turn(|locked| locked.take(to)) else { return Ok(()) };
        let Err(error) = self.grow(to) else { return Ok(()) };
        let mut cached = self.collect_cached(false);
        to[0] = cached.pop();
        self.give(cached);
        if to[0].is_some() { Ok(()) } else { Err(error) }
    }

    /// Makes a chunk, and takes elements of it.
    fn grow(self: &Arc<Self>, to: &mut [Option<Spare>]) -> Result<(), PoolError> {
        let held = self.hold_chunk()?;
        let mut locked = self.chunks.grow(|number| self.make_chunk(number))?;
        held.keep();
        locked.take(to);
        drop(locked);
        if self.may_shrink() {
            reclaim_thread::wake();
        }
        Ok(())
    }

    /// Counts a chunk that is to be made.
    fn hold_chunk(&self) -> Result<Undo<(), impl FnOnce(())>, PoolError> {
        let mut locked = self.chunks.lock();
        if locked.more.held_chunks >= self.chunks_max {
            let elements = self.chunks_max * u64::from(self.layout.count());
            return Err(PoolError::Exhausted { elements, element_len: self.layout.slot_bytes() });
        }
        locked.more.held_chunks += 1;
        Ok(Undo::new((), |()| self.chunks.lock().more.held_chunks -= 1))
    }

    fn make_chunk(self: &Arc<Self>, number: u32) -> Result<Chunk<Element>, PoolError> {
        let cost_bytes = self.chunk_cost_bytes();
        if !budget::PROCESS.take(cost_bytes) {
            let (held_bytes, limit_bytes) = (budget::PROCESS.taken(), budget::PROCESS.limit());
            return Err(PoolError::Limit { held_bytes, limit_bytes });
        }
        let budget = Undo::new(cost_bytes, |cost_bytes| budget::PROCESS.give(cost_bytes));
        let element = || Element { refs: Refs::default(), pool: Arc::as_ptr(self) };
        let core = &self.domain.core;
        let chunk = Chunk::new(core, &self.layout, self.direction, number, element)?;
        budget.keep();
        Ok(chunk)
    }

    /// Returns the cost of a chunk: its bytes, and the state of each element, which is longer than
    /// a short element.
    fn chunk_cost_bytes(&self) -> u64 {
        self.layout.chunk_bytes() + Chunk::<Element>::known_bytes(&self.layout)
    }

    /// Takes back elements of this pool.
    pub(super) fn give(&self, elements: impl IntoIterator<Item = Spare>) {
        // Dropped after the lock, because it may free memory, and the program's allocator may use pools.
        let mut elements = elements.into_iter();
        let mut locked = self.chunks.lock();
        elements.by_ref().for_each(|element| locked.list.give(element));
        let is_closed = locked.more.is_closed;
        self.chunks.notify(&locked);
        drop(locked);
        if is_closed {
            self.end_or_later();
        }
    }

    /// Takes the elements out of the caches of all threads.
    fn collect_cached(&self, closes: bool) -> Vec<Spare> {
        let mut registered = lock(&self.caches);
        registered.is_closed |= closes;
        let caches: Vec<_> = registered.of_threads.iter().filter_map(Weak::upgrade).collect();
        drop(registered);
        let mut elements = Vec::new();
        for cache in caches {
            // A claim interrupts all threads, so empty caches are skipped.
            if closes || cache.len() != 0 {
                cache.empty(closes, &mut elements);
            }
        }
        elements
    }

    fn free_idle(&self, idle: Duration) -> Result<u64, NotFreed> {
        let mut freed_bytes = 0;
        while let Some(chunk) = self.take_idle(idle, self.chunks_min).map_err(NotFreed::Kept)? {
            freed_bytes += self.destroy(chunk).map_err(NotFreed::Leaked)?;
        }
        Ok(freed_bytes)
    }

    /// Takes out an idle chunk if there are more than `chunks_min`. The calling thread unmaps it without
    /// the lock.
    fn take_idle(
        &self,
        idle: Duration,
        chunks_min: u64,
    ) -> Result<Option<Chunk<Element>>, BackendError> {
        let may = |locked: &Locked| locked.list.stock().chunks > chunks_min;
        self.chunks.take_idle(&self.domain.core, idle, may)
    }

    /// Closes the pool when it is dropped: threads cache no more elements, and each chunk is freed when
    /// its last element comes back.
    pub(super) fn close(self: &Arc<Self>) {
        let cached = self.collect_cached(true);
        let mut locked = self.chunks.lock();
        locked.more.is_closed = true;
        locked.more.itself = Some(Arc::clone(self));
        drop(locked);
        self.give(cached);
    }

    /// As [`end`](DmaChunks::end), but if this thread cannot unmap a chunk now, the reclaim thread does
    /// so later.
    fn end_or_later(&self) -> u64 {
        self.end().unwrap_or_else(|_| {
            reclaim_thread::end_later(Arc::clone(&self.domain) as _);
            0
        })
    }

    fn destroy(&self, chunk: Chunk<Element>) -> Result<u64, BackendError> {
        let len_bytes = chunk.len_bytes();
        chunk.destroy(&self.domain.core)?;
        budget::PROCESS.give(self.chunk_cost_bytes());
        self.chunks.lock().more.held_chunks -= 1;
        Ok(len_bytes)
    }
}

impl DmaChunks for Shared {
    fn usage(&self) -> DmaPoolUsage {
        let caches = lock(&self.caches);
        let cached = caches.of_threads.iter().filter_map(Weak::upgrade);
        let cached = cached.map(|cache| u64::from(cache.len())).sum();
        drop(caches);
        let locked = self.chunks.lock();
        let stock = locked.list.stock();
        DmaPoolUsage {
            element_len: self.layout.slot_bytes(),
            direction: self.direction,
            chunks: stock.chunks,
            chunk_bytes: self.layout.chunk_bytes(),
            elements: stock.slots,
            in_use: (stock.slots - stock.free_slots).saturating_sub(cached),
            cached,
            free: stock.free_slots,
            peak: locked.more.peak,
        }
    }

    fn may_shrink(&self) -> bool {
        self.chunks.lock().list.stock().chunks > self.chunks_min
    }

    fn shrink(&self, idle: Duration) -> Result<u64, NotFreed> {
        let mut freed_bytes = self.end().map_err(NotFreed::Kept)?;
        if !self.may_shrink() {
            return Ok(freed_bytes);
        }
        self.give(self.collect_cached(false));
        let freed = self.free_idle(idle);
        // The pool may have been dropped while this thread had a chunk of it.
        freed_bytes += self.end_or_later();
        Ok(freed_bytes + freed?)
    }

    fn end(&self) -> Result<u64, BackendError> {
        let mut freed_bytes = 0;
        if !self.chunks.lock().more.is_closed {
            return Ok(freed_bytes);
        }
        while let Some(chunk) = self.take_idle(Duration::ZERO, 0)? {
            match self.destroy(chunk) {
                Ok(len_bytes) => freed_bytes += len_bytes,
                // It cannot be unmapped, so it is leaked.
                Err(_) => self.domain.tallies.shared.add_shared(Event::Leak, 1),
            }
        }
        let mut locked = self.chunks.lock();
        let is_over = locked.list.is_empty();
        let itself = if is_over { locked.more.itself.take() } else { None };
        drop(locked);
        drop(itself);
        Ok(freed_bytes)
    }
}

impl Locked {
    /// Takes free elements of existing chunks. Returns false if there is none.
    fn take(&mut self, to: &mut [Option<Spare>]) -> bool {
        let mut places = to.iter_mut();
        let count = places.len();
        let put = |element| *places.next().expect("no more are taken") = Some(element);
        let taken = self.list.take(count, put);
        let stock = self.list.stock();
        self.more.peak = self.more.peak.max(stock.slots - stock.free_slots);
        taken != 0
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Code under the lock does not panic halfway.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Shared {
    /// Holds all locks.
    pub(super) fn hold(&self) -> impl Drop {
        struct Held<'s>(
            #[expect(dead_code, reason = "held")] (MutexGuard<'s, Locked>, MutexGuard<'s, Caches>),
        );
        impl Drop for Held<'_> {
            fn drop(&mut self) {}
        }
        Held((self.chunks.lock(), lock(&self.caches)))
    }

    /// Returns the number of threads that wait while another makes a chunk.
    pub(super) fn waiting(&self) -> usize {
        self.chunks.lock().waiting()
    }
}
