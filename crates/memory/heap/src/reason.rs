//! The reasons that errors carry.

use std::path::PathBuf;

/// Why a heap is not available. The message says how to enable it.
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
        /// How many pages the buffer needs.
        needed_pages: u64,
        /// How many pages the pool had left, including those that the kernel may take from ordinary
        /// memory for it.
        available_pages: u64,
    },
    /// This user may not open the device of a dma-heap.
    #[error("this user may not open {}", path.display())]
    DmaHeapDenied {
        /// The device.
        path: PathBuf,
    },
    /// There is no `/dev/udmabuf`.
    #[error("there is no /dev/udmabuf (modprobe udmabuf; the kernel needs CONFIG_UDMABUF)")]
    NoUdmabuf,
    /// This user may not open `/dev/udmabuf`.
    #[error("this user may not open /dev/udmabuf (chmod or a udev rule)")]
    UdmabufDenied,
    /// The size limit of udmabuf cannot be read.
    #[error("its size limit cannot be read")]
    UdmabufLimitUnknown,
    /// The heap has no buffers without a byte.
    #[error("a dma-buf cannot be empty; use heap 'memfd'")]
    EmptyDmaBuf,
}

/// A limit of the length of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LengthLimit {
    /// The longest file that there can be.
    #[error("any file")]
    File,
    /// The file size limit of this process (`RLIMIT_FSIZE`).
    #[error("this process's file size limit of {limit_bytes} bytes (ulimit -f)")]
    FileSize {
        /// The limit.
        limit_bytes: u64,
    },
    /// The largest address space that there can be.
    #[error("any address space")]
    AddressSpace,
}
