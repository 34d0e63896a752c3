//! No memory.

use super::{Kind, sealed};
use crate::direction::Direction;
use crate::segment::Segment;

/// Bytes that go nowhere: they are counted, and no step is called for them.
#[doc(alias = "discard")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard;

impl sealed::Sealed for Discard {}

impl<D: Direction> Kind<D> for Discard {
    fn name(&self) -> &'static str {
        "Discard"
    }

    fn can_fault(&self) -> bool {
        false
    }

    fn segment(&mut self, _: usize) -> Option<Segment<'_, D>> {
        None
    }

    fn advance(&mut self, len_bytes: usize) -> usize {
        len_bytes
    }

    fn retreat(&mut self, _: usize) {}

    fn twin(&self) -> Self {
        *self
    }

    fn is_in_memory_of(&self, _: &Self) -> bool {
        true
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        len_bytes: usize,
        _: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        len_bytes
    }
}
