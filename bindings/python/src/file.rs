//! `longshore.File`: one of the files in a buffer, with its header.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_formats::Header;
use longshore_formats::gguf::Value;
use longshore_load::DigestKind;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyMappingProxy, PyString, PyTuple};

use crate::files::Identity;
use crate::memory::Backing;
use crate::tensor::Tensor;

/// One of the files in a buffer.
#[pyclass(frozen, weakref, module = "longshore")]
pub(crate) struct File {
    /// The version of the file that was loaded; `None` if a server loaded it.
    pub(crate) identity: Option<Identity>,
    pub(crate) path: PathBuf,
    /// Its offset in the buffer, in bytes.
    pub(crate) offset: u64,
    pub(crate) nbytes: u64,
    pub(crate) digests: Vec<(DigestKind, String)>,
    pub(crate) header: Option<Header>,
    pub(crate) backing: Arc<Backing>,
    pub(crate) made: Made,
}

/// Python objects that are created on first use.
pub(crate) struct Made {
    tensors: PyOnceLock<Py<PyMappingProxy>>,
    metadata: PyOnceLock<Py<PyMappingProxy>>,
}

impl Made {
    /// Creates it without any objects.
    pub(crate) const fn new() -> Self {
        Self { tensors: PyOnceLock::new(), metadata: PyOnceLock::new() }
    }
}

#[pymethods]
impl File {
    /// Its path, as it was opened.
    #[getter]
    fn path(&self) -> &Path {
        &self.path
    }

    #[getter]
    fn _identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Its offset in the buffer, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in the buffer, in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// The format that it was read as: "safetensors", "gguf" or "raw".
    #[getter]
    fn format(&self) -> &'static str {
        match &self.header {
            Some(Header::Safetensors(_)) => "safetensors",
            Some(Header::Gguf(_)) => "gguf",
            _ => "raw",
        }
    }

    /// The requested checksums by name, as hexadecimal digits.
    #[getter]
    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let digests = PyDict::new(py);
        for (kind, digest) in &self.digests {
            digests.set_item(kind.to_string(), digest)?;
        }
        Ok(digests)
    }

    /// The metadata of the file by name: strings for safetensors files, values of any type for GGUF
    /// files. GGUF text that is not UTF-8 is returned as bytes.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        let made = self.made.metadata.get_or_try_init(py, || {
            let metadata = PyDict::new(py);
            match &self.header {
                Some(Header::Safetensors(header)) => {
                    for (key, value) in &header.metadata {
                        metadata.set_item(key, value)?;
                    }
                }
                Some(Header::Gguf(header)) => {
                    for (key, value) in header.metadata.iter() {
                        metadata.set_item(key, python_value(py, &value)?)?;
                    }
                }
                _ => {}
            }
            PyResult::Ok(PyMappingProxy::new(py, metadata.as_mapping()).unbind())
        })?;
        Ok(made.clone_ref(py))
    }

    /// The type numbers of a GGUF file's metadata by name; for an array, its own number and that of
    /// its elements.
    #[getter]
    fn metadata_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let types = PyDict::new(py);
        if let Some(Header::Gguf(header)) = &self.header {
            for (key, value) in header.metadata.iter() {
                let mut numbers = vec![value.value_type().number()];
                if let Value::Array(array) = value {
                    numbers.push(array.element_type().number());
                }
                types.set_item(key, PyTuple::new(py, numbers)?)?;
            }
        }
        Ok(types)
    }

    /// The offsets of a GGUF file's metadata entries by name, in bytes: in the file, or in the aligned
    /// layout in memory.
    #[getter]
    fn metadata_offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let offsets = PyDict::new(py);
        if let Some(Header::Gguf(header)) = &self.header {
            for (key, offset) in header.metadata.offsets() {
                offsets.set_item(key, offset)?;
            }
        }
        Ok(offsets)
    }

    /// The version of the format of a GGUF file; None for other formats.
    #[getter]
    fn version(&self) -> Option<u32> {
        match &self.header {
            Some(Header::Gguf(header)) => Some(header.version),
            _ => None,
        }
    }

    /// The alignment of tensor data that a GGUF file declares, in bytes; None for other formats.
    #[getter]
    fn alignment(&self) -> Option<u64> {
        match &self.header {
            Some(Header::Gguf(header)) => Some(header.alignment.bytes()),
            _ => None,
        }
    }

    /// The offset of the tensor data in the file, in bytes; None for raw files.
    #[getter]
    fn data_offset(&self) -> Option<u64> {
        self.header.as_ref().map(Header::data_offset)
    }

    /// Its tensors by name, in the order of their data; empty for raw files.
    #[getter]
    pub(crate) fn tensors(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        let made = self.made.tensors.get_or_try_init(py, || {
            let tensors = PyDict::new(py);
            let all = self.header.iter().flat_map(Header::tensors);
            for tensor in all.filter(|tensor| !tensor.is_padding()) {
                let range = self.offset + tensor.data.start..self.offset + tensor.data.end;
                let view = Tensor::new(Arc::clone(&self.backing), &tensor, range);
                tensors.set_item(tensor.name, Py::new(py, view)?)?;
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

/// Converts a value of a GGUF file's metadata.
fn python_value<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match *value {
        Value::U8(number) => number.into_pyobject(py)?.into_any(),
        Value::I8(number) => number.into_pyobject(py)?.into_any(),
        Value::U16(number) => number.into_pyobject(py)?.into_any(),
        Value::I16(number) => number.into_pyobject(py)?.into_any(),
        Value::U32(number) => number.into_pyobject(py)?.into_any(),
        Value::I32(number) => number.into_pyobject(py)?.into_any(),
        Value::U64(number) => number.into_pyobject(py)?.into_any(),
        Value::I64(number) => number.into_pyobject(py)?.into_any(),
        Value::F32(number) => number.into_pyobject(py)?.into_any(),
        Value::F64(number) => number.into_pyobject(py)?.into_any(),
        Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Value::String(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, bytes).into_any(),
        },
        Value::Array(array) => {
            let list = PyList::empty(py);
            for element in array.values() {
                list.append(python_value(py, &element)?)?;
            }
            list.into_any()
        }
    })
}
