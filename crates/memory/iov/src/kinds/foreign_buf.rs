//! One foreign range.
#![expect(unsafe_code, reason = "makes segments of the parts of a range")]

use longshore_mem::{VolatileSlice, VolatileSliceMut};

use super::kind::Kind;
use super::walk::{Key, Walk};
use crate::direction::{Dest, Direction, Source};
use crate::segment::Segment;

/// One range of memory that others may change and that may fault: memory of a guest or a device, or
/// memory shared with another process.
#[doc(alias = "ubuf")]
#[derive(Debug)]
pub struct ForeignBuf<'m, D> {
    range: Segment<'m, D>,
    offset: usize,
}

impl<'m> ForeignBuf<'m, Source> {
    /// Returns the place at the start of `view`.
    pub fn new(view: VolatileSlice<'m>) -> Self {
        Self { range: view.into(), offset: 0 }
    }
}

impl<'m> ForeignBuf<'m, Dest> {
    /// Returns the place at the start of `view`.
    pub fn new(view: VolatileSliceMut<'m>) -> Self {
        Self { range: view.into(), offset: 0 }
    }
}

impl<D: Direction> ForeignBuf<'_, D> {
    fn left(&self) -> usize {
        self.range.len() - self.offset
    }
}

impl<D: Direction> Kind<D> for ForeignBuf<'_, D> {
    fn name(&self) -> &'static str {
        "ForeignBuf"
    }

    fn can_fault(&self) -> bool {
        true
    }
}

impl<D: Direction> Walk<D> for ForeignBuf<'_, D> {
    #[inline(always)]
    fn segment(&mut self, _: Key, len_max: usize) -> Option<Segment<'_, D>> {
        let len_bytes = self.left().min(len_max);
        if len_bytes == 0 {
            return None;
        }
        // SAFETY: the offset is inside the range or at its end.
        let start = unsafe { self.range.start().add(self.offset) };
        // SAFETY: the bytes are inside the range, and the cursor is borrowed for as long as they
        // are lent.
        Some(unsafe { Segment::from_raw(start, len_bytes) })
    }

    fn advance(&mut self, _: Key, len_bytes: usize) -> usize {
        let len_bytes = len_bytes.min(self.left());
        self.offset += len_bytes;
        len_bytes
    }

    fn retreat(&mut self, _: Key, len_bytes: usize) {
        self.offset = self.offset.saturating_sub(len_bytes);
    }

    unsafe fn duplicate(&self, _: Key) -> Self {
        // SAFETY: the same range; the caller promises that one place at a time accesses it.
        let range = unsafe { Segment::from_raw(self.range.start(), self.range.len()) };
        Self { range, offset: self.offset }
    }

    fn is_in_memory_of(&self, _: Key, other: &Self) -> bool {
        let (range, other) = (&self.range, &other.range);
        (range.start(), range.len()) == (other.start(), other.len())
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        key: Key,
        len_bytes: usize,
        mut step: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        let Some(segment) = self.segment(key, len_bytes) else { return 0 };
        let part = segment.len();
        let stepped = part.saturating_sub(step(segment, 0));
        self.offset += stepped;
        stepped
    }
}
