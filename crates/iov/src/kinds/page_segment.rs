//! Part of a page.
#![expect(unsafe_code, reason = "makes segments of parts of pages")]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::list::Item;
use crate::direction::Direction;
use crate::error::Error;
use crate::segment::Segment;

/// Part of a page: what a paged buffer or a pool hands out. In 16 bytes.
pub struct PageSegment<'m, D> {
    start: NonNull<u8>,
    len_bytes: u32,
    page_log2: u32,
    memory: PhantomData<Segment<'m, D>>,
}

// SAFETY: it stands for a segment, which may be sent.
unsafe impl<D: Direction> Send for PageSegment<'_, D> {}
// SAFETY: it stands for a segment, which may be shared.
unsafe impl<D: Direction> Sync for PageSegment<'_, D> {}

impl<'m, D: Direction> PageSegment<'m, D> {
    /// `len_bytes` bytes from `offset` of a page: of a `&Page` to read, of a `&mut Page` to write.
    ///
    /// # Errors
    /// [`Error::OutsidePage`] where they reach past its end, or a part has 4 GiB or more.
    pub fn new(
        page: impl Into<Segment<'m, D>>,
        offset: usize,
        len_bytes: usize,
    ) -> Result<Self, Error> {
        let page = page.into();
        let page_bytes = page.len_bytes();
        let outside = Error::OutsidePage { offset, len_bytes, page_bytes };
        let is_inside = offset <= page_bytes && len_bytes <= page_bytes - offset;
        match u32::try_from(len_bytes) {
            Ok(len_bytes) if is_inside && page_bytes.is_power_of_two() => Ok(Self {
                // SAFETY: the offset is inside the page or at its end.
                start: unsafe { page.start().add(offset) },
                len_bytes,
                page_log2: page_bytes.trailing_zeros(),
                memory: PhantomData,
            }),
            _ => Err(outside),
        }
    }

    /// All of `segment`, which lies within one page of 2^`page_log2` bytes, below 4 GiB.
    pub(crate) fn within(segment: &Segment<'m, D>, page_log2: u32) -> Self {
        debug_assert!(segment.len_bytes() <= 1 << page_log2 && page_log2 < u32::BITS);
        let len_bytes = segment.len_bytes() as u32;
        Self { start: segment.start(), len_bytes, page_log2, memory: PhantomData }
    }

    /// The same bytes, without a word of how long they are valid.
    ///
    /// # Safety
    /// It must not be used after `'m`.
    pub(super) const unsafe fn erase_lifetime(self) -> PageSegment<'static, D> {
        let Self { start, len_bytes, page_log2, .. } = self;
        PageSegment { start, len_bytes, page_log2, memory: PhantomData }
    }

    /// How many bytes it has.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes as usize
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Logarithm of the size of the page it is part of.
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
        // SAFETY: the bytes are the page's; a walk lends one part at a time.
        unsafe { Segment::from_raw(start, len_bytes) }
    }
}

impl<D> fmt::Debug for PageSegment<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len_bytes, page_log2, .. } = self;
        write!(f, "PageSegment({start:p} + {len_bytes:#x} of 2^{page_log2})")
    }
}
