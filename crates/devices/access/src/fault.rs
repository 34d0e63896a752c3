//! What a device's access can end in.

use std::fmt;

use longshore_mem::Iova;

/// An access that could not be done, or not all of it.
///
/// `done` bytes were transferred before it. What lies behind them is untouched: on the side that was
/// written nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The first address that could not be accessed: where the access began, plus `done`.
    pub iova: Iova,
    /// Bytes done before it.
    pub done: usize,
    /// Why.
    pub reason: Reason,
}

/// Why an address could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing is mapped there.
    Unmapped,
    /// What is mapped there may not be accessed in this way.
    Permission,
    /// It was unmapped during the access, which was cancelled or had to end.
    Revoked,
    /// It is mapped, but the memory behind it is gone: a file was truncated, a process has ended, a
    /// connection was closed, a page of memory failed.
    BackingLost,
    /// The other side of remote memory did not answer in time.
    TimedOut,
    /// It was not tried: too many accesses were abandoned whose calls to the other process have not
    /// returned ([`ProcessMemory`](crate::ProcessMemory)), or there is no thread for one more.
    Unavailable,
    /// It is not memory of this process, so it can be copied and not pinned, leased or changed
    /// atomically.
    NotDirect,
    /// The range passes the end of the address space.
    Overflow,
    /// The address is no multiple of the size of an atomic access.
    Misaligned,
    /// The other side, memory that the caller's cursor lists, is not there.
    Cursor,
    /// The caller's cursor lists memory that overlaps what is mapped there.
    Overlap,
}

impl Fault {
    /// Returns a fault at `iova`, before which `done` bytes were transferred.
    pub const fn new(iova: Iova, done: usize, reason: Reason) -> Self {
        Self { iova, done, reason }
    }

    /// The same at `done` bytes from `start`.
    pub(crate) const fn at(start: Iova, done: usize, reason: Reason) -> Self {
        Self { iova: Iova::new(start.raw().wrapping_add(done as u64)), done, reason }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "nothing is mapped",
            Self::Permission => "the mapping does not permit this access",
            Self::Revoked => "it was unmapped during the access",
            Self::BackingLost => "the memory behind the mapping is gone",
            Self::TimedOut => "the other side did not answer in time",
            Self::Unavailable => {
                "the process has not answered too many accesses before, or no thread can be started"
            }
            Self::NotDirect => "it is not memory of this process, and can only be copied",
            Self::Overflow => "the range passes the end of the address space",
            Self::Misaligned => "the address is no multiple of the access's size",
            Self::Cursor => "the memory that the cursor lists is not there",
            Self::Overlap => "the cursor's memory overlaps it",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault at IOVA {:#x} after {} bytes: {}", self.iova, self.done, self.reason)
    }
}

impl std::error::Error for Fault {}
