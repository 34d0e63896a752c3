//! What everything in a domain needs.

use longshore_mem::Granule;

use crate::backend::{Backend, Limits};
use crate::direction::Direction;
use crate::iova::{IovaAllocator, IovaRange, Placement};

/// A backend and its addresses.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) limits: Limits,
    pub(crate) iovas: IovaAllocator,
    /// What every mapping asks for.
    pub(crate) placement: Placement,
}

/// Sizes of large pages, from the largest on.
const LARGE_PAGES: [Granule; 2] = [
    match Granule::new(1 << 30) {
        Ok(size) => size,
        Err(_) => panic!("a power of two"),
    },
    Granule::SIZE_2M,
];

impl Core {
    /// Addresses for `len_bytes` at `start` of this process, so that its large pages can be mapped as
    /// such, where there is room.
    #[inline(always)]
    pub(crate) fn take_for<E>(
        &self,
        start: u64,
        len_bytes: u64,
        take: impl FnMut(u64, Placement) -> Result<IovaRange, E>,
    ) -> Result<IovaRange, E> {
        let [.., smallest] = LARGE_PAGES;
        if len_bytes < smallest.bytes() {
            let mut take = take;
            return take(len_bytes, self.placement);
        }
        self.take_large(start, len_bytes, take)
    }

    #[cold]
    fn take_large<E>(
        &self,
        start: u64,
        len_bytes: u64,
        mut take: impl FnMut(u64, Placement) -> Result<IovaRange, E>,
    ) -> Result<IovaRange, E> {
        for size in LARGE_PAGES {
            if len_bytes >= size.bytes()
                && size.is_aligned(start)
                && let Ok(range) = take(len_bytes, self.placement.aligned(size))
            {
                return Ok(range);
            }
        }
        take(len_bytes, self.placement)
    }

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
