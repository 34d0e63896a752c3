//! The error of a load.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_formats::directory::DirectoryProblem;
use longshore_formats::{Format, QuotedName};
use longshore_heap as heap;
use longshore_mem::ByteSize;

use crate::digest_kind::DigestKind;
use crate::find::HubProblem;
use crate::mode::ReadMode;
use crate::object::ObjectError;
use crate::publish::PublishProblem;
use crate::reason::{Change, FileKind, FormatProblem, ManifestProblem, MemoryLimit, ModeProblem};
use crate::stream::StreamProblem;

/// The result of a load.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of a load: the problem, the file, the range, and the progress of the load. After an error
/// no descriptor and no memory is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, or its status could not be read.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The path does not refer to a regular file.
    #[error("{} is {kind}, not a regular file{}", path.display(), kind.hint())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// The kind of file that it refers to.
        kind: FileKind,
    },
    /// A requested range is not within the file.
    #[error(
        "{} has {len_bytes} bytes; bytes {} to {} were asked for", path.display(),
        range.start, range.end
    )]
    OutOfFile {
        /// The file.
        path: PathBuf,
        /// The requested range.
        range: Range<u64>,
        /// The length of the file.
        len_bytes: u64,
    },
    /// The disk or file system failed.
    #[error(
        "reading bytes {} to {} of {} failed after {} of the load were done",
        range.start, range.end, path.display(), ByteSize(*done_bytes)
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The bytes of the file that were being read.
        range: Range<u64>,
        /// The number of bytes of the whole load that were complete.
        done_bytes: u64,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// A file could not be written. No part of it is left behind.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The file was truncated while it was read.
    #[error(
        "{} ended at byte {ended_at} of {len_bytes}: it was truncated while it was read",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The offset at which the file ended.
        ended_at: u64,
        /// The length of the file when it was opened.
        len_bytes: u64,
    },
    /// The file was written to while it was read, so the bytes read may be a mixture of two versions.
    #[error("{} changed while it was read: {change}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// The change.
        change: Change,
    },
    /// The content does not fit in memory.
    #[error(
        "{} are needed, but {limit} leaves {}, which is {} too few; {}", ByteSize(*needed_bytes),
        ByteSize(*limit_bytes), ByteSize(needed_bytes.saturating_sub(*limit_bytes)), limit.hint()
    )]
    NotEnoughMemory {
        /// The number of bytes that the load needs.
        needed_bytes: u64,
        /// The number of bytes that the limit leaves.
        limit_bytes: u64,
        /// The limit.
        limit: MemoryLimit,
    },
    /// The memory could not be allocated.
    #[error(transparent)]
    Heap(#[from] heap::Error),
    /// The requested mode is not available for this file and heap.
    #[error("{} cannot be read in mode '{mode}': {reason}", path.display())]
    ModeUnavailable {
        /// The file.
        path: PathBuf,
        /// The requested mode.
        mode: ReadMode,
        /// The reason.
        reason: ModeProblem,
    },
    /// The caller cancelled the load.
    #[error("cancelled after {} of {}", ByteSize(*done_bytes), ByteSize(*total_bytes))]
    Cancelled {
        /// The number of bytes that were complete.
        done_bytes: u64,
        /// The number of bytes of the whole load.
        total_bytes: u64,
    },
    /// A checksum differs from the one in the manifest, or from the one that the Hub sends.
    #[error("{}: {kind} is {found}, but {expected} was expected", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The kind of checksum.
        kind: DigestKind,
        /// The expected checksum, in hexadecimal.
        expected: String,
        /// The checksum of the content, in hexadecimal.
        found: String,
    },
    /// A manifest cannot be parsed, or does not name a file that was loaded.
    #[error("manifest {}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The problem.
        reason: ManifestProblem,
    },
    /// A file is not valid in the expected format.
    #[error("{} is not a valid {format} file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        format: Format,
        /// The problem.
        reason: FormatProblem,
    },
    /// A directory contains no model, or several.
    #[error("{}: {reason}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The problem.
        reason: DirectoryProblem,
    },
    /// A repository of the Hugging Face Hub was not found.
    #[error("{name}: {reason}")]
    Hub {
        /// The name of the repository or file.
        name: String,
        /// The reason.
        reason: HubProblem,
    },
    /// Tensors of a file were requested, to align or to stream them, but its format has none.
    #[error("no tensors are known in {}", path.display())]
    NoTensors {
        /// The file.
        path: PathBuf,
    },
    /// The caller's [`Opener`](crate::Opener) refused a file or its header.
    #[error("{} is refused", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The opener's reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A model cannot be published, pinned or evicted.
    #[error("{}{}: {reason}", if reason.is_of_publishing() { "cannot publish " } else { "" }, path.display())]
    Publish {
        /// The model or one of its files, or the target directory or a name in it.
        path: PathBuf,
        /// The reason.
        reason: PublishProblem,
    },
    /// A stream cannot be made, or cannot go on.
    #[error(transparent)]
    Stream {
        /// The reason.
        #[from]
        reason: StreamProblem,
    },
    /// The memory of a stream is full of tensors that the consumers hold. The next call may succeed after
    /// some were dropped.
    #[error(
        "no tensor was dropped for {:.1} s, and the next one does not fit in the stream's {}: tensors of {} are \
         held, the oldest is {oldest}; drop tensors before you ask for others, or give the stream more memory",
        waited.as_secs_f64(), ByteSize(*limit_bytes), ByteSize(*held_bytes)
    )]
    StreamFull {
        /// The number of bytes that the held tensors take.
        held_bytes: u64,
        /// The memory of the stream.
        limit_bytes: u64,
        /// The name of the tensor that is held for longest.
        oldest: QuotedName,
        /// The time in which no tensor was dropped.
        waited: Duration,
    },
    /// A thread could not be started, or another resource of this process is exhausted.
    #[error("{operation} failed")]
    Process {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Makes the error for a file that is not valid in its format.
    pub(crate) fn format(path: &Path, error: longshore_formats::Error) -> Self {
        let (format, reason) = (error.format(), FormatProblem::Content(error));
        Self::Format { path: path.to_owned(), format, reason }
    }

    /// Makes the error of a read of a file of another machine, after `done_bytes` of the load.
    pub(crate) fn of_object(
        path: &Path,
        range: Range<u64>,
        done_bytes: u64,
        error: ObjectError,
    ) -> Self {
        let path = path.to_owned();
        match error {
            ObjectError::Changed => Self::Changed { path, change: Change::Replaced },
            ObjectError::Stopped => Self::Cancelled { done_bytes, total_bytes: range.end },
            ObjectError::Failed(error) => {
                // Callers need its kind: a missing file, a refusal or a timeout.
                let source = error.downcast().map_or_else(io::Error::other, |error| *error);
                Self::Read { path, range, done_bytes, source }
            }
        }
    }
}
