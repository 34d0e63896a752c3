//! A thread's door to a domain, and what doors have in common.
#![expect(unsafe_code, reason = "is the owner of what it keeps")]

use std::cell::Cell;
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use longshore_mem::DmaMemory;

use crate::batch::Batch;
use crate::cache::LocalCache;
use crate::counters::Tally;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::Failed;
use crate::mapping::Mapping;
use crate::policy::WhenFull;
use crate::pool::chunk::Slot;
use crate::pool::error::PoolError;
use crate::pool::kind::Kind;
use crate::pool::magazines::{self, Refill};
use crate::pool::reclaim_thread::Reclaim as _;
use crate::state::State;
use longshore_sync::Barrier;
use longshore_sync::Biased;

/// A thread's door to a [`Domain`]: it keeps addresses and bounce buffers for its next mappings, and
/// gives them back when it is dropped, or when [`Domain::shrink`] asks for them.
pub struct Local<'d> {
    domain: &'d Domain,
    state: &'d State,
    cache: Arc<Biased<LocalCache>>,
    tally: Arc<Tally>,
    /// One thread at a time.
    not_sync: PhantomData<Cell<()>>,
}

impl<'d> Local<'d> {
    pub(crate) fn new(domain: &'d Domain) -> Self {
        let state = domain.state();
        let cache = LocalCache::new(&state.core);
        Self {
            domain,
            state,
            cache: Arc::new(Biased::new(cache, Barrier::best())),
            tally: state.tallies.open(),
            not_sync: PhantomData,
        }
    }

    pub(crate) fn cache(&self) -> Weak<Biased<LocalCache>> {
        Arc::downgrade(&self.cache)
    }

    /// As [`Domain::map`], without a lock once it is warm.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[inline(always)]
    #[track_caller]
    pub fn map<B: DmaMemory + 'static>(
        &self,
        memory: B,
        direction: Direction,
    ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
        Mapping::new(self, memory, direction, false)
    }

    /// As [`Domain::map_reported`], without a lock once it is warm.
    ///
    /// # Errors
    /// [`Error`](crate::Error), with the memory.
    #[inline(always)]
    #[track_caller]
    pub fn map_reported<B: DmaMemory + 'static>(
        &self,
        memory: B,
    ) -> Result<Mapping<'_, B, Self>, Failed<B>> {
        Mapping::new(self, memory, Direction::FromDevice, true)
    }

    /// Unmappings that are done together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B, Self> {
        Batch::new(self)
    }

    /// The domain.
    pub fn domain(&self) -> &Domain {
        self.domain
    }

    /// A slot from the pools, and some more to be kept. The pools are asked while what is kept is not in
    /// use: growing is a span, whose subscriber may map by this handle.
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

    /// Returns `None`, and has not called `then`, within a call of itself: `then` can allocate, and the
    /// program's allocator can use this handle. The caller does then without what is kept.
    #[inline(always)]
    fn own<R>(&self, then: impl FnOnce(&mut LocalCache) -> R) -> Option<R> {
        // SAFETY: this is not `Sync`, so one thread at a time is here.
        unsafe { self.cache.own(then) }
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

/// A handle that makes mappings and takes them back: a [`Domain`], or a thread's [`Local`].
///
/// No other type can implement it, and its operations are not for other crates:
///
/// ```compile_fail
/// use longshore_domain::Door;
/// use longshore_domain::iova::IovaRange;
///
/// fn free_the_addresses_of_a_mapping<D: Door>(door: &D, range: IovaRange) {
///     door.give(range);
/// }
/// ```
pub trait Door: sealed::Door {}

impl Door for Domain {}
impl Door for Local<'_> {}

/// A slot after all, where the pools have as much as they may: what doors keep, and chunks that are
/// idle, are given back for it, and other transfers are waited for where that is asked for.
#[cold]
pub(crate) fn await_slot<D: Door>(
    door: &D,
    kind: Kind,
    mut error: PoolError,
) -> Result<Slot, PoolError> {
    /// How long slots that doors keep may stay unseen.
    const ROUND: Duration = Duration::from_millis(1);
    let state = door.state();
    let patience = match state.policy.when_full {
        WhenFull::Wait(time) => time,
        WhenFull::MapDirectly | WhenFull::Refuse => Duration::ZERO,
    };
    let began = Instant::now();
    while let PoolError::Limit { .. } = error {
        // A chunk that cannot be unmapped is leaked, and counts as held.
        let _ = state.shrink(Duration::ZERO);
        error = match door.take_slot(kind) {
            Ok(slot) => return Ok(slot),
            Err(error) => error,
        };
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        state.pools.wait(left.min(ROUND));
    }
    Err(error)
}

pub(crate) mod sealed {
    use super::{Domain, Local, State};
    use crate::counters::Event;
    use crate::iova::{IovaError, IovaRange, Placement};
    use crate::pool::chunk::Slot;
    use crate::pool::error::PoolError;
    use crate::pool::kind::Kind;

    /// An argument that no other crate can make.
    ///
    /// Generic code of another crate can call the methods of [`Door`] through the public trait, which
    /// has this one as its supertrait. It has no value of the types of this crate that most of the
    /// methods take, but it can have an [`IovaRange`], of any allocator: without this it could free
    /// the addresses of a mapping.
    #[derive(Clone, Copy)]
    pub(crate) struct Seal;

    /// The operations that differ between a domain and a thread's handle to it.
    #[expect(private_interfaces, reason = "no other crate can name this trait")]
    pub trait Door {
        fn state(&self) -> &State;
        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError>;
        fn give(&self, _: Seal, range: IovaRange);
        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError>;
        fn give_slot(&self, slot: Slot);
        fn add(&self, event: Event, amount: u64);
    }

    #[expect(private_interfaces, reason = "as above")]
    impl Door for Domain {
        fn state(&self) -> &State {
            Domain::state(self)
        }

        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            Domain::state(self).core.iovas.take(len, placement)
        }

        fn give(&self, _: Seal, range: IovaRange) {
            Domain::state(self).core.iovas.give(range);
        }

        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError> {
            let mut taken = None;
            Domain::state(self)
                .pools
                .take(&Domain::state(self).core, kind, 1, |slot| taken = Some(slot))?;
            Ok(taken.expect("one at least is taken"))
        }

        fn give_slot(&self, slot: Slot) {
            Domain::state(self).pools.give(slot.kind(), [slot]);
        }

        fn add(&self, event: Event, amount: u64) {
            Domain::state(self).tallies.shared.add_shared(event, amount);
        }
    }

    #[expect(private_interfaces, reason = "as above")]
    impl Door for Local<'_> {
        #[inline(always)]
        fn state(&self) -> &State {
            self.state
        }

        #[inline(always)]
        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            let iovas = &self.state.core.iovas;
            let taken = self.own(|cache| cache.iovas.take(iovas, len, placement));
            taken.unwrap_or_else(|| iovas.take(len, placement))
        }

        #[inline(always)]
        fn give(&self, _: Seal, range: IovaRange) {
            let iovas = &self.state.core.iovas;
            let mut given = Some(range);
            self.own(|cache| given.take().map(|range| cache.iovas.give(iovas, range)));
            if let Some(range) = given {
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
            let mut given = Some(slot);
            self.own(|cache| given.take().map(|slot| cache.slots.give(pools, slot)));
            if let Some(slot) = given {
                pools.give(slot.kind(), [slot]);
            }
        }

        #[inline(always)]
        fn add(&self, event: Event, amount: u64) {
            self.tally.add(event, amount);
        }
    }
}
