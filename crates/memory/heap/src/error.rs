//! The errors of heaps.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use longshore_mem::ByteSize;
use longshore_mem::copy::CopyFault;

use crate::heap::Heap;
use crate::reason::{LengthLimit, Unavailability};

/// The result of a heap operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a heap. Its message names the heap, the reason, and how to avoid it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine has no dma-heap of that name.
    #[error("there is no dma-heap named '{name}' on this machine; {}", describe_heaps(available))]
    NoSuchHeap {
        /// The requested name.
        name: String,
        /// The names of the available heaps.
        available: Vec<String>,
    },
    /// The kernel interface that the heap needs is absent, or this process may not use it.
    #[error("heap '{heap}' is not available: {reason}")]
    Unavailable {
        /// The heap.
        heap: Heap,
        /// The reason, with what is missing.
        reason: Unavailability,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A udmabuf is above the machine's limit, which this process may not raise.
    #[error(
        "a udmabuf of {} is above this machine's limit of {}: write at least {} to \
         /sys/module/udmabuf/parameters/size_limit_mb as root, or use heap 'memfd'",
        ByteSize(*len_bytes), ByteSize(*limit_bytes), len_bytes.div_ceil(1 << 20)
    )]
    AboveUdmabufLimit {
        /// The requested length in bytes.
        len_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
        /// The error of raising the limit.
        #[source]
        source: io::Error,
    },
    /// The length is above that of any address space or file.
    #[error("a buffer of {} does not fit {limit}", ByteSize(*len_bytes))]
    TooLong {
        /// The requested length in bytes.
        len_bytes: u64,
        /// The limit.
        limit: LengthLimit,
    },
    /// Memory ran out while the pages of a range were prefaulted.
    #[error(
        "heap '{heap}': no memory for bytes {} to {} of {len_bytes}",
        range.start, range.end
    )]
    OutOfMemory {
        /// The heap.
        heap: Heap,
        /// The bytes that could not be backed.
        range: Range<u64>,
        /// The length of the buffer in bytes.
        len_bytes: u64,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The tmpfs of a directory has not enough room.
    #[error(
        "the tmpfs of {} has no room for {len_bytes} bytes{}; remove files from it, or mount it with \
         a larger size",
        directory.display(), describe_room(*free_bytes)
    )]
    TmpfsFull {
        /// The directory.
        directory: PathBuf,
        /// The length of the buffer in bytes.
        len_bytes: u64,
        /// The number of free bytes before the first page was allocated; `None` if it became full
        /// while pages were allocated.
        free_bytes: Option<u64>,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The buffer is not a file in a tmpfs, or its file cannot get this name.
    #[error("heap '{heap}': the file cannot get the name {}", name.display())]
    Link {
        /// The heap.
        heap: Heap,
        /// The name.
        name: PathBuf,
        /// The error of the kernel; `Unsupported` if the heap is not [`Heap::Tmpfs`].
        #[source]
        source: io::Error,
    },
    /// Buffers of this heap have no descriptor for other processes: they get files of [`Heap::Tmpfs`] by
    /// name, and [`Heap::Anonymous`] not at all.
    #[error("heap '{heap}' cannot be shared by a descriptor; use heap 'memfd'")]
    CannotShare {
        /// The heap.
        heap: Heap,
    },
    /// The content of this heap's buffers cannot be sealed.
    #[error("heap '{heap}' cannot seal its content against writing; use heap 'memfd'")]
    CannotSealContent {
        /// The heap.
        heap: Heap,
    },
    /// The memory is not sealed, so a copy-on-write mapping of it could change.
    #[error("the content of the memory is not sealed, so it cannot be mapped copy-on-write")]
    NotSealed,
    /// Memory of the hugetlb pool is not mapped copy-on-write.
    #[error(
        "memory of the hugetlb pool cannot be mapped copy-on-write: a write to it would take a page of \
         the pool, and would end the process if the pool is empty"
    )]
    HugetlbCopyOnWrite,
    /// A range is not inside the buffer.
    #[error(
        "bytes {} to {} are not inside a buffer of {len_bytes}", range.start, range.end
    )]
    OutOfRange {
        /// The range.
        range: Range<u64>,
        /// The length of the buffer in bytes.
        len_bytes: u64,
    },
    /// Memory was lost: another process punched a hole into it, or a page of it failed.
    #[error(
        "heap '{heap}': byte {offset} of {len_bytes} cannot be read; share buffers with their content \
         sealed, so that no process can punch holes into them"
    )]
    Lost {
        /// The heap.
        heap: Heap,
        /// The first byte that cannot be read.
        offset: u64,
        /// The length of the buffer in bytes.
        len_bytes: u64,
        /// The fault.
        #[source]
        source: CopyFault,
    },
    /// A system call failed.
    #[error("heap '{heap}': {operation} of {} failed", ByteSize(*len_bytes))]
    Kernel {
        /// The heap.
        heap: Heap,
        /// The operation that failed.
        operation: &'static str,
        /// The length of the buffer in bytes.
        len_bytes: u64,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

fn describe_room(free_bytes: Option<u64>) -> String {
    free_bytes.map_or(String::new(), |bytes| format!(": {bytes} bytes are free"))
}

fn describe_heaps(available: &[String]) -> String {
    if available.is_empty() {
        "it has none (the kernel needs CONFIG_DMABUF_HEAPS); use heap 'memfd'".to_owned()
    } else {
        format!("it has {}", available.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_alternatives_and_the_remedy() {
        let none = Error::NoSuchHeap { name: "cma".into(), available: vec![] }.to_string();
        assert!(none.contains("'cma'") && none.contains("use heap 'memfd'"), "{none}");
        let some = Error::NoSuchHeap { name: "cma".into(), available: vec!["system".into()] };
        assert!(some.to_string().ends_with("it has system"), "{some}");
        let limit = Error::AboveUdmabufLimit {
            len_bytes: (64 << 20) + 1,
            limit_bytes: 64 << 20,
            source: io::ErrorKind::PermissionDenied.into(),
        };
        assert!(limit.to_string().contains("write at least 65 to"), "{limit}");
    }
}
