//! The problems of a stream.

use std::ops::Range;
use std::path::PathBuf;

use longshore_formats::QuotedName;
use longshore_heap::Heap;

/// The reason why a stream cannot be made or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamProblem {
    /// No tensor has a name, or matches a pattern, of the selection.
    #[error("no tensor of the selected files is named {name} or matches it")]
    NoTensor {
        /// The name or the pattern.
        name: QuotedName,
    },
    /// A file of the selection is not among the opened ones.
    #[error("{} is selected, but is not one of the opened files", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// Rows of a scalar are selected.
    #[error("tensor {tensor} is a scalar, and has no rows to select")]
    Scalar {
        /// The name of the tensor.
        tensor: QuotedName,
    },
    /// A tensor does not have the selected rows.
    #[error("tensor {tensor} has {of_rows} rows; rows {} to {} are selected", rows.start, rows.end)]
    RowsBeyond {
        /// The name of the tensor.
        tensor: QuotedName,
        /// The selected rows.
        rows: Range<u64>,
        /// The number of rows of the tensor.
        of_rows: u64,
    },
    /// The selected rows begin or end within a block of elements, which cannot be divided.
    #[error(
        "rows {} to {} of tensor {tensor} begin or end within a block; begin and end at a multiple of \
         {block_rows}",
        rows.start, rows.end
    )]
    PartialBlock {
        /// The name of the tensor.
        tensor: QuotedName,
        /// The selected rows.
        rows: Range<u64>,
        /// The number of rows in whole blocks.
        block_rows: u64,
    },
    /// There is no such part of the rows.
    #[error("part {index} of {count} is selected, but parts are counted from 0 to {count} - 1")]
    NoSuchShare {
        /// The index of the part.
        index: u64,
        /// The number of parts.
        count: u64,
    },
    /// Checksums need whole files, but a part of this one is selected.
    #[error("a checksum of {} needs the whole file, but a part of it is selected", path.display())]
    NotWhole {
        /// The file.
        path: PathBuf,
    },
    /// The plan has an aligned layout of this file, which cannot be streamed.
    #[error("the tensors of {} are to be aligned, which a stream cannot do", path.display())]
    Aligned {
        /// The file.
        path: PathBuf,
    },
    /// The memory of a stream cannot come from this heap.
    #[error("the memory of a stream cannot come from heap '{heap}'; use heap 'auto'")]
    Heap {
        /// The heap.
        heap: Heap,
    },
    /// The stream has failed before. The call that failed first has returned the error itself.
    #[error("the stream has failed before: {reason}")]
    Failed {
        /// The message of the error.
        reason: String,
    },
    /// The stream belongs to the parent process: its threads do not exist in a child.
    #[error("the stream was made before a fork; make a stream in the child process")]
    Forked,
}
