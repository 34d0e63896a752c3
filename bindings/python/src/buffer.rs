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

/// A loaded file, or several, in memory that other processes and devices can be given.
///
/// It has the buffer protocol, and `fileno()` and `path` for everybody else. Made by
/// `longshore.load`.
#[pyclass(frozen, module = "longshore")]
pub(crate) struct Buffer {
    backing: Arc<Backing>,
    nbytes: u64,
    stats: Option<Py<Stats>>,
    files: Py<PyTuple>,
    tensors: PyOnceLock<Py<PyMappingProxy>>,
}

/// A range of the memory, which numpy and others see as bytes. It does not know the buffer, whose
/// tensors it is for: they would keep each other alive.
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

    /// Where the content begins in this process, a multiple of the page size.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.backing.memory()?.address().as_ptr().addr())
    }

    /// The page size in bytes of at least nine tenths of the memory; None where it is mixed, or
    /// not known.
    #[getter]
    fn page_size(&self) -> PyResult<Option<u64>> {
        let memory = self.backing.memory()?;
        let pages = memory.origin().and_then(|(_, pages)| pages.prevailing());
        Ok(pages.map(Granule::bytes))
    }

    /// The heap that the memory came from, such as "memfd"; "served" where a server has it.
    #[getter]
    fn heap(&self) -> PyResult<String> {
        let memory = self.backing.memory()?;
        Ok(memory.origin().map_or_else(|| "served".to_owned(), |(heap, _)| heap.to_string()))
    }

    /// The server's number for it, where a server has it; else None.
    #[getter]
    fn attachment_id(&self) -> PyResult<Option<u64>> {
        Ok(self.backing.memory()?.attachment_id())
    }

    /// Whether nobody can write to the memory through this buffer.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.backing.memory()?.is_writable())
    }

    /// What the load did; None where somebody else loaded it.
    #[getter]
    fn stats(&self, py: Python<'_>) -> Option<Py<Stats>> {
        self.stats.as_ref().map(|stats| stats.clone_ref(py))
    }

    /// The files in it, in their order: shards for an index that was named.
    #[getter]
    fn files(&self, py: Python<'_>) -> Py<PyTuple> {
        self.files.clone_ref(py)
    }

    /// The tensors of all files by name.
    ///
    /// FormatError where two files have one of the same name: `files` has them apart.
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

    /// The descriptor of the memory: a memfd that can be mapped and read, or else a dma-buf. It
    /// stays the buffer's own; duplicate it to keep it.
    fn fileno(&self) -> PyResult<i32> {
        let memory = self.backing.memory()?;
        let fd = memory.descriptor().ok_or_else(|| PyBufferError::new_err("it has none"))?;
        Ok(fd.as_raw_fd())
    }

    /// The descriptor of the dma-buf, which heaps 'udmabuf' and 'dma-heap' give; else None.
    fn dma_buf_fileno(&self) -> PyResult<Option<i32>> {
        Ok(self.backing.memory()?.dma_buf().map(|fd| fd.as_raw_fd()))
    }

    /// A name that programs which know nothing of longshore can open and map, while this process
    /// lives and holds the buffer: /proc/PID/fd/N.
    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(format!("/proc/{}/fd/{}", std::process::id(), self.fileno()?))
    }

    /// Frees the memory now, and not with the last reference. Closing twice is no error. What is
    /// attached is released, and the server has counted that when this returns.
    ///
    /// BufferError while views of it live: memoryviews, arrays, DLPack capsules.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(memory) = self.backing.take()? else { return Ok(()) };
        // Giving back gigabytes of pages takes a while.
        py.detach(|| memory.free()).map_err(|error| error::raised_by_server(py, &error))
    }

    /// Whether it was closed.
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
        // SAFETY: Python calls this with a view as the protocol says.
        unsafe { lend(slf.as_any(), lease, 0..this.nbytes, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python gives back what `__getbuffer__` filled in.
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
        // SAFETY: Python calls this with a view as the protocol says.
        unsafe { lend(slf.as_any(), lease, this.range.clone(), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python gives back what `__getbuffer__` filled in.
        unsafe { give_back(view) };
    }
}
