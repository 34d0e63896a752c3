//! The Linux interfaces Longshore stands on, each behind one small module.
//!
//! A module here turns one kernel interface into safe functions that return `io::Error`, adds what
//! the interface leaves to convention (alignment, retry after a signal, draining before release)
//! and holds no policy: which interface to use, and what to do where it is missing, is decided by
//! the crates above.
//!
//! | module | kernel interface |
//! | --- | --- |
//! | [`memfd`] | `memfd_create`, file seals |
//! | [`mapping`] | `mmap` of a shared file at a huge-page boundary |
//! | [`pages`] | `madvise` (huge pages, collapse, populate), `mincore` on our own mappings |
//! | [`page_cache`] | `cachestat`, `preadv2(RWF_NOWAIT)`: which part of a file is in memory |
//! | [`mod@file`] | opening, `statx` (identity, direct I/O alignment), `preadv2` |
//! | [`fiemap`] | `FS_IOC_FIEMAP`: where a file lies on its disk |
//! | [`uring`] | io_uring, for reads |
//! | [`udmabuf`] | `/dev/udmabuf` |
//! | [`dma_heap`] | `/dev/dma_heap/*` |
//! | [`dma_buf`] | `DMA_BUF_IOCTL_SYNC` |
//! | [`vfio`] | `/dev/vfio/*`: containers, groups, devices and their registers |
//! | [`iommu`] | `/sys`: IOMMUs, their groups of devices, whether interrupts are remapped |
//! | [`iommufd`] | `/dev/iommu`: address spaces for devices |
//! | [`mod@membarrier`] | `membarrier`: a barrier on every processor that runs this process |
//! | [`process_memory`] | `pidfd_open`, `process_vm_readv`, `process_vm_writev` |
//! | [`memory`] | how much memory there is: `/proc/meminfo`, cgroups, resource limits |
//! | [`memory_pressure`] | `/proc/pressure/memory`, `memory.pressure` of a cgroup |
//! | [`unix_socket`] | `sendmsg`, `recvmsg` with `SCM_RIGHTS`, `poll` |
//! | [`packet_socket`] | `SOCK_SEQPACKET` with `SCM_RIGHTS` and `SO_PEERCRED` |
//! | [`readiness`] | `poll` on any number of descriptors |
//! | [`answering`] | `statx`, `statmount`, `/proc/self/mountinfo`: whether a file may wait for another process |
//! | [`file_handle`] | `name_to_handle_at`: by what a file system tells its files apart |
//! | [`beneath`] | `openat2`: files that lie beneath a directory |
//! | [`service_manager`] | sockets that a service manager hands over |
//! | [`disposal`] | `close_range(CLOSE_RANGE_UNSHARE)`: closing files whose last close can wait |
//! | [`lock_file`] | `flock` that ends with one thread, whatever the others wait for |
//! | [`descriptors`] | `RLIMIT_NOFILE` |
//! | [`signals`] | `pthread_sigmask` |
//! | [`event_fd`] | `eventfd`, also one that an untrusted process shares |
//! | [`huge_pages`] | the hugetlb pool, transparent huge page settings |

pub mod account;
mod aio;
pub mod answering;
pub mod beneath;
pub mod closing;
pub mod descriptors;
pub mod disposal;
pub mod dma_buf;
pub mod dma_heap;
pub mod event_fd;
pub mod fiemap;
pub mod file;
pub mod file_handle;
mod file_queues;
pub mod huge_pages;
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
pub mod packet_socket;
pub mod page_cache;
pub mod pages;
mod proc_self;
pub mod process_memory;
pub mod readiness;
pub mod service_manager;
pub mod signals;
mod statmount;
pub mod udmabuf;
pub mod unix_socket;
pub mod uring;
mod user;
pub mod vfio;

/// The size of a base page in bytes: 4096 on x86-64, 4096, 16384 or 65536 on aarch64.
pub fn page_size_bytes() -> usize {
    rustix::param::page_size()
}

/// The user whose rights this process has.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns how long the calling thread has run on a processor (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::try_from(time).unwrap_or_default()
}

/// Runs `call` again for as long as a signal interrupts it.
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
