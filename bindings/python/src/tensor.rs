//! `longshore.Tensor`: where a tensor is in a buffer.

use std::ops::Range;
use std::sync::Arc;

use longshore_formats::{Dtype, TensorView};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use crate::buffer::Bytes;
use crate::dlpack::{self, Element};
use crate::memory::Backing;

/// A tensor in a buffer, which no framework has made anything of yet.
///
/// It has DLPack's methods, so every framework imports it. `longshore.numpy.asarray` and its like
/// also know the types that DLPack has no name for.
#[pyclass(frozen, module = "longshore")]
pub(crate) struct Tensor {
    backing: Arc<Backing>,
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    range: Range<u64>,
}

impl Tensor {
    /// The tensor of a header whose data is at that range of the memory.
    pub(crate) fn new(backing: Arc<Backing>, tensor: &TensorView<'_>, range: Range<u64>) -> Self {
        let (name, shape) = (tensor.name.to_owned(), tensor.shape.to_vec());
        Self { backing, name, dtype: tensor.dtype, shape, range }
    }

    fn element(&self) -> PyResult<Element> {
        Element::of(self.dtype.name()).ok_or_else(|| {
            PyBufferError::new_err(format!(
                "DLPack has no type for {}; 'data' has the bytes of tensor '{}'",
                self.dtype, self.name
            ))
        })
    }
}

#[pymethods]
impl Tensor {
    /// Its name in the file.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The format's own name for its type, such as "BF16" or "Q4_K".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// How its elements are packed: elements and bytes of a block. (1, 4) is a float, (2, 1) two
    /// elements in a byte, and (32, 18) a block of ggml's Q4_0.
    #[getter]
    fn block(&self) -> (u64, u64) {
        match self.dtype {
            Dtype::Ggml(dtype) => (dtype.block_elements(), dtype.block_bytes()),
            Dtype::Safetensors(dtype) => {
                // 4 or 6 bits, or whole bytes.
                let bits = dtype.bits();
                let elements = 8 / (1 << bits.trailing_zeros().min(3));
                (elements, elements * bits / 8)
            }
            // Known to the library, but not yet to this.
            _ => (1, 0),
        }
    }

    /// Its dimensions, outermost first; empty for a scalar.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The length of its data in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where its data begins in the buffer, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.range.start
    }

    /// Where its data begins in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.backing.memory()?.address().as_ptr().addr() + self.range.start as usize)
    }

    /// Whether nobody can write to it through this buffer.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.backing.memory()?.is_writable())
    }

    /// Its data as bytes, not copied.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let bytes = Bytes::new(Arc::clone(&self.backing), self.range.clone());
        PyMemoryView::from(Bound::new(py, bytes)?.as_any())
    }

    /// A DLPack capsule of it, not copied unless `copy` says so.
    ///
    /// One of version 1 for who says by `max_version` that it can take it: that tells what is
    /// read-only. The capsule of old cannot, so nobody may write to what it brings.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the CPU has no stream; pass None"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err(
                "the tensor is in memory of the CPU, and is moved nowhere else; let the framework \
                 import it there and move it",
            ));
        }
        let element = self.element()?;
        let versioned = max_version.is_some_and(|(major, _)| major >= dlpack::MAJOR);
        let lease = self.backing.lease(py)?;
        let address = lease.address_of(&self.range)?;
        let owner = if copy == Some(true) {
            dlpack::Owner::copied(py, &lease, &self.range)?
        } else {
            dlpack::Owner::lent(lease, address)
        };
        dlpack::capsule(py, owner, element, &self.shape, versioned)
    }

    /// DLPack's name for the memory of the CPU.
    #[expect(clippy::unused_self, reason = "a method, by DLPack's protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// A numpy array of it, as `longshore.numpy.asarray` gives.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("longshore.numpy")?.call_method1("_array", (slf, dtype, copy))
    }

    fn __repr__(&self) -> String {
        let Self { name, dtype, shape, .. } = self;
        format!("<longshore.Tensor: {name:?}, {dtype} {shape:?}, {} bytes>", self.nbytes())
    }
}
