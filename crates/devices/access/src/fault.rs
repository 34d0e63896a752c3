//! The faults of accesses by IOVA.

use std::fmt;

use longshore_mem::Iova;

/// The failure of an access by IOVA.
///
/// The first `done` bytes were transferred. No byte after them was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The first address that could not be accessed: the start of the access plus `done`.
    pub iova: Iova,
    /// The number of bytes that were transferred.
    pub done: usize,
    /// The reason.
    pub reason: Reason,
}

/// The reason why an address could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping does not permit this access.
    Permission,
    /// The memory was unmapped during the access, and the access was cancelled.
    Revoked,
    /// The address is mapped, but the memory behind it is gone: a file was truncated, a process has
    /// ended, a connection was closed, or a page of memory failed.
    BackingLost,
    /// The other side of remote memory did not answer in time.
    TimedOut,
    /// The access was not tried. Either the limit of abandoned calls is reached that have not returned
    /// from the other process ([`ProcessMemory`](crate::ProcessMemory)), or no more threads can be
    /// started.
    Unavailable,
    /// The memory is not of this process, so it can be copied, but not pinned, leased or accessed
    /// atomically.
    NotDirect,
    /// The range passes the end of the address space.
    Overflow,
    /// The address of an atomic access is not a multiple of its size.
    Misaligned,
    /// The memory of the caller's cursor is missing.
    Cursor,
    /// The memory of the caller's cursor overlaps the mapped memory.
    Overlap,
}

impl Fault {
    /// Returns a fault at `iova`, before which `done` bytes were transferred.
    pub const fn new(iova: Iova, done: usize, reason: Reason) -> Self {
        Self { iova, done, reason }
    }

    /// Returns a fault at `done` bytes from `start`.
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
