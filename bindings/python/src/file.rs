//! `longshore.File`: one of the files in a buffer, and what its header says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_formats::Header;
use longshore_formats::gguf::Value;
use longshore_load::DigestKind;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyMappingProxy, PyString, PyTuple};

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
    pub(crate) made: Made,
}

/// What is made when it is asked for.
pub(crate) struct Made {
    tensors: PyOnceLock<Py<PyMappingProxy>>,
    metadata: PyOnceLock<Py<PyMappingProxy>>,
}

impl Made {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self { tensors: PyOnceLock::new(), metadata: PyOnceLock::new() }
    }
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
        match &self.header {
            Some(Header::Safetensors(_)) => "safetensors",
            Some(Header::Gguf(_)) => "gguf",
            _ => "raw",
        }
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

    /// The metadata of the file by name: strings in safetensors files, values of any type in
    /// GGUF files, where text that is not UTF-8 is bytes.
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

    /// The numbers of the types of a GGUF file's metadata, by name: of an array its own and that of
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

    /// Where each entry of a GGUF file's metadata begins in the file, or in its image in memory, in
    /// bytes by name.
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

    /// The version of the format, which GGUF files have.
    #[getter]
    fn version(&self) -> Option<u32> {
        match &self.header {
            Some(Header::Gguf(header)) => Some(header.version),
            _ => None,
        }
    }

    /// What the data of every tensor is aligned to in the buffer, in bytes, where the file says so,
    /// as GGUF files do.
    #[getter]
    fn alignment(&self) -> Option<u64> {
        match &self.header {
            Some(Header::Gguf(header)) => Some(header.alignment.bytes()),
            _ => None,
        }
    }

    /// Where the data of the tensors begins: the length of all before it, in bytes.
    #[getter]
    fn data_offset(&self) -> Option<u64> {
        self.header.as_ref().map(Header::data_offset)
    }

    /// Its tensors by name, in the order of their data. Raw files have none.
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

/// A value of a GGUF file's metadata.
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
