//! A list of parts of pages.

use super::list::List;
use super::page_segment::PageSegment;
use super::{Kind, sealed};
use crate::direction::{Dest, Direction, Source};
use crate::segment::Segment;

/// A list of parts of pages that others may change, and that stay where they are.
#[doc(alias = "bvec")]
#[derive(Debug)]
pub struct PageVec<'m, D> {
    list: List<'m, PageSegment<'m, D>>,
}

impl<'m> PageVec<'m, Source> {
    /// The start of `parts`.
    pub const fn new(parts: &'m [PageSegment<'_, Source>]) -> Self {
        Self { list: List::new(parts) }
    }
}

impl<'m> PageVec<'m, Dest> {
    /// The start of `parts`.
    pub const fn new(parts: &'m mut [PageSegment<'_, Dest>]) -> Self {
        Self { list: List::new(parts) }
    }
}

impl<D> sealed::Sealed for PageVec<'_, D> {}

impl<D: Direction> Kind<D> for PageVec<'_, D> {
    fn name(&self) -> &'static str {
        "PageVec"
    }

    fn can_fault(&self) -> bool {
        false
    }

    fn segment(&mut self, len_max: usize) -> Option<Segment<'_, D>> {
        self.list.segment(len_max)
    }

    fn advance(&mut self, len_bytes: usize) -> usize {
        self.list.advance(len_bytes)
    }

    fn retreat(&mut self, len_bytes: usize) {
        self.list.retreat(len_bytes);
    }

    fn twin(&self) -> Self {
        Self { list: self.list.twin() }
    }

    fn is_in_memory_of(&self, other: &Self) -> bool {
        self.list.is_in_memory_of(&other.list)
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        self.list.iterate(len_bytes, step)
    }

    fn page_log2(&self) -> Option<u32> {
        self.list.item().map(PageSegment::page_log2)
    }
}
