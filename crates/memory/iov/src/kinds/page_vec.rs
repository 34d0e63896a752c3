//! A list of parts of pages.
#![expect(unsafe_code, reason = "a second place in writable memory needs a promise")]

use super::kind::Kind;
use super::list::List;
use super::page_segment::PageSegment;
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::segment::Segment;

/// A list of parts of pages, which others may change but which cannot fault.
#[doc(alias = "bvec")]
#[derive(Debug)]
pub struct PageVec<'m, D> {
    list: List<'m, PageSegment<'m, D>>,
}

impl<'m> PageVec<'m, Source> {
    /// Returns the place at the start of `parts`.
    pub const fn new(parts: &'m [PageSegment<'_, Source>]) -> Self {
        Self { list: List::new(parts) }
    }
}

impl<'m> PageVec<'m, Dest> {
    /// Returns the place at the start of `parts`.
    pub const fn new(parts: &'m mut [PageSegment<'_, Dest>]) -> Self {
        Self { list: List::new(parts) }
    }
}

impl<D: Direction> Kind<D> for PageVec<'_, D> {
    fn name(&self) -> &'static str {
        "PageVec"
    }

    fn can_fault(&self) -> bool {
        false
    }
}

impl<D: Direction> Walk<D> for PageVec<'_, D> {
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
