//! The memory of a buffer, and leases on it.
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

/// The memory of a buffer until it is closed, shared by the buffer, its files and its tensors.
pub(crate) struct Backing(Mutex<Option<Arc<Memory>>>);

/// Loaded or attached memory.
pub(crate) struct Memory {
    source: Source,
    /// `true` if this process may write to it. No process may write to sealed content.
    writable: bool,
}

/// The source of memory.
pub(crate) enum Source {
    /// A load by this process.
    Loaded(SharedBuffer),
    /// A server.
    Attached(Attachment),
}

/// A reference to exported memory, which keeps it mapped. A lease on a dma-buf is also a CPU access
/// guard.
pub(crate) struct Lease {
    /// Declared before the memory that it borrows from, because fields are dropped in this order.
    _access: Option<SharedView<'static>>,
    memory: Arc<Memory>,
}

impl Backing {
    /// Wraps memory; `writable` may be `true` only if it is mapped for writing.
    pub(crate) fn new(source: Source, writable: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Arc::new(Memory { source, writable })))))
    }

    /// Returns the memory for a short use; long uses take a [`Lease`].
    ///
    /// # Errors
    /// `ValueError` if the buffer was closed.
    pub(crate) fn memory(&self) -> PyResult<Arc<Memory>> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.clone().ok_or_else(|| PyValueError::new_err("the buffer is closed"))
    }

    /// Takes a lease on the memory.
    ///
    /// # Errors
    /// `ValueError` if the buffer was closed, or the error of a dma-buf's exporter.
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

    /// Returns `true` if the buffer was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Takes the memory out to free it; `None` if the buffer was closed before.
    ///
    /// # Errors
    /// `BufferError` while there are leases.
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
                     DLPack capsules) exist: delete {them} first, or do not close the buffer: it is \
                     freed with its last view"
                )))
            }
        }
    }
}

impl Memory {
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the length of the content in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        match &self.source {
            Source::Loaded(shared) => shared.len(),
            Source::Attached(attachment) => attachment.len(),
        }
    }

    /// Returns the address of the content in this process.
    pub(crate) fn address(&self) -> NonNull<u8> {
        match &self.source {
            Source::Loaded(shared) => shared.host().cast(),
            Source::Attached(attachment) => NonNull::from(attachment.as_slice()).cast(),
        }
    }

    /// Returns the descriptor of the memfd, or of the dma-buf if there is no memfd.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.memfd().or(self.dma_buf()),
            Source::Attached(attachment) => Some(attachment.memfd()),
        }
    }

    /// Returns the descriptor of the dma-buf, if there is one.
    pub(crate) fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.dma_buf().map(AsFd::as_fd),
            Source::Attached(_) => None,
        }
    }

    /// Returns the heap and the page sizes of memory that this process loaded.
    pub(crate) fn origin(&self) -> Option<(&Heap, PageReport)> {
        match &self.source {
            Source::Loaded(shared) => Some((shared.heap(), shared.page_report())),
            Source::Attached(_) => None,
        }
    }

    /// Returns the server's number for attached memory.
    pub(crate) fn attachment_id(&self) -> Option<u64> {
        match &self.source {
            Source::Loaded(_) => None,
            Source::Attached(attachment) => Some(attachment.id()),
        }
    }

    /// Frees loaded memory, or releases attached memory and waits until the server confirms that.
    ///
    /// # Errors
    /// If the server does not confirm it. The memory is released nevertheless.
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

    /// Returns the address of a range of the content in this process. The range is mapped while the
    /// lease lives.
    ///
    /// # Errors
    /// `ValueError` if the range is out of bounds.
    pub(crate) fn address_of(&self, range: &Range<u64>) -> PyResult<NonNull<u8>> {
        let content_bytes = self.memory.len_bytes();
        if range.start > range.end || range.end > content_bytes {
            return Err(PyValueError::new_err(format!(
                "bytes {} to {} are out of bounds of a buffer of {content_bytes} bytes",
                range.start, range.end
            )));
        }
        // SAFETY: it is inside the mapping, which has no more than isize::MAX bytes.
        Ok(unsafe { self.memory.address().add(range.start as usize) })
    }
}

/// Fills in a view of Python's buffer protocol with a range of the content, as bytes.
///
/// # Errors
/// `BufferError` if a writable view of read-only memory is requested, `ValueError` if the range is
/// out of bounds.
///
/// # Safety
/// `view` is null or valid for writes, and is passed to [`give_back`] once, as the protocol requires.
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
    // SAFETY: `view` is valid for writes. The lease keeps the range mapped until the view is
    // released, and the range is writable unless `read_only` is set.
    let refused =
        unsafe { ffi::PyBuffer_FillInfo(view, exporter.as_ptr(), address, len, read_only, flags) };
    if refused != 0 {
        return Err(PyErr::fetch(exporter.py()));
    }
    // SAFETY: as above. The protocol reserves this field for the exporter.
    unsafe { (*view).internal = Box::into_raw(Box::new(lease)).cast() };
    Ok(())
}

/// Releases a view.
///
/// # Safety
/// [`lend`] filled in the view, and it was not released before.
pub(crate) unsafe fn give_back(view: *mut ffi::Py_buffer) {
    // SAFETY: the view is valid until this function returns.
    let lease = unsafe { (*view).internal };
    // SAFETY: `lend` stored it there, and only this call takes it out.
    drop(unsafe { Box::<Lease>::from_raw(lease.cast()) });
}
