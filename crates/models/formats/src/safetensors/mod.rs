//! Safetensors: a length, a header in JSON, and the data of the tensors without a gap.
//!
//! ```text
//!   0          8                 8 + n                                      end of file
//!   ├──────────┼───────────────────┼────────────┬───────────┬──────────────┤
//!   │ n, u64   │ {"a":{…},"b":{…}} │ a          │ b         │ …            │
//!   └──────────┴───────────────────┴────────────┴───────────┴──────────────┘
//! ```
//!
//! A header comes from whoever made the file. [`Header::parse`] checks all of it before anything
//! is allocated for the data, and spends at most [`parse_memory_max_bytes`] on the header itself.
//! It refuses what the format's reference implementation refuses, and beyond that what the format
//! forbids but that implementation lets pass or limits by nothing:
//!
//! - a name that occurs twice, among the tensors or in the metadata;
//! - more than [`TENSORS_MAX`] tensors, [`DIMENSIONS_MAX`] dimensions or [`METADATA_ENTRIES_MAX`]
//!   entries of metadata;
//! - a tensor described by anything but an object, or a dtype by anything but a string.
//!
//! White space before the `{` is let pass, as the reference implementation does since writers pad
//! there to align the data.
//!
//! Names of tensors are as they are in the file, so they may hold control characters:
//! [`crate::printable`] makes them fit for a terminal.

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
