//! The dirty logs of a space ([`Logs`]).

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longshore_mem::{AddrRange, GuestPhys, Iova};

use crate::dirty::{BeyondLog, Log};
use crate::region::Region;

/// The dirty logs of a space. Several spaces may share a log.
///
/// A session checks when it fills its TLB whether logs are set, so that writes without logs cost
/// nothing. So a change of the logs empties the TLBs of all sessions, and waits until the accesses that
/// were running have ended.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Logs {
    /// The log by IOVA, the address that the device wrote to.
    pub by_iova: Log<Iova>,
    /// The log by guest-physical address, for regions that have one ([`Region::at_guest_phys`]).
    pub by_guest_phys: Log<GuestPhys>,
}

impl Logs {
    /// Returns the same with a log by IOVA.
    #[must_use]
    pub fn with_iova(self, by_iova: Log<Iova>) -> Self {
        Self { by_iova, ..self }
    }

    /// Returns the same with a log by guest-physical address.
    #[must_use]
    pub fn with_guest_phys(self, by_guest_phys: Log<GuestPhys>) -> Self {
        Self { by_guest_phys, ..self }
    }

    pub(crate) fn are_off(&self) -> bool {
        self.by_iova.is_off() && self.by_guest_phys.is_off()
    }

    /// Returns an error if an external log does not cover a region.
    pub(crate) fn check(&self, region: &Region) -> Result<(), BeyondLog> {
        match (&self.by_guest_phys, region.guest_phys()) {
            (Log::External(log), Some(at)) => match AddrRange::new(at, region.len()) {
                Ok(range) => log.check(range),
                // The region passes the end of the address space.
                Err(_) => {
                    Err(BeyondLog { at: at.raw(), len_bytes: region.len(), log_pages: log.pages() })
                }
            },
            _ => Ok(()),
        }
    }
}

/// The current logs of a space.
#[derive(Debug, Default)]
pub(crate) struct Current {
    /// A pointer into `kept` for sessions that have entered their slots; null if all logs are off.
    pub(crate) active: AtomicPtr<Logs>,
    pub(crate) kept: Mutex<Arc<Logs>>,
    /// The number of writes that a log did not cover.
    unlogged: AtomicU64,
}

impl Current {
    /// Returns `true` if writes must be logged.
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

    pub(crate) fn mark(&self, logs: &Logs, iova: u64, len: usize, guest_phys: Option<GuestPhys>) {
        let len = len as u64;
        let by_iova = logs.by_iova.mark(Iova::new(iova), len);
        let by_guest = guest_phys.map_or(Ok(()), |at| logs.by_guest_phys.mark(at, len));
        if by_iova.and(by_guest).is_err() {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }
}
