//! The errors of spaces and regions.

use std::io;

use longshore_mem::{BusAddr, Iova};
use thiserror::Error;

use crate::client::QuotaExceeded;

/// The error if a space or a region cannot be made or changed. Nothing has changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The page table returned an error.
    #[error("{operation} {len_bytes:#x} bytes at IOVA {iova:#x}: {source}")]
    Table {
        /// The operation that failed: `mapping`, `unmapping`, …
        operation: &'static str,
        /// The first address of the range.
        iova: Iova,
        /// The length of the range.
        len_bytes: u64,
        /// The cause.
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
        /// The length of the mapping.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The page-table format does not support the configuration.
    #[error("a space with {input_bits} bits of IOVA: {source}")]
    Config {
        /// The number of bits that was asked for.
        input_bits: u32,
        /// The cause.
        #[source]
        source: longshore_pagetable::format::Unsupported,
    },
    /// There is no memory for the root page table.
    #[error("no memory for the root page table")]
    OutOfMemory,
    /// The calling thread holds a pin or a lease, or runs in the callback of an access, and would have
    /// to wait for itself.
    #[error(
        "{operation} at IOVA {iova:#x}: this thread holds a pin or lease, or is in an access's \
         callback, and would wait for itself; end that first"
    )]
    PinnedByCaller {
        /// The operation that failed.
        operation: &'static str,
        /// The first address of the range.
        iova: Iova,
    },
    /// A host address is too large for an entry, or the range ends beyond the largest one.
    #[error("host memory of {len_bytes:#x} bytes at {bus:#x} does not end below 2^48")]
    HostAddress {
        /// The first address of the memory.
        bus: BusAddr,
        /// The length of the memory.
        len_bytes: u64,
    },
    /// The region is not attached to this space.
    #[error("the region is not attached to this space; attach it first")]
    NotAttached,
    /// The region is attached to this space already.
    #[error("the region is attached to this space already")]
    AlreadyAttached,
    /// Parts of the region are still mapped.
    #[error("{mapped_bytes:#x} bytes of the region are mapped; unmap them before it is detached")]
    StillMapped {
        /// The number of bytes that are mapped.
        mapped_bytes: u64,
    },
    /// The range is not inside the region.
    #[error(
        "{len_bytes:#x} bytes at offset {offset:#x} are not inside a region of {region_bytes:#x}"
    )]
    OutsideRegion {
        /// The offset at which the range begins.
        offset: u64,
        /// The length of the range.
        len_bytes: u64,
        /// The region's length.
        region_bytes: u64,
    },
    /// The region is read-only, and write permission was requested.
    #[error("the region can only be read, so it cannot be mapped for writing")]
    ReadOnlyRegion,
    /// A log does not cover all of a region.
    #[error("a region of {region_bytes:#x} bytes: {source}")]
    BeyondLog {
        /// The region's length.
        region_bytes: u64,
        /// The cause, with the end of the log.
        #[source]
        source: crate::dirty::BeyondLog,
    },
    /// There are not enough free bus addresses for the region.
    #[error("no window of {region_bytes:#x} bytes is left; detach regions that are not used")]
    NoWindow {
        /// The region's length.
        region_bytes: u64,
    },
    /// Too many files or addresses are mapped for clients of one user, or of all users. Unmap some, or
    /// give the clients a process of their own.
    #[error("mapping a client's memory: {0}")]
    ClientLimit(#[from] QuotaExceeded),
    /// The space allows only the methods `map_raw` and `unmap_raw` of its owner.
    #[error("only its owner maps and unmaps in this space (SpaceConfig::raw_only)")]
    RawOnly,
    /// A region's memory is empty or does not consist of whole pages of 4 KiB.
    #[error("a region of {len_bytes:#x} bytes at {start:#x} is not made of whole pages of 4 KiB")]
    RegionAlignment {
        /// The start of the memory: a host address, or an offset into the file.
        start: u64,
        /// The length of the memory.
        len_bytes: u64,
    },
    /// A file ends before the end of the range that was to be mapped.
    #[error("a region that ends at byte {end} of a file of {file_bytes} bytes")]
    BeyondFile {
        /// The end of the region's range in the file.
        end: u64,
        /// The length of the file.
        file_bytes: u64,
    },
    /// A system call failed.
    #[error("{operation}: {source}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}
