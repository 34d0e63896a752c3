//! Safetensors: a length, a header in JSON, and the data of the tensors without a gap.
//!
//! ```text
//!   0          8                 8 + n                                      end of file
//!   ├──────────┼───────────────────┼────────────┬───────────┬──────────────┤
//!   │ n, u64   │ {"a":{…},"b":{…}} │ a          │ b         │ …            │
//!   └──────────┴───────────────────┴────────────┴───────────┴──────────────┘
//! ```
//!
//! A header comes from whoever made the file. [`Header::read`] checks all of it before anything
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
//! [`super::printable`] makes them fit for a terminal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::read_exact;
use crate::error::{Error, Result};
use crate::source::SourceFile;

mod aligned;
mod dtype;
mod layout;
mod model;
mod parse;
#[cfg(test)]
mod tests;

pub use super::synthetic::SyntheticError;
pub use aligned::PADDING_PREFIX;
pub(crate) use aligned::is_padding;
pub use dtype::Dtype;
pub use model::Synthetic;

/// The name of the format in messages.
const FORMAT: &str = "safetensors";
/// The width of the header's length at the beginning of the file.
const PREFIX_BYTES: usize = 8;
/// What is read of a file to see whether the rest of its header is worth reading: one page, which
/// is what the kernel reads anyway.
const FIRST_READ_BYTES: usize = 4096;

/// The longest header there may be, in bytes: the limit of the format's reference implementation.
pub const HEADER_LEN_MAX_BYTES: u64 = 100_000_000;

/// The most tensors that are read. The largest published models have some 10^5 over all their
/// shards; this leaves ten times that for one file.
pub const TENSORS_MAX: usize = 1 << 20;

/// The most dimensions a tensor may have: what the frameworks that write such files allow.
pub const DIMENSIONS_MAX: usize = 64;

/// The most entries of metadata that are read; training tools write some hundred.
pub const METADATA_ENTRIES_MAX: usize = 1 << 15;

/// The most heap memory, in bytes, that reading a header of `header_len_bytes` takes at any
/// moment, whatever is in it.
///
/// Term by term, for a header of n bytes: n for its text; at most 1.5 n for the list of tensors,
/// 72 bytes for every 49 that the shortest description has; at most 2.9 n for what tensors own,
/// which is when each has 64 dimensions of one digit, and then 0.4 n to cut their list to size, or
/// else 3 n to undo the escapes of a string as long as the header in a buffer that doubles. And
/// 8 MiB for the tree of metadata, which has at most [`METADATA_ENTRIES_MAX`] entries of some 130
/// bytes, and for small things. The tests hold the allocator to it.
pub const fn parse_memory_max_bytes(header_len_bytes: u64) -> u64 {
    header_len_bytes.saturating_mul(6).saturating_add(8 << 20)
}

/// What a safetensors file holds, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their data. Together they are the file from `data_offset` to
    /// its end, without gap or overlap.
    pub tensors: Vec<Tensor>,
    /// Free-form strings by name.
    pub metadata: BTreeMap<String, String>,
    /// Where the data begins: the length of all before it, in bytes.
    pub data_offset: u64,
}

/// One tensor of a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unlike every other's in the file. It may hold any character.
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; none for a scalar. If one is zero there is no data.
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
    /// Reads the header of a file, through the page cache, and nothing of its data.
    ///
    /// # Errors
    /// [`Error::Format`] with the reason, [`Error::Read`], [`Error::Truncated`] where the file
    /// became shorter since it was opened, [`Error::NotEnoughMemory`].
    pub fn read(source: &SourceFile) -> Result<Self> {
        let file_len_bytes = source.len_bytes();
        let mut first = [0; FIRST_READ_BYTES];
        let first = &mut first[..file_len_bytes.min(FIRST_READ_BYTES as u64) as usize];
        read_exact(source, first, 0)?;
        let end =
            opening(first, file_len_bytes).map_err(|reason| refused(source.path(), reason))?;

        let mut bytes = Vec::new();
        bytes.try_reserve_exact(end).map_err(|_| Error::NotEnoughMemory {
            needed_bytes: end as u64,
            limit_bytes: 0,
            limit_name: "the memory of this process".to_owned(),
            hint: "it is the file's header that needs them",
        })?;
        bytes.extend_from_slice(&first[..first.len().min(end)]);
        let read_bytes = bytes.len();
        bytes.resize(end, 0);
        read_exact(source, &mut bytes[read_bytes..], read_bytes as u64)?;
        Self::parse(source.path(), &bytes, file_len_bytes)
    }

    /// Reads a header out of `bytes`, the beginning of a file of `file_len_bytes` that has the
    /// header in it. The path is for messages only.
    ///
    /// # Errors
    /// [`Error::Format`] with the reason.
    pub fn parse(path: &Path, bytes: &[u8], file_len_bytes: u64) -> Result<Self> {
        Self::checked(bytes, file_len_bytes).map_err(|reason| refused(path, reason))
    }

    fn checked(bytes: &[u8], file_len_bytes: u64) -> std::result::Result<Self, String> {
        let data_offset = opening(bytes, file_len_bytes)?;
        let text = bytes.get(PREFIX_BYTES..data_offset).ok_or_else(|| {
            format!("only {} of the {data_offset} bytes before its data are there", bytes.len())
        })?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let at = PREFIX_BYTES + error.valid_up_to();
            format!("its header is not UTF-8: byte {at} of the file begins no character")
        })?;
        let parse::Claims { mut tensors, metadata } = parse::parse(text)?;
        let data_offset = data_offset as u64;
        let (described, there) = (layout::check(&mut tensors)?, file_len_bytes - data_offset);
        if described > there {
            return Err(format!(
                "it was cut short: with {described} bytes of data it would have {} bytes, but it \
                 has {file_len_bytes}; fetch or copy it again",
                u128::from(data_offset) + u128::from(described)
            ));
        }
        if described < there {
            return Err(format!(
                "its tensors end at byte {}, but it goes on to byte {file_len_bytes}: what is \
                 there belongs to no tensor",
                data_offset + described
            ));
        }
        for tensor in &mut tensors {
            tensor.data.start += data_offset;
            tensor.data.end += data_offset;
        }
        Ok(Self { tensors, metadata, data_offset })
    }

    /// The length in bytes of the file that this is the header of.
    pub fn file_len_bytes(&self) -> u64 {
        self.tensors.last().map_or(self.data_offset, |last| last.data.end)
    }

    /// The tensor of that name, found by looking at one after the other.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn refused(path: &Path, reason: String) -> Error {
    Error::Format { path: path.to_owned(), format: FORMAT, reason }
}

/// Looks at the first bytes of a file, as far as they are given, and returns where its data
/// begins. That is within the file and within what memory may be spent on.
fn opening(first: &[u8], file_len_bytes: u64) -> std::result::Result<usize, String> {
    let Some((prefix, text)) = first.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(format!(
            "it has {file_len_bytes} bytes, and the length of its header alone takes \
             {PREFIX_BYTES}"
        ));
    };
    let instead = || instead(first).map_or(String::new(), |what| format!("; {what}"));
    let header_len = u64::from_le_bytes(*prefix);
    if header_len == 0 {
        return Err(format!("its header has no bytes{}", instead()));
    }
    if header_len > HEADER_LEN_MAX_BYTES {
        return Err(format!(
            "its first 8 bytes say that its header has {header_len} bytes, more than the \
             {HEADER_LEN_MAX_BYTES} there may be{}",
            instead()
        ));
    }
    let end = header_len + PREFIX_BYTES as u64;
    if end > file_len_bytes {
        return Err(format!(
            "it was cut short in its header, which ends at byte {end}: it has {file_len_bytes}; \
             fetch or copy it again"
        ));
    }
    // Fits: below the limit above.
    let end = end as usize;
    let text = &text[..text.len().min(end - PREFIX_BYTES)];
    let begin = text.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    if let Some(byte) = begin.filter(|byte| **byte != b'{') {
        return Err(format!("its header begins with the byte {byte:#04x} and not with '{{'"));
    }
    Ok(end)
}

/// What a file that is no safetensors file looks like.
fn instead(first: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 6] = [
        (
            b"version https://git-lfs",
            "it is a Git LFS pointer and not the file: fetch that with 'git lfs pull'",
        ),
        (b"<", "it looks like a web page: the download went wrong"),
        (b"{", "it looks like JSON: the index of shards is known by the name *.index.json"),
        (b"GGUF", "it is a GGUF file"),
        (b"PK\x03\x04", "it is a zip archive, perhaps one that PyTorch wrote"),
        (b"\x80\x02", "it is a Python pickle, perhaps one that PyTorch wrote"),
    ];
    known.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, what)| *what)
}
