//! What can go wrong.

use core::fmt;

use longshore_mem::{BusAddr, Iova};

use crate::prot::Prot;

/// Why an operation on a page table failed.
///
/// Where nothing else is said, the table maps after the failure exactly what it mapped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Something is mapped already.
    Exists {
        /// The first address found mapped.
        at: Iova,
    },
    /// Nothing is mapped.
    Hole {
        /// The first address found not mapped.
        at: Iova,
    },
    /// The range begins or ends inside a block (or a contiguous run of entries), which can only be
    /// changed whole; `split` makes pages of it.
    PartialBlock {
        /// Where the block begins.
        at: Iova,
    },
    /// The range is not inside what the format translates.
    OutOfRange {
        /// Its first address.
        iova: Iova,
        /// Its length.
        len_bytes: u64,
    },
    /// The target is not inside what an entry of the format can hold.
    BusOutOfRange {
        /// Its first address.
        bus: BusAddr,
        /// Its length.
        len_bytes: u64,
    },
    /// An address or a length is not a multiple of the page size, or the length is zero.
    Misaligned {
        /// The address or length.
        value: u64,
        /// The page size, as a logarithm.
        page_log2: u32,
    },
    /// The format has no pages of this size.
    PageSize {
        /// The size asked for, as a logarithm.
        page_log2: u32,
    },
    /// The format cannot express these permissions and attributes.
    Prot {
        /// What was asked for.
        prot: Prot,
    },
    /// There is no memory for a table.
    OutOfMemory,
    /// The change needs break-before-make: the range must be unmapped, flushed and mapped anew,
    /// because the hardware was not declared to tolerate the change of a live entry.
    BreakBeforeMake {
        /// The address whose entry would change.
        at: Iova,
    },
    /// The format has no further level.
    CannotGrow,
    /// The format was not set up to track dirty pages.
    NoDirtyTracking,
    /// Tracking dirty pages was asked for, and the walker does not snoop the CPU's caches: the CPU
    /// would read its own stale copy of what the walker wrote.
    TrackingNeedsCoherence,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exists { at } => write!(f, "{at:#x} is mapped already"),
            Self::Hole { at } => write!(f, "{at:#x} is not mapped"),
            Self::PartialBlock { at } => {
                write!(f, "the block at {at:#x} lies only partly in the range; split it first")
            }
            Self::OutOfRange { iova, len_bytes } => {
                write!(f, "{len_bytes:#x} bytes at {iova:#x} are outside of what is translated")
            }
            Self::BusOutOfRange { bus, len_bytes } => {
                write!(f, "{len_bytes:#x} bytes at bus address {bus:#x} do not fit an entry")
            }
            Self::Misaligned { value, page_log2 } => {
                write!(f, "{value:#x} is zero or not a multiple of the page size 2^{page_log2}")
            }
            Self::PageSize { page_log2 } => write!(f, "there are no pages of 2^{page_log2} bytes"),
            Self::Prot { prot } => write!(f, "the format cannot express the permissions {prot}"),
            Self::OutOfMemory => f.write_str("no memory for a table"),
            Self::BreakBeforeMake { at } => write!(
                f,
                "the entry at {at:#x} may not change while it is live; unmap, flush and map anew"
            ),
            Self::CannotGrow => f.write_str("the format has no further level of tables"),
            Self::NoDirtyTracking => f.write_str("the format was not set up to track dirty pages"),
            Self::TrackingNeedsCoherence => {
                f.write_str("dirty pages can be tracked only where the walker snoops the caches")
            }
        }
    }
}

impl core::error::Error for Error {}
