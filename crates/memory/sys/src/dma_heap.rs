//! `/dev/dma_heap/*`: dma-bufs from the kernel's own heaps (`linux/dma-heap.h`).
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::opcode;

/// The directory of the heaps.
pub const DIRECTORY: &str = "/dev/dma_heap";

#[repr(C)]
struct AllocationData {
    len: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

const DMA_HEAP_IOCTL_ALLOC: libc::Ioctl =
    opcode::read_write::<AllocationData>(b'H', 0) as libc::Ioctl;

/// Returns the sorted names of this machine's heaps: `system`, CMA areas, vendor heaps.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(DIRECTORY)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Allocates a zeroed dma-buf of `len_bytes`, rounded up to whole pages, from the heap `name`.
///
/// If the machine does not have enough memory, the kernel may kill the caller instead of returning an
/// error. So check [`crate::memory`] first.
///
/// # Errors
/// `ENOENT` if the heap does not exist, `EACCES` without permission, `EINVAL` if the length is zero,
/// `ENOMEM`; `InvalidInput` for an empty name or one with a slash.
pub fn allocate(name: &str, len_bytes: u64) -> io::Result<OwnedFd> {
    if name.is_empty() || name.contains('/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let path = format!("{DIRECTORY}/{name}");
    let heap = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let mut request = AllocationData { len: len_bytes, fd: 0, fd_flags, heap_flags: 0 };
    // SAFETY: DMA_HEAP_IOCTL_ALLOC reads and writes a `struct dma_heap_allocation_data`, whose
    // layout `AllocationData` has.
    let done = unsafe { libc::ioctl(heap.as_raw_fd(), DMA_HEAP_IOCTL_ALLOC, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: on success `fd` is a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(request.fd.cast_signed()) })
}
