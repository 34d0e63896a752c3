//! A buffer, as C sees it.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::{io, ptr};

use longshore_mem::Granule;
use longshore_sys::dma_buf::{Bracket, CpuAccess};
use longshore_sys::{dma_buf, file};

use crate::door::{self, ErrorOut, Out};
use crate::error::{Failure, longshore_code, longshore_error};
use crate::file::longshore_file;
use crate::memory::Memory;
use crate::stats::longshore_stats;
use crate::tensor::Tensors;

/// For `longshore_buffer_sync`: the CPU is going to load.
pub const LONGSHORE_SYNC_READ: u32 = 1;
/// For `longshore_buffer_sync`: the CPU is going to store.
pub const LONGSHORE_SYNC_WRITE: u32 = 2;
/// For `longshore_buffer_sync`: the CPU is done with what it said before.
pub const LONGSHORE_SYNC_END: u32 = 4;

/// A filled buffer: memory with a descriptor that devices and other processes can be given. Its
/// content is complete, and verified if that was asked for. Made by `longshore_load` or
/// `longshore_attach`, freed by `longshore_buffer_free`.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_buffer {
    pub(crate) memory: Memory,
    pub(crate) files: Vec<longshore_file>,
    pub(crate) tensors: Tensors,
    /// What the load did, if it was one of this process.
    pub(crate) stats: Option<longshore_stats>,
    pub(crate) fd_len: u64,
    heap: CString,
    /// Under which a descriptor can be opened again, if the memory has one that can.
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

    /// Where the content begins, as a number that a pointer can be made of again.
    pub(crate) fn address(&self) -> usize {
        self.memory.start().expose_provenance()
    }

    fn memfd(&self) -> Result<BorrowedFd<'_>, Failure> {
        self.memory.memfd().ok_or_else(|| self.lacks("a memfd"))
    }

    fn dma_buf(&self) -> Result<BorrowedFd<'_>, Failure> {
        self.memory.dma_buf().ok_or_else(|| self.lacks("a dma-buf"))
    }

    fn lacks(&self, what: &str) -> Failure {
        let message = format!("a buffer of heap '{}' is not {what}", self.memory.heap());
        Failure::new(longshore_code::LONGSHORE_NOT_FOUND, libc::ENOENT, message)
    }
}

/// Frees a buffer: its memory too, unless another descriptor or mapping of it is left. Pointers
/// into it, descriptors borrowed from it, its tensors and its files are gone then. No thread may be
/// using any of them.
///
/// @param buffer A buffer that is used no more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_free(buffer: *mut longshore_buffer) {
    // SAFETY: C passes NULL or a buffer that `longshore_load` gave it, and uses it no more.
    unsafe { door::free(buffer) }
}

/// The content of a buffer, mapped into this process. It can be read; it can be written only
/// through `longshore_buffer_data_mut`. Where it is not sealed, whoever has a descriptor may change
/// it meanwhile; where there is a dma-buf, `longshore_buffer_sync` stands around each access.
///
/// @param buffer A buffer.
/// @return The first byte, at a multiple of the page size, valid for `longshore_buffer_len` bytes
///   and as long as the buffer; NULL if `buffer` is NULL. Not to be read if the length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_data(buffer: *const longshore_buffer) -> *const c_void {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        Ok(unsafe { door::borrow(buffer, "buffer") }?.memory.start().cast_const().cast())
    })
}

/// The content of a buffer, to be written to. Whoever has it mapped sees what is written.
///
/// @param buffer A buffer.
/// @return As `longshore_buffer_data`; NULL if the content is sealed, that is, was not loaded with
///   `LONGSHORE_LOAD_WRITABLE`, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_data_mut(buffer: *mut longshore_buffer) -> *mut c_void {
    door::guarded(ptr::null_mut(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        let buffer = unsafe { door::borrow(buffer, "buffer") }?;
        let writable = (!buffer.memory.is_sealed()).then(|| buffer.memory.start().cast());
        Ok(writable.unwrap_or_default())
    })
}

/// The length of a buffer's content. Of several files each begins at a multiple of 4096, and the
/// bytes between them are zero.
///
/// @param buffer A buffer.
/// @return The length in bytes; 0 if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_len(buffer: *const longshore_buffer) -> u64 {
    // SAFETY: C passes NULL or a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(buffer, "buffer") }?.memory.len_bytes()))
}

/// Whether the content is sealed: neither this process nor any other can ever change it.
///
/// @param buffer A buffer.
/// @return 1 if it is, 0 if it is not or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_is_sealed(buffer: *const longshore_buffer) -> c_int {
    // SAFETY: C passes NULL or a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(buffer, "buffer") }?.memory.is_sealed().into()))
}

/// Which heap the memory came from.
///
/// @param buffer A buffer.
/// @return `memfd`, `memfd:4k`, `hugetlb`, `udmabuf` or `dma-heap:NAME`, or `attached` for memory of
///   a server, which lasts as long as the buffer; NULL if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_heap(buffer: *const longshore_buffer) -> *const c_char {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        Ok(unsafe { door::borrow(buffer, "buffer") }?.heap.as_ptr())
    })
}

/// The page size that at least nine tenths of a buffer came out in. It decides how fast disks and
/// devices are; `longshore_buffer_stats` has the shares.
///
/// @param buffer A buffer.
/// @return The size in bytes; 0 if the sizes are mixed or not known, as of what is attached, or `buffer`
///   is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_page_size(buffer: *const longshore_buffer) -> u64 {
    door::guarded(0, || {
        // SAFETY: C passes NULL or a buffer that lives.
        let prevailing = unsafe { door::borrow(buffer, "buffer") }?.memory.page_size();
        Ok(prevailing.map_or(0, Granule::bytes))
    })
}

/// The memfd of a buffer, to be mapped, sent over a Unix socket or given to a device. It is
/// read-only where the content is sealed, and closed on exec. All who have it or a duplicate share
/// one file position: to read from it, use `pread`, `longshore_buffer_fd_open` or
/// `longshore_buffer_path`.
///
/// @param buffer A buffer.
/// @return The descriptor, which belongs to the buffer and must not be closed; -1 if the memory is
///   of a `dma-heap`, which has no memfd, or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_borrow(buffer: *const longshore_buffer) -> c_int {
    door::guarded(-1, || {
        // SAFETY: C passes NULL or a buffer that lives.
        Ok(unsafe { door::borrow(buffer, "buffer") }?.memfd()?.as_raw_fd())
    })
}

/// Duplicates the memfd of a buffer. The memory lives until the last descriptor and mapping of it
/// is gone, also when the buffer was freed. Closed on exec.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the memory is of a `dma-heap`;
///   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_dup(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes what `hand_out` takes.
    unsafe { hand_out(buffer, fd, error, |buffer| duplicate(buffer.memfd()?)) }
}

/// Opens the memfd of a buffer anew: for reading only, with a file position of its own at its
/// beginning, so that two readers do not disturb each other. Closed on exec. `/proc` must be
/// mounted.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put what went wrong, or NULL.
/// @return As `longshore_buffer_fd_dup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_open(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    let open = |buffer: &longshore_buffer| {
        file::reopen_read_only(buffer.memfd()?)
            .map_err(|error| Failure::system("opening the buffer's memfd anew", &error))
    };
    // SAFETY: C passes what `hand_out` takes.
    unsafe { hand_out(buffer, fd, error, open) }
}

/// A path under which this process can open a buffer as a file, by `fopen` or in any other way: for
/// readers that take a path and know nothing of Longshore. Each opening has a file position of its
/// own. `/proc` must be mounted.
///
/// @param buffer A buffer.
/// @return The path, `/proc/self/fd/N`, which lasts as long as the buffer; NULL if the memory is of
///   a `dma-heap`, which cannot be opened, or `buffer` is NULL. Of what has the right to, another
///   process opens `/proc/PID/fd/N`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_path(buffer: *const longshore_buffer) -> *const c_char {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        let path = unsafe { door::borrow(buffer, "buffer") }?.path.as_ref();
        Ok(path.map_or(ptr::null(), |path| path.as_ptr()))
    })
}

/// The length of the file behind a buffer's descriptors: that of the content for heap `memfd`, more
/// where the heap deals in whole pages. What lies between is zero.
///
/// @param buffer A buffer.
/// @return The length in bytes; 0 if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_fd_len(buffer: *const longshore_buffer) -> u64 {
    // SAFETY: C passes NULL or a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(buffer, "buffer") }?.fd_len))
}

/// The dma-buf of a buffer, to be given to a driver.
///
/// @param buffer A buffer.
/// @return The descriptor, which belongs to the buffer and must not be closed; -1 if the heap is
///   neither `udmabuf` nor `dma-heap`, or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_dma_buf_fd_borrow(
    buffer: *const longshore_buffer,
) -> c_int {
    door::guarded(-1, || {
        // SAFETY: C passes NULL or a buffer that lives.
        Ok(unsafe { door::borrow(buffer, "buffer") }?.dma_buf()?.as_raw_fd())
    })
}

/// Duplicates the dma-buf of a buffer. Closed on exec.
///
/// @param buffer A buffer.
/// @param fd Where to put the descriptor, which the caller closes; -1 on failure.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the heap is neither `udmabuf` nor `dma-heap`;
///   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_dma_buf_fd_dup(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes what `hand_out` takes.
    unsafe { hand_out(buffer, fd, error, |buffer| duplicate(buffer.dma_buf()?)) }
}

/// Begins or ends the CPU's access to a buffer that is a dma-buf, as `DMA_BUF_IOCTL_SYNC` does:
/// what devices wrote is seen by the CPU after the beginning, and what the CPU wrote by devices
/// after the end. Nothing is done where there is no dma-buf.
///
/// @param buffer A buffer.
/// @param flags `LONGSHORE_SYNC_READ`, `LONGSHORE_SYNC_WRITE` or both or'ed, and
///   `LONGSHORE_SYNC_END` to end what was begun.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_SYSTEM` if the kernel refuses; `LONGSHORE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_sync(
    buffer: *const longshore_buffer,
    flags: u32,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a buffer that lives.
        let buffer = unsafe { door::borrow(buffer, "buffer") }?;
        let access = match flags & !LONGSHORE_SYNC_END {
            LONGSHORE_SYNC_READ => CpuAccess::Read,
            LONGSHORE_SYNC_WRITE => CpuAccess::Write,
            3 => CpuAccess::ReadWrite,
            _ => {
                let message = format!("flags are {flags:#x}: neither read nor write, or no flag");
                return Err(Failure::argument(message));
            }
        };
        let ends = flags & LONGSHORE_SYNC_END != 0;
        let bracket = if ends { Bracket::End } else { Bracket::Start };
        let Some(dma_buf) = buffer.memory.dma_buf() else { return Ok(()) };
        dma_buf::sync(dma_buf, access, bracket)
            .map_err(|error| Failure::system("DMA_BUF_IOCTL_SYNC", &error))
    })
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    let duplicated: io::Result<OwnedFd> = fd.try_clone_to_owned();
    duplicated.map_err(|error| Failure::system("duplicating a descriptor", &error))
}

/// Puts the descriptor that `make` makes where C wants it.
///
/// # Safety
/// `buffer` is NULL or a buffer that lives; `fd` and `error` are NULL or places of the caller's.
unsafe fn hand_out(
    buffer: *const longshore_buffer,
    fd: *mut c_int,
    error: *mut *mut longshore_error,
    make: impl FnOnce(&longshore_buffer) -> Result<OwnedFd, Failure>,
) -> longshore_code {
    // SAFETY: as promised to this function.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: as promised to this function.
        let fd = unsafe { Out::new(fd, "fd", -1) }?;
        // SAFETY: as promised to this function.
        let buffer = unsafe { door::borrow(buffer, "buffer") }?;
        fd.put(make(buffer)?.into_raw_fd());
        Ok(())
    })
}
