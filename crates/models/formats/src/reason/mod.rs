//! The reasons why a file is not valid in its format. [`Error::detail`](crate::Error::detail) writes
//! each as text.

use std::fmt;
use std::ops::Range;

use longshore_mem::Granule;

use crate::dtype::Dtype;
use crate::gguf::ValueType;
use crate::quoted::QuotedName;

mod json;
mod several_files;

pub use json::{JsonError, JsonErrorKind};
pub use several_files::{ShardNameProblem, ShardProblem, SplitProblem};

/// The problem of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The beginning of the file is not that of the format.
    BadStart {
        /// The beginning of the file.
        start: Start,
        /// The kind of file that has this beginning, if it is known.
        looks_like: Option<LooksLike>,
    },
    /// The version of the format is not supported.
    UnsupportedVersion {
        /// The version.
        version: u32,
    },
    /// The file is big-endian.
    BigEndian {
        /// The version of the format.
        version: u32,
    },
    /// The file is too short: it was cut short, or a length in it is damaged.
    Truncated {
        /// The part of the file that is not complete.
        part: TruncatedPart,
        /// The length in bytes that the file needs at least to contain the part. In a damaged file this
        /// can be above 2^64.
        needed_bytes: u128,
        /// The length of the file.
        found_bytes: u64,
    },
    /// The caller passed only a part of the header to the parser. The file may be valid.
    HeaderIncomplete {
        /// The number of bytes passed.
        given_bytes: usize,
        /// The length of the header; for a GGUF file, a lower bound.
        needed_bytes: usize,
    },
    /// A length, a number of elements or a depth is above the limit.
    TooLarge {
        /// The part of the file, if it is not the whole.
        item: Option<Item>,
        /// The kind of number.
        quantity: Quantity,
        /// The number; `None` if only the fact that it is above the limit is known.
        found: Option<u64>,
        /// The limit.
        max: u64,
    },
    /// Text is not UTF-8.
    NotUtf8 {
        /// The part of the file whose name is not UTF-8; `None` if it is the text of the file.
        item: Option<Item>,
        /// The offset of the first invalid byte, in the name or in the file.
        offset: u64,
    },
    /// The text is not the expected JSON.
    Json {
        /// The part of the file, if it is not the whole.
        item: Option<Item>,
        /// The problem.
        error: JsonError,
    },
    /// A required part is missing.
    Missing {
        /// The part.
        item: Item,
    },
    /// A part occurs twice.
    Duplicate {
        /// The part.
        item: Item,
    },
    /// The type of the elements of a tensor is unknown.
    UnknownDtype {
        /// The tensor.
        tensor: QuotedName,
        /// The type.
        dtype: UnknownDtype,
    },
    /// A value of the metadata is wrong.
    BadValue {
        /// The entry of the metadata.
        item: Option<Item>,
        /// The problem.
        problem: ValueProblem,
    },
    /// The alignment that a GGUF file declares is not a power of two of at least 8, or not a `uint32`.
    BadAlignment {
        /// The type of the value.
        value_type: ValueType,
        /// The alignment, if it is a `uint32`.
        alignment_bytes: Option<u32>,
    },
    /// A tensor does not begin at a multiple of the alignment that its file declares.
    Unaligned {
        /// The tensor.
        tensor: QuotedName,
        /// The offset of the tensor, from the beginning of the data.
        offset: u64,
        /// The alignment of the file.
        alignment: Granule,
    },
    /// The dimensions of a tensor contradict the type of its elements or its place.
    Shape {
        /// The tensor.
        tensor: QuotedName,
        /// The dimensions, outermost first.
        shape: Box<[u64]>,
        /// The type of the elements.
        dtype: Dtype,
        /// The problem.
        problem: ShapeProblem,
    },
    /// A tensor ends before it begins. Both offsets are from the beginning of the data.
    EndBeforeStart {
        /// The tensor.
        tensor: QuotedName,
        /// The offset at which the tensor begins.
        start: u64,
        /// The offset at which the tensor ends.
        end: u64,
    },
    /// Two tensors share bytes. The ranges are from the beginning of the file in a GGUF file, and from
    /// the beginning of the data in a safetensors file.
    Overlap {
        /// The tensor that begins first.
        first: QuotedName,
        /// The bytes of the first tensor.
        first_data: Range<u64>,
        /// The tensor that begins within it.
        second: QuotedName,
        /// The bytes of the second tensor.
        second_data: Range<u64>,
    },
    /// Bytes before a tensor belong to no tensor.
    Gap {
        /// The bytes, from the beginning of the data.
        bytes: Range<u64>,
        /// The tensor behind them.
        before: QuotedName,
    },
    /// Bytes at the end of the file belong to no tensor.
    Trailing {
        /// The bytes, from the beginning of the file.
        bytes: Range<u64>,
    },
    /// The index of a model and its shards do not fit together.
    Shards(ShardProblem),
    /// The splits of a model do not fit together.
    Splits(SplitProblem),
    /// The tensors of the file cannot be aligned.
    CannotAlign {
        /// The alignment.
        alignment: Granule,
        /// The problem.
        problem: AlignProblem,
    },
}

/// The beginning of a file that is not of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// An empty safetensors header.
    EmptyHeader,
    /// A safetensors header that is too long.
    LongHeader {
        /// The length that the file declares.
        len_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A safetensors header that begins with this byte.
    HeaderByte(u8),
    /// Bytes that are not the magic number.
    Magic([u8; 4]),
}

/// A kind of file that is often mistaken for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LooksLike {
    /// A pointer of Git LFS in place of the file.
    GitLfsPointer,
    /// A web page, perhaps of an error.
    WebPage,
    /// JSON, perhaps the index of a model.
    Json,
    /// A safetensors file.
    Safetensors,
    /// A GGUF file.
    Gguf,
    /// A file that begins with `FUGG`, the byte-swapped magic number of GGUF.
    SwappedGguf,
    /// A ggml file from before GGUF.
    OldGgml,
    /// A zip archive.
    ZipArchive,
    /// A Python pickle.
    Pickle,
}

/// Writes the kind of file, and what to do about it.
impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GitLfsPointer => "it is a Git LFS pointer: fetch the file with 'git lfs pull'",
            Self::WebPage => "it looks like a web page: the download went wrong",
            Self::Json => {
                "it looks like JSON: the name of an index of shards must end in .index.json"
            }
            Self::Safetensors => "it looks like a safetensors file",
            Self::Gguf => "it is a GGUF file",
            Self::SwappedGguf => "it is GGUF with its bytes swapped",
            Self::OldGgml => "it is a ggml file from before GGUF: convert the model again",
            Self::ZipArchive => "it is a zip archive, perhaps one that PyTorch wrote",
            Self::Pickle => "it is a Python pickle, perhaps one that PyTorch wrote",
        })
    }
}

/// The part of a file that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TruncatedPart {
    /// The fixed beginning of every file of the format.
    Start,
    /// The header.
    Header,
    /// A value in the header.
    Value {
        /// The part of the header that the value belongs to.
        item: Option<Item>,
        /// The offset of the value in the file.
        offset: u64,
    },
    /// The elements that the header declares.
    Elements {
        /// The kind of element.
        quantity: Quantity,
        /// The number of elements.
        count: u64,
    },
    /// The data of all tensors.
    Data {
        /// The length of the data.
        len_bytes: u64,
    },
    /// The data of a tensor.
    Tensor(QuotedName),
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Item {
    /// The tensor of this name.
    Tensor(QuotedName),
    /// The tensor with this number in the header, counted from 1.
    TensorNumber(u64),
    /// A field in the description of a tensor.
    TensorField {
        /// The tensor.
        tensor: QuotedName,
        /// The field: `dtype`, `shape` or `data_offsets`.
        field: &'static str,
    },
    /// The metadata.
    Metadata,
    /// The entry of the metadata with this name.
    MetadataEntry(QuotedName),
    /// The entry of the metadata with this number, counted from 1.
    MetadataNumber(u64),
    /// The `weight_map` of an index.
    WeightMap,
}

/// A kind of number that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantity {
    /// The length of the file in bytes.
    FileBytes,
    /// The length of the header in bytes.
    HeaderBytes,
    /// The length of a name in bytes.
    NameBytes,
    /// Tensors.
    Tensors,
    /// Entries of the metadata.
    MetadataEntries,
    /// Dimensions of a tensor.
    Dimensions,
    /// The nesting depth of arrays.
    ArrayDepth,
    /// Shards of a model.
    Shards,
}

/// An unknown element type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownDtype {
    /// The name in a safetensors file.
    Name(QuotedName),
    /// The number in a GGUF file.
    Number(u32),
}

/// A problem of a value of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueProblem {
    /// The type of the value is unknown.
    #[error("a value has the unknown type {number} (expected 0 to 12)")]
    UnknownType {
        /// The number of the type.
        number: u32,
    },
    /// A boolean is neither 0 nor 1.
    #[error("a boolean is {byte} (expected 0 or 1)")]
    NotBool {
        /// The value.
        byte: u8,
    },
}

/// A problem of the dimensions of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeProblem {
    /// The length or the end of the tensor does not fit in 64 bits.
    Overflow {
        /// The offset of the tensor, from the beginning of the data.
        offset: u64,
    },
    /// The bits of all elements are not a whole number of bytes.
    PartialByte {
        /// The number of bits of all elements.
        bits: u64,
    },
    /// The length of a row is not a multiple of the block size of the element type.
    PartialBlock {
        /// The number of elements in a row.
        row: u64,
        /// The number of elements in a block.
        block: u64,
    },
    /// The length of the tensor's range is not the length of its elements.
    OtherLength {
        /// The length of the elements in bytes.
        needed_bytes: u64,
        /// The length of the range in bytes.
        given_bytes: u64,
    },
}

/// The reason why the tensors of a file cannot be aligned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AlignProblem {
    /// The format cannot declare this alignment.
    #[error("the format supports alignments of 8 B to 2 GiB")]
    Unsupported,
    /// The header would be too long or have too many entries.
    #[error("its header would exceed the limits")]
    HeaderTooLong,
    /// The file would be too long.
    #[error("the file would become longer than 2^64 bytes")]
    FileTooLong,
    /// A tensor of the header shares bytes with the tensor before it, or lies outside the file.
    #[error(
        "tensor {tensor} has bytes {data:?}, which overlap the tensor before it or lie outside the \
         file of {file_len_bytes} bytes"
    )]
    Misplaced {
        /// The tensor.
        tensor: QuotedName,
        /// The bytes of the tensor in the file.
        data: Range<u64>,
        /// The length of the file.
        file_len_bytes: u64,
    },
}
