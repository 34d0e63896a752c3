//! `longshore._core`: what of the Python package `longshore` is Rust.
//!
//! ```text
//!   load(), attach() ──► Buffer ──► memoryview, descriptor, path
//!                          │
//!                          └─► File ──► Tensor ──► DLPack capsule
//! ```
//!
//! All of it shares one [`memory::Backing`]. Whoever is lent the memory, a view of Python's buffer
//! protocol or a DLPack capsule, holds a lease, and the memory lives until the last is given back.
//! What numpy, torch and jax make of a tensor is Python, in `bindings/python/python/longshore`.

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

/// What of longshore is Rust; use the package `longshore`.
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
