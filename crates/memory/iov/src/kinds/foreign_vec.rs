//! A list of foreign ranges.
#![expect(unsafe_code, reason = "makes segments of the parts of ranges")]

use super::kind::Kind;
use super::list::{Item, List};
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::segment::{Segment, SegmentList};

/// A list of ranges of memory that others may change and that may fault.
#[doc(alias = "iovec")]
#[derive(Debug)]
pub struct ForeignVec<'m, D> {
    list: List<'m, Segment<'m, D>>,
}

impl<'m> ForeignVec<'m, Source> {
    /// Returns the place at the start of `list`.
    pub const fn new(list: &'m SegmentList<'_, Source>) -> Self {
        Self { list: List::new(list.as_slice()) }
    }
}

impl<'m> ForeignVec<'m, Dest> {
    /// Returns the place at the start of `list`, which is borrowed exclusively.
    pub const fn new(list: &'m mut SegmentList<'_, Dest>) -> Self {
        Self { list: List::new(list.as_slice()) }
    }
}

impl<D: Direction> Item<D> for Segment<'_, D> {
    #[inline(always)]
    fn len_bytes(&self) -> usize {
        Segment::len(self)
    }

    #[inline(always)]
    fn part(&self, offset: usize, len_bytes: usize) -> Segment<'_, D> {
        debug_assert!(offset + len_bytes <= Segment::len(self));
        // SAFETY: the offset is inside the segment.
        let start = unsafe { self.start().add(offset) };
        // SAFETY: the bytes are inside the segment; a list lends one part at a time.
        unsafe { Segment::from_raw(start, len_bytes) }
    }
}

impl<D: Direction> Kind<D> for ForeignVec<'_, D> {
    fn name(&self) -> &'static str {
        "ForeignVec"
    }

    fn can_fault(&self) -> bool {
        true
    }
}

impl<D: Direction> Walk<D> for ForeignVec<'_, D> {
    fn segment(&mut self, _: Key, len_max: usize) -> Option<Segment<'_, D>> {
        self.list.segment(len_max)
    }

    fn advance(&mut self, _: Key, len_bytes: usize) -> usize {
        self.list.advance(len_bytes)
    }

    fn retreat(&mut self, _: Key, len_bytes: usize) {
        self.list.retreat(len_bytes);
    }

    unsafe fn duplicate(&self, _: Key) -> Self {
        Self { list: self.list.duplicate() }
    }

    fn is_in_memory_of(&self, _: Key, other: &Self) -> bool {
        self.list.is_in_memory_of(&other.list)
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        _: Key,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        self.list.iterate(len_bytes, step)
    }
}
