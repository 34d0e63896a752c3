//! GGUF: typed metadata, descriptions of tensors, and their data at aligned offsets.
//!
//! ```text
//!   0      4         8          16         24                              data_offset
//!   ├──────┼─────────┼──────────┼──────────┼──────────┼─────────────┼─────┼─────────┼─────┼────────
//!   │ GGUF │ version │ tensors, │ entries, │ metadata │ tensors and │ pad │ data of │ pad │ data of
//!   │      │ u32     │ u64      │ u64      │          │ offsets     │     │ one     │     │ next …
//!   └──────┴─────────┴──────────┴──────────┴──────────┴─────────────┴─────┴─────────┴─────┴────────
//! ```
//!
//! Versions 2 and 3 are read, in little-endian order; they differ in nothing else. The facts are
//! those of [the format's specification], `docs/gguf.md` of ggml.
//!
//! A header comes from whoever made the file, and nothing in it says how long it is. It is read
//! piece by piece as far as it goes and not much further, and [`Header::parse`] checks all of it and
//! spends at most [`parse_memory_max_bytes`] on it. Refused is what the specification
//! forbids: what does not fit into the file or the numbers' width, types that do not exist,
//! tensors that overlap, are not aligned or are no whole blocks, names that occur twice. Limited
//! are [`HEADER_LEN_MAX_BYTES`], [`TENSORS_MAX`], [`METADATA_ENTRIES_MAX`] and arrays in arrays.
//!
//! Let pass is what files in use have though it is not in the specification: names of tensors
//! longer than 64 bytes, keys that are not in lower case, strings that are not UTF-8. And what ggml
//! refuses though the specification does not: arrays in arrays, bytes that belong to no tensor
//! between tensors, and descriptions in another order than the data.
//!
//! Names of tensors and keys are as they are in the file, so they may hold control characters:
//! [`crate::printable`] makes them fit for a terminal.
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
