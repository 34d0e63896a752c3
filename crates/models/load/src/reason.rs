//! The reasons in errors.

use std::fmt;
use std::path::PathBuf;

use longshore_formats::QuotedName;
use longshore_mem::ByteSize;
use longshore_sys::file::Kind;

/// The kind of a file that is not a regular one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Any other kind.
    Other,
}

impl FileKind {
    pub(crate) fn from_kind(kind: Kind) -> Self {
        match kind {
            Kind::Directory => Self::Directory,
            Kind::Fifo => Self::Fifo,
            Kind::Socket => Self::Socket,
            Kind::Device => Self::Device,
            _ => Self::Other,
        }
    }

    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Directory => "; name the files in it one by one",
            Self::Fifo => "; copy it into a file first",
            _ => "",
        }
    }
}

/// Writes the kind with its article.
impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Other => "not a regular file",
        })
    }
}

/// A change of a file while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Change {
    /// The file grew.
    #[error("it grew from {from_bytes} to {to_bytes} bytes")]
    Grew {
        /// The length when the file was opened.
        from_bytes: u64,
        /// The length now.
        to_bytes: u64,
    },
    /// The file was written to.
    #[error("it was written to")]
    Written,
    /// The path refers to another file, or to another version of the file.
    #[error("it is not the file that it was a moment ago")]
    Replaced,
}

/// A memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// The limit of this load ([`Loader::memory_max`](crate::Loader::memory_max)).
    Load,
    /// The address space limit of this process (`RLIMIT_AS`).
    AddressSpace,
    /// The memory limit of the control group.
    ControlGroup {
        /// The file of the control group that contains the limit.
        path: PathBuf,
        /// The number of bytes that are available to all loads together.
        available_bytes: u64,
        /// The number of bytes that other loads of this process will still take.
        others_bytes: u64,
    },
    /// The available memory of the machine.
    Machine {
        /// The number of bytes that are available to all loads together.
        available_bytes: u64,
        /// The number of bytes that other loads of this process will still take.
        others_bytes: u64,
    },
    /// The maximum length of a buffer.
    BufferLength,
    /// The memory of this process, which must hold the header of a file.
    Header,
    /// The memory of a stream, which must hold this tensor.
    Stream {
        /// The name of the tensor.
        tensor: QuotedName,
    },
}

impl MemoryLimit {
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Load | Self::AddressSpace | Self::ControlGroup { .. } => "raise it, or load less",
            Self::Stream { .. } => "give the stream more, or select fewer rows",
            Self::Machine { .. } => "free some, or load less",
            Self::BufferLength => "load fewer files at once",
            Self::Header => "it is the file's header that needs them",
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others_bytes = match self {
            Self::Load => return f.write_str("the limit given for this load"),
            Self::AddressSpace => {
                return f.write_str("this process's address space limit (ulimit -v)");
            }
            Self::BufferLength => return f.write_str("the address space"),
            Self::Header => return f.write_str("the memory of this process"),
            Self::Stream { tensor } => {
                return write!(f, "the memory of the stream, which must hold tensor {tensor},");
            }
            Self::ControlGroup { path, others_bytes, .. } => {
                write!(f, "the control group's {}", path.display())?;
                others_bytes
            }
            Self::Machine { others_bytes, .. } => {
                f.write_str("this machine's available memory (MemAvailable)")?;
                others_bytes
            }
        };
        match others_bytes {
            0 => Ok(()),
            bytes => write!(f, ", with the {} that other loads are to take,", ByteSize(*bytes)),
        }
    }
}

/// The reason why a file cannot be read in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModeProblem {
    /// The file system has no direct I/O.
    #[error(
        "its file system offers no direct I/O (statx reports no alignment, or O_DIRECT is \
         refused); use mode auto"
    )]
    NoDirectIo,
    /// The kernel or the file system has no `RWF_DONTCACHE`.
    #[error(
        "this kernel or file system has no RWF_DONTCACHE (Linux 6.14; ext4, xfs); use mode direct \
         or auto"
    )]
    NoUncachedIo,
}

/// The reason why a file is not valid in its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatProblem {
    /// The content of the file is not valid, for this [`reason`](longshore_formats::Error::reason).
    #[error("{}", .0.detail())]
    Content(longshore_formats::Error),
    /// The sum of the header lengths of one model's files is above the limit.
    #[error(
        "with its header, the headers of this model's files have {} or more, above the limit of {}; \
         name the shards one by one, or load the files as raw ones",
        ByteSize(*sum_bytes), ByteSize(*max_bytes)
    )]
    HeadersTooLong {
        /// The sum of the header lengths up to and including this file.
        sum_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A shard that the index names does not exist.
    #[error(
        "its shard {name} is not in {} ({missing} of {shards} shards are missing); fetch it",
        folder.display()
    )]
    ShardMissing {
        /// The name of the shard.
        name: QuotedName,
        /// The folder of the index.
        folder: PathBuf,
        /// The number of missing shards.
        missing: usize,
        /// The number of shards of the model.
        shards: usize,
    },
    /// A split of a GGUF model does not exist.
    #[error(
        "its split {name} is not in {} ({missing} of {splits} are missing); fetch it",
        folder.display()
    )]
    SplitMissing {
        /// The name of the split.
        name: QuotedName,
        /// The folder of the first split.
        folder: PathBuf,
        /// The number of missing splits.
        missing: usize,
        /// The number of splits of the model.
        splits: u64,
    },
}

/// A problem of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestProblem {
    /// The manifest is too long.
    #[error("it has {}, more than the limit of {}", ByteSize(*len_bytes), ByteSize(*max_bytes))]
    TooLong {
        /// The length of the manifest.
        len_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The manifest is not UTF-8.
    #[error("it is not text")]
    NotText,
    /// A line is not a valid entry.
    #[error(
        "line {line} is not a checksum of 8 (crc32c), 16 (xxh3) or 64 (sha256) hexadecimal digits, \
         blanks and a file name"
    )]
    NotAnEntry {
        /// The number of the line, counted from 1.
        line: usize,
    },
    /// The file is not stored under its checksum in the cache of the Hugging Face Hub.
    #[error(
        "it is not in the cache of the Hugging Face Hub, or the Hub has no SHA-256 checksum of it; use a \
         manifest"
    )]
    NoHubChecksum,
    /// The manifest does not name a file that was loaded.
    #[error("it does not name {}", file.display())]
    NotNamed {
        /// The file.
        file: PathBuf,
    },
}
