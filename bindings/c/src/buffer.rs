//! `longshore_buffer`: its memory, its descriptors and its path.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::{io, ptr};

use longshore_mem::Granule;
use longshore_sys::dma_buf::{CpuAccess, SyncPhase};
use longshore_sys::{dma_buf, file};

use crate::error::{Failure, longshore_code, longshore_error};
use crate::ffi::{self, ErrorOut, Out};
use crate::file::longshore_file;
use crate::memory::Memory;
use crate::stats::longshore_stats;
use crate::tensor::Tensors;

/// For `longshore_buffer_sync`: the CPU reads.
pub const LONGSHORE_SYNC_READ: u32 = 1;
/// For `longshore_buffer_sync`: the CPU writes.
pub const LONGSHORE_SYNC_WRITE: u32 = 2;
/// For `longshore_buffer_sync`: the CPU access ends.
pub const LONGSHORE_SYNC_END: u32 = 4;

/// A filled buffer: memory with a descriptor that can be passed to devices and other processes. Its
/// content is complete, and verified if that was requested. `longshore_load` and `longshore_attach`
/// create it, and `longshore_buffer_free` frees it.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_buffer {
    pub(crate) memory: Memory,
    pub(crate) files: Vec<longshore_file>,
    pub(crate) tensors: Tensors,
    /// The statistics of the load, if this process loaded the files.
    pub(crate) stats: Option<longshore_stats>,
    pub(crate) fd_len: u64,
    heap: CString,
    /// The path of the memfd in `/proc`, if the memory has a memfd.
    path: Option<CString>,
}

const _: () = {
    const fn threads_may_share<T: Send + Sync>() {}
    threads_may_share::<longshore_buffer>();
    threads_may_share::<longshore_error>();
};

impl longshore_buffer {
    pub(crate) fn new(memory: Memory, fd_len: u64, stats: Option<longshore_stats>) -> Self {
        let path = memory.memfd().map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Self {
            heap: CString::new(memory.heap()).unwrap_or_default(),
            path: path.and_then(|path| CString::new(path).ok()),
            memory,
            files: Vec::new(),
            tensors: Tensors::default(),
            stats,
            fd_len,
        }
    }

    /// Returns the address of the content, with its provenance exposed.
    pub(crate) fn address(&self) -> usize {
        self.memory.start().expose_provenance()
    }

    fn memfd(&self) -> Result<BorrowedFd<'_>, Failure> {
        self.memory.memfd().ok_or_else(|| self.lacks("memfd"))
    }

    fn dma_buf(&self) -> Result<BorrowedFd<'_>, Failure> {
        self.memory.dma_buf().ok_or_else(|| self.lacks("dma-buf"))
    }

    fn lacks(&self, what: &str) -> Failure {
        let message = format!("a buffer of heap '{}' has no {what}", self.memory.heap());
        Failure::new(longshore_code::LONGSHORE_NOT_FOUND, libc::ENOENT, message)
    }
}

/// Frees a buffer, and its memory unless another descriptor or mapping of it exists. Pointers into
/// the buffer, descriptors borrowed from it, its tensors and its files become invalid. No thread may
/// be using any of them.
///
/// @param buffer A buffer that is not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_free(buffer: *mut longshore_buffer) {
    // SAFETY: C passes NULL or a buffer that this library returned, and does not use it afterwards.
    unsafe { ffi::free(buffer) }
}

/// Returns the content of a buffer, mapped into this process for reading. For writing, use
/// `longshore_buffer_data_mut`. If the content is not sealed, any process that has a descriptor may
/// change it at any time. If the buffer is a dma-buf, call `longshore_buffer_sync` before and after
/// each access.
///
/// @param buffer A buffer.
/// @return The first byte, at a multiple of the page size, valid for `longshore_buffer_len` bytes
///   and as long as the buffer; NULL if `buffer` is NULL. Do not read it if the length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_data(buffer: *const longshore_buffer) -> *const c_void {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        Ok(unsafe { ffi::borrow(buffer, "buffer") }?.memory.start().cast_const().cast())
    })
}

/// Returns the content of a buffer for writing. All processes that map it see the changes.
///
/// @param buffer A buffer.
/// @return As for `longshore_buffer_data`; NULL if the content is sealed because it was not loaded
///   with `LONGSHORE_LOAD_WRITABLE`, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_data_mut(buffer: *mut longshore_buffer) -> *mut c_void {
    ffi::guarded(ptr::null_mut(), || {
        // SAFETY: C passes NULL or a live buffer.
        let buffer = unsafe { ffi::borrow(buffer, "buffer") }?;
        let writable = (!buffer.memory.is_sealed()).then(|| buffer.memory.start().cast());
        Ok(writable.unwrap_or_default())
    })
}

/// Returns the length of a buffer's content. If it has several files, each begins at a multiple of
/// 4096, and the bytes between them are zero.
///
/// @param buffer A buffer.
/// @return The length in bytes; 0 if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_len(buffer: *const longshore_buffer) -> u64 {
    // SAFETY: C passes NULL or a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(buffer, "buffer") }?.memory.len_bytes()))
}

/// Returns whether the content is sealed, so that no process can ever change it.
///
/// @param buffer A buffer.
/// @return 1 if it is sealed, 0 if it is not or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_is_sealed(buffer: *const longshore_buffer) -> c_int {
    // SAFETY: C passes NULL or a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(buffer, "buffer") }?.memory.is_sealed().into()))
}

/// Returns the heap that the memory came from.
///
/// @param buffer A buffer.
/// @return `memfd`, `memfd:4k`, `hugetlb`, `udmabuf` or `dma-heap:NAME`, or `attached` for memory of
///   a server. The string is valid as long as the buffer; NULL if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_heap(buffer: *const longshore_buffer) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        Ok(unsafe { ffi::borrow(buffer, "buffer") }?.heap.as_ptr())
    })
}

/// Returns the page size of at least nine tenths of a buffer. Disks and devices are faster with
/// larger pages. `longshore_buffer_stats` has the bytes in pages of each size.
///
/// @param buffer A buffer.
/// @return The size in bytes; 0 if the sizes are mixed, if they are not known because the buffer is
///   attached, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_page_size(buffer: *const longshore_buffer) -> u64 {
    ffi::guarded(0, || {
        // SAFETY: C passes NULL or a live buffer.
        let prevailing = unsafe { ffi::borrow(buffer, "buffer") }?.memory.page_size();
        Ok(prevailing.map_or(0, Granule::bytes))
    })
}

/// Returns the memfd of a buffer, to be mapped, sent over a Unix socket or passed to a device. It is
/// read-only if the content is sealed, and close-on-exec. The descriptor and its duplicates share
/// one file position: to read from it, use `pread`, `longshore_buffer_fd_open` or
/// `longshore_buffer_path`.
///
/// @param buffer A buffer.
/// @return The descriptor, which belongs to the buffer and must not be closed; -1 if the memory is
///   from a `dma-heap`, which has no memfd, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_borrow(buffer: *const longshore_buffer) -> c_int {
    ffi::guarded(-1, || {
        // SAFETY: C passes NULL or a live buffer.
        Ok(unsafe { ffi::borrow(buffer, "buffer") }?.memfd()?.as_raw_fd())
    })
}

/// Duplicates the memfd of a buffer. The memory lives until its last descriptor and mapping are
/// gone, even after the buffer was freed. The duplicate is close-on-exec.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the memory is from a `dma-heap`;
///   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_dup(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes arguments that meet the contract of `hand_out`.
    unsafe { hand_out(buffer, fd, error, |buffer| duplicate(buffer.memfd()?)) }
}

/// Reopens the memfd of a buffer for reading only. The new descriptor has a file position of its own,
/// which is 0, so that two readers do not disturb each other, and is close-on-exec. `/proc` must be
/// mounted.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put the error, or NULL.
/// @return As for `longshore_buffer_fd_dup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_open(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    let open = |buffer: &longshore_buffer| {
        file::reopen_read_only(buffer.memfd()?)
            .map_err(|error| Failure::system("reopening the buffer's memfd", &error))
    };
    // SAFETY: C passes arguments that meet the contract of `hand_out`.
    unsafe { hand_out(buffer, fd, error, open) }
}

/// Returns a path by which this process can open a buffer as a file, with `fopen` for example, for
/// code that takes only a path. Each open file has a file position of its own. `/proc` must be
/// mounted. Another process opens `/proc/PID/fd/N` instead, if it has the permission.
///
/// @param buffer A buffer.
/// @return The path, `/proc/self/fd/N`, which is valid as long as the buffer; NULL if the memory is
///   from a `dma-heap`, which cannot be opened, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_path(buffer: *const longshore_buffer) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        let path = unsafe { ffi::borrow(buffer, "buffer") }?.path.as_ref();
        Ok(path.map_or(ptr::null(), |path| path.as_ptr()))
    })
}

/// Returns the length of the file behind a buffer's descriptors: the length of the content, which the
/// heaps `udmabuf`, `dma-heap` and `hugetlb` round up to whole pages. The bytes after the content are
/// zero.
///
/// @param buffer A buffer.
/// @return The length in bytes; 0 if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_len(buffer: *const longshore_buffer) -> u64 {
    // SAFETY: C passes NULL or a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(buffer, "buffer") }?.fd_len))
}

/// Returns the dma-buf of a buffer, to be passed to a driver.
///
/// @param buffer A buffer.
/// @return The descriptor, which belongs to the buffer and must not be closed; -1 if the heap is
///   neither `udmabuf` nor `dma-heap`, or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_dma_buf_fd_borrow(
    buffer: *const longshore_buffer,
) -> c_int {
    ffi::guarded(-1, || {
        // SAFETY: C passes NULL or a live buffer.
        Ok(unsafe { ffi::borrow(buffer, "buffer") }?.dma_buf()?.as_raw_fd())
    })
}

/// Duplicates the dma-buf of a buffer. The duplicate is close-on-exec.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the heap is neither `udmabuf` nor `dma-heap`;
///   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_dma_buf_fd_dup(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes arguments that meet the contract of `hand_out`.
    unsafe { hand_out(buffer, fd, error, |buffer| duplicate(buffer.dma_buf()?)) }
}

/// Begins or ends CPU access to a buffer that is a dma-buf, by `DMA_BUF_IOCTL_SYNC`: after the
/// beginning, the CPU sees the writes of devices; after the end, devices see the writes of the CPU.
/// If the buffer is not a dma-buf, this does nothing.
///
/// @param buffer A buffer.
/// @param flags `LONGSHORE_SYNC_READ`, `LONGSHORE_SYNC_WRITE` or both or'ed, and
///   `LONGSHORE_SYNC_END` to end the access that began with the same flags.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SYSTEM` if the kernel refuses; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_sync(
    buffer: *const longshore_buffer,
    flags: u32,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a live buffer.
        let buffer = unsafe { ffi::borrow(buffer, "buffer") }?;
        let access = match flags & !LONGSHORE_SYNC_END {
            LONGSHORE_SYNC_READ => CpuAccess::Read,
            LONGSHORE_SYNC_WRITE => CpuAccess::Write,
            3 => CpuAccess::ReadWrite,
            _ => {
                let message = format!(
                    "flags are {flags:#x}: set LONGSHORE_SYNC_READ, LONGSHORE_SYNC_WRITE or both, \
                     and no flag other than LONGSHORE_SYNC_END besides"
                );
                return Err(Failure::argument(message));
            }
        };
        let ends = flags & LONGSHORE_SYNC_END != 0;
        let phase = if ends { SyncPhase::End } else { SyncPhase::Start };
        let Some(dma_buf) = buffer.memory.dma_buf() else { return Ok(()) };
        dma_buf::sync(dma_buf, access, phase)
            .map_err(|error| Failure::system("DMA_BUF_IOCTL_SYNC", &error))
    })
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let duplicated: io::Result<OwnedFd> = fd.try_clone_to_owned();
    duplicated.map_err(|error| Failure::system("duplicating a descriptor", &error))
}

/// Stores the descriptor that `make` returns at `fd`.
///
/// # Safety
/// `buffer` is NULL or a live buffer; `fd` and `error` are NULL or valid for writes.
unsafe fn hand_out(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
    make: impl FnOnce(&longshore_buffer) -> Result<OwnedFd, Failure>,
) -> longshore_code {
    // SAFETY: by this function's contract.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: by this function's contract.
        let fd = unsafe { Out::new(fd, "fd", -1) }?;
        // SAFETY: by this function's contract.
        let buffer = unsafe { ffi::borrow(buffer, "buffer") }?;
        fd.put(make(buffer)?.into_raw_fd());
        Ok(())
    })
}
