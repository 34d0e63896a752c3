//! `longshore.Buffer`.
#![expect(unsafe_code, reason = "implements Python's buffer protocol")]

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use longshore_mem::Granule;
use pyo3::exceptions::{PyBufferError, PyOverflowError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMappingProxy, PyTuple};

use crate::error;
use crate::file::File;
use crate::memory::{Backing, give_back, lend};
use crate::stats::Stats;

/// One or more loaded files, in memory that can be shared with processes and devices.
///
/// It supports the buffer protocol. Other processes use `fileno()` or `path`. `longshore.load` and
/// `longshore.attach` return it.
#[pyclass(frozen, module = "longshore")]
pub(crate) struct Buffer {
    backing: Arc<Backing>,
    nbytes: u64,
    stats: Option<Py<Stats>>,
    files: Py<PyTuple>,
    tensors: PyOnceLock<Py<PyMappingProxy>>,
}

/// A range of the memory, exported as bytes by the buffer protocol. It has no reference to the
/// buffer, because the buffer refers to its tensors and the cycle would keep both alive.
#[pyclass(frozen)]
pub(crate) struct Bytes {
    backing: Arc<Backing>,
    range: Range<u64>,
}

impl Buffer {
    pub(crate) fn new(
        py: Python<'_>,
        backing: Arc<Backing>,
        stats: Option<Stats>,
        files: Vec<File>,
    ) -> PyResult<Self> {
        let nbytes = backing.memory()?.len_bytes();
        let stats = stats.map(|stats| Py::new(py, stats)).transpose()?;
        let files = PyTuple::new(py, files)?.unbind();
        Ok(Self { backing, nbytes, stats, files, tensors: PyOnceLock::new() })
    }
}

impl Bytes {
    pub(crate) fn new(backing: Arc<Backing>, range: Range<u64>) -> Self {
        Self { backing, range }
    }
}

#[pymethods]
impl Buffer {
    /// The content's length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.nbytes).map_err(|_| PyOverflowError::new_err("too long for len()"))
    }

    /// The address of the content in this process, a multiple of the page size.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.backing.memory()?.address().as_ptr().addr())
    }

    /// The page size in bytes of at least nine tenths of the memory; None if the sizes are mixed or
    /// not known.
    #[getter]
    fn page_size(&self) -> PyResult<Option<u64>> {
        let memory = self.backing.memory()?;
        let pages = memory.origin().and_then(|(_, pages)| pages.prevailing());
        Ok(pages.map(Granule::bytes))
    }

    /// The heap that the memory came from, such as "memfd"; "served" if it belongs to a server.
    #[getter]
    fn heap(&self) -> PyResult<String> {
        let memory = self.backing.memory()?;
        Ok(memory.origin().map_or_else(|| "served".to_owned(), |(heap, _)| heap.to_string()))
    }

    /// The server's number for the model, as `longshore ls` shows it; None if it was loaded here.
    #[getter]
    fn attachment_id(&self) -> PyResult<Option<u64>> {
        Ok(self.backing.memory()?.attachment_id())
    }

    /// True if the memory cannot be written to through this buffer.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.backing.memory()?.is_writable())
    }

    /// The statistics of the load; None if a server loaded the files.
    #[getter]
    fn stats(&self, py: Python<'_>) -> Option<Py<Stats>> {
        self.stats.as_ref().map(|stats| stats.clone_ref(py))
    }

    /// The files in the buffer, in their order; for an index, its shards.
    #[getter]
    fn files(&self, py: Python<'_>) -> Py<PyTuple> {
        self.files.clone_ref(py)
    }

    /// The tensors of all files by name.
    ///
    /// Raises FormatError if two files have a tensor of the same name; use `files` then.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        let made = self.tensors.get_or_try_init(py, || {
            let all = PyDict::new(py);
            for file in self.files.bind(py) {
                let file = file.cast_into::<File>()?;
                for entry in file.get().tensors(py)?.bind(py).items()? {
                    let (name, tensor): (Bound<'_, PyAny>, Bound<'_, PyAny>) = entry.extract()?;
                    if all.contains(&name)? {
                        return Err(error::ambiguous(py, &name)?);
                    }
                    all.set_item(name, tensor)?;
                }
            }
            Ok(PyMappingProxy::new(py, all.as_mapping()).unbind())
        })?;
        Ok(made.clone_ref(py))
    }

    /// The file descriptor of the memory: a memfd, which can be mapped and read, or a dma-buf if
    /// there is no memfd. The buffer owns it; duplicate it to keep it.
    fn fileno(&self) -> PyResult<i32> {
        let memory = self.backing.memory()?;
        let fd = memory.descriptor();
        let fd = fd.ok_or_else(|| PyBufferError::new_err("the buffer has no file descriptor"))?;
        Ok(fd.as_raw_fd())
    }

    /// The file descriptor of the dma-buf of the heaps 'udmabuf' and 'dma-heap'; None for others.
    fn dma_buf_fileno(&self) -> PyResult<Option<i32>> {
        Ok(self.backing.memory()?.dma_buf().map(|fd| fd.as_raw_fd()))
    }

    /// A path that any program can open and map while this process lives and holds the buffer:
    /// /proc/PID/fd/N.
    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(format!("/proc/{}/fd/{}", std::process::id(), self.fileno()?))
    }

    /// Frees the memory now instead of with the last reference. A second call does nothing. If the
    /// model is attached, the server has removed the attachment when this returns.
    ///
    /// Raises BufferError while views of the memory exist: memoryviews, arrays, DLPack capsules.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(memory) = self.backing.take()? else { return Ok(()) };
        // Freeing gigabytes of pages takes a while.
        py.detach(|| memory.free()).map_err(|error| error::raised_by_server(py, &error))
    }

    /// True if the buffer was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.backing.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.backing.is_closed() {
            return Ok("<longshore.Buffer: closed>".to_owned());
        }
        let (bytes, files) = (self.nbytes, self.files.bind(py).len());
        let plural = if files == 1 { "" } else { "s" };
        let memory = self.backing.memory()?;
        let from = memory.origin().map_or_else(
            || "attached".to_owned(),
            |(heap, pages)| format!("{heap} in {pages} pages"),
        );
        Ok(format!("<longshore.Buffer: {bytes} bytes of {files} file{plural}, {from}>"))
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let lease = this.backing.lease(slf.py())?;
        // SAFETY: Python passes a view that meets the buffer protocol.
        unsafe { lend(slf.as_any(), lease, 0..this.nbytes, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python releases a view that `__getbuffer__` filled in.
        unsafe { give_back(view) };
    }
}

#[pymethods]
impl Bytes {
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let lease = this.backing.lease(slf.py())?;
        // SAFETY: Python passes a view that meets the buffer protocol.
        unsafe { lend(slf.as_any(), lease, this.range.clone(), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python releases a view that `__getbuffer__` filled in.
        unsafe { give_back(view) };
    }
}
