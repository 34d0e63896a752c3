//! The errors of operations on page tables.

use core::fmt;

use longshore_mem::{BusAddr, Iova};

use crate::prot::Prot;

/// The error of an operation on a page table.
///
/// Unless its documentation states otherwise, a failed operation leaves all mappings as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An address of the range is already mapped.
    Exists {
        /// The first address found mapped.
        at: Iova,
    },
    /// An address of the range is not mapped.
    Hole {
        /// The first address found not mapped.
        at: Iova,
    },
    /// The range begins or ends inside a block (or a contiguous run of entries), which can only be
    /// changed as a whole. [`split`](crate::PageTable::split) replaces it by pages.
    PartialBlock {
        /// The first address of the block.
        at: Iova,
    },
    /// The range is empty, or not inside the input range of the format.
    OutOfRange {
        /// The first address.
        iova: Iova,
        /// The length.
        len_bytes: u64,
    },
    /// The bus addresses are larger than an entry of the format can hold.
    BusOutOfRange {
        /// The first address.
        bus: BusAddr,
        /// The length.
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
        /// The permissions and attributes asked for.
        prot: Prot,
    },
    /// There is no memory for another table.
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
    /// Dirty tracking was asked for, but the walker does not snoop the CPU's caches, so the CPU
    /// could read a stale copy of a dirty bit that the walker has set.
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
                write!(
                    f,
                    "{len_bytes:#x} bytes at {iova:#x} are outside the input range of the format"
                )
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
                f.write_str("dirty pages can be tracked only if the walker snoops the CPU's caches")
            }
        }
    }
}

impl core::error::Error for Error {}
