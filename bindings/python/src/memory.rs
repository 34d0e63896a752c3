//! Loaded memory, and how it is lent out.
#![expect(unsafe_code, reason = "lends memory to Python by address")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use longshore_heap::{Heap, PageReport, SharedBuffer, SharedView};
use longshore_mem::DmaMemory;
use longshore_serve::{self as serve, Attachment};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyErr, ffi};

use crate::error;

/// The memory of a buffer until it is closed. The buffer, its files and its tensors share it.
pub(crate) struct Backing(Mutex<Option<Arc<Memory>>>);

/// Loaded memory.
pub(crate) struct Memory {
    source: Source,
    /// Whether this process may write to it. Nobody may where the content is sealed.
    writable: bool,
}

/// Where memory comes from.
pub(crate) enum Source {
    /// A load of ours.
    Loaded(SharedBuffer),
    /// A server that loaded it.
    Attached(Attachment),
}

/// Memory that somebody was lent, which keeps it where it is. While a lease of a dma-buf lives, the
/// CPU may access it.
pub(crate) struct Lease {
    /// Before the memory, which it borrows from: fields are dropped in their order.
    _access: Option<SharedView<'static>>,
    memory: Arc<Memory>,
}

impl Backing {
    /// Of loaded memory; `writable` only where it is mapped for writing.
    pub(crate) fn new(source: Source, writable: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Arc::new(Memory { source, writable })))))
    }

    /// The memory, for as long as it takes to look at it.
    ///
    /// # Errors
    /// `ValueError` where it was closed.
    pub(crate) fn memory(&self) -> PyResult<Arc<Memory>> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.clone().ok_or_else(|| PyValueError::new_err("the buffer is closed"))
    }

    /// Lends the memory.
    ///
    /// # Errors
    /// `ValueError` where it was closed, or what the exporter of a dma-buf says.
    pub(crate) fn lease(&self, py: Python<'_>) -> PyResult<Lease> {
        let memory = self.memory()?;
        let access = match &memory.source {
            Source::Loaded(shared) => {
                // SAFETY: the memory outlives the reference, which ends in `_access`: the lease
                // holds the memory and drops it last.
                let shared: &'static SharedBuffer = unsafe { &*std::ptr::from_ref(shared) };
                Some(shared.view().map_err(|heap| error::raised(py, &heap.into()))?)
            }
            Source::Attached(_) => None,
        };
        Ok(Lease { _access: access, memory })
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes the memory, to be freed. Nothing where it was closed before.
    ///
    /// # Errors
    /// `BufferError` while it is lent.
    pub(crate) fn take(&self) -> PyResult<Option<Memory>> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = slot.take() else { return Ok(None) };
        match Arc::try_unwrap(memory) {
            Ok(memory) => Ok(Some(memory)),
            Err(memory) => {
                let leases = Arc::strong_count(&memory) - 1;
                *slot = Some(memory);
                let (views, them) = if leases == 1 { ("view", "it") } else { ("views", "them") };
                Err(PyBufferError::new_err(format!(
                    "cannot close the buffer while {leases} {views} of it (arrays, memoryviews, \
                     DLPack capsules) live: delete {them} first, or let the buffer go with the last"
                )))
            }
        }
    }
}

impl Memory {
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The content's length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        match &self.source {
            Source::Loaded(shared) => shared.len(),
            Source::Attached(attachment) => attachment.len(),
        }
    }

    /// Where the content begins in this process.
    pub(crate) fn address(&self) -> NonNull<u8> {
        match &self.source {
            Source::Loaded(shared) => shared.host().cast(),
            Source::Attached(attachment) => NonNull::from(attachment.as_slice()).cast(),
        }
    }

    /// The descriptor that stands for the memory: the memfd's, or else the dma-buf's.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.memfd().or(self.dma_buf()),
            Source::Attached(attachment) => Some(attachment.memfd()),
        }
    }

    /// The dma-buf's descriptor, if there is a dma-buf.
    pub(crate) fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.dma_buf().map(AsFd::as_fd),
            Source::Attached(_) => None,
        }
    }

    /// The heap it came from and its page sizes, of what was loaded here.
    pub(crate) fn origin(&self) -> Option<(&Heap, PageReport)> {
        match &self.source {
            Source::Loaded(shared) => Some((shared.heap(), shared.page_report())),
            Source::Attached(_) => None,
        }
    }

    /// The server's number for it, where a server has it.
    pub(crate) fn attachment_id(&self) -> Option<u64> {
        match &self.source {
            Source::Loaded(_) => None,
            Source::Attached(attachment) => Some(attachment.id()),
        }
    }

    /// Gives it back: to the kernel, or to the server, which has counted that then.
    ///
    /// # Errors
    /// Where the server does not say so. It is given back nevertheless.
    pub(crate) fn free(self) -> serve::Result<()> {
        match self.source {
            Source::Loaded(_) => Ok(()),
            Source::Attached(attachment) => attachment.release(),
        }
    }
}

impl Lease {
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where a range of the content begins in this process. That many bytes from there are mapped
    /// while the lease lives.
    ///
    /// # Errors
    /// `ValueError` for a range that the content does not have.
    pub(crate) fn address_of(&self, range: &Range<u64>) -> PyResult<NonNull<u8>> {
        let content_bytes = self.memory.len_bytes();
        if range.start > range.end || range.end > content_bytes {
            return Err(PyValueError::new_err(format!(
                "bytes {} to {} are not inside a buffer of {content_bytes}",
                range.start, range.end
            )));
        }
        // SAFETY: inside the mapping, which has no more than isize::MAX bytes.
        Ok(unsafe { self.memory.address().add(range.start as usize) })
    }
}

/// Fills in a view of Python's buffer protocol: a range of the content, as bytes.
///
/// # Errors
/// `BufferError` where writing is asked for and not allowed, `ValueError` for a range that the
/// content does not have.
///
/// # Safety
/// `view` is null or may be written to, and is given to [`give_back`] once, as the protocol says.
pub(crate) unsafe fn lend(
    exporter: &Bound<'_, PyAny>,
    lease: Lease,
    range: Range<u64>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("a view is needed"));
    }
    let address: *mut c_void = lease.address_of(&range)?.as_ptr().cast();
    let len = (range.end - range.start) as ffi::Py_ssize_t;
    let read_only = c_int::from(!lease.memory.writable);
    // SAFETY: `view` may be written to, and the lease keeps that many bytes at the address mapped
    // until the view is given back; they are writable unless the view is said to be read-only.
    let refused =
        unsafe { ffi::PyBuffer_FillInfo(view, exporter.as_ptr(), address, len, read_only, flags) };
    if refused != 0 {
        return Err(PyErr::fetch(exporter.py()));
    }
    // SAFETY: as above. The field is the exporter's own.
    unsafe { (*view).internal = Box::into_raw(Box::new(lease)).cast() };
    Ok(())
}

/// Ends a view.
///
/// # Safety
/// [`lend`] filled in the view, and it is given back for the first time.
pub(crate) unsafe fn give_back(view: *mut ffi::Py_buffer) {
    // SAFETY: the view is valid while it is given back.
    let lease = unsafe { (*view).internal };
    // SAFETY: `lend` put it there, and nobody takes it but this call.
    drop(unsafe { Box::<Lease>::from_raw(lease.cast()) });
}
