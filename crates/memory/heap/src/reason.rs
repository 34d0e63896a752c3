//! The reasons in the errors of heaps.

use std::path::PathBuf;

/// The reason why a heap is not available. The message says how to enable it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailability {
    /// The kernel has no 2 MiB pages in its hugetlb pool.
    #[error("this kernel has no 2 MiB hugetlb pages")]
    NoHugetlb,
    /// The hugetlb pool has too few pages.
    #[error(
        "the hugetlb pool lacks pages: write at least {needed_pages} to \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages as root"
    )]
    HugetlbPool {
        /// The number of pages that the buffer needs.
        needed_pages: u64,
        /// The number of pages that the pool had left, including those that the kernel may add to
        /// it from ordinary memory.
        available_pages: u64,
    },
    /// This user may not open the device of a dma-heap.
    #[error("this user may not open {}", path.display())]
    DmaHeapDenied {
        /// The path of the device.
        path: PathBuf,
    },
    /// There is no `/dev/udmabuf`.
    #[error("there is no /dev/udmabuf (modprobe udmabuf; the kernel needs CONFIG_UDMABUF)")]
    NoUdmabuf,
    /// This user may not open `/dev/udmabuf`.
    #[error("this user may not open /dev/udmabuf (chmod or a udev rule)")]
    UdmabufDenied,
    /// The size limit of udmabuf cannot be read.
    #[error("the size limit of udmabuf cannot be read")]
    UdmabufLimitUnknown,
    /// A dma-buf cannot be empty.
    #[error("a dma-buf cannot be empty; use heap 'memfd'")]
    EmptyDmaBuf,
    /// The directory is not in a tmpfs.
    #[error(
        "{} is not in a tmpfs (mount one there as root: mount -t tmpfs -o huge=always tmpfs \
         DIRECTORY; /dev/shm usually is one)",
        directory.display()
    )]
    NotTmpfs {
        /// The directory.
        directory: PathBuf,
    },
}

/// The limit that a length exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LengthLimit {
    /// The maximum length of a file.
    #[error("any file")]
    File,
    /// The file size limit of this process (`RLIMIT_FSIZE`).
    #[error("this process's file size limit of {} (ulimit -f)", longshore_mem::ByteSize(*limit_bytes))]
    FileSize {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The maximum size of an address space.
    #[error("any address space")]
    AddressSpace,
}
