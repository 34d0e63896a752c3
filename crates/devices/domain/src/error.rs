//! The errors of the crate.

use std::fmt;

use longshore_mem::copy::CopyFault;
use longshore_mem::{Granule, Iova};
use thiserror::Error;

use crate::backend::BackendError;
use crate::iova::IovaError;
use crate::pool::error::PoolError;

/// The rule that the options of a DMA pool break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolLayoutReason {
    /// The element is empty, or too long.
    #[error("an element must have between 1 byte and 1 GiB")]
    ElementLen,
    /// The alignment is not a power of two, or too large.
    #[error("the alignment must be a power of two of at most 1 GiB")]
    Align,
    /// The boundary is not a power of two.
    #[error("the boundary must be a power of two")]
    Boundary,
    /// Each element would cross the boundary.
    #[error("an element is longer than the boundary that it may not cross")]
    BoundaryTooShort,
    /// The limit is zero, or below the reserve.
    #[error("the limit must be at least 1, and no less than the reserve")]
    Limit,
}

/// The error of an operation of a domain. The operation has changed nothing then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No IOVA is free.
    #[error(transparent)]
    Iova(#[from] IovaError),
    /// The mask has bits of an address that bounce buffers cannot keep.
    #[error(
        "a minimum alignment mask of {mask:#x} has bits of the granule of {granule} or above, which \
         mappings do not keep; use a mask below the granule"
    )]
    AlignMask {
        /// The mask that was requested.
        mask: u64,
        /// The granule of the backend.
        granule: Granule,
    },
    /// The transfer has no bytes.
    #[error(
        "{operation}: the transfer has no bytes, so it has no address for a device; skip transfers of \
         zero bytes"
    )]
    Empty {
        /// The operation that was requested.
        operation: &'static str,
    },
    /// The memory is mapped read-only in this process, and the request would write to it.
    #[error(
        "{operation}: the {len_bytes:#x} bytes at {start:#x} are read-only (sealed content, for \
         example); map them with Direction::ToDevice and do not write to them, or use writable memory"
    )]
    ReadOnly {
        /// The operation that would write.
        operation: &'static str,
        /// The address of the memory in this process.
        start: u64,
        /// The length of the memory in bytes.
        len_bytes: u64,
    },
    /// The backend returned an error.
    #[error("{operation} {len_bytes:#x} bytes at IOVA {iova:#x}: {source}")]
    Backend {
        /// The operation that was requested.
        operation: &'static str,
        /// The first IOVA.
        iova: Iova,
        /// The length in bytes.
        len_bytes: u64,
        /// The error of the backend.
        #[source]
        source: BackendError,
    },
    /// The domain could not allocate memory.
    #[error("memory for a device: {0}")]
    Memory(#[source] longshore_heap::Error),
    /// No bounce buffer is free, and the transfer must have one.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A DMA pool with these lengths and options is not possible.
    #[error("a DMA pool of elements of {element_len:#x} bytes aligned to {align:#x}: {reason}")]
    PoolLayout {
        /// The length of an element in bytes.
        element_len: u64,
        /// The requested alignment in bytes.
        align: u64,
        /// The rule that is broken.
        reason: PoolLayoutReason,
    },
    /// Bytes could not be copied, because the memory is missing. Without a
    /// [`FaultGuard`](longshore_mem::fault::FaultGuard) such memory ends the process instead.
    #[error("copying between memory and the bounce buffer at IOVA {iova:#x}: {source}")]
    Copy {
        /// The IOVA of the bounce buffer.
        iova: Iova,
        /// The fault.
        #[source]
        source: CopyFault,
    },
    /// A device reports that it has written more bytes than the transfer has.
    #[error(
        "a device reports {written_bytes:#x} bytes written at IOVA {iova:#x}, but the transfer has only \
         {len_bytes:#x}"
    )]
    Reported {
        /// The IOVA of the transfer.
        iova: Iova,
        /// The length in bytes.
        len_bytes: u64,
        /// The number of bytes that the device reports.
        written_bytes: u64,
    },
    /// A scattered transfer has more segments than the device can take.
    #[error(
        "{len_bytes:#x} bytes in several places are {segments} segments for the device, which takes \
         at most {most}: use fewer places, whole granules, or a shorter transfer"
    )]
    TooManySegments {
        /// The length in bytes.
        len_bytes: u64,
        /// The number of segments.
        segments: usize,
        /// The number of segments that the device can take.
        most: usize,
    },
    /// The places of a scattered transfer have more bytes together than there are IOVAs.
    #[error("{places} places have more bytes together than there are IOVAs: use fewer places")]
    TooLong {
        /// The number of places.
        places: usize,
    },
    /// The range does not lie in the mapping.
    #[error(
        "bytes {start:#x} to {end:#x} are not in the mapping of {len_bytes:#x} bytes at IOVA {iova:#x}"
    )]
    Outside {
        /// The IOVA of the transfer.
        iova: Iova,
        /// The length in bytes.
        len_bytes: u64,
        /// The first byte of the range.
        start: u64,
        /// The byte after the last one of the range.
        end: u64,
    },
    /// The mapping was made by another handle than the batch.
    #[error(
        "the mapping at IOVA {iova:#x} was made by another handle than the batch; use a batch of its handle"
    )]
    OtherHandle {
        /// The IOVA of the mapping.
        iova: Iova,
    },
    /// The memory does not consist of whole granules, so it cannot be mapped at a chosen address.
    #[error(
        "{len_bytes:#x} bytes at {start:#x} are not whole granules of {granule}, and cannot be mapped \
         at a chosen address"
    )]
    Unaligned {
        /// The address of the memory in this process.
        start: u64,
        /// The length in bytes.
        len_bytes: u64,
        /// The backend's granule.
        granule: Granule,
    },
}

/// An error, with the value that the operation would have consumed.
#[derive(Error)]
#[error("{error}")]
pub struct Failed<T> {
    /// The error. It is boxed, so that successful results stay small.
    #[source]
    pub error: Box<Error>,
    /// The value, unchanged.
    pub value: T,
}

/// Drops the value.
impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        *failed.error
    }
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}
