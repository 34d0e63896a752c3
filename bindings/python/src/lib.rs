//! `longshore._core`: the extension module of the Python package `longshore`.
//!
//! ```text
//!   load(), attach() ──► Buffer ──► memoryview, descriptor, path
//!                          │
//!                          └─► File ──► Tensor ──► DLPack capsule
//!   stream() ──► Stream ─────────────────┘
//! ```
//!
//! A buffer, its files and its tensors share one [`memory::Backing`]. Each view of the buffer protocol
//! and each DLPack capsule holds a lease, and the memory lives until the last lease is dropped. The
//! conversions to numpy, torch and jax are in Python, in `bindings/python/python/longshore`.

#![expect(unsafe_code, reason = "asks Python for the number of the interpreter")]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

mod attach;
mod buffer;
mod cancel;
mod dlpack;
mod error;
mod file;
mod files;
mod find;
mod interrupt;
mod load;
mod memory;
mod servers;
mod small;
mod stats;
mod stream;
mod tensor;

/// The extension module of longshore, in Rust; use the package `longshore`.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::attach::attach;
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::cancel::CancelToken;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::find::find_files;
    #[pymodule_export]
    use crate::interrupt::{defer_interrupt, forget_interrupt, raise_interrupt};
    #[pymodule_export]
    use crate::load::{OpenedFiles, load, open_safetensors, parse_safetensors};
    #[pymodule_export]
    use crate::stats::Stats;
    #[pymodule_export]
    use crate::stream::{Stream, stream};
    #[pymodule_export]
    use crate::tensor::Tensor;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python packages have for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &crate::Bound<'_, crate::PyModule>) -> crate::PyResult<()> {
        crate::check_interpreter(module.py())
    }
}

/// Refuses sub-interpreters: classes are created once for the process, and would belong to the first
/// interpreter, which can end before the others.
///
/// # Errors
/// `ImportError` in a sub-interpreter.
fn check_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached to an interpreter, which lives until it is detached.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: as above.
    let id = unsafe { ffi::PyInterpreterState_GetID(interpreter) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "longshore works in the main interpreter only, and this is a sub-interpreter; use a process",
    ))
}
