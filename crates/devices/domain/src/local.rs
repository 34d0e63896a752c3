//! The handle of one thread to a domain.
#![expect(unsafe_code, reason = "uses its cache as the owning thread")]

use std::cell::Cell;
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::sync::Arc;

use longshore_sync::{Barrier, OwnerBiased};

use crate::cache::LocalCache;
use crate::counters::{Event, Tally};
use crate::domain::Domain;
use crate::handle::sealed::Seal;
use crate::handle::{Handle, sealed};
use crate::iova::{IovaError, IovaRange, Placement};
use crate::pool::chunk::Slot;
use crate::pool::error::PoolError;
use crate::pool::kind::Kind;
use crate::pool::magazines::{self, Refill};
use crate::state::State;

/// The handle of one thread to a [`Domain`]. It caches addresses and bounce buffers for its next
/// mappings. They are given back when it is dropped, or when [`Domain::shrink`] is called.
pub struct Local<'d> {
    domain: &'d Domain,
    state: &'d State,
    cache: Arc<OwnerBiased<LocalCache>>,
    tally: Arc<Tally>,
    /// Not `Sync`: one thread at a time uses it.
    not_sync: PhantomData<Cell<()>>,
}

impl Domain {
    /// Returns a handle for the calling thread.
    pub fn local(&self) -> Local<'_> {
        let state = &**self.state();
        let cache = Arc::new(OwnerBiased::new(LocalCache::new(&state.core), Barrier::best()));
        state.caches.add(Arc::downgrade(&cache));
        Local { domain: self, state, cache, tally: state.tallies.open(), not_sync: PhantomData }
    }
}

impl<'d> Local<'d> {
    /// Returns the domain.
    pub fn domain(&self) -> &Domain {
        self.domain
    }

    /// Takes a slot from the pools, and some more for the cache. The cache is not in use meanwhile,
    /// because a subscriber to the span `grow` may map by this handle.
    #[cold]
    fn refill(&self, kind: Kind) -> Result<Slot, PoolError> {
        let State { core, pools, .. } = self.state;
        let Refill(slot, others) = magazines::refill(core, pools, kind)?;
        let mut others = others.into_iter().flatten();
        self.own(|cache| others.by_ref().for_each(|slot| cache.slots.give(pools, slot)));
        if let Some(left) = others.next() {
            pools.give(kind, iter::once(left).chain(others));
        }
        Ok(slot)
    }

    /// Takes addresses that the cache does not have, and some more for the cache.
    #[cold]
    #[inline(never)]
    fn take_more(&self, len: u64, placement: Placement) -> Result<IovaRange, Box<IovaError>> {
        let iovas = &self.state.core.iovas;
        let taken = self.own(|cache| cache.iovas.take(iovas, len, placement));
        taken.unwrap_or_else(|| iovas.take(len, placement)).map_err(Box::new)
    }

    /// Calls `then` with the cache. A nested call returns `None` and does not call `then`: `then` can
    /// allocate, and the program's allocator can use this handle. The caller then works without the
    /// cache.
    #[inline(always)]
    fn own<R>(&self, then: impl FnOnce(&mut LocalCache) -> R) -> Option<R> {
        // SAFETY: this is not `Sync`, so one thread at a time is here.
        unsafe { self.cache.own(then) }
    }

    /// As [`own`](Self::own), with a value that is passed to `then`, or returned if `then` is not
    /// called.
    #[inline(always)]
    fn own_with<A, R>(&self, with: A, then: impl FnOnce(&mut LocalCache, A) -> R) -> Result<R, A> {
        // SAFETY: this is not `Sync`, so one thread at a time is here.
        unsafe { self.cache.own_with(with, then) }
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.own(|cache| cache.clear(&self.state.core, &self.state.pools));
        self.state.tallies.close(&self.tally);
    }
}

impl fmt::Debug for Local<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Handle for Local<'_> {}

#[expect(private_interfaces, reason = "no other crate can name this trait")]
impl sealed::Handle for Local<'_> {
    #[inline(always)]
    fn state(&self) -> &State {
        self.state
    }

    #[inline(always)]
    fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, Box<IovaError>> {
        let iovas = &self.state.core.iovas;
        match self.own(|cache| cache.iovas.take_kept(iovas, len, placement)).flatten() {
            Some(range) => Ok(range),
            None => self.take_more(len, placement),
        }
    }

    #[inline(always)]
    fn give(&self, _: Seal, range: IovaRange) {
        let iovas = &self.state.core.iovas;
        let given = self.own_with(range, |cache, range| cache.iovas.give(iovas, range));
        if let Err(range) = given {
            iovas.give(range);
        }
    }

    #[inline(always)]
    fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError> {
        match self.own(|cache| cache.slots.take(kind)).flatten() {
            Some(slot) => Ok(slot),
            None => self.refill(kind),
        }
    }

    #[inline(always)]
    fn give_slot(&self, slot: Slot) {
        let pools = &self.state.pools;
        let given = self.own_with(slot, |cache, slot| cache.slots.give(pools, slot));
        if let Err(slot) = given {
            pools.give(slot.kind(), [slot]);
        }
    }

    #[inline(always)]
    fn add(&self, event: Event, amount: u64) {
        self.tally.add(event, amount);
    }
}
