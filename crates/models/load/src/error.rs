//! What can go wrong while loading.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use longshore_formats::Format;
use longshore_heap as heap;

use crate::digest_kind::DigestKind;
use crate::mode::ReadMode;
use crate::reason::{Change, FileKind, FormatProblem, ManifestProblem, MemoryLimit, ModeProblem};

/// The result of a load.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, in which file, where, and how far the load had come. After any of them nothing
/// is left: no descriptor, no memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or asked about.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The name leads to something that is no regular file.
    #[error("{} is {kind}, not a regular file{}", path.display(), kind.hint())]
    NotRegular {
        /// The name.
        path: PathBuf,
        /// The kind of file that it leads to.
        kind: FileKind,
    },
    /// A range was asked for that the file does not have.
    #[error(
        "{} has {len_bytes} bytes; bytes {} to {} were asked for", path.display(),
        range.start, range.end
    )]
    OutOfFile {
        /// The file.
        path: PathBuf,
        /// The range asked for.
        range: Range<u64>,
        /// The file's length.
        len_bytes: u64,
    },
    /// The disk or file system failed.
    #[error(
        "reading bytes {} to {} of {} failed after {done_bytes} bytes of the load were done",
        range.start, range.end, path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The bytes of the file that were being read.
        range: Range<u64>,
        /// How many bytes of the whole load were complete.
        done_bytes: u64,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file could not be written. Nothing of it is left.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file ended before its end: it was truncated while it was read.
    #[error(
        "{} ended at byte {ended_at} of {len_bytes}: it was truncated while it was read",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where it ended.
        ended_at: u64,
        /// How long it was when the load began.
        len_bytes: u64,
    },
    /// The file was written to while it was read, so what was read may be of two versions.
    #[error("{} changed while it was read: {change}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// The change.
        change: Change,
    },
    /// The content does not fit in memory.
    #[error(
        "{needed_bytes} bytes are needed, but {limit} leaves {limit_bytes}; {}", limit.hint()
    )]
    NotEnoughMemory {
        /// What the load needs.
        needed_bytes: u64,
        /// What there is.
        limit_bytes: u64,
        /// The limit.
        limit: MemoryLimit,
    },
    /// The memory could not be had.
    #[error(transparent)]
    Heap(#[from] heap::Error),
    /// The mode asked for does not exist for this file and heap.
    #[error("{} cannot be read in mode '{mode}': {reason}", path.display())]
    ModeUnavailable {
        /// The file.
        path: PathBuf,
        /// The mode asked for.
        mode: ReadMode,
        /// The reason.
        reason: ModeProblem,
    },
    /// The caller cancelled the load.
    #[error("cancelled after {done_bytes} of {total_bytes} bytes")]
    Cancelled {
        /// How many bytes were complete.
        done_bytes: u64,
        /// How many there were to be.
        total_bytes: u64,
    },
    /// The content is not what the manifest says.
    #[error("{}: {kind} is {found}, but the manifest says {expected}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Which checksum.
        kind: DigestKind,
        /// What the manifest says, in hexadecimal.
        expected: String,
        /// What was read.
        found: String,
    },
    /// A manifest cannot be understood or does not name a file that was loaded.
    #[error("manifest {}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The problem.
        reason: ManifestProblem,
    },
    /// A file is not of the format it is meant to be of.
    #[error("{} is not a valid {format} file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        format: Format,
        /// The problem.
        reason: FormatProblem,
    },
    /// Tensors were to be aligned, but the format of the file has none.
    #[error("no tensors are known in {}, so none can be aligned", path.display())]
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
    /// A thread could not be started, or another resource of this process is exhausted.
    #[error("{operation} failed")]
    Process {
        /// What was being done.
        operation: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Makes the error of a file that is not of its format.
    pub(crate) fn format(path: &Path, error: longshore_formats::Error) -> Self {
        let (format, reason) = (error.format(), FormatProblem::Content(error));
        Self::Format { path: path.to_owned(), format, reason }
    }
}
