//! The report of a load.

use std::time::Duration;

use longshore_heap::{Heap, PageReport};

/// The number of bytes that were read by each route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BytesByRoute {
    /// From the disk straight into the buffer.
    pub direct: u64,
    /// From the disk into a staging buffer, and copied: tensors whose places do not suit direct I/O.
    pub staged: u64,
    /// From the page cache, where the bytes were resident.
    pub page_cache: u64,
    /// Through the page cache, which did not keep the pages.
    pub uncached: u64,
    /// Through the page cache.
    pub buffered: u64,
    /// From another machine.
    pub remote: u64,
}

impl BytesByRoute {
    /// Returns the number of bytes that were read.
    pub fn total(&self) -> u64 {
        self.direct + self.staged + self.page_cache + self.uncached + self.buffered + self.remote
    }
}

/// The engine that made the direct reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring.
    Uring,
    /// Threads with `preadv2`.
    Threads {
        /// The reason why io_uring could not be used; `None` if there were no direct reads, or if the
        /// loader did not permit it.
        ring_refused: Option<String>,
    },
}

/// The report of a load: sizes, routes and times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The number of bytes read.
    pub content_bytes: u64,
    /// The time from the call to the finished buffer.
    pub elapsed: Duration,
    /// The time for prefaulting pages, summed over all threads. Most of it overlaps with reading.
    pub allocating: Duration,
    /// The share of the reading time that the threads that prefault pages spent on it, from 0 to 1. Near
    /// 1, making pages limited the load, and not the disk.
    pub prefault_share: f64,
    /// The time for reserving and mapping the address range.
    pub mapping: Duration,
    /// The time for reading, including prefaulting and checksums.
    pub reading: Duration,
    /// The heap of the buffer.
    pub heap: Heap,
    /// The page sizes of the buffer.
    pub pages: PageReport,
    /// The number of bytes by route.
    pub by_route: BytesByRoute,
    /// The engine that made the direct reads.
    pub engine: Engine,
    /// The growth of the files' part of the page cache, in bytes; negative if it shrank, `None` if the
    /// kernel does not report it.
    pub page_cache_growth_bytes: Option<i64>,
}

impl Report {
    /// Returns the rate of the whole load, in bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.content_bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
