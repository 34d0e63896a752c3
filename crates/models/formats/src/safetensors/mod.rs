//! Safetensors: a length, a header in JSON, and the data of the tensors without gaps.
//!
//! ```text
//!   0          8                 8 + n                                      end of file
//!   ├──────────┼───────────────────┼────────────┬───────────┬──────────────┤
//!   │ n, u64   │ {"a":{…},"b":{…}} │ a          │ b         │ …            │
//!   └──────────┴───────────────────┴────────────┴───────────┴──────────────┘
//! ```
//!
//! A header is untrusted input. [`Header::parse`] checks the whole header before any memory is allocated
//! for the data, and takes at most [`parse_memory_max_bytes`] of memory. It refuses all files that the
//! format's reference implementation refuses. It also refuses these, which that implementation accepts:
//!
//! - a name that occurs twice, among the tensors or in the metadata;
//! - more than [`TENSORS_MAX`] tensors, [`DIMENSIONS_MAX`] dimensions or [`METADATA_ENTRIES_MAX`]
//!   entries of metadata;
//! - a tensor whose description is not an object, or a dtype that is not a string.
//!
//! White space before the `{` is accepted, as by the reference implementation, because some writers pad
//! there to align the data.
//!
//! Tensor names are not escaped, so they may contain control characters. [`crate::printable`] makes them
//! safe to print on a terminal.

mod aligned;
mod dtype;
mod header;
mod layout;
mod limits;
mod parse;
#[cfg(test)]
mod tests;
mod text;

pub use aligned::PADDING_PREFIX;
pub(crate) use aligned::is_padding;
pub use dtype::Dtype;
pub use header::{Header, Tensor};
pub use limits::{
    DIMENSIONS_MAX, HEADER_LEN_MAX_BYTES, METADATA_ENTRIES_MAX, TENSORS_MAX, parse_memory_max_bytes,
};
pub use parse::header_end;
