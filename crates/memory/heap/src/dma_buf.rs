//! A dma-buf and the bracket around CPU access to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use longshore_sys::dma_buf::{self, Bracket, CpuAccess};

use crate::error::{Error, Result};
use crate::heap::Heap;

/// A dma-buf: memory that drivers can be given by descriptor.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    heap: Heap,
    len_bytes: u64,
}

/// The time during which the CPU may access a dma-buf's memory. Ends when dropped.
#[derive(Debug)]
#[must_use = "the CPU may access the memory only while this lives"]
pub(crate) struct Bracketed<'a> {
    dma_buf: Option<&'a DmaBuf>,
    access: CpuAccess,
}

impl DmaBuf {
    pub(crate) fn new(fd: OwnedFd, heap: Heap, len_bytes: u64) -> Self {
        Self { fd, heap, len_bytes }
    }

    /// The dma-buf's size in bytes, in whole pages.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Starts CPU access where `dma_buf` is one; memory that is none needs no bracket.
    pub(crate) fn begin(dma_buf: Option<&Self>, access: CpuAccess) -> Result<Bracketed<'_>> {
        if let Some(dma_buf) = dma_buf {
            dma_buf.sync(access, Bracket::Start, "DMA_BUF_IOCTL_SYNC (start)")?;
        }
        Ok(Bracketed { dma_buf, access })
    }

    fn sync(&self, access: CpuAccess, bracket: Bracket, operation: &'static str) -> Result<()> {
        dma_buf::sync(&self.fd, access, bracket).map_err(|source| Error::Kernel {
            heap: self.heap.clone(),
            operation,
            len_bytes: self.len_bytes,
            source,
        })
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Bracketed<'_> {
    fn drop(&mut self) {
        if let Some(dma_buf) = self.dma_buf {
            // The end of a bracket that began fails only if the exporter is broken, and then
            // there is nothing to roll back to.
            let _ = dma_buf.sync(self.access, Bracket::End, "DMA_BUF_IOCTL_SYNC (end)");
        }
    }
}
