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
//! piece by piece as far as it goes and not much further, and [`Header::read`] checks all of it and
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
//! [`super::printable`] makes them fit for a terminal.
//!
//! [the format's specification]: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

use std::ops::Range;
use std::path::Path;

use longshore_mem::Granule;

use super::read_exact;
use crate::error::{Error, Result};
use crate::source::SourceFile;
use cursor::Stop;

mod cursor;
mod dtype;
mod encode;
mod metadata;
mod model;
mod parse;
mod split;
#[cfg(test)]
mod tests;

pub use super::synthetic::SyntheticError;
pub use dtype::Dtype;
pub use encode::{EncodeError, Encoded};
pub use metadata::{Array, Metadata, Value, ValueType, Values};
pub use model::Synthetic;
pub use split::open_splits;
pub(super) use split::{is_first_of_several, open_splits_by};

/// The name of the format in messages.
const FORMAT: &str = "GGUF";
/// What every file begins with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// What is read of a file first, in bytes; then as much again until the header is complete.
const FIRST_READ_BYTES: usize = 64 << 10;
/// The alignment of a file that names none.
const ALIGNMENT_DEFAULT: Granule = match Granule::new(32) {
    Ok(granule) => granule,
    Err(_) => panic!("it is a power of two"),
};
/// What every alignment is a multiple of.
const ALIGNMENT_MIN: u32 = 8;
/// Where a file names its alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// The longest header there may be, in bytes: some ten times what the largest vocabularies take.
pub const HEADER_LEN_MAX_BYTES: u64 = 128 << 20;

/// The most tensors that are read, as of the other formats.
pub const TENSORS_MAX: u64 = 1 << 20;

/// The most dimensions a tensor may have.
pub const DIMENSIONS_MAX: u32 = 4;

/// The most entries of metadata that are read; models have some dozens.
pub const METADATA_ENTRIES_MAX: u64 = 1 << 15;

/// The longest key of the metadata, and name of a tensor, in bytes: the specification's limit for
/// keys.
pub const NAME_LEN_MAX_BYTES: u64 = (1 << 16) - 1;

/// The most heap memory, in bytes, that reading a header of `header_len_bytes` takes at any
/// moment, whatever is in it. The length is that of all before the data of the tensors.
///
/// Term by term, for a header of n bytes: 2 n for its bytes, since the buffer doubles until it is
/// long enough, or 3 n while it does, when there is nothing else yet; at most 3.4 n for the list of
/// tensors with their names and dimensions and two orders of them, some 92 bytes for the 27 that
/// the shortest description has where there are many. And 2 MiB for the list of entries, at most
/// [`METADATA_ENTRIES_MAX`] of 40 bytes, and for small things. The tests hold the allocator to it.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(2 << 20)
}

/// What a GGUF file holds, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// Typed values by name.
    pub metadata: Metadata,
    /// The tensors, in the order of their data.
    pub tensors: Vec<Tensor>,
    /// What the offsets of all tensors in the file are multiples of.
    pub alignment: Granule,
    /// Where the data begins: the length of all before it, in bytes.
    pub data_offset: u64,
    /// Which of `tensors` the file describes first, second and so on; empty where that is their
    /// order.
    described: Vec<u32>,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unlike every other's in the file. It may hold any character.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; none for a scalar. The file has them the other way round.
    /// The last is the length of a row, whole blocks of the dtype. If one is zero there is no
    /// data.
    pub shape: Vec<u64>,
    /// Its bytes in the file.
    pub data: Range<u64>,
}

impl Tensor {
    /// The length of its data in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.data.end - self.data.start
    }
}

impl Header {
    /// Reads the header of a file, through the page cache, and of its data no more than is read
    /// along with the header's end.
    ///
    /// # Errors
    /// [`Error::Format`] with the reason, [`Error::Read`], [`Error::Truncated`] where the file
    /// became shorter since it was opened, [`Error::NotEnoughMemory`].
    pub fn read(source: &SourceFile) -> Result<Self> {
        let file_len_bytes = source.len_bytes();
        let len_max = file_len_bytes.min(HEADER_LEN_MAX_BYTES) as usize;
        let mut bytes = Vec::new();
        let mut end = FIRST_READ_BYTES;
        loop {
            let wanted = end.max(bytes.len() * 2).min(len_max);
            let read_bytes = bytes.len();
            bytes.try_reserve_exact(wanted - read_bytes).map_err(|_| Error::NotEnoughMemory {
                needed_bytes: wanted as u64,
                limit_bytes: 0,
                limit_name: "the memory of this process".to_owned(),
                hint: "it is the file's header that needs them",
            })?;
            bytes.resize(wanted, 0);
            read_exact(source, &mut bytes[read_bytes..], read_bytes as u64)?;
            match parse::extent(&bytes, file_len_bytes) {
                Ok(extent) => {
                    bytes.truncate(extent.end);
                    return parse::header(bytes, &extent, file_len_bytes)
                        .map_err(|stop| refused(source.path(), stop));
                }
                Err(Stop::Short { end: needed }) => end = needed,
                Err(stop) => return Err(refused(source.path(), stop)),
            }
        }
    }

    /// Reads a header out of `bytes`, the beginning of a file of `file_len_bytes` that has the
    /// header in it. The path is for messages only.
    ///
    /// # Errors
    /// [`Error::Format`] with the reason.
    pub fn parse(path: &Path, bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        let file_len_bytes = file_len_bytes.max(bytes.len() as u64);
        parse::extent(bytes, file_len_bytes)
            .and_then(|extent| parse::header(bytes[..extent.end].to_vec(), &extent, file_len_bytes))
            .map_err(|stop| match stop {
                Stop::Short { end } => {
                    let there = bytes.len();
                    let reason =
                        format!("only {there} of at least {end} bytes before its data are there");
                    refused(path, Stop::Refused(reason))
                }
                stop => refused(path, stop),
            })
    }

    /// Where the last tensor ends, in bytes from the beginning of the file. There may be more of
    /// the file behind it.
    pub fn data_end(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// The tensor of that name, found by looking at one after the other.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn refused(path: &Path, stop: Stop) -> Error {
    let reason = match stop {
        Stop::Refused(reason) => reason,
        // All up to the end of the header was there before.
        Stop::Short { end } => format!("its header needs the bytes up to {end}"),
    };
    Error::Format { path: path.to_owned(), format: FORMAT, reason }
}
