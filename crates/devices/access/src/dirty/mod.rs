//! Which pages were written: what live migration, snapshots and incremental backups ask.
//!
//! | log | who reads it | how a write is marked |
//! | --- | --- | --- |
//! | [`DirtyLog`] | this process, by [`DirtyLog::harvest`] | tested, and set where it is missing |
//! | [`ExternalLog`] | another process, which clears bits at any moment | set, always |
//!
//! Another process cannot be waited for, so a bit it will clear must be set after every write. This
//! process waits for a grace period before it reads what was written, so a bit that is set may stay
//! as it is, and a page that is written again and again costs one load each time.
//!
//! A [`Log`] is either of them, or none. The order is always: copy, then mark, then leave the
//! section that grace periods wait for.

mod bitmap;
mod external;
mod harvest;
mod log;
mod words;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use longshore_mem::Address;

pub use external::{BeyondLog, Burst, ExternalLog, LOG_PAGE};
pub use harvest::Harvest;
pub use log::{DirtyLog, LogError};

/// Where writes are marked. `A` is the address space they are marked by.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Log<A: Address> {
    /// Nowhere.
    #[default]
    Off,
    /// In a log of this process.
    Internal(Arc<DirtyLog<A>>),
    /// In a bitmap that another process reads and clears.
    External(Arc<ExternalLog<A>>),
}

impl<A: Address> Log<A> {
    /// Marks the pages that `len_bytes` from `at` touch. To be called after the bytes were written.
    ///
    /// # Errors
    /// [`BeyondLog`] where an external log ends before; what lies inside is marked all the same. An
    /// internal log leaves out what it does not cover.
    #[inline]
    pub fn mark(&self, at: A, len_bytes: u64) -> Result<(), BeyondLog> {
        match self {
            Self::Off => Ok(()),
            Self::Internal(log) => {
                log.mark(at, len_bytes);
                Ok(())
            }
            Self::External(log) => log.mark(at, len_bytes),
        }
    }

    /// Whether nothing is marked, so that a session need not ask for each write.
    pub fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}
