//! The reasons why a model cannot be published.

/// The reason why a model cannot be published, pinned or evicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishProblem {
    /// The directory is not in a tmpfs.
    #[error(
        "it is not in a tmpfs; mount one there (longshore publish --mount), or use a directory in \
         /dev/shm"
    )]
    NotTmpfs,
    /// The directory of published models is not in a tmpfs.
    #[error(
        "it is not in a tmpfs, so no models are published there; name a model as DIR/NAME, such as \
         /models/llama"
    )]
    NoModels,
    /// The directory belongs to another user, who could change the model.
    #[error("it belongs to user {uid}, who is neither root nor the user of this process")]
    OtherOwner {
        /// The user ID of the owner.
        uid: u32,
    },
    /// The published models belong to another user.
    #[error("its models belong to user {uid}; run the command as that user (sudo -u '#{uid}')")]
    ModelsOfOther {
        /// The user ID of the owner.
        uid: u32,
    },
    /// Other users can rename entries of the directory.
    #[error(
        "other users may write to it, and it has no sticky bit; remove their permission \
         (chmod go-w), or set the bit (chmod +t)"
    )]
    WritableByOthers,
    /// Another user controls a directory above it, or the mount point.
    #[error(
        "another user than root can put another directory in its place, because a directory above it, or \
         the mount point, belongs to that user or may be written to by others (without a sticky bit)"
    )]
    UnsafePath,
    /// A component of the path of the target directory, or of a preloaded source, is a symbolic link.
    #[error("its path contains a symbolic link; use the path that realpath prints")]
    Link,
    /// The name exists, and is another model or another version of this one.
    #[error(
        "the name exists, and is another model or another version of this one; choose another name \
         (--name), or replace it (--replace)"
    )]
    NameExists,
    /// The name exists, and Longshore has not published it for this user.
    #[error(
        "the name exists, and is not a model that was published for this user; choose another name \
         (--name)"
    )]
    NotAModel,
    /// No model has this name.
    #[error("no model with this name is published there")]
    NotPublished,
    /// A program has a file of the model open or mapped.
    #[error(
        "a program has one of its files open; end it, or evict the model all the same (--force)"
    )]
    InUse,
    /// The kernel does not report whether a program uses the model.
    #[error(
        "the kernel does not report whether a program has its files open: {cause}; evict it all the \
         same (--force)"
    )]
    UseUnknown {
        /// The error of the kernel.
        cause: String,
    },
    /// The model is pinned.
    #[error("it is pinned; unpin it (longshore pin --undo), or evict it all the same (--force)")]
    Pinned,
    /// Another server manages the directory.
    #[error("another server manages the models of this directory")]
    Managed,
    /// The name of the model is empty, hidden or too long, or contains a slash.
    #[error(
        "the name '{name}' is not valid: 1 to 200 bytes, no slash, and no dot at the beginning; \
         choose one (--name)"
    )]
    InvalidName {
        /// The name.
        name: String,
    },
    /// Files of the model belong to several users.
    #[error(
        "its files and directories belong to several users, such as {one} and {other}, each of whom could \
         change the model of the other; give all of them to one user (chown -R), or publish a copy"
    )]
    SeveralOwners {
        /// The user ID of one owner.
        one: u32,
        /// The user ID of another owner.
        other: u32,
    },
    /// A symbolic link leads out of the directory of the model.
    #[error(
        "it is a symbolic link that leads out of the directory of the model, or to another mount"
    )]
    LeavesModel,
    /// A directory of the model is a symbolic link or a mount point.
    #[error("it is a symbolic link to a directory, or a mount point; only files may be links")]
    NotADirectory,
    /// More symbolic links lead to the files of the model than are followed.
    #[error(
        "more than {max} symbolic links lead to its files; make links that lead to a file, and not to \
         another link"
    )]
    TooManyLinks {
        /// The limit.
        max: u32,
    },
    /// The name of a file is that of a file with which Longshore describes the model.
    #[error("Longshore uses this name for a file of its own in a published model; rename the file")]
    ReservedName,
    /// The headers of the files of a model are too long together.
    #[error(
        "the headers of the model's safetensors and GGUF files have more than {} together; publish some \
         of the files separately, each by its own path",
        longshore_mem::ByteSize(*max_bytes)
    )]
    HeadersTooLong {
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// The name of a file is not UTF-8.
    #[error("its name is not UTF-8")]
    NotUtf8,
    /// The model has no files.
    #[error("it contains no files")]
    Empty,
    /// The model has too many files and directories.
    #[error("it contains more than {max} files and directories")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The names of its files are too long for the record.
    #[error("the names of its files have more than 16 MiB")]
    RecordTooLong,
    /// The directories of the model are nested too deeply.
    #[error("its directories are nested more than {max} deep")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The tmpfs has not enough free bytes.
    #[error(
        "the model has {}, but the tmpfs has {} free; remove models from it (longshore evict), or mount \
         it with a larger size (mount -o remount,size=SIZE)",
        longshore_mem::ByteSize(*needed_bytes),
        longshore_mem::ByteSize(*free_bytes)
    )]
    NoRoom {
        /// The number of bytes of the model, in whole pages.
        needed_bytes: u64,
        /// The number of free bytes.
        free_bytes: u64,
    },
    /// The tmpfs has not enough free inodes.
    #[error(
        "the model needs {needed} inodes, but the tmpfs has {free} free; remove files from it, or \
         mount it with more (mount -o remount,nr_inodes=COUNT)"
    )]
    NoInodes {
        /// The number of files and directories of the model.
        needed: u64,
        /// The number of free inodes.
        free: u64,
    },
}

impl PublishProblem {
    /// Returns `false` if the problem concerns a model that is published already.
    pub(crate) fn is_of_publishing(&self) -> bool {
        !matches!(
            self,
            Self::NotPublished
                | Self::InUse
                | Self::UseUnknown { .. }
                | Self::Pinned
                | Self::Managed
                | Self::NoModels
                | Self::ModelsOfOther { .. }
        )
    }
}
