//! Statistics of a DMA pool.

use std::fmt;

use crate::direction::Direction;

/// A snapshot of a [`DmaPool`](crate::DmaPool). It may be inexact while other threads use the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaPoolUsage {
    /// The length of an element in bytes.
    pub element_len: u64,
    /// The access that the device has to the elements.
    pub direction: Direction,
    /// Chunks that are mapped.
    pub chunks: u64,
    /// The length of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Elements of all chunks: those in use, cached and free.
    pub elements: u64,
    /// Elements that have a handle.
    pub in_use: u64,
    /// Elements that threads keep for their next use.
    pub cached: u64,
    /// Elements that any thread can take.
    pub free: u64,
    /// The maximum number of elements that were in use or cached at once.
    pub peak: u64,
}

impl fmt::Display for DmaPoolUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { element_len, direction, chunks, elements, in_use, cached, free, peak, .. } =
            self;
        write!(
            f,
            "{element_len:>7} {direction:?}: {chunks} chunks, {elements} elements, {in_use} in use, \
             {cached} cached, {free} free, peak {peak} in use or cached"
        )
    }
}
