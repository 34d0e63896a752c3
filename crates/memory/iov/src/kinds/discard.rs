//! A destination that discards its bytes.
#![expect(unsafe_code, reason = "a second place in writable memory needs a promise")]

use super::kind::Kind;
use super::walk::{Key, Walk};
use crate::direction::Direction;
use crate::segment::Segment;

/// A destination that discards its bytes: the cursor counts them, but calls no step for them. A
/// source of this kind has no bytes.
#[doc(alias = "discard")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard;

impl<D: Direction> Kind<D> for Discard {
    fn name(&self) -> &'static str {
        "Discard"
    }

    fn can_fault(&self) -> bool {
        false
    }
}

impl<D: Direction> Walk<D> for Discard {
    fn segment(&mut self, _: Key, _: usize) -> Option<Segment<'_, D>> {
        None
    }

    fn advance(&mut self, _: Key, len_bytes: usize) -> usize {
        if D::IS_DEST { len_bytes } else { 0 }
    }

    fn retreat(&mut self, _: Key, _: usize) {}

    unsafe fn duplicate(&self, _: Key) -> Self {
        *self
    }

    fn is_in_memory_of(&self, _: Key, _: &Self) -> bool {
        true
    }

    #[inline(always)]
    fn iterate(
        &mut self,
        _: Key,
        len_bytes: usize,
        _: impl FnMut(Segment<'_, D>, usize) -> usize,
    ) -> usize {
        if D::IS_DEST { len_bytes } else { 0 }
    }
}
