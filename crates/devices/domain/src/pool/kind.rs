//! The kinds of bounce slots.

use super::classes::{self, Class};
use crate::direction::Direction;

/// The properties that bounce slots of one pool share: their size, and what a device may do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) class: Class,
    pub(crate) direction: Direction,
}

pub(crate) const DIRECTIONS: [Direction; 3] =
    [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional];

/// The number of kinds.
pub(crate) const KINDS: usize = DIRECTIONS.len() * classes::COUNT;

impl Kind {
    pub(crate) fn index(self) -> usize {
        self.direction as usize * classes::COUNT + self.class.index()
    }
}
