//! Logging writes, and changing the logs.
#![expect(unsafe_code, reason = "reads logs that are freed only after a grace period")]

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

use longshore_mem::{AddrRange, Address, GuestPhys, Iova};

use super::Space;
use super::inner::{Inner, thread_token};
use crate::dirty::{Collected, DirtyLog, Log};
use crate::error::Error;
use crate::logs::Logs;

impl Inner {
    /// Marks `len` bytes from `iova`, at `bus`, as written.
    ///
    /// # Safety
    /// The calling session must have entered its slot before the write, and not left it since.
    #[inline]
    pub(crate) unsafe fn log_write(&self, iova: u64, len: usize, bus: u64) {
        // SAFETY: the pointer is null or points to logs that are dropped only after a grace period.
        let Some(logs) = (unsafe { self.logs.active.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        // Fast path: most pages that are written are marked already.
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
    /// The same as for [`log_write`](Self::log_write).
    #[inline(never)]
    unsafe fn log_in(&self, logs: &Logs, iova: u64, len: usize, bus: u64) {
        let guest_phys = match &logs.by_guest_phys {
            Log::Off => None,
            // SAFETY: the slot is entered.
            _ => unsafe { self.guest_phys(bus) },
        };
        self.logs.mark(logs, iova, len, guest_phys);
    }

    /// Marks bytes that were written outside of a slot: through a lease, or in a remote region.
    pub(crate) fn log_write_outside(&self, iova: u64, len: usize, guest_phys: Option<GuestPhys>) {
        if self.logs.are_on() {
            // Makes the write visible before the log checks for an existing mark.
            fence(Ordering::SeqCst);
            self.logs.mark(&self.logs.get(), iova, len, guest_phys);
        }
    }

    /// Marks all bytes that may be written through live leases, because those writes are not observed.
    fn log_leases(&self) {
        if self.logs.are_on() {
            for written in self.leases.written().iter().flat_map(|written| &**written) {
                self.log_write_outside(written.iova, written.len, written.guest_phys);
            }
        }
    }

    /// Returns the guest-physical address of the memory at `bus`.
    ///
    /// # Safety
    /// The memory must have been mapped when the caller entered its slot, or be leased.
    pub(crate) unsafe fn guest_phys(&self, bus: u64) -> Option<GuestPhys> {
        // SAFETY: its region stays attached until the grace period and all leases have ended.
        let attached = unsafe { self.windows.get(bus) }?;
        attached.region.guest_phys()?.checked_add(bus - attached.bus)
    }
}

impl Space {
    /// Sets the logs in which writes are marked. After this returns, each write is marked until other
    /// logs are set. Accesses may run meanwhile.
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
    /// space.collect(&log, all, |pages| println!("{pages:?} was written"))?;
    /// log.stop(|| space.set_logs(Logs::default()))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`]; [`Error::BeyondLog`] if an external log does not cover a region that
    /// is attached.
    pub fn set_logs(&self, logs: Logs) -> Result<(), Error> {
        self.inner.check_waits("setting logs")?;
        // The lock keeps regions from being attached between the check and the change.
        let door = self.inner.check_attached(&logs)?;
        // Bytes that leases have written until now belong into the old logs.
        self.inner.log_leases();
        let new = Arc::new(logs);
        let current = &self.inner.logs;
        let mut kept = current.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let active = if new.are_off() { ptr::null_mut() } else { Arc::as_ptr(&new).cast_mut() };
        current.active.store(active, Ordering::Release);
        // Sessions may use the old logs until the grace period is over. If a callback panics during it,
        // the old logs are leaked.
        let old = ManuallyDrop::new(std::mem::replace(&mut *kept, new));
        drop(kept);
        drop(door);
        self.inner.wait_for_sessions(&[]);
        drop(ManuallyDrop::into_inner(old));
        Ok(())
    }

    /// Returns the logs that are set.
    pub fn logs(&self) -> Logs {
        (*self.inner.logs.get()).clone()
    }

    /// Calls [`log_leases`](Self::log_leases), empties all TLBs, and waits until each access that was
    /// running has ended. [`DirtyLog::collect`] needs this from each space that has the log.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`].
    pub fn grace_period(&self) -> Result<(), Error> {
        self.inner.check_waits("a grace period")?;
        self.inner.log_leases();
        self.inner.wait_for_sessions(&[]);
        Ok(())
    }

    /// Marks in the logs all bytes that may be written through live leases, because those writes are not
    /// observed. A collection does so by itself. In a log that another process reads
    /// ([`ExternalLog`](crate::dirty::ExternalLog)), a lease's writes are otherwise marked only when the
    /// lease is dropped. So if a lease may still be alive, call this before that process is notified
    /// that the device has stopped.
    pub fn log_leases(&self) {
        self.inner.log_leases();
    }

    /// Calls `visit` with the pages of `range` that are marked in `log`, and clears their marks:
    /// [`DirtyLog::collect`] with this space's grace period. Pages of live writable leases are reported
    /// each time, as the kernel does for pages that it has pinned for a device.
    ///
    /// # Errors
    /// [`Error::PinnedByCaller`].
    pub fn collect<A: Address>(
        &self,
        log: &DirtyLog<A>,
        range: AddrRange<A>,
        mut visit: impl FnMut(AddrRange<A>),
    ) -> Result<Collected, Error> {
        log.try_collect(
            range,
            || self.grace_period(),
            |pages| {
                visit(pages);
                Ok(())
            },
        )
    }
}

impl Inner {
    /// Returns an error if the calling thread would wait for itself.
    pub(crate) fn check_waits(&self, operation: &'static str) -> Result<(), Error> {
        if self.grace.is_busy_in(thread_token()) {
            return Err(Error::PinnedByCaller { operation, iova: Iova::new(0) });
        }
        Ok(())
    }
}
