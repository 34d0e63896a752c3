//! The memory of a buffer, and leases on it.
//!
//! ```text
//!  longshore.load ──────────► Source::Loaded     a memfd or dma-buf, which can be shared
//!  safe_open, load_file ─┬──► Source::Private    a mapping without a descriptor
//!                        └──► Source::Small      memory of the allocator, up to 1 MiB
//!  longshore.stream ────────► Source::Streamed   memory of a stream, one tensor in each backing
//!  longshore.attach ────────► Source::Attached   memory of a server
//! ```
#![expect(unsafe_code, reason = "lends memory to Python by address")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use longshore_heap::{self as heap, CopyOnWrite, Heap, PageReport};
use longshore_heap::{PrivateBuffer, SharedBuffer, SharedView};
use longshore_load::StreamedTensor;
use longshore_mem::DmaMemory;
use longshore_serve::{self as serve, Attachment};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyErr, ffi};

use crate::error;
use crate::small::Small;

/// The memory of a buffer until it is closed, shared by the buffer, its files and its tensors.
pub(crate) struct Backing(Mutex<State>);

enum State {
    /// The buffer keeps the memory.
    Held(Arc<Memory>),
    /// Only leases keep the memory.
    Released(Weak<Memory>),
    Closed,
}

/// Loaded or attached memory.
pub(crate) struct Memory {
    source: Source,
    /// `true` if this process may write to it. No process may write to sealed content.
    writable: bool,
    /// The copy-on-write mapping of sealed content, for torch.
    copy_on_write: OnceLock<CopyOnWrite>,
}

/// The source of memory.
pub(crate) enum Source {
    /// A load by this process.
    Loaded(SharedBuffer),
    /// A load by this process whose descriptor was closed.
    Private(PrivateBuffer),
    /// A small load by this process.
    Small(Small),
    /// A tensor of a stream.
    Streamed(StreamedTensor),
    /// A server.
    Attached(Attachment),
}

/// A reference to exported memory, which keeps it mapped. A lease on a dma-buf is also a CPU access
/// guard.
pub(crate) struct Lease {
    /// Declared before the memory that it borrows from, because fields are dropped in this order.
    _access: Option<SharedView<'static>>,
    memory: Arc<Memory>,
    /// `true` if addresses are those of the copy-on-write mapping.
    copied_on_write: bool,
}

impl Backing {
    /// Wraps memory; `writable` may be `true` only if it is mapped for writing.
    pub(crate) fn new(source: Source, writable: bool) -> Arc<Self> {
        let memory = Memory { source, writable, copy_on_write: OnceLock::new() };
        Arc::new(Self(Mutex::new(State::Held(Arc::new(memory)))))
    }

    /// Returns the memory for a short use; long uses take a [`Lease`].
    ///
    /// # Errors
    /// `ValueError` if the buffer was closed.
    pub(crate) fn memory(&self) -> PyResult<Arc<Memory>> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Held(memory) => Some(Arc::clone(memory)),
            State::Released(memory) => memory.upgrade(),
            State::Closed => None,
        }
        .ok_or_else(|| PyValueError::new_err("the buffer is closed"))
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
            Source::Private(_) | Source::Small(_) | Source::Streamed(_) | Source::Attached(_) => {
                None
            }
        };
        Ok(Lease { _access: access, memory, copied_on_write: false })
    }

    /// Takes a lease on memory that torch may write to: on a copy-on-write mapping if the content is
    /// sealed, or else on the memory itself.
    ///
    /// # Errors
    /// Those of [`Backing::lease`]; `BufferError` for sealed memory of the hugetlb pool; the error of
    /// the kernel if it refuses the mapping.
    pub(crate) fn lease_to_write(&self, py: Python<'_>) -> PyResult<Lease> {
        let mut lease = self.lease(py)?;
        lease.copied_on_write = lease.memory.make_copy_on_write(py)?;
        Ok(lease)
    }

    /// Returns `true` if the buffer was closed.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::Closed)
    }

    /// Lets the leases alone keep the memory. If there are none, it is freed.
    pub(crate) fn let_go(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Held(memory) = &*state else { return };
        let released = State::Released(Arc::downgrade(memory));
        let held = std::mem::replace(&mut *state, released);
        drop(state);
        // Freeing gigabytes takes a while, so it is done without the lock.
        drop(held);
    }

    /// Returns `true` if the memory exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.memory().is_ok()
    }

    /// Takes the memory out, even while there are leases, which keep it; `None` if the buffer was closed
    /// before.
    pub(crate) fn release(&self) -> Option<Arc<Memory>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Held(memory) => Some(memory),
            State::Released(_) | State::Closed => None,
        }
    }

    /// Takes the memory out to free it; `None` if the buffer was closed before.
    ///
    /// # Errors
    /// `BufferError` while there are leases.
    pub(crate) fn take(&self) -> PyResult<Option<Memory>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Held(memory) = std::mem::replace(&mut *state, State::Closed) else {
            return Ok(None);
        };
        match Arc::try_unwrap(memory) {
            Ok(memory) => Ok(Some(memory)),
            Err(memory) => {
                let leases = Arc::strong_count(&memory) - 1;
                *state = State::Held(memory);
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
            Source::Private(private) => private.len(),
            Source::Small(small) => small.len() as u64,
            Source::Streamed(tensor) => tensor.len() as u64,
            Source::Attached(attachment) => attachment.len(),
        }
    }

    /// Returns the address of the content in this process.
    pub(crate) fn address(&self) -> NonNull<u8> {
        match &self.source {
            Source::Loaded(shared) => shared.host().cast(),
            Source::Private(private) => private.host().cast(),
            Source::Small(small) => small.start(),
            Source::Streamed(tensor) => tensor.host().cast(),
            Source::Attached(attachment) => NonNull::from(attachment.as_slice()).cast(),
        }
    }

    /// Returns the descriptor of the memfd, or of the dma-buf if there is no memfd.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.memfd().or(self.dma_buf()),
            Source::Private(_) | Source::Small(_) | Source::Streamed(_) => None,
            Source::Attached(attachment) => Some(attachment.memfd()),
        }
    }

    /// Returns the descriptor of the dma-buf, if there is one.
    pub(crate) fn dma_buf(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Loaded(shared) => shared.dma_buf().map(AsFd::as_fd),
            Source::Private(_) | Source::Small(_) | Source::Streamed(_) | Source::Attached(_) => {
                None
            }
        }
    }

    /// Returns the heap and the page sizes of memory that this process loaded.
    pub(crate) fn origin(&self) -> Option<(&Heap, PageReport)> {
        match &self.source {
            Source::Loaded(shared) => Some((shared.heap(), shared.page_report())),
            Source::Private(private) => Some((private.heap(), private.page_report())),
            Source::Small(_) | Source::Streamed(_) | Source::Attached(_) => None,
        }
    }

    /// Returns the server's number for attached memory.
    pub(crate) fn attachment_id(&self) -> Option<u64> {
        match &self.source {
            Source::Loaded(_) | Source::Private(_) | Source::Small(_) | Source::Streamed(_) => None,
            Source::Attached(attachment) => Some(attachment.id()),
        }
    }

    /// Maps sealed content copy-on-write, unless it is mapped so already. Returns `false` if the
    /// content is not sealed.
    fn make_copy_on_write(&self, py: Python<'_>) -> PyResult<bool> {
        let memfd = match &self.source {
            Source::Loaded(shared) if shared.sealing() == heap::Sealing::Content => shared.memfd(),
            Source::Attached(attachment) => Some(attachment.memfd()),
            Source::Loaded(_) | Source::Private(_) | Source::Small(_) | Source::Streamed(_) => None,
        };
        let Some(memfd) = memfd else { return Ok(false) };
        if self.copy_on_write.get().is_none() {
            let made = CopyOnWrite::new(memfd, self.len_bytes()).map_err(|error| match error {
                heap::Error::HugetlbCopyOnWrite => PyBufferError::new_err(format!(
                    "{error}; pass writable=False for tensors that must not be written to"
                )),
                error => error::raised(py, &error.into()),
            })?;
            // If another thread was faster, its mapping is used.
            let _ = self.copy_on_write.set(made);
        }
        Ok(true)
    }

    /// Frees loaded memory, or releases attached memory and waits until the server confirms that.
    ///
    /// # Errors
    /// If the server does not confirm it. The memory is released nevertheless.
    pub(crate) fn free(self) -> serve::Result<()> {
        match self.source {
            Source::Loaded(_) | Source::Private(_) | Source::Small(_) | Source::Streamed(_) => {
                Ok(())
            }
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
        let start = match self.memory.copy_on_write.get() {
            Some(mapping) if self.copied_on_write => mapping.host().cast(),
            _ => self.memory.address(),
        };
        // SAFETY: it is inside the mapping, which has no more than isize::MAX bytes.
        Ok(unsafe { start.add(range.start as usize) })
    }

    /// Returns `true` if this process may write to the leased memory.
    fn is_writable(&self) -> bool {
        self.memory.writable || self.copied_on_write
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
    let read_only = c_int::from(!lease.is_writable());
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
