//! The direction and the flags of a mapping, in one word.

use crate::direction::Direction;

/// The direction of a mapping, and its flags: reported (by the device) and unmapped.
///
/// They are one word: as bytes that are stored one by one and then moved together, they made mapping and
/// unmapping take 75 ns instead of 57 on a Zen 4 core.
#[derive(Clone, Copy)]
pub(crate) struct Way(u64);

impl Way {
    const REPORTED: u64 = 1 << 8;
    const UNMAPPED: u64 = 1 << 9;

    #[inline(always)]
    pub(crate) fn new(direction: Direction, is_reported: bool) -> Self {
        Self(direction as u64 | if is_reported { Self::REPORTED } else { 0 })
    }

    #[inline(always)]
    pub(crate) fn direction(self) -> Direction {
        const TO: u64 = Direction::ToDevice as u64;
        const FROM: u64 = Direction::FromDevice as u64;
        match self.0 & 0xff {
            TO => Direction::ToDevice,
            FROM => Direction::FromDevice,
            _ => Direction::Bidirectional,
        }
    }

    /// Returns true if the device cannot reach the memory any more, though the mapping still
    /// exists.
    #[inline(always)]
    pub(crate) fn is_unmapped(self) -> bool {
        self.0 & Self::UNMAPPED != 0
    }

    #[inline(always)]
    pub(crate) fn set_unmapped(&mut self) {
        self.0 |= Self::UNMAPPED;
    }

    #[inline(always)]
    pub(crate) fn is_reported(self) -> bool {
        self.0 & Self::REPORTED != 0
    }
}
