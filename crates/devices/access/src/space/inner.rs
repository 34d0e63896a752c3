//! The state of a space, and what each change of it does.
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

/// Page tables of a space: VT-d's second stage, walked by the sessions of this process.
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
    /// The limit of bytes of page tables; `u64::MAX` for none.
    pub(super) table_bytes_max: AtomicU64,
    pub(super) frees_tables: AtomicBool,
}

/// The regions that are attached, for the methods that keep them alive.
#[derive(Default)]
pub(super) struct State {
    /// By the region's address.
    pub(super) attached: HashMap<usize, Kept>,
}

pub(super) struct Kept {
    pub(super) attached: Arc<Attached>,
    /// How much of it is mapped, or was mapped until the current grace period.
    pub(super) mapped_bytes: u64,
}

/// The operation that errors name.
const UNMAPPING: &str = "unmapping";

impl Inner {
    /// Refuses to unmap a range if the calling thread itself keeps it from being unmapped.
    pub(super) fn check_pins(&self, iova: Iova, len_bytes: u64) -> Result<(), Error> {
        let last = iova.raw().saturating_add(len_bytes.saturating_sub(1));
        let me = thread_token();
        if self.grace.is_busy_in(me) || self.leases.is_held_by(me, iova.raw(), last) {
            return Err(Error::PinnedByCaller { operation: UNMAPPING, iova });
        }
        Ok(())
    }

    /// As [`check_pins`](Self::check_pins), for each of `ranges`.
    pub(super) fn check_pins_of_each(&self, ranges: &[AddrRange<Iova>]) -> Result<(), Error> {
        if self.leases.is_empty() && !self.grace.is_busy_in(thread_token()) {
            return Ok(());
        }
        ranges.iter().try_for_each(|range| self.check_pins(range.start(), range.len()))
    }

    /// Takes entries out, without waiting, and reports those that were dirty.
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

    /// As [`clear`](Self::clear), after [`check_pins`](Self::check_pins).
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

    /// Waits until no session can use the entries that were taken out of `ranges`, and frees tables.
    pub(crate) fn finish(&self, gather: TlbGather, ranges: &dyn Ranges) {
        let Ok(()) = self.table.finish(gather, &Flush { inner: self, ranges });
    }

    /// Returns an error if the space is changed by the `_raw` methods alone.
    pub(crate) fn check_door(&self) -> Result<(), Error> {
        if self.raw_only { Err(Error::RawOnly) } else { Ok(()) }
    }

    /// Returns when no session is in the middle of an access that was going on, and none has anything
    /// in its TLB. Leases of `ranges` and calls that keep a session busy are asked to end, because a
    /// session may wait for them.
    pub(crate) fn wait_for_sessions(&self, ranges: &dyn Ranges) {
        self.grace.wait_with(|owner| self.leases.ask(ranges, Some(owner)));
    }

    /// Locks the regions that are attached.
    pub(crate) fn lock_windows(&self) -> Locked<'_> {
        Locked { inner: self, state: self.lock() }
    }

    /// Checks that `logs` have bits for each region that is attached, which stays so while this is held.
    pub(crate) fn check_attached(&self, logs: &Logs) -> Result<Locked<'_>, Error> {
        let state = self.lock();
        state.attached.values().try_for_each(|kept| check_log(logs, &kept.attached.region))?;
        Ok(Locked { inner: self, state })
    }

    /// Gives back what a finished unmapping had of each region.
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
        // Code under the lock does not panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much of a region an unmapping has taken.
#[derive(Debug)]
pub(crate) struct Taken {
    region: usize,
    len_bytes: u64,
}

/// The lock of the regions that are attached.
pub(crate) struct Locked<'a> {
    inner: &'a Inner,
    #[expect(dead_code, reason = "held, not looked at")]
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    /// Takes entries out, without waiting, notes how much of each region they mapped, and reports those
    /// that were dirty.
    pub(crate) fn clear(
        &self,
        iova: Iova,
        len_bytes: u64,
        gather: &mut TlbGather,
        taken: &mut Vec<Taken>,
        dirty: impl FnMut(AddrRange<Iova>),
    ) -> Result<(), Error> {
        let before = taken.len();
        // A range that is not translated is refused below.
        let _ = self.inner.table.walk(iova, len_bytes, |leaf| {
            // SAFETY: the leaf is mapped and the door is held, so its region is attached.
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
            // Nothing else maps or unmaps while the lock is held. Tables inside of the range are out.
            for at in [iova, Iova::new(iova.raw() + (len_bytes - 1))] {
                // The range is translated, or it could not have been unmapped.
                let _ = self.inner.table.reclaim_at(at, gather);
            }
        }
        cleared
    }
}

/// A flush of all sessions, with a grace period.
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

/// A number that no other thread has, and never had: a lease may outlive the thread that made it. Not
/// zero.
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
