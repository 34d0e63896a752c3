//! A part of a page.
#![expect(unsafe_code, reason = "makes segments of parts of pages")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use longshore_mem::NotAPage;

use super::list::Item;
use crate::direction::Direction;
use crate::error::Error;
use crate::segment::Segment;

/// A part of a page: its address and length, and the size of the page, in 16 bytes.
pub struct PageSegment<'m, D> {
    start: NonNull<u8>,
    len_bytes: u32,
    page_log2: u32,
    memory: PhantomData<Segment<'m, D>>,
}

// SAFETY: it stands for a segment, and segments are `Send`.
unsafe impl<D: Direction> Send for PageSegment<'_, D> {}
// SAFETY: it stands for a segment, and segments are `Sync`.
unsafe impl<D: Direction> Sync for PageSegment<'_, D> {}

impl<'m, D: Direction> PageSegment<'m, D> {
    /// The largest page size, as a binary logarithm.
    pub(crate) const PAGE_LOG2_MAX: u32 = u32::BITS - 1;

    /// Returns the part of `len_bytes` bytes at `offset` of a page: of a `&Page` to read, of a
    /// `&mut Page` to write.
    ///
    /// # Errors
    /// [`Error::NotAPage`] for memory whose length is not a power of two, or whose address is not a
    /// multiple of its length. [`Error::OutsidePage`] if the part reaches past the end of the page,
    /// or has 4 GiB or more.
    pub fn new(
        page: impl Into<Segment<'m, D>>,
        offset: usize,
        len_bytes: usize,
    ) -> Result<Self, Error> {
        let page = page.into();
        let page_bytes = page.len();
        let addr = page.start().addr().get();
        if !page_bytes.is_power_of_two() || !addr.is_multiple_of(page_bytes) {
            return Err(NotAPage { addr, len_bytes: page_bytes }.into());
        }
        let is_inside = offset <= page_bytes && len_bytes <= page_bytes - offset;
        match u32::try_from(len_bytes) {
            Ok(len_bytes) if is_inside => Ok(Self {
                // SAFETY: the offset is inside the page or at its end.
                start: unsafe { page.start().add(offset) },
                len_bytes,
                page_log2: page_bytes.trailing_zeros(),
                memory: PhantomData,
            }),
            _ => Err(Error::OutsidePage { offset, len_bytes, page_bytes }),
        }
    }

    /// Returns all of `segment`, which lies within one page of 2^`page_log2` bytes, at most 2 GiB.
    pub(crate) fn within(segment: &Segment<'m, D>, page_log2: u32) -> Self {
        debug_assert!(segment.len() <= 1 << page_log2 && page_log2 <= Self::PAGE_LOG2_MAX);
        let len_bytes = segment.len() as u32;
        Self { start: segment.start(), len_bytes, page_log2, memory: PhantomData }
    }

    /// Returns the same part with an unbounded lifetime.
    ///
    /// # Safety
    /// The part must not be used after `'m`.
    pub(super) const unsafe fn erase_lifetime(self) -> PageSegment<'static, D> {
        let Self { start, len_bytes, page_log2, .. } = self;
        PageSegment { start, len_bytes, page_log2, memory: PhantomData }
    }
}

impl<D> PageSegment<'_, D> {
    /// Returns the address of the first byte.
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the offset of the part in its page, in bytes. An empty part at the very end of a
    /// page counts as one at the start of the next page, so its offset is 0.
    pub fn offset(&self) -> usize {
        self.start.addr().get() & ((1 << self.page_log2) - 1)
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len_bytes as usize
    }

    /// Returns `true` if the part has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the size of the page, as a binary logarithm.
    pub const fn page_log2(&self) -> u32 {
        self.page_log2
    }
}

impl<D: Direction> Item<D> for PageSegment<'_, D> {
    #[inline(always)]
    fn len_bytes(&self) -> usize {
        self.len_bytes as usize
    }

    #[inline(always)]
    fn part(&self, offset: usize, len_bytes: usize) -> Segment<'_, D> {
        debug_assert!(offset + len_bytes <= self.len_bytes as usize);
        // SAFETY: the offset is inside the part.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: the bytes are inside the page; a walk lends one part at a time.
        unsafe { Segment::from_raw(start, len_bytes) }
    }
}

impl<D> fmt::Debug for PageSegment<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len_bytes, page_log2, .. } = *self;
        let offset = self.offset();
        write!(f, "PageSegment({start:p} + {len_bytes:#x}, at {offset:#x} of a page of ")?;
        write!(f, "2^{page_log2} bytes)")
    }
}
