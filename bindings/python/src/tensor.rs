//! `longshore.Tensor`: a tensor in a buffer.

use std::ops::Range;
use std::sync::Arc;

use longshore_formats::{Dtype, TensorView};
use longshore_load::StreamedTensor;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use crate::buffer::Bytes;
use crate::dlpack::{self, Element};
use crate::memory::{Backing, Source};

/// A tensor in a buffer, to be imported by any framework.
///
/// It has DLPack's methods, so every framework can import it. `longshore.numpy.asarray` and the
/// functions of the same name for JAX and torch also support types that DLPack lacks.
#[pyclass(frozen, weakref, module = "longshore")]
pub(crate) struct Tensor {
    backing: Arc<Backing>,
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    range: Range<u64>,
}

impl Tensor {
    /// Creates the tensor of a header, with its data at that range of the memory.
    pub(crate) fn new(backing: Arc<Backing>, tensor: &TensorView<'_>, range: Range<u64>) -> Self {
        let (name, shape) = (tensor.name.to_owned(), tensor.shape.to_vec());
        Self { backing, name, dtype: tensor.dtype, shape, range }
    }

    /// Creates the tensor of a stream, with memory of its own.
    pub(crate) fn of_stream(tensor: StreamedTensor) -> Self {
        let (name, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
        let (dtype, range) = (tensor.dtype(), 0..tensor.len() as u64);
        Self { backing: Backing::new(Source::Streamed(tensor), true), name, dtype, shape, range }
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

    /// The type of its elements, by the format's name: "BF16" or "Q4_K", for example.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The elements and the bytes of a block: (1, 4) for 32-bit floats, (2, 1) for two elements in a
    /// byte, (32, 18) for ggml's Q4_0.
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
            // A type that was added to the library, but not here.
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

    /// The offset of its data in the buffer, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.range.start
    }

    /// The address of its data in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.backing.memory()?.address().as_ptr().addr() + self.range.start as usize)
    }

    /// True if the tensor cannot be written to through this buffer.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.backing.memory()?.is_writable())
    }

    /// A view of its data as bytes.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let bytes = Bytes::new(Arc::clone(&self.backing), self.range.clone(), false);
        PyMemoryView::from(Bound::new(py, bytes)?.as_any())
    }

    /// Returns a writable view of its data as bytes, for torch, which has no read-only tensors. If the
    /// content is sealed, it is a copy-on-write mapping: no other process and no other view sees
    /// writes.
    fn _data_to_write<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let bytes = Bytes::new(Arc::clone(&self.backing), self.range.clone(), true);
        PyMemoryView::from(Bound::new(py, bytes)?.as_any())
    }

    /// Returns a DLPack capsule of the tensor, without a copy unless `copy` is True.
    ///
    /// If `max_version` allows it, the capsule is of version 1 and declares whether the memory is
    /// read-only. An older capsule cannot declare that, so its consumer must not write to the memory.
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
            return Err(PyBufferError::new_err(
                "the tensor is in CPU memory, which has no stream; pass None",
            ));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err(
                "the tensor is in CPU memory, and longshore does not move it; let the framework \
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

    /// Returns the device type and the device number of CPU memory in DLPack.
    #[expect(clippy::unused_self, reason = "a method, by DLPack's protocol")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// Returns the tensor as a numpy array, as `longshore.numpy.asarray` does.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("longshore.numpy")?.call_method1("_array", (slf, dtype, copy))
    }

    /// Returns the tensor as a JAX array, as `longshore.jax.asarray` does. Without this method, JAX would
    /// take `dtype` for a type of numpy.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("longshore.jax")?.call_method1("asarray", (slf,))
    }

    fn __repr__(&self) -> String {
        let Self { name, dtype, shape, .. } = self;
        format!("<longshore.Tensor: {name:?}, {dtype} {shape:?}, {} bytes>", self.nbytes())
    }
}
