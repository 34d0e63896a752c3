//! The pages of a file that are in the page cache.
#![expect(unsafe_code, reason = "cachestat has no wrapper in libc")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use longshore_mem::FileOffset;
use rustix::fs::Advice;

use crate::file::{ReadFlags, read_into};

/// Page counts of a range: `struct cachestat` of `linux/mman.h` (Linux 6.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CacheStat {
    /// The number of resident pages.
    pub cached_pages: u64,
    /// The number of dirty pages.
    pub dirty_pages: u64,
    /// The number of pages under writeback.
    pub writeback_pages: u64,
    /// The number of evicted pages.
    pub evicted_pages: u64,
    /// The number of pages that were evicted so recently that they would still be resident without
    /// memory pressure.
    pub recently_evicted_pages: u64,
}

/// The system call number, which is the same on every architecture. libc does not define it for all.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CacheStatRange {
    offset_bytes: u64,
    len_bytes: u64,
}

/// Counts the resident pages in a range of a file, exactly and without side effects.
///
/// # Errors
/// `EPERM` if this process neither owns the file nor may write to it, `ENOSYS` before Linux 6.5.
pub fn stat(file: impl AsFd, offset: FileOffset, len_bytes: u64) -> io::Result<CacheStat> {
    // For the kernel, a length of zero means everything up to the end of the file.
    if len_bytes == 0 {
        return Ok(CacheStat::default());
    }
    let range = CacheStatRange { offset_bytes: offset.raw(), len_bytes };
    let mut answer = CacheStat::default();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: both structures have the layout of `linux/mman.h` and live across the call.
    match unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut answer, 0u32) } {
        0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` if the byte at `offset` is resident. It tries to read the byte without blocking
/// (`RWF_NOWAIT`), which works for any readable file.
///
/// A miss makes the kernel read ahead from that page. After [`expect_random_reads`] it reads at most
/// that one page.
///
/// # Errors
/// Those of `preadv2(2)` other than `EAGAIN`; `Unsupported` if the file system does not support
/// `RWF_NOWAIT`.
pub fn is_resident(file: impl AsFd, offset: FileOffset) -> io::Result<bool> {
    let flags = ReadFlags { resident_only: true, ..ReadFlags::default() };
    match read_into(file, &mut [0], offset, flags) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Turns off readahead for this open file (`POSIX_FADV_RANDOM`).
///
/// # Errors
/// Those of `posix_fadvise(2)`.
pub fn expect_random_reads(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::Random)?)
}

/// Enlarges the readahead window of this open file (`POSIX_FADV_SEQUENTIAL`).
///
/// # Errors
/// Those of `posix_fadvise(2)`.
pub fn expect_sequential_reads(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::Sequential)?)
}

/// Drops a file's clean pages from the page cache (`POSIX_FADV_DONTNEED`), after writing the dirty
/// ones.
///
/// # Errors
/// Those of `fdatasync(2)` and `posix_fadvise(2)`.
pub fn evict(file: impl AsFd) -> io::Result<()> {
    let file = file.as_fd();
    rustix::fs::fdatasync(file)?;
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Makes a file in `/var/tmp`, which survives a reboot by convention, and so is on a disk; `/tmp`
    /// may not be.
    fn file_of(len_bytes: usize) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        file.write_all(&vec![7; len_bytes]).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    #[test]
    fn resident_pages_are_counted_and_evicted() {
        let file = file_of(1 << 20);
        let count = |len| stat(&file, FileOffset::new(0), len).map(|answer| answer.cached_pages);
        match count(1 << 20) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                eprintln!("SKIPPED: no cachestat on this kernel");
                return;
            }
            pages => assert_eq!(pages.unwrap(), (1 << 20) / crate::page_size_bytes() as u64),
        }
        assert!(is_resident(&file, FileOffset::new(4096)).unwrap());
        evict(&file).unwrap();
        assert_eq!(count(1 << 20).unwrap(), 0);
        expect_random_reads(&file).unwrap();
        // `is_resident` makes the kernel read the page, which may even finish before it returns.
        let is_absent = |_| {
            evict(&file).unwrap();
            !is_resident(&file, FileOffset::new(4096)).unwrap()
        };
        assert!((0..1000).any(is_absent));
    }
}
