//! What a load did.

use std::time::Duration;

use longshore_heap::{Heap, PageReport};

/// How many bytes came which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BytesByRoute {
    /// From the disk straight into the buffer.
    pub direct: u64,
    /// From the disk into memory beside the buffer, and copied: tensors whose place the disk cannot
    /// write to.
    pub staged: u64,
    /// From the page cache, where they were already.
    pub page_cache: u64,
    /// Through the page cache, leaving nothing there.
    pub uncached: u64,
    /// Through the page cache.
    pub buffered: u64,
}

/// What made the direct reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// io_uring.
    Uring,
    /// Threads with `preadv2`.
    Threads {
        /// Why direct reads did not go through io_uring, where there were any.
        ring_refused: Option<String>,
    },
}

/// What a load did and how long it took.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Bytes read.
    pub content_bytes: u64,
    /// From the call to the finished buffer.
    pub elapsed: Duration,
    /// Making pages, summed over the threads that did; most of it overlaps with reading.
    pub allocating: Duration,
    /// Reserving and mapping the address range.
    pub mapping: Duration,
    /// From the first read to the last.
    pub reading: Duration,
    /// The heap the buffer came from.
    pub heap: Heap,
    /// The page sizes the buffer came out in.
    pub pages: PageReport,
    /// Which way the bytes came.
    pub by_route: BytesByRoute,
    /// What made the direct reads.
    pub engine: Engine,
    /// By how many bytes the files' share of the page cache grew; negative where it shrank, `None`
    /// where the kernel does not tell.
    pub page_cache_growth_bytes: Option<i64>,
}

impl Report {
    /// Bytes a second, over the whole load.
    pub fn bytes_per_second(&self) -> f64 {
        self.content_bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
