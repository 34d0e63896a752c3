//! Bounce buffers: memory that stays mapped, and through which short transfers are copied.
//!
//! ```text
//!   a handle      magazines: a few slots of each kind            no lock
//!                    │  ▲
//!                    ▼  │  several at once
//!   the domain    chunk lists: one for each size and direction   a lock each
//!                    │  chunk 0 ████████░░░   the fullest first, so that
//!                    │  chunk 1 █░░░░░░░░░░   the others become idle
//!                    ▼
//!                 chunks of 2 MiB, mapped once, for one direction
//! ```
//!
//! A slot belongs to one transfer, and no two slots share a granule: all other bytes of the slot
//! that a device can reach are zero.

pub(crate) mod budget;
pub(crate) mod chunk;
pub(crate) mod chunks;
pub(crate) mod classes;
pub(crate) mod error;
pub(crate) mod kind;
pub(crate) mod layout;
pub(crate) mod magazines;
pub(crate) mod reclaim_thread;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::Core;
use crate::direction::Direction;

use crate::trace::span;
use crate::undo::Undo;
use budget::Budget;
use chunk::{Bounced, Chunk, Slot};
use chunks::{Chunks, Stock};
use classes::Class;
use error::{NotFreed, PoolError};
use kind::{DIRECTIONS, KINDS, Kind};
use layout::Layout;

/// The bounce buffers of one size and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUsage {
    /// The length of a bounce buffer in bytes.
    pub slot_bytes: u64,
    /// The direction of the transfers.
    pub direction: Direction,
    /// The number of chunks that are mapped.
    pub chunks: u64,
    /// The number of bounce buffers.
    pub slots: u64,
    /// The number of bounce buffers that are neither in use nor cached by a handle.
    pub free_slots: u64,
}

/// A domain's pools.
pub(crate) struct Pools {
    by_kind: Box<[Chunks<Bounced, ()>]>,
    own: Budget,
    process: &'static Budget,
    peak_bytes: AtomicU64,
    grows: AtomicU64,
    shrinks: AtomicU64,
    /// The number of threads that wait for a slot.
    waiting: Mutex<u32>,
    freed: Condvar,
}

impl Pools {
    pub(crate) fn new(limit_bytes: u64, process: &'static Budget) -> Self {
        Self {
            by_kind: (0..KINDS).map(|_| Chunks::default()).collect(),
            own: Budget::new(limit_bytes),
            process,
            peak_bytes: AtomicU64::new(0),
            grows: AtomicU64::new(0),
            shrinks: AtomicU64::new(0),
            waiting: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Waits until a slot is given back, at most for `time`. Slots that go to the cache of a handle do
    /// not wake waiting threads.
    pub(crate) fn wait(&self, time: Duration) {
        let mut waiting = self.lock_waiting();
        *waiting += 1;
        let woken = self.freed.wait_timeout(waiting, time);
        *woken.unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }

    fn tell(&self) {
        if *self.lock_waiting() != 0 {
            self.freed.notify_all();
        }
    }

    /// Passes at least one slot of a kind to `to`, and at most `count`. If none is free, it makes a
    /// chunk. That enters a span, whose subscriber may map memory, so the caller must hold neither a
    /// lock nor the value of an [`OwnerBiased`](longshore_sync::OwnerBiased).
    pub(crate) fn take(
        &self,
        core: &Core,
        kind: Kind,
        count: usize,
        mut to: impl FnMut(Slot),
    ) -> Result<(), PoolError> {
        let chunks = self.of(kind);
        if chunks.lock().list.take(count, &mut to) != 0 {
            return Ok(());
        }
        // The span is entered before the turn begins, and left after it ends.
        let slot_bytes = kind.class.granules() * core.limits.granule.bytes();
        let _span = span!("grow", slot_bytes = slot_bytes, direction = kind.direction);
        let turn = chunks.turn(|locked| locked.list.take(count, &mut to) != 0);
        let Some(_turn) = turn else { return Ok(()) };
        let mut locked = chunks.grow(|number| self.make_chunk(core, kind, number))?;
        let taken = locked.list.take(count, &mut to);
        debug_assert!(taken > 0, "a new chunk has free slots");
        drop(locked);
        reclaim_thread::wake();
        Ok(())
    }

    /// Takes slots of one kind back.
    pub(crate) fn give(&self, kind: Kind, slots: impl IntoIterator<Item = Slot>) {
        let chunks = self.of(kind);
        let mut locked = chunks.lock();
        slots.into_iter().for_each(|slot| locked.list.give(slot));
        chunks.notify(&locked);
        drop(locked);
        self.tell();
    }

    /// Frees the chunks whose slots have all been free for `idle`. Returns the number of bytes that were
    /// freed.
    ///
    /// # Errors
    /// [`NotFreed`] of the first chunk that could not be unmapped. A leaked chunk stays charged to the
    /// limits for ever.
    pub(crate) fn shrink(&self, core: &Core, idle: Duration) -> Result<u64, NotFreed> {
        let mut freed = 0;
        for chunks in &self.by_kind {
            let next = || chunks.take_idle(core, idle, |_| true).map_err(NotFreed::Kept);
            while let Some(chunk) = next()? {
                let len_bytes = chunk.len_bytes();
                chunk.destroy(core).map_err(NotFreed::Leaked)?;
                self.release(len_bytes);
                self.shrinks.fetch_add(1, Ordering::Relaxed);
                freed += len_bytes;
            }
        }
        self.tell();
        Ok(freed)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.own.taken()
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Returns how many chunks were made, and how many were freed.
    pub(crate) fn changes(&self) -> (u64, u64) {
        (self.grows.load(Ordering::Relaxed), self.shrinks.load(Ordering::Relaxed))
    }

    /// Resets the counters, as if the pools had always had their present size.
    pub(crate) fn forget(&self) {
        self.peak_bytes.store(self.own.taken(), Ordering::Relaxed);
        self.grows.store(0, Ordering::Relaxed);
        self.shrinks.store(0, Ordering::Relaxed);
    }

    fn make_chunk(
        &self,
        core: &Core,
        kind: Kind,
        number: u32,
    ) -> Result<Chunk<Bounced>, PoolError> {
        let granule = core.limits.granule;
        let slot_bytes = kind.class.granules() * granule.bytes();
        let layout = Layout::of_granules(slot_bytes, granule);
        let len_bytes = layout.chunk_bytes();
        for (budget, others) in [(&self.own, None), (self.process, Some(&self.own))] {
            if !budget.take(len_bytes) {
                if let Some(other) = others {
                    other.give(len_bytes);
                }
                let (held_bytes, limit_bytes) = (budget.taken(), budget.limit());
                return Err(PoolError::Limit { held_bytes, limit_bytes });
            }
        }
        let budget = Undo::new(len_bytes, |len_bytes| self.release(len_bytes));
        let chunk = Chunk::new(core, &layout, kind.direction, number, || Bounced::new(kind))?;
        budget.keep();
        self.peak_bytes.fetch_max(self.own.taken(), Ordering::Relaxed);
        self.grows.fetch_add(1, Ordering::Relaxed);
        Ok(chunk)
    }

    fn release(&self, len_bytes: u64) {
        self.own.give(len_bytes);
        self.process.give(len_bytes);
    }

    /// Returns the usage of each pool that has chunks.
    pub(crate) fn usage(&self, granule_bytes: u64) -> Vec<PoolUsage> {
        let kinds = DIRECTIONS
            .iter()
            .flat_map(|direction| Class::all().map(|class| Kind { class, direction: *direction }));
        let usage = |kind: Kind| {
            let Stock { chunks, slots, free_slots } = self.of(kind).lock().list.stock();
            let slot_bytes = kind.class.granules() * granule_bytes;
            let usage =
                PoolUsage { slot_bytes, direction: kind.direction, chunks, slots, free_slots };
            (usage.chunks != 0).then_some(usage)
        };
        kinds.filter_map(usage).collect()
    }

    fn of(&self, kind: Kind) -> &Chunks<Bounced, ()> {
        &self.by_kind[kind.index()]
    }

    fn lock_waiting(&self) -> MutexGuard<'_, u32> {
        // Code under the lock does not panic halfway.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("held_bytes", &self.held_bytes())
            .field("peak_bytes", &self.peak_bytes())
            .finish_non_exhaustive()
    }
}
