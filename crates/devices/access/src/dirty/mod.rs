//! Dirty logs: the pages that were written, for live migration, snapshots and incremental backups.
//!
//! | log | reader | marking of a write |
//! | --- | --- | --- |
//! | [`DirtyLog`] | this process, by [`DirtyLog::collect`] | tests the bit, and sets it if it is clear |
//! | [`ExternalLog`] | another process, which clears bits at any moment | always sets the bit |
//!
//! Writers cannot synchronise with another process that clears bits, so they set the bit after every
//! write. This process waits for a grace period before it reads the written pages, so a writer leaves a
//! set bit as it is, and repeated writes to a page cost one load each.
//!
//! A [`Log`] is one of them, or none. The order is always: copy, then mark, then leave the section that
//! grace periods wait for.

mod bitmap;
mod collect;
mod external;
mod log;
mod words;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use longshore_mem::Address;

pub use collect::Collected;
pub use external::{BeyondLog, Burst, ExternalLog, LOG_PAGE};
pub use log::{DirtyLog, LogError};

/// The log in which writes are marked. `A` is the type of its addresses.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Log<A: Address> {
    /// No log.
    #[default]
    Off,
    /// A log that this process reads.
    Internal(Arc<DirtyLog<A>>),
    /// A bitmap that another process reads and clears.
    External(Arc<ExternalLog<A>>),
}

impl<A: Address> Log<A> {
    /// Marks the pages that `len_bytes` from `at` touch. Call this after the bytes were written.
    ///
    /// # Errors
    /// [`BeyondLog`] if an external log does not cover all of the pages; the pages that it covers are
    /// marked. An internal log ignores pages that it does not cover.
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

    /// Returns `true` if there is no log, so that a session need not mark its writes.
    pub fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }
}
