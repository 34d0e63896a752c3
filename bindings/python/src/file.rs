//! `longshore.File`: one of the files in a buffer, and what its header says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore::load::DigestKind;
use longshore::load::format::safetensors::Header;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMappingProxy};

use crate::memory::Backing;
use crate::tensor::Tensor;

/// One of the files in a buffer.
#[pyclass(frozen, module = "longshore")]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// Where it begins in the buffer.
    pub(crate) offset: u64,
    pub(crate) nbytes: u64,
    pub(crate) digests: Vec<(DigestKind, String)>,
    pub(crate) header: Option<Header>,
    pub(crate) backing: Arc<Backing>,
    pub(crate) made: PyOnceLock<Py<PyMappingProxy>>,
}

#[pymethods]
impl File {
    /// Its name as it was opened.
    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    /// Where it begins in the buffer, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes of it were read.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// What it was taken to be: "safetensors", "gguf" or "raw".
    #[getter]
    fn format(&self) -> &'static str {
        if self.header.is_some() { "safetensors" } else { "raw" }
    }

    /// The checksums asked for: hexadecimal digits by name.
    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let digests = PyDict::new(py);
        for (kind, digest) in &self.digests {
            digests.set_item(kind.to_string(), digest)?;
        }
        Ok(digests)
    }

    /// What the file says of itself by name.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metadata = PyDict::new(py);
        for (key, value) in self.header.iter().flat_map(|header| &header.metadata) {
            metadata.set_item(key, value)?;
        }
        Ok(metadata)
    }

    /// Its tensors by name, in the order of their data. Raw files have none.
    #[getter]
    pub(crate) fn tensors(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        let made = self.made.get_or_try_init(py, || {
            let tensors = PyDict::new(py);
            let all = self.header.iter().flat_map(|header| &header.tensors);
            for tensor in all.filter(|tensor| !tensor.is_padding()) {
                let range = self.offset + tensor.data.start..self.offset + tensor.data.end;
                let (name, dtype) = (tensor.name.as_str(), tensor.dtype.name());
                let shape = tensor.shape.clone();
                let view = Tensor::new(Arc::clone(&self.backing), name, dtype, shape, range);
                tensors.set_item(name, Py::new(py, view)?)?;
            }
            PyResult::Ok(PyMappingProxy::new(py, tensors.as_mapping()).unbind())
        })?;
        Ok(made.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        let (path, bytes, offset) = (self.path.display(), self.nbytes, self.offset);
        format!("<longshore.File: {path}, {bytes} bytes at {offset}>")
    }
}
