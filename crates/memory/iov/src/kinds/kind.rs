//! What a cursor asks of the kind of its memory.

use super::walk::Walk;
use crate::direction::Direction;

/// A place in memory of one kind. A kind of your own implements
/// [`SegmentSource`](crate::SegmentSource) instead: this trait is sealed.
///
/// It can be asked for its name and whether it can fault. The [`Cursor`](crate::Cursor) does all
/// else: it checks bounds, and gives each byte of a destination out once.
pub trait Kind<D: Direction>: Walk<D> {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns true if its memory can fault.
    fn can_fault(&self) -> bool;
}
