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
use crate::counters::Tally;
use crate::direction::Direction;
use crate::domain::{Domain, Inner};
use crate::error::Failed;
use crate::iova::IovaCache;
use crate::mapping::Mapping;
use crate::policy::WhenFull;
use crate::pool::chunk::Slot;
use crate::pool::error::PoolError;
use crate::pool::kind::Kind;
use crate::pool::magazines::{self, Magazines, Refill};
use crate::pool::reclaim_thread::Reclaim as _;
use longshore_sync::Barrier;
use longshore_sync::Biased;

/// A thread's door to a [`Domain`]: it keeps addresses and bounce buffers for its next mappings, and
/// gives them back when it is dropped, or when [`Domain::shrink`] asks for them.
pub struct Local<'d> {
    domain: &'d Domain,
    inner: &'d Inner,
    kept: Arc<Shelved>,
    tally: Arc<Tally>,
    /// One thread at a time.
    not_sync: PhantomData<Cell<()>>,
}

/// What a door keeps, where others can take it from.
pub(crate) type Shelved = Biased<Kept>;

#[derive(Debug)]
pub(crate) struct Kept {
    iovas: IovaCache,
    slots: Magazines,
}

impl Kept {
    pub(crate) fn clear(&mut self, inner: &Inner) {
        self.iovas.clear(&inner.core.iovas);
        self.slots.clear(&inner.pools);
    }
}

impl<'d> Local<'d> {
    pub(crate) fn new(domain: &'d Domain) -> Self {
        let inner = domain.inner();
        let kept = Kept { iovas: IovaCache::new(&inner.core.iovas), slots: Magazines::new() };
        Self {
            domain,
            inner,
            kept: Arc::new(Biased::new(kept, Barrier::best())),
            tally: inner.tallies.open(),
            not_sync: PhantomData,
        }
    }

    pub(crate) fn shelved(&self) -> Weak<Shelved> {
        Arc::downgrade(&self.kept)
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
        let Inner { core, pools, .. } = self.inner;
        let Refill(slot, others) = magazines::refill(core, pools, kind)?;
        let mut others = others.into_iter().flatten();
        self.own(|kept| others.by_ref().for_each(|slot| kept.slots.give(pools, slot)));
        if let Some(left) = others.next() {
            pools.give(kind, iter::once(left).chain(others));
        }
        Ok(slot)
    }

    /// Returns `None`, and has not called `then`, within a call of itself: `then` can allocate, and the
    /// program's allocator can use this handle. The caller does then without what is kept.
    #[inline(always)]
    fn own<R>(&self, then: impl FnOnce(&mut Kept) -> R) -> Option<R> {
        // SAFETY: this is not `Sync`, so one thread at a time is here.
        unsafe { self.kept.own(then) }
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.own(|kept| kept.clear(self.inner));
        self.inner.tallies.close(&self.tally);
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
    let inner = door.inner();
    let patience = match inner.policy.when_full {
        WhenFull::Wait(time) => time,
        WhenFull::MapDirectly | WhenFull::Refuse => Duration::ZERO,
    };
    let began = Instant::now();
    while let PoolError::Limit { .. } = error {
        // A chunk that cannot be unmapped is leaked, and counts as held.
        let _ = inner.shrink(Duration::ZERO);
        error = match door.take_slot(kind) {
            Ok(slot) => return Ok(slot),
            Err(error) => error,
        };
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        inner.pools.wait(left.min(ROUND));
    }
    Err(error)
}

pub(crate) mod sealed {
    use super::{Domain, Inner, Local};
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
        fn inner(&self) -> &Inner;
        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError>;
        fn give(&self, _: Seal, range: IovaRange);
        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError>;
        fn give_slot(&self, slot: Slot);
        fn add(&self, event: Event, amount: u64);
    }

    #[expect(private_interfaces, reason = "as above")]
    impl Door for Domain {
        fn inner(&self) -> &Inner {
            Domain::inner(self)
        }

        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            Domain::inner(self).core.iovas.take(len, placement)
        }

        fn give(&self, _: Seal, range: IovaRange) {
            Domain::inner(self).core.iovas.give(range);
        }

        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError> {
            let mut taken = None;
            Domain::inner(self)
                .pools
                .take(&Domain::inner(self).core, kind, 1, |slot| taken = Some(slot))?;
            Ok(taken.expect("one at least is taken"))
        }

        fn give_slot(&self, slot: Slot) {
            Domain::inner(self).pools.give(slot.kind(), [slot]);
        }

        fn add(&self, event: Event, amount: u64) {
            Domain::inner(self).tallies.shared.add_shared(event, amount);
        }
    }

    #[expect(private_interfaces, reason = "as above")]
    impl Door for Local<'_> {
        #[inline(always)]
        fn inner(&self) -> &Inner {
            self.inner
        }

        #[inline(always)]
        fn take(&self, _: Seal, len: u64, placement: Placement) -> Result<IovaRange, IovaError> {
            let iovas = &self.inner.core.iovas;
            let taken = self.own(|kept| kept.iovas.take(iovas, len, placement));
            taken.unwrap_or_else(|| iovas.take(len, placement))
        }

        #[inline(always)]
        fn give(&self, _: Seal, range: IovaRange) {
            let iovas = &self.inner.core.iovas;
            let mut given = Some(range);
            self.own(|kept| given.take().map(|range| kept.iovas.give(iovas, range)));
            if let Some(range) = given {
                iovas.give(range);
            }
        }

        #[inline(always)]
        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError> {
            match self.own(|kept| kept.slots.take(kind)).flatten() {
                Some(slot) => Ok(slot),
                None => self.refill(kind),
            }
        }

        #[inline(always)]
        fn give_slot(&self, slot: Slot) {
            let pools = &self.inner.pools;
            let mut given = Some(slot);
            self.own(|kept| given.take().map(|slot| kept.slots.give(pools, slot)));
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
