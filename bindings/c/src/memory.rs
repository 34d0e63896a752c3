//! The memory of a buffer: loaded by this process, or attached.

use std::os::fd::{AsFd, BorrowedFd};

use longshore_heap::{Sealing, SharedBuffer};
use longshore_mem::{DmaMemory, Granule};
use longshore_serve::Attachment;

/// The memory that holds the content.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Memory of this process.
    Loaded(SharedBuffer),
    /// Memory of a server, which keeps the model while this lives.
    Attached(Attachment),
}

impl Memory {
    /// Returns the address of the first byte. Other processes may change the content unless it is
    /// sealed.
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

    /// Returns the name of the heap, or `attached`.
    pub(crate) fn heap(&self) -> String {
        match self {
            Self::Loaded(shared) => shared.heap().to_string(),
            Self::Attached(_) => "attached".to_owned(),
        }
    }

    /// Returns the page size of at least nine tenths of the memory, if there is one and it is known.
    pub(crate) fn page_size(&self) -> Option<Granule> {
        match self {
            Self::Loaded(shared) => shared.page_report().prevailing(),
            Self::Attached(_) => None,
        }
    }
}
