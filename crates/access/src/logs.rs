//! Which writes are logged, and where: see [`Logs`].
#![expect(unsafe_code, reason = "reads what is replaced only after a grace period")]

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use longshore_mem::{AddrRange, Address, GuestPhys, Iova};

use crate::dirty::{BeyondLog, DirtyLog, Harvest, Log};
use crate::error::Error;
use crate::region::Region;
use crate::space::{Inner, Space};

/// The logs of a space. Several spaces may have the same.
///
/// A session looks up which logs a page has when it fills its TLB, so that writes to pages with no log
/// cost nothing more. A change of the logs therefore empties the TLBs of all sessions, and waits until
/// the accesses that were going on are over.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    /// By the address the device wrote to.
    pub by_iova: Log<Iova>,
    /// By the machine's address of the memory: of regions that have one
    /// ([`Region::at_guest_phys`]).
    pub by_guest_phys: Log<GuestPhys>,
}

impl Logs {
    fn are_off(&self) -> bool {
        self.by_iova.is_off() && self.by_guest_phys.is_off()
    }

    /// That the log has a bit for each page of a region.
    pub(crate) fn check(&self, region: &Region) -> Result<(), BeyondLog> {
        match (&self.by_guest_phys, region.guest_phys()) {
            (Log::External(log), Some(at)) => match AddrRange::new(at, region.len_bytes()) {
                Ok(range) => log.check(range),
                // It passes the end of the address space.
                Err(_) => Err(BeyondLog {
                    at: at.raw(),
                    len_bytes: region.len_bytes(),
                    log_pages: log.pages(),
                }),
            },
            _ => Ok(()),
        }
    }
}

/// What a space keeps of its logs.
#[derive(Debug, Default)]
pub(crate) struct Current {
    /// What `kept` holds, for sessions in their slots; null where all are off.
    active: AtomicPtr<Logs>,
    kept: Mutex<Arc<Logs>>,
    /// Writes that a log had no bits for.
    unlogged: AtomicU64,
}

impl Current {
    /// Whether writes must be noted.
    #[inline]
    pub(crate) fn are_on(&self) -> bool {
        !self.active.load(Ordering::Acquire).is_null()
    }

    pub(crate) fn get(&self) -> Arc<Logs> {
        Arc::clone(&self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn unlogged(&self) -> u64 {
        self.unlogged.load(Ordering::Relaxed)
    }

    fn mark(&self, logs: &Logs, iova: u64, len: usize, guest_phys: Option<GuestPhys>) {
        let len = len as u64;
        let by_iova = logs.by_iova.mark(Iova::new(iova), len);
        let by_guest = guest_phys.map_or(Ok(()), |at| logs.by_guest_phys.mark(at, len));
        if by_iova.and(by_guest).is_err() {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

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

    /// Notes all that may be written through leases that live: nobody knows what was.
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
    /// let logs = Logs { by_iova: Log::Internal(Arc::clone(&log)), ..Logs::default() };
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

    /// Marks in the logs that are set all that may be written through leases that live: nobody knows
    /// what was. A harvest does so by itself. A log that another process reads
    /// ([`ExternalLog`](crate::dirty::ExternalLog)) has a lease's writes otherwise only when the lease
    /// is dropped: call this before that process is told that the device has stopped, if a lease may
    /// live on.
    pub fn log_leases(&self) {
        self.inner.log_leases();
    }

    /// Tells `visit` of what `log` has of `range`, and unmarks it: [`DirtyLog::harvest`] with this
    /// space's grace period. What a live lease may write is told of each time, as the pages that a
    /// driver in the kernel has pinned for a device are.
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
        if self.grace.is_busy_in(crate::space::thread_token()) {
            return Err(Error::PinnedByCaller { operation, iova: Iova::new(0) });
        }
        Ok(())
    }
}
