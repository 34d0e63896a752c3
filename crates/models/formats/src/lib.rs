//! File formats of model weights: which tensors are in a file, and where. Bytes in, ranges out.
//!
//! Nothing here opens or reads a file. A caller reads the beginning of one, however it gets at it,
//! and has it parsed:
//!
//! ```text
//!   beginning of a file ──┬─► safetensors::Header::parse ──┬─► Header ──► TensorView: name, dtype,
//!                         └─► gguf::Header::parse ─────────┘     │        shape, bytes in the file
//!   content of an index ────► index::ShardIndex::parse           └─► Image: the same tensors, each at
//!                                                                    a multiple of an alignment
//! ```
//!
//! Files come from anywhere, so nothing in them is trusted: a header is checked as a whole, against
//! the length of its file too, and reading it takes a documented amount of memory at most, whatever
//! is in it.

#![forbid(unsafe_code)]

pub mod gguf;
pub mod index;
pub mod reason;
pub mod safetensors;

mod detail;
mod dtype;
mod error;
mod format;
mod header;
mod image;
mod json;
mod quoted;

pub use dtype::Dtype;
pub use error::{Error, Result};
pub use format::Format;
pub use header::{Header, TensorView};
pub use image::{Image, Part};
pub use quoted::{QuotedName, printable, quoted};
