//! The backend of a domain, and the addresses that it can map.

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
    /// The placement of each mapping.
    pub(crate) placement: Placement,
}

/// The sizes of large pages, the largest first.
const LARGE_PAGES: [Granule; 2] = [
    match Granule::new(1 << 30) {
        Ok(size) => size,
        Err(_) => panic!("a power of two"),
    },
    Granule::SIZE_2M,
];

impl Core {
    /// Takes addresses for `len_bytes` at `start` of this process. If there is room, they are
    /// aligned so that large pages of the memory can be mapped as such.
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

    /// Returns the direction of the slots for a transfer.
    ///
    /// If the IOMMU cannot enforce write-only mappings, a `FromDevice` slot is never filled by the
    /// CPU, because those slots are not wiped between transfers.
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
