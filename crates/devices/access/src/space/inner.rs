//! The state of a space, and the operations that change it.
#![expect(unsafe_code, reason = "looks at regions while the lock is held")]

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_mem::{AddrRange, Iova};
use longshore_pagetable::cache_sync::Coherent;
use longshore_pagetable::format::VtdSecond;
use longshore_pagetable::table_memory::HostPages;
use longshore_pagetable::{Invalidate, PageTable, TlbGather};
use longshore_sync::grace::GracePeriods;

use crate::error::Error;
use crate::lease::{Leases, Ranges};
use crate::logs::{Current, Logs};
use crate::region::Region;
use crate::session::Private;
use crate::windows::{Attached, Windows};

/// The page tables of a space: VT-d's second stage, walked by the sessions of this process.
pub(crate) type Table = PageTable<VtdSecond, HostPages, Coherent>;

pub(crate) struct Inner {
    pub(crate) table: Table,
    pub(crate) grace: GracePeriods<Private>,
    pub(crate) windows: Windows,
    pub(crate) leases: Leases,
    pub(crate) logs: Current,
    pub(super) state: Mutex<State>,
    pub(super) locks: AtomicU64,
    pub(super) raw_only: bool,
    /// The limit on the size of the page tables in bytes; `u64::MAX` for none.
    pub(super) table_bytes_max: AtomicU64,
    pub(super) frees_tables: AtomicBool,
}

/// The regions that the safe methods have attached.
#[derive(Default)]
pub(super) struct State {
    /// The key is the address of the region.
    pub(super) attached: HashMap<usize, Kept>,
}

pub(super) struct Kept {
    pub(super) attached: Arc<Attached>,
    /// The number of its bytes that are mapped, or were unmapped but wait for the grace period.
    pub(super) mapped_bytes: u64,
}

/// The operation that errors name.
const UNMAPPING: &str = "unmapping";

impl Inner {
    /// Returns an error if the calling thread itself has a pin or lease that keeps the range from being
    /// unmapped.
    pub(super) fn check_pins(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let last = iova.raw().saturating_add(len_bytes.saturating_sub(1));
        let me = thread_token();
        if self.grace.is_busy_in(me) || self.leases.is_held_by(me, iova.raw(), last) {
            return Err(Error::PinnedByCaller { operation: UNMAPPING, iova });
        }
        Ok(())
    }

    /// Calls [`check_pins`](Self::check_pins) for each of `ranges`.
    pub(super) fn check_pins_of_each(&self, ranges: &[AddrRange<Iova>]) -> Result<(), Error> {
        if self.leases.is_empty() && !self.grace.is_busy_in(thread_token()) {
            return Ok(());
        }
        ranges.iter().try_for_each(|range| self.check_pins(range.start(), range.len()))
    }

    /// Clears entries without waiting, and reports those that were dirty.
    pub(crate) fn clear(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        self.check_pins(iova, len_bytes)?;
        self.clear_checked(iova, len_bytes, gather, dirty)
    }

    /// Does the same as [`clear`](Self::clear), without [`check_pins`](Self::check_pins), which the
    /// caller has called.
    pub(super) fn clear_checked(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let failed = |source| Error::Table { operation: UNMAPPING, iova, len_bytes, source };
        self.table.unmap_dirty(iova, len_bytes, gather, dirty).map_err(failed)
    }

    /// Waits until no session can use the cleared entries of `ranges`, and frees tables.
    pub(crate) fn finish(&self, gather: TlbGather, ranges: &dyn Ranges) {
        let Ok(()) = self.table.finish(gather, &Flush { inner: self, ranges });
    }

    /// Returns an error if only the `_raw` methods may change the space.
    pub(crate) fn check_door(&self) -> Result<(), Error> {
        if self.raw_only { Err(Error::RawOnly) } else { Ok(()) }
    }

    /// Waits until each access that was running has ended and no TLB holds an older translation. Asks
    /// leases of `ranges` and calls that keep a session busy to end, because a session may wait for
    /// them.
    pub(crate) fn wait_for_sessions(&self, ranges: &dyn Ranges) {
        self.grace.wait_with(|owner| self.leases.ask(ranges, Some(owner)));
    }

    /// Locks the regions that are attached.
    pub(crate) fn lock_windows(&self) -> Locked<'_> {
        Locked { inner: self, state: self.lock() }
    }

    /// Checks that `logs` cover each attached region. No region is attached or detached while the result
    /// is held.
    pub(crate) fn check_attached(&self, logs: &Logs) -> Result<Locked<'_>, Error> {
        let state = self.lock();
        state.attached.values().try_for_each(|kept| check_log(logs, &kept.attached.region))?;
        Ok(Locked { inner: self, state })
    }

    /// Subtracts the bytes that a finished unmapping has taken from each region.
    pub(crate) fn forget_mapped(&self, taken: &mut Vec<Taken>) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.lock();
        for taken in taken.drain(..) {
            if let Some(kept) = state.attached.get_mut(&taken.region) {
                kept.mapped_bytes -= taken.len_bytes;
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        // No code that holds the lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of bytes that an unmapping has taken from a region.
#[derive(Debug)]
pub(crate) struct Taken {
    region: usize,
    len_bytes: u64,
}

/// The lock on the attached regions.
pub(crate) struct Locked<'a> {
    inner: &'a Inner,
    #[expect(dead_code, reason = "held, not looked at")]
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    /// Clears entries without waiting, records how many bytes of each region they mapped, and reports
    /// those that were dirty.
    pub(crate) fn clear(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        taken: &mut Vec<Taken>,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let before = taken.len();
        // If the range is beyond the address space, `clear` below returns the error.
        let _ = self.inner.table.walk(iova, len_bytes, |leaf| {
            // SAFETY: the leaf is mapped and the lock is held, so its region is attached.
            if let Some(attached) = unsafe { self.inner.windows.get(leaf.bus.raw()) } {
                let (region, len_bytes) = (key_of(&attached.region), 1 << leaf.page_log2);
                match taken[before..].last_mut().filter(|last| last.region == region) {
                    Some(last) => last.len_bytes += len_bytes,
                    None => taken.push(Taken { region, len_bytes }),
                }
            }
            ControlFlow::<()>::Continue(())
        });
        let cleared = self.inner.clear(iova, len_bytes, gather, dirty);
        if cleared.is_err() {
            taken.truncate(before);
        } else if self.inner.frees_tables.load(Ordering::Relaxed) {
            // Nothing else maps or unmaps while the lock is held. Tables entirely inside the range are
            // removed already.
            for at in [iova, Iova::new(iova.raw() + (len_bytes - 1))] {
                // It cannot fail: the range was unmapped, so it is inside the address space.
                let _ = self.inner.table.reclaim_at(at, gather);
            }
        }
        cleared
    }
}

/// Flushes the TLBs of all sessions, by a grace period.
struct Flush<'a> {
    inner: &'a Inner,
    ranges: &'a dyn Ranges,
}

impl Invalidate for Flush<'_> {
    type Error = std::convert::Infallible;

    fn flush(&self, _gather: &TlbGather) -> Result<(), Self::Error> {
        self.inner.wait_for_sessions(self.ranges);
        self.inner.leases.revoke(self.ranges);
        Ok(())
    }
}

pub(super) fn check_log(logs: &Logs, region: &Region) -> Result<(), Error> {
    let region_bytes = region.len();
    logs.check(region).map_err(|source| Error::BeyondLog { region_bytes, source })
}

pub(super) fn key_of(region: &Arc<Region>) -> usize {
    Arc::as_ptr(region).addr()
}

/// Returns a number that identifies the calling thread. It is not zero and never reused, because a lease
/// may outlive the thread that made it.
pub(crate) fn thread_token() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static TOKEN: Cell<usize> = const { Cell::new(0) });
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        token.get()
    })
}
