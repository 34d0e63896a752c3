//! The memory of a buffer: loaded by this process, or attached.

use std::os::fd::{AsFd, BorrowedFd};

use longshore_heap::{Sealing, SharedBuffer};
use longshore_mem::{DmaMemory, Granule};
use longshore_serve::Attachment;

/// Where the content is, and who may have it.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Of this process.
    Loaded(SharedBuffer),
    /// Of a server, which counts for as long as this lives.
    Attached(Attachment),
}

impl Memory {
    /// The first byte. Others may change what is there, unless it is sealed.
    pub(crate) fn start(&self) -> *mut u8 {
        match self {
            Self::Loaded(shared) => shared.host().as_ptr().cast(),
            Self::Attached(attachment) => attachment.as_slice().as_ptr().cast_mut(),
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Loaded(shared) => shared.len(),
            Self::Attached(attachment) => attachment.len(),
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        match self {
            Self::Loaded(shared) => shared.sealing() == Sealing::Content,
            Self::Attached(_) => true,
        }
    }

    pub(crate) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Loaded(shared) => shared.memfd(),
            Self::Attached(attachment) => Some(attachment.memfd()),
        }
    }

    pub(crate) fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Loaded(shared) => shared.dma_buf().map(AsFd::as_fd),
            Self::Attached(_) => None,
        }
    }

    /// The word for where the memory comes from.
    pub(crate) fn heap(&self) -> String {
        match self {
            Self::Loaded(shared) => shared.heap().to_string(),
            Self::Attached(_) => "attached".to_owned(),
        }
    }

    /// The page size that prevails, where that is known.
    pub(crate) fn page_size(&self) -> Option<Granule> {
        match self {
            Self::Loaded(shared) => shared.page_report().prevailing(),
            Self::Attached(_) => None,
        }
    }
}
