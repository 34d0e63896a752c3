//! A dma-buf, and the guard for CPU access to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use longshore_sys::dma_buf::{self, CpuAccess, SyncPhase};

use crate::error::{Error, Result};
use crate::heap::Heap;

/// A dma-buf: memory that is passed to drivers by its descriptor.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    heap: Heap,
    len_bytes: u64,
}

/// A guard for CPU access to a dma-buf, which ends when the guard is dropped.
#[derive(Debug)]
#[must_use = "the CPU may access the memory only while this lives"]
pub(crate) struct CpuAccessGuard<'a> {
    dma_buf: Option<&'a DmaBuf>,
    access: CpuAccess,
}

impl DmaBuf {
    pub(crate) fn new(fd: OwnedFd, heap: Heap, len_bytes: u64) -> Self {
        Self { fd, heap, len_bytes }
    }

    /// Returns the size of the dma-buf in bytes, in whole pages.
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Returns `true` if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Starts CPU access if there is a dma-buf; other memory needs no guard.
    pub(crate) fn begin(dma_buf: Option<&Self>, access: CpuAccess) -> Result<CpuAccessGuard<'_>> {
        if let Some(dma_buf) = dma_buf {
            dma_buf.sync(access, SyncPhase::Start, "DMA_BUF_IOCTL_SYNC (start)")?;
        }
        Ok(CpuAccessGuard { dma_buf, access })
    }

    fn sync(&self, access: CpuAccess, phase: SyncPhase, operation: &'static str) -> Result<()> {
        dma_buf::sync(&self.fd, access, phase).map_err(|source| Error::Kernel {
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

impl Drop for CpuAccessGuard<'_> {
    fn drop(&mut self) {
        if let Some(dma_buf) = self.dma_buf {
            // Ending an access that began fails only if the exporter is broken, and then there is
            // no state to restore.
            let _ = dma_buf.sync(self.access, SyncPhase::End, "DMA_BUF_IOCTL_SYNC (end)");
        }
    }
}
