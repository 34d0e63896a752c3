//! What can go wrong, and what is given back then.

use std::fmt;

use longshore_mem::copy::CopyFault;
use longshore_mem::{Granule, Iova};
use thiserror::Error;

use crate::backend::BackendError;
use crate::iova::IovaError;
use crate::pool::error::PoolError;

/// Why a domain could not do what was asked. Nothing has changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no IOVA for it.
    #[error(transparent)]
    Iova(#[from] IovaError),
    /// Bits of an address that bounce buffers cannot keep.
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
        "{operation}: the transfer has no bytes, and a device can be given no address for it; skip \
         transfers of zero bytes"
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
    /// The backend refused.
    #[error("{operation} {len_bytes:#x} bytes at IOVA {iova:#x}: {source}")]
    Backend {
        /// What was to be done.
        operation: &'static str,
        /// The first address.
        iova: Iova,
        /// How many bytes.
        len_bytes: u64,
        /// What the backend says.
        #[source]
        source: BackendError,
    },
    /// There is no memory for what the domain allocates.
    #[error("memory for a device: {0}")]
    Memory(#[source] longshore_heap::Error),
    /// There is no bounce buffer for it, and it must have one.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The elements of a DMA pool cannot be laid out as asked.
    #[error("a DMA pool of elements of {element_len:#x} bytes aligned to {align:#x}: {reason}")]
    PoolLayout {
        /// The length of an element.
        element_len: u64,
        /// The alignment asked for.
        align: u64,
        /// The rule that is broken.
        reason: &'static str,
    },
    /// Bytes could not be copied: the memory is not there. Without a
    /// [`FaultGuard`](longshore_mem::fault::FaultGuard) such memory ends the process instead.
    #[error("copying between memory and the bounce buffer at IOVA {iova:#x}: {source}")]
    Copy {
        /// Where the device finds the bounce buffer.
        iova: Iova,
        /// What was met.
        #[source]
        source: CopyFault,
    },
    /// A device says that it has written more than it could reach.
    #[error(
        "a device says that it has written {written_bytes:#x} bytes at IOVA {iova:#x}, where it can \
         reach {len_bytes:#x}"
    )]
    Reported {
        /// Where the transfer is mapped.
        iova: Iova,
        /// How many bytes.
        len_bytes: u64,
        /// What the device says.
        written_bytes: u64,
    },
    /// A scattered transfer has more segments than the device can take.
    #[error(
        "{len_bytes:#x} bytes in several places are {segments} segments for the device, which takes \
         {most}: make it fewer places, whole granules, or shorter"
    )]
    TooManySegments {
        /// How many bytes.
        len_bytes: u64,
        /// How many segments they are.
        segments: usize,
        /// How many there may be.
        most: usize,
    },
    /// The places of a scattered transfer have more bytes together than there are IOVAs.
    #[error("{places} places have more bytes together than there are IOVAs: make it fewer places")]
    TooLong {
        /// How many places.
        places: usize,
    },
    /// A range that does not lie in the mapping.
    #[error(
        "bytes {start:#x} to {end:#x} of a mapping of {len_bytes:#x} bytes at IOVA {iova:#x}: it does \
         not have them"
    )]
    Outside {
        /// Where the transfer is mapped.
        iova: Iova,
        /// How many bytes it has.
        len_bytes: u64,
        /// The first byte asked for.
        start: u64,
        /// The one behind the last.
        end: u64,
    },
    /// A mapping was put into a batch of another domain, or of another thread's door.
    #[error("the mapping at IOVA {iova:#x} was made by another door than the batch is of")]
    OtherDoor {
        /// Where it is mapped.
        iova: Iova,
    },
    /// Memory that is not made of whole granules cannot be mapped at an address that is.
    #[error(
        "{len_bytes:#x} bytes at {start:#x} are not whole granules of {granule}, and cannot be mapped \
         at a chosen address"
    )]
    Unaligned {
        /// Where the memory begins in this process.
        start: u64,
        /// How many bytes it has.
        len_bytes: u64,
        /// The backend's granule.
        granule: Granule,
    },
}

/// What was not done, with what was to be used up by it.
#[derive(Error)]
#[error("{error}")]
pub struct Failed<T> {
    /// Why. Behind a pointer, so that what succeeds does not carry room for it about.
    #[source]
    pub error: Box<Error>,
    /// What the caller had, unchanged.
    pub value: T,
}

/// For those who do not want back what they had: it is dropped.
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
