//! What can go wrong with a space itself.

use std::io;

use longshore_mem::{BusAddr, Iova};
use thiserror::Error;

use crate::client::QuotaExceeded;

/// Why a space or a region could not be made or changed. Nothing has changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The page table refused.
    #[error("{operation} {len_bytes:#x} bytes at IOVA {iova:#x}: {source}")]
    Table {
        /// What was to be done: `map`, `unmap`, …
        operation: &'static str,
        /// Its first address.
        iova: Iova,
        /// Its length.
        len_bytes: u64,
        /// Why.
        #[source]
        source: longshore_pagetable::Error,
    },
    /// The mapping needs more page tables than the space may have.
    #[error(
        "mapping {len_bytes:#x} bytes at IOVA {iova:#x} needs more page tables than the {limit_bytes} \
         bytes that this space may have; raise SpaceConfig::table_bytes_max"
    )]
    TableLimit {
        /// The first address of the mapping.
        iova: Iova,
        /// Its length.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Page tables cannot be set up so.
    #[error("a space with {input_bits} bits of IOVA: {source}")]
    Config {
        /// Bits asked for.
        input_bits: u32,
        /// Why.
        #[source]
        source: longshore_pagetable::format::Unsupported,
    },
    /// There is no memory for page tables.
    #[error("no memory for the root page table")]
    OutOfMemory,
    /// The calling thread is itself in the middle of an access (a pin, a lease, a callback), which
    /// it would have to wait for.
    #[error(
        "{operation} at IOVA {iova:#x}: this thread holds a pin or lease, or is in an access's \
         callback, and would wait for itself; end that first"
    )]
    PinnedByCaller {
        /// What was to be done.
        operation: &'static str,
        /// Its first address.
        iova: Iova,
    },
    /// A host address is above what an entry can hold, or the range passes the end.
    #[error("host memory of {len_bytes:#x} bytes at {bus:#x} does not end below 2^48")]
    HostAddress {
        /// Its first address.
        bus: BusAddr,
        /// Its length.
        len_bytes: u64,
    },
    /// The region is not attached to this space.
    #[error("the region is not attached to this space; attach it first")]
    NotAttached,
    /// The region is attached to this space already.
    #[error("the region is attached to this space already")]
    AlreadyAttached,
    /// Some of the region is still mapped.
    #[error("{mapped_bytes:#x} bytes of the region are mapped; unmap them before it is detached")]
    StillMapped {
        /// How much.
        mapped_bytes: u64,
    },
    /// The part is not inside the region.
    #[error(
        "{len_bytes:#x} bytes at offset {offset:#x} are not inside a region of {region_bytes:#x}"
    )]
    OutsideRegion {
        /// Where the part begins.
        offset: u64,
        /// Its length.
        len_bytes: u64,
        /// The region's length.
        region_bytes: u64,
    },
    /// The region is read-only, and a permission to write was asked for.
    #[error("the region can only be read, so it cannot be mapped for writing")]
    ReadOnlyRegion,
    /// A log has no bits for a part of a region.
    #[error("a region of {region_bytes:#x} bytes: {source}")]
    BeyondLog {
        /// The region's length.
        region_bytes: u64,
        /// Where the log ends.
        #[source]
        source: crate::dirty::BeyondLog,
    },
    /// Space for windows is used up.
    #[error("no window of {region_bytes:#x} bytes is left; detach regions that are not used")]
    NoWindow {
        /// The region's length.
        region_bytes: u64,
    },
    /// Too many files or addresses are mapped for clients of one user, or of all users. Unmap some, or give
    /// the clients a process of their own.
    #[error("mapping a client's memory: {0}")]
    ClientLimit(#[from] QuotaExceeded),
    /// The space was made for its owner's raw mappings alone.
    #[error("only its owner maps and unmaps in this space (SpaceConfig::raw_only)")]
    RawOnly,
    /// A region's memory is empty or not made of whole pages of 4 KiB.
    #[error("a region of {len_bytes:#x} bytes at {start:#x} is not made of whole pages of 4 KiB")]
    RegionAlignment {
        /// Where it begins: a host address, or an offset into the file.
        start: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// A file ends before the range that a region is to have of it.
    #[error("a region that ends at byte {end} of a file of {file_bytes} bytes")]
    BeyondFile {
        /// The end of the region's range in the file.
        end: u64,
        /// The length of the file.
        file_bytes: u64,
    },
    /// The system refused.
    #[error("{operation}: {source}")]
    Io {
        /// What was to be done.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
