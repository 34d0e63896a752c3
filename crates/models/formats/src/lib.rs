//! Parsers of the file formats of model weights. They return the tensors of a file and the range of
//! each: bytes in, ranges out.
//!
//! This crate opens and reads no files. The caller reads the beginning of a file, from wherever it is
//! stored, and passes it to a parser:
//!
//! ```text
//!   beginning of a file ──┬─► safetensors::Header::parse ──┬─► Header ──► TensorView: name, dtype,
//!                         └─► gguf::Header::parse ─────────┘     │        shape, bytes in the file
//!   content of an index ────► index::ShardIndex::parse           └─► Image: the same tensors, each at
//!                                                                    a multiple of an alignment
//! ```
//!
//! Files are untrusted input. A header is checked as a whole, also against the length of its file. The
//! memory that parsing takes has a documented upper bound for any content.

#![forbid(unsafe_code)]

pub mod directory;
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
mod pattern;
mod quoted;

pub use dtype::Dtype;
pub use error::{Error, Result};
pub use format::Format;
pub use header::{Header, TensorView};
pub use image::{Image, Part};
pub use pattern::matches_pattern;
pub use quoted::{QuotedName, printable, quoted};
