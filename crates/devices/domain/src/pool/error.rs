//! The reasons that pools could not grow or shrink.

use thiserror::Error;

use crate::backend::BackendError;
use crate::iova::IovaError;

/// The reason that a pool could not grow.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pools of the domain, or those of the process, have reached their limit.
    #[error(
        "bounce buffers and DMA pools have {held_bytes:#x} bytes, and their limit is \
         {limit_bytes:#x}; let transfers end, or raise the limit"
    )]
    Limit {
        /// The bytes that the pools have.
        held_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// All elements of a DMA pool are in use, and the pool has reached its limit.
    #[error(
        "all {elements} elements of {element_len} bytes of a DMA pool are in use; drop some, or make \
         the pool with a higher limit"
    )]
    Exhausted {
        /// The maximum number of elements.
        elements: u64,
        /// The length of an element in bytes.
        element_len: u64,
    },
    /// There is no memory for a chunk.
    #[error("memory for bounce buffers or a DMA pool: {0}")]
    Memory(#[source] longshore_heap::Error),
    /// There are no addresses for a chunk.
    #[error("IOVAs for bounce buffers or a DMA pool: {0}")]
    Iova(#[source] IovaError),
    /// The backend could not map a chunk.
    #[error("mapping bounce buffers or a DMA pool: {0}")]
    Backend(#[source] BackendError),
}

/// The reason that a chunk was not freed.
#[derive(Debug)]
pub(crate) enum NotFreed {
    /// This thread cannot unmap the chunk now. Nothing has changed, so it can be freed later.
    Kept(BackendError),
    /// The chunk may still be mapped, so it is never used again.
    Leaked(BackendError),
}

impl From<NotFreed> for BackendError {
    fn from(error: NotFreed) -> Self {
        match error {
            NotFreed::Kept(error) | NotFreed::Leaked(error) => error,
        }
    }
}
