//! Which writes are logged, and when the logs change.
#![expect(unsafe_code, reason = "reads what is replaced only after a grace period")]

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use longshore_mem::{AddrRange, Address, GuestPhys, Iova};

use super::Space;
use super::inner::{Inner, thread_token};
use crate::dirty::{DirtyLog, Harvest, Log};
use crate::error::Error;
use crate::logs::Logs;

impl Inner {
    /// Notes that `len` bytes from `iova`, at `bus`, were written.
    ///
    /// # Safety
    /// The calling session must be in its slot, and have been since before the write.
    #[inline]
    pub(crate) unsafe fn log_write(&self, iova: u64, len: usize, bus: u64) {
        // SAFETY: null, or logs that are dropped only after a grace period.
        let Some(logs) = (unsafe { self.logs.active.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        // Most pages that are written are marked already.
        if let (Log::Internal(log), Log::Off) = (&logs.by_iova, &logs.by_guest_phys)
            && len != 0
            && log.has_marked(Iova::new(iova), len as u64)
        {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.log_in(logs, iova, len, bus) };
    }

    /// # Safety
    /// As [`log_write`](Self::log_write).
    #[inline(never)]
    unsafe fn log_in(&self, logs: &Logs, iova: u64, len: usize, bus: u64) {
        let guest_phys = match &logs.by_guest_phys {
            Log::Off => None,
            // SAFETY: the slot is entered.
            _ => unsafe { self.guest_phys(bus) },
        };
        self.logs.mark(logs, iova, len, guest_phys);
    }

    /// The same of a write that was made in no slot: by a lease, or to a remote region.
    pub(crate) fn log_write_outside(&self, iova: u64, len: usize, guest_phys: Option<GuestPhys>) {
        if self.logs.are_on() {
            // The write is visible before a mark that is there already is looked at.
            fence(Ordering::SeqCst);
            self.logs.mark(&self.logs.get(), iova, len, guest_phys);
        }
    }

    /// Notes all bytes that may be written through live leases, because their writes are not seen.
    fn log_leases(&self) {
        if self.logs.are_on() {
            for written in self.leases.written().iter().flat_map(|written| &**written) {
                self.log_write_outside(written.iova, written.len, written.guest_phys);
            }
        }
    }

    /// The machine's address of what is at `bus`.
    ///
    /// # Safety
    /// It was mapped when the caller entered its slot, or it is leased.
    pub(crate) unsafe fn guest_phys(&self, bus: u64) -> Option<GuestPhys> {
        // SAFETY: a mapping keeps it attached until a grace period and all leases are over.
        let attached = unsafe { self.windows.get(bus) }?;
        attached.region.guest_phys()?.checked_add(bus - attached.bus)
    }
}

impl Space {
    /// Has writes noted in `logs` from here on: when this returns, each write is, until logs are set
    /// again. Accesses may go on meanwhile.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use longshore_access::dirty::{DirtyLog, Log};
    /// use longshore_access::{Logs, Space};
    /// use longshore_mem::{AddrRange, Granule, Iova};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let space = Space::new()?;
    /// let all = AddrRange::new(Iova::new(0), 1 << 30)?;
    /// let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, all)?);
    /// let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
    /// log.start(|| space.set_logs(logs))?;
    /// // … devices write …
    /// space.harvest(&log, all, |pages| println!("{pages:?} was written"))?;
    /// log.stop(|| space.set_logs(Logs::default()))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`]; [`Error::BeyondLog`] where an external log has no bits for a region
    /// that is attached.
    pub fn set_logs(&self, logs: Logs) -> Result<(), Error> {
        self.inner.check_waits("setting logs")?;
        // Nothing is attached between the check and the change.
        let door = self.inner.check_attached(&logs)?;
        // What leases wrote until now is the old ones' to tell.
        self.inner.log_leases();
        let new = Arc::new(logs);
        let current = &self.inner.logs;
        let mut kept = current.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let active = if new.are_off() { ptr::null_mut() } else { Arc::as_ptr(&new).cast_mut() };
        current.active.store(active, Ordering::Release);
        // Sessions may use the old ones until the grace period is over. If a callback panics in it,
        // they are leaked.
        let old = ManuallyDrop::new(std::mem::replace(&mut *kept, new));
        drop(kept);
        drop(door);
        self.inner.wait_for_sessions(&[]);
        drop(ManuallyDrop::into_inner(old));
        Ok(())
    }

    /// The logs that are set.
    pub fn logs(&self) -> Logs {
        (*self.inner.logs.get()).clone()
    }

    /// Returns when each access that was going on is over, and empties all TLBs. What a
    /// [`DirtyLog::harvest`] needs; of a log that several spaces have, from each of them. As
    /// [`log_leases`](Self::log_leases) before that.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`].
    pub fn grace_period(&self) -> Result<(), Error> {
        self.inner.check_waits("a grace period")?;
        self.inner.log_leases();
        self.inner.wait_for_sessions(&[]);
        Ok(())
    }

    /// Marks in the logs all bytes that may be written through live leases, because their writes are
    /// not seen. A harvest does so by itself. A log that another process reads
    /// ([`ExternalLog`](crate::dirty::ExternalLog)) has a lease's writes otherwise only when the lease
    /// is dropped: call this before that process is notified that the device has stopped, if a lease may
    /// live on.
    pub fn log_leases(&self) {
        self.inner.log_leases();
    }

    /// Tells `visit` of what `log` has of `range`, and unmarks it: [`DirtyLog::harvest`] with this
    /// space's grace period. The pages that a live lease may write are reported each time, as those that a
    /// driver in the kernel has pinned for a device.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`].
    pub fn harvest<A: Address>(
        &self,
        log: &DirtyLog<A>,
        range: AddrRange<A>,
        mut visit: impl FnMut(AddrRange<A>),
    ) -> Result<Harvest, Error> {
        log.try_harvest(
            range,
            || self.grace_period(),
            |pages| {
                visit(pages);
                Ok(())
            },
        )
    }
}

/// Not to wait for oneself.
impl Inner {
    pub(crate) fn check_waits(&self, operation: &'static str) -> Result<(), Error> {
        if self.grace.is_busy_in(thread_token()) {
            return Err(Error::PinnedByCaller { operation, iova: Iova::new(0) });
        }
        Ok(())
    }
}
