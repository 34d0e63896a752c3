//! A list of private slices.
#![expect(unsafe_code, reason = "sees slices as segments, and segments as slices")]

use std::io::{IoSlice, IoSliceMut};
use std::slice;

use super::kind::Kind;
use super::list::List;
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::segment::Segment;

/// A list of private slices: only this program accesses them, and they cannot fault.
#[doc(alias = "kvec")]
#[derive(Debug)]
pub struct OwnVec<'m, D> {
    list: List<'m, Segment<'m, D>>,
}

impl<'m> OwnVec<'m, Source> {
    /// Returns the place at the start of `slices`.
    pub const fn new(slices: &'m [IoSlice<'m>]) -> Self {
        const { assert!(size_of::<IoSlice<'_>>() == size_of::<Segment<'_, Source>>()) }
        // SAFETY: `IoSlice` is guaranteed to be ABI compatible with `struct iovec`, whose layout
        // `Segment` has, and its pointer is that of a slice, so it is not null.
        let list = unsafe { slice::from_raw_parts(slices.as_ptr().cast(), slices.len()) };
        Self { list: List::new(list) }
    }
}

impl<'m> OwnVec<'m, Dest> {
    /// Returns the place at the start of `slices`.
    pub const fn new(slices: &'m mut [IoSliceMut<'_>]) -> Self {
        const { assert!(size_of::<IoSliceMut<'_>>() == size_of::<Segment<'_, Dest>>()) }
        // SAFETY: as above, for `IoSliceMut`; the slices are borrowed exclusively.
        let list = unsafe { slice::from_raw_parts(slices.as_ptr().cast(), slices.len()) };
        Self { list: List::new(list) }
    }
}

impl OwnVec<'_, Source> {
    /// Walks as [`Walk::iterate`] does, with slices.
    #[inline(always)]
    pub(crate) fn iterate_slices(
        &mut self,
        len_bytes: usize,
        mut step: impl FnMut(&[u8], usize) -> usize,
    ) -> usize {
        self.list.iterate(len_bytes, |segment: Segment<'_, Source>, done| {
            // SAFETY: the segment is part of a slice that is borrowed for the list's lifetime.
            let bytes = unsafe { slice::from_raw_parts(segment.as_ptr(), segment.len()) };
            step(bytes, done)
        })
    }
}

impl OwnVec<'_, Dest> {
    /// Walks as [`Walk::iterate`] does, with slices.
    #[inline(always)]
    pub(crate) fn iterate_slices(
        &mut self,
        len_bytes: usize,
        mut step: impl FnMut(&mut [u8], usize) -> usize,
    ) -> usize {
        self.list.iterate(len_bytes, |mut segment: Segment<'_, Dest>, done| {
            let len_bytes = segment.len();
            // SAFETY: the segment is part of a slice that is borrowed mutably for the list's
            // lifetime, and the list lends one part at a time.
            let bytes = unsafe { slice::from_raw_parts_mut(segment.as_mut_ptr(), len_bytes) };
            step(bytes, done)
        })
    }
}

impl<D: Direction> Kind<D> for OwnVec<'_, D> {
    fn name(&self) -> &'static str {
        "OwnVec"
    }

    fn can_fault(&self) -> bool {
        false
    }
}

impl<D: Direction> Walk<D> for OwnVec<'_, D> {
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
