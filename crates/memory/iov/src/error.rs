//! The errors of cursors and copies, with the place and the number of bytes done.

use longshore_mem::NotAPage;
use longshore_mem::fault::Fault;
use thiserror::Error;

/// An error of a cursor or of an operation on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An access to foreign memory faulted. The cursor stands behind the last byte that was done.
    #[error("after {done_bytes} bytes: {fault}")]
    Fault {
        /// The number of bytes done before the fault.
        done_bytes: usize,
        /// The fault.
        #[source]
        fault: Fault,
    },
    /// Fewer bytes are available than an all-or-nothing operation needs. No cursor moved.
    #[error("{wanted_bytes} bytes wanted, but only {available_bytes} available")]
    TooShort {
        /// The number of bytes requested.
        wanted_bytes: usize,
        /// The number of bytes available.
        available_bytes: usize,
    },
    /// The source and the destination of a transfer share bytes, so the result would depend on the
    /// order of the writes. Both cursors stand before the segments that overlap.
    #[error("after {done_bytes} bytes: source and destination overlap")]
    Overlap {
        /// The number of bytes done before those segments.
        done_bytes: usize,
    },
    /// A list has more segments than one system call accepts.
    #[error("{count} segments, above the limit of {max} (IOV_MAX)")]
    TooManySegments {
        /// The number of segments.
        count: usize,
        /// The largest number allowed.
        max: usize,
    },
    /// The segments' lengths add up to more than an object can have (`isize::MAX` bytes).
    #[error(
        "the lengths of the first {segments} segments add up to more than {} bytes",
        isize::MAX
    )]
    TooLong {
        /// The number of segments up to the one that exceeds the limit.
        segments: usize,
    },
    /// A segment has a length, but its address is zero.
    #[error("segment {index} has {len_bytes} bytes at address zero")]
    NullSegment {
        /// The index of the segment, from zero.
        index: usize,
        /// The length in bytes.
        len_bytes: usize,
    },
    /// A part of a page reaches past the end of the page.
    #[error("{len_bytes} bytes at offset {offset} are not inside a page of {page_bytes} bytes")]
    OutsidePage {
        /// The start of the part, in bytes from the start of the page.
        offset: usize,
        /// The length of the part in bytes.
        len_bytes: usize,
        /// The size of the page in bytes.
        page_bytes: usize,
    },
    /// The size of a page differs from the page size of the index.
    #[error(
        "a page of 2^{page_log2} bytes does not go into an index of pages of 2^{index_log2} bytes"
    )]
    PageSize {
        /// The size of the page, as a binary logarithm.
        page_log2: u32,
        /// The page size of the index, as a binary logarithm.
        index_log2: u32,
    },
    /// The memory is not a page.
    #[error(transparent)]
    NotAPage(#[from] NotAPage),
    /// A page is too large for the type of its parts.
    #[error(
        "a page of 2^{page_log2} bytes is larger than the largest supported, 2^{max_log2} bytes"
    )]
    PageTooLarge {
        /// The size of the page, as a binary logarithm.
        page_log2: u32,
        /// The largest size, as a binary logarithm.
        max_log2: u32,
    },
    /// A cursor was asked to move before its start or past its end.
    #[error("{asked_bytes} bytes requested, but only {possible_bytes} possible in that direction")]
    OutOfRange {
        /// The requested distance or length in bytes.
        asked_bytes: usize,
        /// The largest value that is possible.
        possible_bytes: usize,
    },
    /// The operation needs a kind whose memory cannot fault.
    #[error("memory of the kind {kind} can fault")]
    CanFault {
        /// The name of the kind.
        kind: &'static str,
    },
}
