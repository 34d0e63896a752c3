//! GGUF: typed metadata, descriptions of tensors, and the data of the tensors at aligned offsets.
//!
//! ```text
//!   0      4         8          16         24                              data_offset
//!   ├──────┼─────────┼──────────┼──────────┼──────────┼─────────────┼─────┼─────────┼─────┼────────
//!   │ GGUF │ version │ tensors, │ entries, │ metadata │ tensors and │ pad │ data of │ pad │ data of
//!   │      │ u32     │ u64      │ u64      │          │ offsets     │     │ one     │     │ next …
//!   └──────┴─────────┴──────────┴──────────┴──────────┴─────────────┴─────┴─────────┴─────┴────────
//! ```
//!
//! This module reads versions 2 and 3, in little-endian order. Version 3 differs from version 2 only in
//! that it permits big-endian files, too. The source is [the format's specification], `docs/gguf.md` of
//! ggml.
//!
//! A header is untrusted input, and does not state its own length. [`Header::parse_beginning`] requests
//! more bytes as it needs them. [`Header::parse`] checks the whole header, and takes at most
//! [`parse_memory_max_bytes`] of memory.
//!
//! The parser refuses:
//!
//! - files that the specification forbids: lengths that do not fit into the file or into 64 bits,
//!   unknown types, tensors that overlap, are not aligned or have an incomplete block, names that occur
//!   twice;
//! - more than [`HEADER_LEN_MAX_BYTES`], [`TENSORS_MAX`], [`METADATA_ENTRIES_MAX`] or four levels of
//!   nested arrays.
//!
//! It accepts:
//!
//! - files that violate the specification in ways that are common: tensor names longer than 64 bytes,
//!   keys that are not in lower case, strings that are not UTF-8;
//! - files that ggml refuses although the specification allows them: nested arrays, gaps between
//!   tensors, and descriptions in another order than the data.
//!
//! Tensor names and keys are not escaped, so they may contain control characters.
//! [`crate::printable`] makes them safe to print on a terminal.
//!
//! [the format's specification]: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

mod cursor;
mod dtype;
mod encode;
mod header;
mod limits;
mod metadata;
mod parse;
mod split;
#[cfg(test)]
mod tests;
mod value_type;

pub use dtype::Dtype;
pub(crate) use dtype::removed as removed_dtype;
pub use encode::{EncodeError, Encoded};
pub use header::{Header, Tensor};
pub(crate) use limits::{ALIGNMENT_KEY, ALIGNMENT_MIN};
pub use limits::{
    DIMENSIONS_MAX, HEADER_LEN_MAX_BYTES, MAGIC, METADATA_ENTRIES_MAX, NAME_LEN_MAX_BYTES,
    TENSORS_MAX, parse_memory_max_bytes,
};
pub use metadata::{Array, Metadata, Value, Values};
pub use parse::Parsed;
pub use split::{SplitName, check_splits};
pub use value_type::ValueType;
