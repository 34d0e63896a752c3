//! Queries about the remaining bytes, which do not move the cursor.
#![expect(unsafe_code, reason = "looks at a second place, which accesses no memory")]

use super::Cursor;
use crate::direction::Direction;
use crate::kinds::Kind;
use crate::kinds::walk::KEY;

impl<D: Direction, K: Kind<D>> Cursor<'_, D, K> {
    /// Returns the number of bytes left in the segment here, as one step would get them.
    pub fn segment_len_bytes(&self) -> usize {
        let len_max = self.left;
        if len_max == 0 {
            return 0;
        }
        // SAFETY: only the length is looked at.
        let mut ahead = unsafe { self.kind.duplicate(KEY) };
        ahead.segment(KEY, len_max).map_or(0, |segment| segment.len())
    }

    /// Returns the number of segments that the remaining bytes lie in.
    pub fn segments(&self) -> usize {
        let mut segments = 0;
        self.survey(|_, _| segments += 1);
        segments
    }

    /// Returns the bitwise OR of all remaining addresses and lengths, or zero if there is no
    /// segment. If it is a multiple of a power of two, all of them are.
    #[doc(alias = "iov_iter_alignment")]
    pub fn alignment(&self) -> usize {
        let mut ored = 0;
        self.survey(|start, len_bytes| ored |= start | len_bytes);
        ored
    }

    /// Returns the bitwise OR of the addresses where one segment ends and the next one begins, or
    /// zero if there is only one segment. If it is a multiple of a page size, a device that maps
    /// pages side by side sees the segments as one contiguous range.
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

    /// Returns the number of pages of 2^`page_log2` bytes that the remaining bytes touch, counted
    /// for each segment. If a page is as large as the address space or larger, each segment touches
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
