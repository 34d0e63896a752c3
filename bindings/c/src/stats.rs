//! `longshore_stats`: the statistics of a load.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::mem::offset_of;
use std::time::Duration;

use longshore_load::{Engine, Report};

use crate::buffer::longshore_buffer;
use crate::error::{Failure, longshore_code, longshore_error};
use crate::ffi::{self, ErrorOut};
use crate::sized::SizedStruct;

/// For `page_cache_growth_bytes`: the kernel does not report it.
pub const LONGSHORE_UNKNOWN: i64 = i64::MIN;

/// The statistics of a load. Times are in nanoseconds. Later versions add fields at the end; by `size`
/// the library recognises the version that the program was compiled for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_stats {
    /// `sizeof(longshore_stats)`, set by the caller.
    pub size: usize,
    /// The bytes read: all files together, without the gaps between them.
    pub content_bytes: u64,
    /// The time from the call to the finished buffer.
    pub elapsed_ns: u64,
    /// The time spent on prefaulting pages, summed over all threads; most of it overlaps with reading.
    pub allocating_ns: u64,
    /// The time spent on reserving and mapping addresses.
    pub mapping_ns: u64,
    /// The time from the first read to the last.
    pub reading_ns: u64,
    /// The bytes that were read from the disk into the buffer by direct I/O.
    pub direct_bytes: u64,
    /// The bytes that were read by direct I/O into memory beside the buffer and copied, because their
    /// place in the buffer does not suit direct I/O.
    pub staged_bytes: u64,
    /// The bytes that were copied from the page cache.
    pub page_cache_bytes: u64,
    /// The bytes that were read through the page cache and dropped from it.
    pub uncached_bytes: u64,
    /// The bytes that were read through the page cache and stay in it.
    pub buffered_bytes: u64,
    /// The bytes by which the files' resident pages in the page cache grew, negative if they shrank;
    /// `LONGSHORE_UNKNOWN` if the kernel does not report them.
    pub page_cache_growth_bytes: i64,
    /// The bytes of the buffer in 2 MiB pages of the hugetlb pool.
    pub hugetlb_2m_bytes: u64,
    /// The bytes of the buffer in transparent huge pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// The bytes of the buffer in pages of 64 KiB or more, but below 2 MiB.
    pub mid_64k_bytes: u64,
    /// The bytes of the buffer in smaller pages.
    pub base_bytes: u64,
    /// 1 if the direct reads used io_uring; 0 if threads made them, or if there were none.
    pub used_uring: u64,
    /// The bytes that were received from servers.
    pub remote_bytes: u64,
}

const _: () = {
    assert!(size_of::<longshore_stats>() == 144);
    assert!(offset_of!(longshore_stats, content_bytes) == 8);
    assert!(offset_of!(longshore_stats, reading_ns) == 40);
    assert!(offset_of!(longshore_stats, page_cache_growth_bytes) == 88);
    assert!(offset_of!(longshore_stats, used_uring) == 128);
    assert!(offset_of!(longshore_stats, remote_bytes) == 136);
};

const STRUCT: SizedStruct = SizedStruct { name: "longshore_stats", first_bytes: 136 };

/// Stores the statistics of the load that filled a buffer.
///
/// @param buffer A buffer.
/// @param stats Where to put the statistics. Its `size` must be set to `sizeof(longshore_stats)`, and
///   is kept; fields that the library's version does not have are set to zero.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the buffer is attached, because its server loaded
///   it; `LONGSHORE_INVALID_ARGUMENT` for NULL or an invalid `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_stats(
    buffer: *const longshore_buffer,
    stats: *mut longshore_stats,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a live buffer.
        let known = unsafe { ffi::borrow(buffer, "buffer") }?.stats;
        let known = known.ok_or_else(|| {
            let message = "an attached buffer has no statistics, because its server loaded it";
            Failure::new(longshore_code::LONGSHORE_NOT_FOUND, libc::ENOENT, message.to_owned())
        })?;
        // SAFETY: C passes NULL or statistics of the size in their first field.
        unsafe { STRUCT.write(&known, stats, "stats") }
    })
}

impl From<&Report> for longshore_stats {
    fn from(report: &Report) -> Self {
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
            remote_bytes: report.by_route.remote,
        }
    }
}

/// Returns a time in nanoseconds.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
