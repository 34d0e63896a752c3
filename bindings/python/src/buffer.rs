//! `longshore.Buffer`.
#![expect(unsafe_code, reason = "implements Python's buffer protocol")]

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use longshore_mem::Granule;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyList, PyMappingProxy, PyTuple};

use crate::error;
use crate::file::File;
use crate::memory::{Backing, give_back, lend};
use crate::stats::Stats;

/// One or more loaded files, in memory that can be shared with processes and devices.
///
/// It supports the buffer protocol. Other processes use `fileno()` or `path`. `longshore.load` and
/// `longshore.attach` return it.
#[pyclass(frozen, weakref, mapping, module = "longshore")]
pub(crate) struct Buffer {
    backing: Arc<Backing>,
    nbytes: u64,
    stats: Option<Py<Stats>>,
    files: Py<PyTuple>,
    tensors: PyOnceLock<Py<PyMappingProxy>>,
    /// The arguments of the call that returned the buffer, to load it again in another process.
    source: PyOnceLock<Py<PyAny>>,
}

/// A range of the memory, exported as bytes by the buffer protocol. It has no reference to the
/// buffer, because the buffer refers to its tensors and the cycle would keep both alive.
#[pyclass(frozen)]
pub(crate) struct Bytes {
    backing: Arc<Backing>,
    range: Range<u64>,
    /// `true` for memory that torch may write to.
    to_write: bool,
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
        let (tensors, source) = (PyOnceLock::new(), PyOnceLock::new());
        Ok(Self { backing, nbytes, stats, files, tensors, source })
    }
}

impl Bytes {
    pub(crate) fn new(backing: Arc<Backing>, range: Range<u64>, to_write: bool) -> Self {
        Self { backing, range, to_write }
    }
}

#[pymethods]
impl Buffer {
    /// The content's length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
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

    /// The heap that the memory came from, such as "memfd"; "served" if it belongs to a server,
    /// "private" if it came from the allocator.
    #[getter]
    fn heap(&self) -> PyResult<String> {
        let memory = self.backing.memory()?;
        Ok(match (memory.origin(), memory.attachment_id()) {
            (Some((heap, _)), _) => heap.to_string(),
            (None, Some(_)) => "served".to_owned(),
            (None, None) => "private".to_owned(),
        })
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

    /// Frees the memory when its last view is gone, although the buffer exists. The buffer can be
    /// used as long as `_is_alive` returns True.
    fn _let_go(&self, py: Python<'_>) {
        py.detach(|| self.backing.let_go());
    }

    /// Returns True if the memory exists.
    fn _is_alive(&self) -> bool {
        self.backing.is_alive()
    }

    /// True if the buffer was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.backing.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the buffer. Views that exist keep the memory, which is freed with the last one.
    #[pyo3(signature = (exc_type, *_args))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyAny>>,
        _args: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let Some(memory) = self.backing.release().and_then(Arc::into_inner) else { return Ok(()) };
        match py.detach(|| memory.free()) {
            // An error of the server would hide the exception of the block.
            Err(error) if exc_type.is_none() => Err(error::raised_by_server(py, &error)),
            _ => Ok(()),
        }
    }

    /// The number of tensors; `nbytes` is the length in bytes.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.tensors(py)?.bind(py).len()
    }

    /// True even if there are no tensors.
    #[expect(clippy::unused_self, reason = "a method, by Python's protocol")]
    fn __bool__(&self) -> bool {
        true
    }

    fn __contains__(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.tensors(py)?.bind(py).as_any().contains(name)
    }

    /// Returns the tensor of that name.
    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.tensors(name.py())?.bind(name.py()).as_any().get_item(name)
    }

    /// Iterates over the names of the tensors.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tensors(py)?.bind(py).as_any().try_iter()
    }

    /// Returns the names of the tensors, so that `dict(buffer)` has the tensors by name.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.tensors(py)?.bind(py).keys()
    }

    #[getter]
    fn _source(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.source.get(py).map(|source| source.clone_ref(py))
    }

    /// Sets the arguments to load the buffer again; only the first call has an effect.
    fn _set_source(&self, py: Python<'_>, source: Py<PyAny>) {
        let _ = self.source.set(py, source);
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("longshore._source")?.call_method1("reduce", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.backing.is_closed() {
            return Ok("<longshore.Buffer: closed>".to_owned());
        }
        let (bytes, files) = (self.nbytes, self.files.bind(py).len());
        let plural = if files == 1 { "" } else { "s" };
        let memory = self.backing.memory()?;
        let from = memory.origin().map_or_else(
            || if memory.attachment_id().is_some() { "attached" } else { "private" }.to_owned(),
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
        let py = slf.py();
        let lease = if this.to_write {
            this.backing.lease_to_write(py)?
        } else {
            this.backing.lease(py)?
        };
        // SAFETY: Python passes a view that meets the buffer protocol.
        unsafe { lend(slf.as_any(), lease, this.range.clone(), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python releases a view that `__getbuffer__` filled in.
        unsafe { give_back(view) };
    }
}
