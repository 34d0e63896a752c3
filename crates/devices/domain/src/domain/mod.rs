//! A domain: the memory that a device can reach.

pub(crate) mod builder;
mod calibrate;
pub(crate) mod calibration;
pub(crate) mod dump;
pub(crate) mod reclaim;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::{BackendError, Limits};
use crate::counters::{Counters, Event};
use crate::handle::sealed::Seal;
use crate::handle::{Handle, sealed};
use crate::iova::{IovaError, IovaRange, Iovas, Placement};
use crate::policy::Bounce;
use crate::pool::chunk::Slot;
use crate::pool::error::PoolError;
use crate::pool::kind::Kind;
use crate::pool::reclaim_thread::{self, Reclaim as _};
use crate::state::State;
use crate::trace::span;
use calibration::Calibration;

/// The memory that a device can reach, or a group of devices that cannot be isolated from each other.
/// Only memory that is mapped in the domain is reachable.
///
/// Any number of threads can share it. A thread that maps often makes a [`local`](Self::local) handle of
/// its own, which takes no lock.
pub struct Domain {
    state: Arc<State>,
}

impl Domain {
    pub(crate) fn new(state: State) -> Self {
        Self { state: Arc::new(state) }
    }

    /// Registers the domain with the reclaim thread, which frees its idle chunks.
    pub(crate) fn reclaim_when_idle(&self) {
        let state: Weak<State> = Arc::downgrade(&self.state);
        reclaim_thread::add(state);
    }

    /// Frees bounce buffers that no transfer has used for `idle`, and chunks of DMA pools of which no
    /// element was in use for that time. It also takes back addresses, bounce buffers and elements from
    /// the caches of other threads. Returns the number of bytes that were freed.
    /// [`reclaim`](Self::reclaim) also frees page tables.
    ///
    /// # Errors
    /// [`BackendError`] if a chunk could not be unmapped; it is leaked. If this thread cannot unmap it
    /// because of a pin or a lease of its own, the chunk is kept instead, and can be freed later.
    pub fn shrink(&self, idle: Duration) -> Result<u64, BackendError> {
        let _span = span!("shrink", idle = idle);
        self.state.shrink(idle)
    }

    /// Sets which transfers go through bounce buffers, for all transfers that begin after this call.
    pub fn set_bounce(&self, bounce: Bounce) {
        self.state.policy.set(bounce);
    }

    /// Returns the measurement that chose the policy when the domain was built. Returns `None` if the
    /// builder set the policy, if mapping is cheap, or if the backend could not map.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.state.calibration.get().map(Arc::as_ref)
    }

    /// Returns the limits of the backend.
    pub fn limits(&self) -> &Limits {
        &self.state.core.limits
    }

    /// Returns a view of the IOVAs, which reports how many there are and how many are free.
    pub fn iovas(&self) -> Iovas<'_> {
        Iovas::new(&self.state.core.iovas)
    }

    /// Returns the current policy of bounce buffers.
    pub fn bounce(&self) -> Bounce {
        self.state.policy.bounce()
    }

    /// Returns the counters of the domain.
    pub fn counters(&self) -> Counters {
        let State { pools, tallies, .. } = &*self.state;
        let (pool_grows, pool_shrinks) = pools.changes();
        Counters {
            pool_bytes: pools.held_bytes(),
            pool_peak_bytes: pools.peak_bytes(),
            pool_grows,
            pool_shrinks,
            ..tallies.sum()
        }
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // From here on only DMA pools keep the state.
        reclaim_thread::remove(&*self.state);
        if let Some(watch) = &self.state.watch {
            watch.end();
        }
        self.state.set_dropped();
        if self.state.end().is_err() {
            reclaim_thread::end_later(Arc::clone(&self.state) as _);
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("backend", &self.state.core.backend)
            .field("iovas", &self.iovas())
            .field("policy", &self.state.policy)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Handle for Domain {}

#[expect(private_interfaces, reason = "no other crate can name this trait")]
impl sealed::Handle for Domain {
    fn state(&self) -> &State {
        &self.state
    }

    fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, Box<IovaError>> {
        self.state.core.iovas.take(len, placement).map_err(Box::new)
    }

    fn give(&self, _: Seal, range: IovaRange) {
        self.state.core.iovas.give(range);
    }

    fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError> {
        let mut taken = None;
        self.state.pools.take(&self.state.core, kind, 1, |slot| taken = Some(slot))?;
        Ok(taken.expect("one at least is taken"))
    }

    fn give_slot(&self, slot: Slot) {
        self.state.pools.give(slot.kind(), [slot]);
    }

    fn add(&self, event: Event, amount: u64) {
        self.state.tallies.shared.add_shared(event, amount);
    }
}
