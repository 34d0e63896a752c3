//! What everything in a domain needs.

use crate::backend::{Backend, Limits};
use crate::direction::Direction;
use crate::iova::{IovaAllocator, Placement};

/// A backend and its addresses.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) limits: Limits,
    pub(crate) iovas: IovaAllocator,
    /// What every mapping asks for.
    pub(crate) placement: Placement,
}

impl Core {
    /// What a device may do with the slots of such a transfer.
    ///
    /// Where it can read what is mapped for writing only, slots that are filled first are none of those
    /// that only it fills: those stay free of others' bytes without being wiped.
    #[inline]
    pub(crate) fn slot_direction(&self, direction: Direction, is_reported: bool) -> Direction {
        match direction {
            Direction::FromDevice if !is_reported && !self.limits.denies_reads => {
                Direction::Bidirectional
            }
            _ => direction,
        }
    }
}
