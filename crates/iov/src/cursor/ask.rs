//! What a cursor can be asked, and what it gives out, without moving.
#![expect(unsafe_code, reason = "gives segments out for as long as the cursor is borrowed")]

use super::Cursor;
use crate::direction::Direction;
use crate::error::Error;
use crate::kinds::{Kind, PageSegment};
use crate::segment::Segment;

impl<D: Direction, K: Kind<D>> Cursor<'_, D, K> {
    /// Bytes left in the segment here: what one step would be given.
    pub fn segment_len_bytes(&self) -> usize {
        let len_max = self.left;
        if len_max == 0 {
            return 0;
        }
        self.kind.twin().segment(len_max).map_or(0, |segment| segment.len_bytes())
    }

    /// How many segments the bytes that remain lie in.
    pub fn segments(&self) -> usize {
        let mut segments = 0;
        self.survey(|_, _| segments += 1);
        segments
    }

    /// All addresses and lengths that remain, one ORed to the other: all of them are multiples of a
    /// power of two if this is one. Zero for no segment.
    #[doc(alias = "iov_iter_alignment")]
    pub fn alignment(&self) -> usize {
        let mut ored = 0;
        self.survey(|start, len_bytes| ored |= start | len_bytes);
        ored
    }

    /// The addresses where a segment begins after another, and those where one ends before another,
    /// ORed: if this is a multiple of a page's size, the segments are one run to a device that maps
    /// pages side by side. Zero for one segment.
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

    /// How many pages of 2^`page_log2` bytes the bytes that remain touch, counted per segment.
    #[doc(alias = "iov_iter_npages")]
    pub fn pages(&self, page_log2: u32) -> usize {
        let mut pages = 0;
        self.survey(|start, len_bytes| {
            pages += ((start + (len_bytes - 1)) >> page_log2) - (start >> page_log2) + 1;
        });
        pages
    }

    /// Appends the next segments, of up to `len_bytes` bytes and no more than `count_max`, to
    /// `out`: for `readv`, io_uring or a device ([`Segment::as_iovecs`]). Returns their bytes. The
    /// cursor stays; [`advance`](crate::SegmentSource::advance) by what was done.
    pub fn next_segments<'c>(
        &'c mut self,
        len_bytes: usize,
        count_max: usize,
        out: &mut Vec<Segment<'c, D>>,
    ) -> usize {
        let len_max = len_bytes.min(self.left);
        let mut given = 0;
        let mut twin = self.kind.twin();
        let done = twin.iterate(len_max, |segment, _| {
            if given == count_max {
                return segment.len_bytes();
            }
            given += 1;
            // SAFETY: the bytes are this cursor's, which is borrowed alone for `'c`; segments of a
            // walk are different bytes.
            out.push(unsafe { Segment::from_raw(segment.start(), segment.len_bytes()) });
            0
        });
        if given == 0 { 0 } else { done }
    }

    /// Appends the next pages of 2^`page_log2` bytes that up to `len_bytes` bytes touch, and no
    /// more than `count_max`, to `out`. Returns the bytes. The cursor stays.
    ///
    /// # Errors
    /// [`Error::OutsidePage`] for pages of 4 GiB or more; `out` keeps what it had.
    #[doc(alias = "iov_iter_extract_pages")]
    pub fn next_pages<'c>(
        &'c mut self,
        len_bytes: usize,
        page_log2: u32,
        count_max: usize,
        out: &mut Vec<PageSegment<'c, D>>,
    ) -> Result<usize, Error> {
        if page_log2 >= u32::BITS {
            return Err(Error::OutsidePage { offset: 0, len_bytes, page_bytes: 0 });
        }
        let len_max = len_bytes.min(self.left);
        let page_bytes = 1usize << page_log2;
        let mut given = 0;
        let mut twin = self.kind.twin();
        let done = twin.iterate(len_max, |segment, _| {
            let mut offset = 0;
            while offset < segment.len_bytes() && given < count_max {
                // SAFETY: the offset is inside the segment.
                let start = unsafe { segment.start().add(offset) };
                let to_boundary = page_bytes - (start.addr().get() & (page_bytes - 1));
                let part = to_boundary.min(segment.len_bytes() - offset);
                // SAFETY: as in `next_segments`.
                let part_of_page = unsafe { Segment::from_raw(start, part) };
                out.push(PageSegment::within(&part_of_page, page_log2));
                given += 1;
                offset += part;
            }
            segment.len_bytes() - offset
        });
        Ok(if given == 0 { 0 } else { done })
    }

    /// Calls `tell` with the address and length of every segment that remains.
    fn survey(&self, mut tell: impl FnMut(usize, usize)) {
        self.kind.twin().iterate(self.left, |segment, _| {
            tell(segment.start().addr().get(), segment.len_bytes());
            0
        });
    }
}
