//! `longshore_stream_report`: the state of a stream.

use std::mem::offset_of;

use longshore_load::{Engine, StreamReport};

use crate::sized::SizedStruct;
use crate::stats::nanoseconds;

/// The state of a stream. Later versions add fields at the end; by `size` the library recognises
/// the version that the program was compiled for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_stream_report {
    /// `sizeof(longshore_stream_report)`, set by the caller.
    pub size: usize,
    /// The number of tensors to yield.
    pub selected_tensors: u64,
    /// The number of their bytes.
    pub selected_bytes: u64,
    /// The number of tensors that `longshore_stream_next` has returned.
    pub yielded_tensors: u64,
    /// The bytes that were read so far: those of the tensors, rounded out to whole blocks of the
    /// disk, and small gaps.
    pub read_bytes: u64,
    /// The memory of the stream.
    pub memory_bytes: u64,
    /// The bytes beside it that were taken because it was full (`LONGSHORE_STREAM_GROW`).
    pub grown_bytes: u64,
    /// The time since the stream was opened, in nanoseconds.
    pub elapsed_ns: u64,
    /// The bytes that were read from the disk by direct I/O.
    pub direct_bytes: u64,
    /// The bytes that were copied from the page cache.
    pub page_cache_bytes: u64,
    /// The bytes that were read through the page cache and dropped from it.
    pub uncached_bytes: u64,
    /// The bytes that were read through the page cache and stay in it.
    pub buffered_bytes: u64,
    /// 1 if direct reads use io_uring; 0 if threads make them, or if there were none.
    pub used_uring: u64,
    /// The bytes that were received from servers.
    pub remote_bytes: u64,
}

const _: () = {
    assert!(size_of::<longshore_stream_report>() == 112);
    assert!(offset_of!(longshore_stream_report, selected_tensors) == 8);
    assert!(offset_of!(longshore_stream_report, yielded_tensors) == 24);
    assert!(offset_of!(longshore_stream_report, grown_bytes) == 48);
    assert!(offset_of!(longshore_stream_report, elapsed_ns) == 56);
    assert!(offset_of!(longshore_stream_report, direct_bytes) == 64);
    assert!(offset_of!(longshore_stream_report, used_uring) == 96);
    assert!(offset_of!(longshore_stream_report, remote_bytes) == 104);
};

pub(crate) const STRUCT: SizedStruct =
    SizedStruct { name: "longshore_stream_report", first_bytes: 104 };

impl From<&StreamReport> for longshore_stream_report {
    fn from(report: &StreamReport) -> Self {
        let direct = report.by_route.direct + report.by_route.staged;
        Self {
            size: size_of::<Self>(),
            selected_tensors: report.selected_tensors,
            selected_bytes: report.selected_bytes,
            yielded_tensors: report.delivered_tensors,
            read_bytes: report.read_bytes,
            memory_bytes: report.memory_bytes,
            grown_bytes: report.grown_bytes,
            elapsed_ns: nanoseconds(report.elapsed),
            direct_bytes: direct,
            page_cache_bytes: report.by_route.page_cache,
            uncached_bytes: report.by_route.uncached,
            buffered_bytes: report.by_route.buffered,
            used_uring: (report.engine == Some(Engine::Uring) && direct > 0).into(),
            remote_bytes: report.by_route.remote,
        }
    }
}
