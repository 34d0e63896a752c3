//! The state of a domain, which its handles, its pools and the reclaim thread share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use longshore_sync::OwnerBiased;

use crate::backend::BackendError;
use crate::cache::LocalCache;
use crate::core::Core;
use crate::counters::Tallies;
use crate::dma_pool::DmaPoolUsage;
use crate::domain::calibration::Calibration;
use crate::policy::Policy;
use crate::pool::Pools;
use crate::pool::error::NotFreed;
use crate::pool::reclaim_thread::Reclaim;
use crate::watch::Watch;

pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) pools: Pools,
    pub(crate) policy: Policy,
    pub(crate) tallies: Tallies,
    /// The debug checker, if the builder set one.
    pub(crate) watch: Option<Watch>,
    /// The measurement that set the policy when the domain was built.
    pub(crate) calibration: OnceLock<Arc<Calibration>>,
    /// The DMA pools. A dropped pool is among them until its last chunk is freed.
    pub(crate) dma_pools: List<dyn DmaChunks>,
    /// The caches of [`Local`](crate::Local) handles.
    pub(crate) caches: List<OwnerBiased<LocalCache>>,
    /// `true` if the [`Domain`](crate::Domain) was dropped.
    is_dropped: AtomicBool,
    idle: Option<Duration>,
}

impl State {
    /// `idle` is the time after which chunks that no transfer uses are freed.
    pub(crate) fn new(
        core: Core,
        pools: Pools,
        policy: Policy,
        watch: Option<Watch>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            core,
            pools,
            policy,
            tallies: Tallies::default(),
            watch,
            calibration: OnceLock::new(),
            dma_pools: List::default(),
            caches: List::default(),
            is_dropped: AtomicBool::new(false),
            idle,
        }
    }

    pub(crate) fn set_dropped(&self) {
        self.is_dropped.store(true, Ordering::Release);
    }
}

impl Reclaim for State {
    fn idle(&self) -> Option<Duration> {
        self.idle
    }

    fn shrink(&self, idle: Duration) -> Result<u64, BackendError> {
        for cache in self.caches.all() {
            cache.claim(|cache| cache.clear(&self.core, &self.pools));
        }
        let mut freed_bytes = self.pools.shrink(&self.core, idle)?;
        for pool in self.dma_pools.all() {
            freed_bytes += pool.shrink(idle)?;
        }
        Ok(freed_bytes)
    }

    fn may_shrink(&self) -> bool {
        self.pools.held_bytes() != 0 || self.dma_pools.all().iter().any(|pool| pool.may_shrink())
    }

    fn end(&self) -> Result<(), BackendError> {
        self.dma_pools.all().iter().try_for_each(|pool| pool.end().map(drop))?;
        while self.is_dropped.load(Ordering::Acquire) {
            match self.pools.shrink(&self.core, Duration::ZERO) {
                Ok(_) => break,
                Err(NotFreed::Kept(error)) => return Err(error),
                // Nothing can report it: the domain was dropped.
                Err(NotFreed::Leaked(_)) => {}
            }
        }
        Ok(())
    }

    fn is_held_by_caller(&self) -> bool {
        self.core.limits.usable.iter().any(|range| self.core.backend.check_unmap(*range).is_err())
    }
}

/// The operations of a domain on a DMA pool.
pub(crate) trait DmaChunks: Send + Sync {
    fn usage(&self) -> DmaPoolUsage;

    /// Returns true if there are chunks that can be freed later.
    fn may_shrink(&self) -> bool;

    /// Frees the chunks whose elements have all been free for `idle`, except the reserve. Returns the
    /// number of bytes that were freed.
    ///
    /// # Errors
    /// [`NotFreed`] of the first chunk that could not be unmapped. A leaked chunk stays charged to the
    /// limits for ever.
    fn shrink(&self, idle: Duration) -> Result<u64, NotFreed>;

    /// Frees the idle chunks of a dropped pool, and the pool's state with the last of them. Does nothing
    /// if the pool was not dropped. Returns the number of bytes that were freed.
    ///
    /// # Errors
    /// [`BackendError`] if this thread cannot unmap one of them now; it is kept.
    fn end(&self) -> Result<u64, BackendError>;
}

/// A list of values that others own.
pub(crate) struct List<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for List<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> List<T> {
    pub(crate) fn add(&self, value: Weak<T>) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.retain(|value| value.strong_count() != 0);
        values.push(value);
    }

    /// Returns the values that are alive.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.iter().filter_map(Weak::upgrade).collect()
    }
}
