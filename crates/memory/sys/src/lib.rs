//! The Linux interfaces that Longshore uses, each behind one small module.
//!
//! Each module turns one kernel interface into safe functions that return `io::Error`. It handles the
//! conventions of the interface (alignment, retry after a signal, draining before release), but has no
//! policy: the crates above decide which interface to use, and what to do if it is missing.
//!
//! | module | kernel interface |
//! | --- | --- |
//! | [`memfd`] | `memfd_create`, file seals |
//! | [`mapping`] | `mmap` of a shared file at a huge-page boundary |
//! | [`pages`] | `madvise` (huge pages, collapse, populate), `mincore` on mappings of this process |
//! | [`page_cache`] | `cachestat`, `preadv2(RWF_NOWAIT)`: the resident pages of a file |
//! | [`mod@file`] | opening, `statx` (identity, direct I/O alignment), `preadv2` |
//! | [`fiemap`] | `FS_IOC_FIEMAP`: the extents of a file on its disk |
//! | [`uring`] | io_uring, for reads |
//! | [`udmabuf`] | `/dev/udmabuf` |
//! | [`dma_heap`] | `/dev/dma_heap/*` |
//! | [`dma_buf`] | `DMA_BUF_IOCTL_SYNC` |
//! | [`vfio`] | `/dev/vfio/*`: containers, groups, devices and their registers |
//! | [`iommu`] | `/sys`: IOMMUs, their device groups, interrupt remapping |
//! | [`iommufd`] | `/dev/iommu`: address spaces for devices |
//! | [`mod@membarrier`] | `membarrier`: a barrier on every processor that runs this process |
//! | [`process_memory`] | `pidfd_open`, `process_vm_readv`, `process_vm_writev` |
//! | [`memory`] | the available memory: `/proc/meminfo`, cgroups, resource limits |
//! | [`memory_pressure`] | `/proc/pressure/memory`, `memory.pressure` of a cgroup |
//! | [`unix_socket`] | `sendmsg`, `recvmsg` with `SCM_RIGHTS`, `poll` |
//! | [`packet_socket`] | `SOCK_SEQPACKET` with `SCM_RIGHTS` and `SO_PEERCRED` |
//! | [`readiness`] | `poll` on any number of descriptors |
//! | [`answering`] | `statx`, `statmount`, `/proc/self/mountinfo`, `/sys/dev/block`: files whose operations may wait for another process |
//! | [`file_handle`] | `name_to_handle_at`: the identity of a file in its file system |
//! | [`file_use`] | `F_SETLEASE`, `futimens`: whether a file is open elsewhere, and when it was read |
//! | [`beneath`] | `openat2`: files beneath a directory |
//! | [`process_group`] | `setpgid`, `kill`, `waitid`: programs that end together |
//! | [`directory`] | directories by descriptor: `openat2`, `renameat2`, `unlinkat` |
//! | [`tmpfs`] | `O_TMPFILE`, `linkat`, `fallocate`, `mount`: files in a tmpfs |
//! | [`namespace`] | `unshare`: mount namespaces |
//! | [`service_manager`] | sockets that a service manager passes on |
//! | [`disposal`] | `close_range(CLOSE_RANGE_UNSHARE)`: closing files whose last close can block |
//! | [`lock_file`] | a lock file that names its process, and whether that process is dead |
//! | [`in_flight`] | `SIOCOUTQ`: descriptors that were sent and not received |
//! | [`socket_lock`] | the lock file beside the socket of a server |
//! | [`descriptors`] | `RLIMIT_NOFILE` |
//! | [`signals`] | `pthread_sigmask` |
//! | [`event_fd`] | `eventfd`, also if an untrusted process shares it |
//! | [`huge_pages`] | the hugetlb pool, transparent huge page settings |

pub mod account;
mod aio;
pub mod answering;
pub mod beneath;
mod block_device;
mod bounded;
pub mod closing;
pub mod descriptors;
pub mod directory;
pub mod disposal;
pub mod dma_buf;
pub mod dma_heap;
pub mod event_fd;
pub mod fiemap;
pub mod file;
pub mod file_handle;
mod file_queues;
pub mod file_use;
pub mod fork;
pub mod huge_pages;
pub mod in_flight;
mod ioctl;
pub mod iommu;
pub mod iommufd;
pub mod kept_descriptors;
pub mod last_reference;
pub mod lock_file;
pub mod mapping;
pub mod membarrier;
pub mod memfd;
pub mod memory;
pub mod memory_pressure;
pub mod namespace;
mod openat2;
pub mod packet_socket;
pub mod page_cache;
pub mod pages;
mod proc_self;
pub mod process_group;
pub mod process_memory;
pub mod readiness;
pub mod service_manager;
pub mod signals;
pub mod socket_lock;
mod statmount;
pub mod stream_socket;
pub mod tmpfs;
pub mod udmabuf;
pub mod unix_socket;
pub mod uring;
mod user;
pub mod vfio;

/// Returns the size of a base page in bytes: 4096 on x86-64; 4096, 16384 or 65536 on aarch64.
pub fn page_size_bytes() -> usize {
    rustix::param::page_size()
}

/// Returns the effective user ID of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns how long the calling thread has run on a processor (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::try_from(time).unwrap_or_default()
}

/// Repeats `call` while a signal interrupts it.
pub(crate) fn retry_interrupted<T>(
    mut call: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
