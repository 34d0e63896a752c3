//! Lists of the next segments and pages, for system calls and devices.
#![expect(unsafe_code, reason = "hands out segments that live longer than a step")]

use super::Cursor;
use crate::direction::Direction;
use crate::error::Error;
use crate::kinds::walk::KEY;
use crate::kinds::{Kind, PageSegment};
use crate::segment::Segment;

impl<'m, D: Direction, K: Kind<D>> Cursor<'m, D, K> {
    /// Appends the next segments to `out`, for `readv`, io_uring or a device
    /// ([`Segment::as_iovecs`]): up to `len_bytes` bytes in at most `count_max` segments. Returns
    /// their length in bytes.
    ///
    /// The cursor does not move, and is borrowed for as long as the segments are used;
    /// [`advance`](crate::SegmentSource::advance) it afterwards by the number of bytes done.
    ///
    /// ```
    /// use longshore_iov::{Cursor, SegmentSource, Source};
    /// use std::io::IoSlice;
    ///
    /// let slices = [IoSlice::new(b"abcd"), IoSlice::new(b"efgh")];
    /// let mut cursor = Cursor::<Source>::own_vec(&slices);
    /// let mut segments = Vec::new();
    /// assert_eq!(cursor.next_segments(6, usize::MAX, &mut segments), 6);
    /// let written = 5; // by a `writev` of the segments
    /// cursor.advance(written);
    /// assert_eq!(cursor.remaining(), 3);
    /// ```
    pub fn next_segments<'c>(
        &'c mut self,
        len_bytes: usize,
        count_max: usize,
        out: &mut Vec<Segment<'c, D>>,
    ) -> usize {
        // SAFETY: the cursor is borrowed exclusively for `'c`, and lives no longer than its memory.
        unsafe { self.list_segments(len_bytes, count_max, out) }
    }

    /// Appends the next pages of 2^`page_log2` bytes to `out`: up to `len_bytes` bytes in at most
    /// `count_max` pages, each as its address and the requested part of it. Returns their length in
    /// bytes.
    ///
    /// The cursor does not move, and is borrowed for as long as the pages are used.
    ///
    /// # Errors
    /// [`Error::PageTooLarge`] for pages of 4 GiB or more; then `out` does not change.
    ///
    /// ```
    /// use longshore_iov::{Cursor, Source};
    /// use std::io::IoSlice;
    ///
    /// # fn main() -> Result<(), longshore_iov::Error> {
    /// let memory = [7; 10_000];
    /// let slices = [IoSlice::new(&memory)];
    /// let mut cursor = Cursor::<Source>::own_vec(&slices);
    /// let mut pages = Vec::new();
    /// assert_eq!(cursor.next_pages(10_000, 12, usize::MAX, &mut pages)?, 10_000);
    /// let first = &pages[0];
    /// assert_eq!(first.start().as_ptr().cast_const(), memory.as_ptr());
    /// assert_eq!(first.offset(), memory.as_ptr().addr() % 4096);
    /// assert_eq!(pages[1].offset(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_pages<'c>(
        &'c mut self,
        len_bytes: usize,
        page_log2: u32,
        count_max: usize,
        out: &mut Vec<PageSegment<'c, D>>,
    ) -> Result<usize, Error> {
        // SAFETY: the cursor is borrowed exclusively for `'c`, and lives no longer than its memory.
        unsafe { self.list_pages(len_bytes, page_log2, count_max, out) }
    }

    /// # Safety
    /// The memory must be valid for `'s`, and the cursor of a [`Dest`](crate::Dest) must not return
    /// the same bytes again before `'s` ends.
    unsafe fn list_segments<'s>(
        &self,
        len_bytes: usize,
        count_max: usize,
        out: &mut Vec<Segment<'s, D>>,
    ) -> usize {
        let mut count = 0;
        // SAFETY: only addresses and lengths are looked at.
        let mut ahead = unsafe { self.kind.duplicate(KEY) };
        let done = ahead.iterate(KEY, len_bytes.min(self.left), |segment, _| {
            if count == count_max {
                return segment.len();
            }
            count += 1;
            // SAFETY: the caller's promise; the segments of a walk do not overlap.
            out.push(unsafe { Segment::from_raw(segment.start(), segment.len()) });
            0
        });
        if count == 0 { 0 } else { done }
    }

    /// # Safety
    /// As [`list_segments`](Self::list_segments).
    unsafe fn list_pages<'s>(
        &self,
        len_bytes: usize,
        page_log2: u32,
        count_max: usize,
        out: &mut Vec<PageSegment<'s, D>>,
    ) -> Result<usize, Error> {
        if page_log2 > PageSegment::<D>::PAGE_LOG2_MAX {
            let max_log2 = PageSegment::<D>::PAGE_LOG2_MAX;
            return Err(Error::PageTooLarge { page_log2, max_log2 });
        }
        let page_bytes = 1usize << page_log2;
        let mut count = 0;
        // SAFETY: only addresses and lengths are looked at.
        let mut ahead = unsafe { self.kind.duplicate(KEY) };
        let done = ahead.iterate(KEY, len_bytes.min(self.left), |segment, _| {
            let mut offset = 0;
            while offset < segment.len() && count < count_max {
                // SAFETY: the offset is inside the segment.
                let start = unsafe { segment.start().add(offset) };
                let to_boundary = page_bytes - (start.addr().get() & (page_bytes - 1));
                let part = to_boundary.min(segment.len() - offset);
                // SAFETY: the caller's promise; the segments of a walk do not overlap.
                let part_of_page = unsafe { Segment::from_raw(start, part) };
                out.push(PageSegment::within(&part_of_page, page_log2));
                count += 1;
                offset += part;
            }
            segment.len() - offset
        });
        Ok(if count == 0 { 0 } else { done })
    }
}

impl<'m, D: Direction, K: Kind<D> + 'm> Cursor<'m, D, K> {
    /// Appends segments as [`next_segments`](Self::next_segments) does, and moves the cursor past
    /// them. They may be used for as long as the memory is borrowed, while the cursor moves on.
    ///
    /// The cursor of a [`Source`](crate::Source) can go back and read the same bytes again. Bytes
    /// of a [`Dest`](crate::Dest) have a new owner: [`revert`](crate::SegmentSource::revert) and
    /// [`restore`](Self::restore) do not go back past them.
    ///
    /// ```
    /// use longshore_iov::{Cursor, Dest, SegmentSource, copy};
    /// use std::io::IoSliceMut;
    ///
    /// # fn main() -> Result<(), longshore_iov::Error> {
    /// let mut memory = [0; 12];
    /// let mut slices = [IoSliceMut::new(&mut memory)];
    /// let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
    /// let (mut one, mut two) = (Vec::new(), Vec::new());
    /// assert_eq!(cursor.extract_segments(4, usize::MAX, &mut one), 4);
    /// assert_eq!(cursor.extract_segments(4, usize::MAX, &mut two), 4);
    /// // Both requests are in flight, and the cursor writes behind them.
    /// copy::write(&mut cursor, b"tail")?;
    /// assert!(cursor.revert(5).is_err());
    /// for (segment, byte) in one.into_iter().zip([1]).chain(two.into_iter().zip([2])) {
    ///     segment.into_view().write(0, &[byte; 4]).expect("each has four bytes");
    /// }
    /// assert_eq!(&memory, b"\x01\x01\x01\x01\x02\x02\x02\x02tail");
    /// # Ok(())
    /// # }
    /// ```
    pub fn extract_segments(
        &mut self,
        len_bytes: usize,
        count_max: usize,
        out: &mut Vec<Segment<'m, D>>,
    ) -> usize {
        // SAFETY: the kind outlives `'m`, so its memory does; `give` keeps the cursor of a
        // destination from going back.
        let done = unsafe { self.list_segments(len_bytes, count_max, out) };
        self.give(done);
        done
    }

    /// Appends pages as [`next_pages`](Self::next_pages) does, and moves the cursor past them, as
    /// [`extract_segments`](Self::extract_segments) does.
    ///
    /// # Errors
    /// [`Error::PageTooLarge`] for pages of 4 GiB or more; then nothing changes.
    ///
    /// ```
    /// use longshore_iov::{Cursor, SegmentSource, Source};
    /// use std::io::IoSlice;
    ///
    /// # fn main() -> Result<(), longshore_iov::Error> {
    /// let memory = [7; 100_000];
    /// let slices = [IoSlice::new(&memory)];
    /// let mut cursor = Cursor::<Source>::own_vec(&slices);
    /// let mut pages = Vec::new();
    /// while cursor.remaining() > 0 {
    ///     // A device that takes eight pages a request.
    ///     let done = cursor.extract_pages(usize::MAX, 12, 8, &mut pages)?;
    ///     assert!(done <= 8 << 12);
    ///     pages.clear();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "iov_iter_extract_pages")]
    #[doc(alias = "iov_iter_get_pages2")]
    pub fn extract_pages(
        &mut self,
        len_bytes: usize,
        page_log2: u32,
        count_max: usize,
        out: &mut Vec<PageSegment<'m, D>>,
    ) -> Result<usize, Error> {
        // SAFETY: as for `extract_segments`.
        let done = unsafe { self.list_pages(len_bytes, page_log2, count_max, out) }?;
        self.give(done);
        Ok(done)
    }

    /// Moves past `len_bytes` bytes that were listed. The cursor of a destination can no longer go
    /// back to them.
    ///
    /// The list has the lifetime of the memory, even if the caller chose a longer one for the
    /// cursor:
    ///
    /// ```compile_fail,E0597
    /// use longshore_iov::{Cursor, Source, kinds::OwnVec};
    /// use std::io::IoSlice;
    ///
    /// let mut segments = Vec::new();
    /// {
    ///     let memory = vec![1, 2, 3];
    ///     let slices = [IoSlice::new(&memory)];
    ///     let mut cursor: Cursor<'static, Source, _> =
    ///         Cursor::from_kind(OwnVec::<Source>::new(&slices), 3);
    ///     cursor.extract_segments(3, 1, &mut segments);
    /// }
    /// println!("{segments:?}");
    /// ```
    fn give(&mut self, len_bytes: usize) {
        let advanced = self.kind.advance(KEY, len_bytes);
        self.moved(advanced);
        if D::IS_DEST && advanced > 0 {
            self.given = self.walked;
        }
    }
}
