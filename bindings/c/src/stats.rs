//! What a load did, as C sees it.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::mem::offset_of;
use std::ptr;
use std::time::Duration;

use longshore_load::{Engine, Report};

use crate::buffer::longshore_buffer;
use crate::door::{self, ErrorOut};
use crate::error::{Failure, longshore_code, longshore_error};

/// For `page_cache_growth_bytes`: the kernel does not tell.
pub const LONGSHORE_UNKNOWN: i64 = i64::MIN;

/// What a load did. Times are in nanoseconds. Later versions add fields at the end; `size` tells
/// the library which the program knows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_stats {
    /// `sizeof(longshore_stats)`, set by the caller.
    pub size: usize,
    /// Bytes read: all files together, without what lies between them.
    pub content_bytes: u64,
    /// From the call to the finished buffer.
    pub elapsed_ns: u64,
    /// Making pages, summed over the threads that did; most of it overlaps with reading.
    pub allocating_ns: u64,
    /// Reserving and mapping addresses.
    pub mapping_ns: u64,
    /// From the first read to the last.
    pub reading_ns: u64,
    /// Bytes that came from the disk straight into the buffer.
    pub direct_bytes: u64,
    /// Bytes that came from the disk into memory beside the buffer and were copied: of tensors whose
    /// place in the buffer the disk cannot write to.
    pub staged_bytes: u64,
    /// Bytes that were in the page cache already.
    pub page_cache_bytes: u64,
    /// Bytes that came through the page cache and left nothing there.
    pub uncached_bytes: u64,
    /// Bytes that came through the page cache and are there now.
    pub buffered_bytes: u64,
    /// By how much the files' share of the page cache grew, negative where it shrank;
    /// `LONGSHORE_UNKNOWN` where the kernel does not tell.
    pub page_cache_growth_bytes: i64,
    /// Bytes of the buffer in 2 MiB pages of the hugetlb pool.
    pub hugetlb_2m_bytes: u64,
    /// Bytes of the buffer in transparent huge pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// Bytes of the buffer in pages of 64 KiB or more, below 2 MiB.
    pub mid_64k_bytes: u64,
    /// Bytes of the buffer in smaller pages.
    pub base_bytes: u64,
    /// 1 if io_uring made the direct reads; 0 if threads did, or if there were none.
    pub used_uring: u64,
}

const _: () = {
    assert!(size_of::<longshore_stats>() == 136);
    assert!(offset_of!(longshore_stats, content_bytes) == 8);
    assert!(offset_of!(longshore_stats, reading_ns) == 40);
    assert!(offset_of!(longshore_stats, page_cache_growth_bytes) == 88);
    assert!(offset_of!(longshore_stats, used_uring) == 128);
};

/// The struct's length in the first version that had it, and what no version will pass.
const SIZE_BYTES: std::ops::RangeInclusive<usize> = 136..=4096;

/// Tells what the load did that made a buffer.
///
/// @param buffer A buffer.
/// @param stats Where to put it. Its `size` must be set, as `sizeof(longshore_stats)`, and is kept;
///   fields that the library does not know are set to zero.
/// @param error Where to put what went wrong, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` for what is attached, which its server loaded;
///   `LONGSHORE_INVALID_ARGUMENT` for NULL or a `size` that cannot be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_stats(
    buffer: *const longshore_buffer,
    stats: *mut longshore_stats,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a buffer that lives.
        let known = unsafe { door::borrow(buffer, "buffer") }?.stats;
        let known = known.ok_or_else(|| {
            let message = "what is attached was loaded by its server, which does not tell how";
            Failure::new(longshore_code::LONGSHORE_NOT_FOUND, libc::ENOENT, message.to_owned())
        })?;
        door::checked(stats, "stats")?;
        // SAFETY: its first field is there in every version.
        let size = unsafe { stats.cast::<usize>().read() };
        if !SIZE_BYTES.contains(&size) {
            return Err(Failure::argument(format!(
                "stats: size is {size}; set it to sizeof(longshore_stats)"
            )));
        }
        let known = longshore_stats { size, ..known };
        // SAFETY: C says that there are `size` bytes, which are its own.
        unsafe { ptr::write_bytes(stats.cast::<u8>(), 0, size) };
        let copied = size.min(size_of::<longshore_stats>());
        let from = (&raw const known).cast::<u8>();
        // SAFETY: both have at least `copied` bytes, and one is on this function's stack.
        unsafe { ptr::copy_nonoverlapping(from, stats.cast(), copied) };
        Ok(())
    })
}

impl From<&Report> for longshore_stats {
    fn from(report: &Report) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (direct, staged) = (report.by_route.direct, report.by_route.staged);
        Self {
            size: size_of::<Self>(),
            content_bytes: report.content_bytes,
            elapsed_ns: nanoseconds(report.elapsed),
            allocating_ns: nanoseconds(report.allocating),
            mapping_ns: nanoseconds(report.mapping),
            reading_ns: nanoseconds(report.reading),
            direct_bytes: direct,
            staged_bytes: staged,
            page_cache_bytes: report.by_route.page_cache,
            uncached_bytes: report.by_route.uncached,
            buffered_bytes: report.by_route.buffered,
            page_cache_growth_bytes: report.page_cache_growth_bytes.unwrap_or(LONGSHORE_UNKNOWN),
            hugetlb_2m_bytes: report.pages.hugetlb_2m_bytes,
            huge_2m_bytes: report.pages.huge_2m_bytes,
            mid_64k_bytes: report.pages.mid_64k_bytes,
            base_bytes: report.pages.base_bytes,
            used_uring: (report.engine == Engine::Uring && direct + staged > 0).into(),
        }
    }
}
