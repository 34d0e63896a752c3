//! What can go wrong, where, and how far it came.

use longshore_mem::NotAPage;
use longshore_mem::fault::Fault;
use thiserror::Error;

/// Why a cursor could not be made, or did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Foreign memory was not there. The cursor stands at the byte after the last that was done.
    #[error("after {done_bytes} bytes: {fault}")]
    Fault {
        /// Bytes done before it.
        done_bytes: usize,
        /// What was met.
        #[source]
        fault: Fault,
    },
    /// Less was there than had to be done in full. Nothing moved.
    #[error("{wanted_bytes} bytes were to be done in full, and there are {available_bytes}")]
    TooShort {
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes there are.
        available_bytes: usize,
    },
    /// Source and destination of a transfer share bytes, so what is written would depend on the
    /// order of the writes. Both cursors stand before the segments that overlap.
    #[error("after {done_bytes} bytes: source and destination overlap")]
    Overlap {
        /// Bytes done before them.
        done_bytes: usize,
    },
    /// A list has more segments than one system call takes.
    #[error("{count} segments, above the limit of {max} (IOV_MAX)")]
    TooManySegments {
        /// Segments there are.
        count: usize,
        /// The most there may be.
        max: usize,
    },
    /// The segments' lengths add up to more than an object can have.
    #[error(
        "the lengths of the first {segments} segments add up to more than {} bytes",
        isize::MAX
    )]
    TooLong {
        /// How many segments reach past the limit.
        segments: usize,
    },
    /// A segment has a length and no address.
    #[error("segment {index} has {len_bytes} bytes at address zero")]
    NullSegment {
        /// Which one, from zero.
        index: usize,
        /// Its length.
        len_bytes: usize,
    },
    /// A part of a page reaches past the page.
    #[error("{len_bytes} bytes at offset {offset} are not inside a page of {page_bytes} bytes")]
    OutsidePage {
        /// Where the part begins, in bytes from the page's start.
        offset: usize,
        /// Its length.
        len_bytes: usize,
        /// The page's size.
        page_bytes: usize,
    },
    /// A page's size is not that of the index it was to go into.
    #[error(
        "a page of 2^{page_log2} bytes does not go into an index of pages of 2^{index_log2} bytes"
    )]
    PageSize {
        /// The page's size, as a logarithm.
        page_log2: u32,
        /// The size of the index' pages, as a logarithm.
        index_log2: u32,
    },
    /// Memory that was to be a page is none.
    #[error(transparent)]
    NotAPage(#[from] NotAPage),
    /// A page is larger than a part of a page can be.
    #[error(
        "a page of 2^{page_log2} bytes is larger than 2^{max_log2} bytes, the most there may be"
    )]
    PageTooLarge {
        /// The page's size, as a logarithm.
        page_log2: u32,
        /// The largest size, as a logarithm.
        max_log2: u32,
    },
    /// A cursor was to move to before where it began, or past its end.
    #[error("{asked_bytes} bytes asked for, and there are {possible_bytes} in that direction")]
    OutOfRange {
        /// Bytes to move by, or the length to take.
        asked_bytes: usize,
        /// The most that is possible.
        possible_bytes: usize,
    },
    /// A walk that takes only kinds which cannot fault was given one that can.
    #[error("memory of the kind {kind} can fault")]
    CanFault {
        /// The kind's name.
        kind: &'static str,
    },
}
