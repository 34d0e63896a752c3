//! `longshore._core`: the extension module of the Python package `longshore`.
//!
//! ```text
//!   load(), attach() ──► Buffer ──► memoryview, descriptor, path
//!                          │
//!                          └─► File ──► Tensor ──► DLPack capsule
//! ```
//!
//! A buffer, its files and its tensors share one [`memory::Backing`]. Each view of the buffer protocol
//! and each DLPack capsule holds a lease, and the memory lives until the last lease is dropped. The
//! conversions to numpy, torch and jax are in Python, in `bindings/python/python/longshore`.

use pyo3::prelude::*;

mod attach;
mod buffer;
mod dlpack;
mod error;
mod file;
mod load;
mod memory;
mod stats;
mod tensor;

/// The extension module of longshore, in Rust; use the package `longshore`.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::attach::attach;
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::load::{OpenedFiles, load, open_safetensors, parse_safetensors};
    #[pymodule_export]
    use crate::stats::Stats;
    #[pymodule_export]
    use crate::tensor::Tensor;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python packages have for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
