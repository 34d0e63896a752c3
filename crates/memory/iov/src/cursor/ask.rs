//! Questions about the bytes that remain, which move nothing.
#![expect(unsafe_code, reason = "looks at a second place, which accesses no memory")]

use super::Cursor;
use crate::direction::Direction;
use crate::kinds::Kind;
use crate::kinds::walk::KEY;

impl<D: Direction, K: Kind<D>> Cursor<'_, D, K> {
    /// Returns the bytes left in the segment here, which are what one step would be given.
    pub fn segment_len_bytes(&self) -> usize {
        let len_max = self.left;
        if len_max == 0 {
            return 0;
        }
        // SAFETY: only the length is looked at.
        let mut ahead = unsafe { self.kind.duplicate(KEY) };
        ahead.segment(KEY, len_max).map_or(0, |segment| segment.len())
    }

    /// Counts the segments that the bytes that remain lie in.
    pub fn segments(&self) -> usize {
        let mut segments = 0;
        self.survey(|_, _| segments += 1);
        segments
    }

    /// Returns all addresses and lengths that remain, ORed. If this is a multiple of a power of two,
    /// all of them are. Zero for no segment.
    #[doc(alias = "iov_iter_alignment")]
    pub fn alignment(&self) -> usize {
        let mut ored = 0;
        self.survey(|start, len_bytes| ored |= start | len_bytes);
        ored
    }

    /// Returns the addresses where a segment begins after another, and those where one ends before
    /// another, ORed. If this is a multiple of a page's size, the segments are one run to a device
    /// that maps pages side by side. Zero for one segment.
    #[doc(alias = "iov_iter_gap_alignment")]
    pub fn gap_alignment(&self) -> usize {
        let mut ored = 0;
        let mut end = None;
        self.survey(|start, len_bytes| {
            ored |= end.map_or(0, |end: usize| end | start);
            end = Some(start.wrapping_add(len_bytes));
        });
        ored
    }

    /// Counts the pages of 2^`page_log2` bytes that the bytes that remain touch, for each segment
    /// by itself. A page may be as large as the address space or larger: then each segment touches
    /// one.
    ///
    /// ```
    /// use longshore_iov::{Cursor, Source};
    /// use std::io::IoSlice;
    ///
    /// let slices = [IoSlice::new(b"abc"), IoSlice::new(b"d")];
    /// let cursor = Cursor::<Source>::own_vec(&slices);
    /// assert_eq!(cursor.pages(0), 4);
    /// assert_eq!(cursor.pages(64), 2);
    /// ```
    #[doc(alias = "iov_iter_npages")]
    pub fn pages(&self, page_log2: u32) -> usize {
        let page_of = |address: usize| address.checked_shr(page_log2).unwrap_or(0);
        let mut pages = 0;
        self.survey(|start, len_bytes| {
            pages += page_of(start + (len_bytes - 1)) - page_of(start) + 1;
        });
        pages
    }

    /// Calls `see` with the address and length of every segment that remains.
    fn survey(&self, mut see: impl FnMut(usize, usize)) {
        // SAFETY: only addresses and lengths are looked at.
        let mut ahead = unsafe { self.kind.duplicate(KEY) };
        ahead.iterate(KEY, self.left, |segment, _| {
            see(segment.start().addr().get(), segment.len());
            0
        });
    }
}
