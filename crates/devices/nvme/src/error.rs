//! The errors of the driver.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use longshore_domain::backend::OpenError;

use crate::command::{CommandError, CommandInfo};
use crate::data::DataPointerError;
use crate::registers::ControllerStatus;

/// An error of the driver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel does not let this process use the device. The message says what the administrator
    /// must do.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Memory for the device, or its mapping, is not available.
    #[error(transparent)]
    Domain(#[from] longshore_domain::Error),
    /// The controller lacks a feature that this driver needs.
    #[error("the controller cannot be used: {0}")]
    Unsupported(#[from] Unsupported),
    /// The controller did not change its state within the time that it reports for this.
    #[error("the controller did not {wanted} within {waited:?} (CSTS is {:#x})", status.0)]
    NotReady {
        /// The change that was requested, as the end of a sentence: "become ready".
        wanted: &'static str,
        /// The time limit.
        waited: Duration,
        /// The last value of the register CSTS.
        status: ControllerStatus,
    },
    /// The controller reports a fatal error (CSTS.CFS) and must be reset.
    #[error("the controller has met a fatal error (CSTS is {:#x}), and must be reset", status.0)]
    Fatal {
        /// The value of the register CSTS.
        status: ControllerStatus,
    },
    /// The device does not answer on the bus: its registers read as ones.
    #[error("the controller does not answer on the bus any more")]
    Gone,
    /// The controller was stopped, by this thread or another one.
    #[error("the controller was stopped; commands that were in flight will not end")]
    Stopped,
    /// The controller could not be stopped, and may still access memory.
    #[error("the controller could not be stopped, so the memory it may access is never freed: {0}")]
    Lost(#[source] Box<Error>),
    /// The controller ended a command with an error.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// No command ended within the time limit.
    #[error("{command} did not end within {waited:?}")]
    TimedOut {
        /// One of the commands in flight.
        command: CommandInfo,
        /// The time limit.
        waited: Duration,
    },
    /// No command is in flight, so none can end.
    #[error("no command is in flight")]
    Idle,
    /// The controller completed a command that is not in flight.
    #[error("the controller completed command {id} of queue {queue}, which is not in flight")]
    UnexpectedCompletion {
        /// The identifier of the queue.
        queue: u16,
        /// The identifier of the command.
        id: u16,
    },
    /// The data of a command cannot be described to the controller.
    #[error(transparent)]
    DataPointer(#[from] DataPointerError),
    /// The transfer is longer than one command can be.
    #[error(
        "{len_bytes:#x} bytes are more than a command of this controller can transfer: {max_bytes:#x}"
    )]
    TooLong {
        /// The length of the transfer.
        len_bytes: u64,
        /// The largest possible length.
        max_bytes: u64,
    },
    /// An offset or a length is not a multiple of the block size.
    #[error("{bytes:#x} bytes are not whole blocks of {block_bytes}")]
    PartialBlock {
        /// The offset or the length.
        bytes: u64,
        /// The block size.
        block_bytes: u64,
    },
    /// The queue has as many commands in flight as it can.
    #[error("the queue is full: {depth} commands are in flight")]
    QueueFull {
        /// The depth of the queue.
        depth: u16,
    },
    /// The controller has no queue of this depth.
    #[error("no queue of depth {depth}: 1 to {depth_max} are possible")]
    QueueDepth {
        /// The requested depth.
        depth: u16,
        /// The largest possible depth.
        depth_max: u16,
    },
    /// All queues that the controller granted are in use.
    #[error("all queues are in use")]
    NoQueue,
    /// The namespace cannot be used.
    #[error("namespace {id}: {reason}")]
    Namespace {
        /// The identifier of the namespace.
        id: u32,
        /// The reason.
        reason: NamespaceError,
    },
    /// A range ends beyond the end of the namespace.
    #[error(
        "{len_bytes:#x} bytes at {offset:#x} are not in the namespace, which has {namespace_bytes:#x}"
    )]
    OutOfRange {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        len_bytes: u64,
        /// The length of the namespace.
        namespace_bytes: u64,
    },
    /// A range ends beyond the end of the memory that is mapped for it.
    #[error(
        "{len_bytes:#x} bytes at {offset:#x} are not in the mapping of {mapped_bytes:#x} bytes"
    )]
    OutOfMapping {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        len_bytes: u64,
        /// The length of the mapping.
        mapped_bytes: u64,
    },
    /// A list of extents cannot be made or used.
    #[error("the list of extents: {0}")]
    Extents(#[from] ExtentsError),
    /// Memory for the data is not available.
    #[error(transparent)]
    Memory(#[from] longshore_heap::Error),
    /// An operation on the PCI device failed.
    #[error("{operation}: {source}")]
    Device {
        /// The operation.
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// An operation on a file failed.
    #[error("{operation} {}: {source}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn device(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Device { operation, source }
    }
}

/// The reason why a controller cannot be used by this driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The doorbells of the admin queue lie beyond the end of the registers.
    #[error(
        "the doorbells of its admin queue end at byte {end:#x} (CAP.DSTRD), but it has \
         {registers_bytes:#x} bytes of registers"
    )]
    Doorbells {
        /// The end of the doorbells, in BAR 0.
        end: usize,
        /// The length of BAR 0.
        registers_bytes: usize,
    },
    /// The controller lacks the NVM command set.
    #[error("it does not have the NVM command set (CAP.CSS)")]
    CommandSet,
    /// The smallest memory page of the controller is larger than the granule of the domain.
    #[error(
        "its memory pages have at least 2^{page_log2_min} bytes (CAP.MPSMIN), but memory is mapped \
         in granules of 2^{granule_log2}"
    )]
    PageSize {
        /// The binary logarithm of the smallest memory page, in bytes.
        page_log2_min: u32,
        /// The binary logarithm of the granule, in bytes.
        granule_log2: u32,
    },
}

/// The reason why a namespace cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The controller has no active namespace with this identifier.
    #[error("the controller has no active namespace with this identifier")]
    Inactive,
    /// The blocks of the namespace have metadata, which this driver does not transfer.
    #[error(
        "its blocks have {bytes} bytes of metadata each, which this driver does not transfer: \
         format it without metadata"
    )]
    Metadata {
        /// The bytes of metadata of a block.
        bytes: u16,
    },
    /// The size that the controller reports is not valid.
    #[error("the controller reports {blocks:#x} blocks of 2^{block_log2} bytes")]
    Size {
        /// The number of blocks.
        blocks: u64,
        /// The binary logarithm of the block size, in bytes.
        block_log2: u8,
    },
}

/// The reason why a list of extents cannot be made or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtentsError {
    /// The path does not name a regular file.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Bytes of the file are not on the disk in plain form.
    #[error(
        "the file's bytes at {file_offset:#x} are not on the disk in plain form: they are compressed, \
         encrypted, or in a block with other data"
    )]
    Opaque {
        /// The start of these bytes in the file.
        file_offset: u64,
    },
    /// The file system has no disk of its own.
    #[error(
        "the file system ({major}:{minor}) has no disk of its own: btrfs, overlayfs and file systems \
         in memory do not report where a file is on a disk"
    )]
    NoDisk {
        /// The major number of the file system's device.
        major: u32,
        /// The minor number of the file system's device.
        minor: u32,
    },
    /// The disk is made of other disks.
    #[error("{} is made of other disks (device mapper or RAID)", disk.display())]
    Stacked {
        /// The folder of the disk in sysfs.
        disk: PathBuf,
    },
    /// The kernel does not report the start of a partition.
    #[error("no file `start` that can be read in {}", disk.display())]
    NoStart {
        /// The folder of the partition in sysfs.
        disk: PathBuf,
    },
    /// The file is longer than a file can be.
    #[error("{len_bytes:#x} bytes are more than a file can have")]
    TooLong {
        /// The length in the list.
        len_bytes: u64,
    },
    /// An extent overlaps the previous one, or starts beyond the end of the file.
    #[error(
        "the extent of {len_bytes:#x} bytes at {file_offset:#x} begins before the end of the previous \
         one, or beyond the file's end"
    )]
    Order {
        /// The start of the extent in the file.
        file_offset: u64,
        /// The length of the extent.
        len_bytes: u64,
    },
}

/// The error for a command that was not submitted, with the caller's value.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SubmitError<T> {
    /// The reason.
    #[source]
    pub error: Error,
    /// The value that the queue would have kept until the command ends.
    pub payload: T,
}

impl<T> std::fmt::Debug for SubmitError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubmitError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> From<SubmitError<T>> for Error {
    fn from(refused: SubmitError<T>) -> Self {
        refused.error
    }
}
