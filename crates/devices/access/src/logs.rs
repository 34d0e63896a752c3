//! Which writes are logged, and where: see [`Logs`].

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longshore_mem::{AddrRange, GuestPhys, Iova};

use crate::dirty::{BeyondLog, Log};
use crate::region::Region;

/// The logs of a space. Several spaces may have the same.
///
/// A session looks up which logs a page has when it fills its TLB, so that writes to pages with no log
/// cost nothing more. A change of the logs therefore empties the TLBs of all sessions, and waits until
/// the accesses that were going on are over.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Logs {
    /// By the address the device wrote to.
    pub by_iova: Log<Iova>,
    /// By the machine's address of the memory: of regions that have one
    /// ([`Region::at_guest_phys`]).
    pub by_guest_phys: Log<GuestPhys>,
}

impl Logs {
    /// Returns the same with a log by the addresses that devices write to.
    #[must_use]
    pub fn with_iova(self, by_iova: Log<Iova>) -> Self {
        Self { by_iova, ..self }
    }

    /// Returns the same with a log by guest-physical addresses.
    #[must_use]
    pub fn with_guest_phys(self, by_guest_phys: Log<GuestPhys>) -> Self {
        Self { by_guest_phys, ..self }
    }

    pub(crate) fn are_off(&self) -> bool {
        self.by_iova.is_off() && self.by_guest_phys.is_off()
    }

    /// That the log has a bit for each page of a region.
    pub(crate) fn check(&self, region: &Region) -> Result<(), BeyondLog> {
        match (&self.by_guest_phys, region.guest_phys()) {
            (Log::External(log), Some(at)) => match AddrRange::new(at, region.len()) {
                Ok(range) => log.check(range),
                // It passes the end of the address space.
                Err(_) => {
                    Err(BeyondLog { at: at.raw(), len_bytes: region.len(), log_pages: log.pages() })
                }
            },
            _ => Ok(()),
        }
    }
}

/// What a space keeps of its logs.
#[derive(Debug, Default)]
pub(crate) struct Current {
    /// What `kept` holds, for sessions in their slots; null where all are off.
    pub(crate) active: AtomicPtr<Logs>,
    pub(crate) kept: Mutex<Arc<Logs>>,
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

    pub(crate) fn mark(&self, logs: &Logs, iova: u64, len: usize, guest_phys: Option<GuestPhys>) {
        let len = len as u64;
        let by_iova = logs.by_iova.mark(Iova::new(iova), len);
        let by_guest = guest_phys.map_or(Ok(()), |at| logs.by_guest_phys.mark(at, len));
        if by_iova.and(by_guest).is_err() {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
    }
}
