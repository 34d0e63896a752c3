//! The interface between a cursor and its kind of memory.

use super::walk::Walk;
use crate::direction::Direction;

/// A place in memory of one kind. This trait is sealed: to add a kind of your own, implement
/// [`SegmentSource`](crate::SegmentSource) instead.
///
/// Users can only ask for the name, and if the memory can fault. The [`Cursor`](crate::Cursor)
/// checks the bounds, and hands out each byte of a destination only once.
pub trait Kind<D: Direction>: Walk<D> {
    /// Returns the name of the kind.
    fn name(&self) -> &'static str;

    /// Returns `true` if memory of this kind can fault.
    fn can_fault(&self) -> bool;
}
