//! The setup of a DMA pool.

use longshore_mem::Granule;

use crate::direction::Direction;
use crate::error::{Error, PoolLayoutReason};
use crate::pool::layout::Layout;

/// The longest element, and the largest alignment: 1 GiB.
const LONGEST: u64 = 1 << 30;

/// Options of a [`DmaPool`](crate::DmaPool).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaPoolOptions {
    pub(super) direction: Direction,
    boundary: Option<u64>,
    limit: u64,
    reserve: u64,
}

impl Default for DmaPoolOptions {
    fn default() -> Self {
        Self { direction: Direction::Bidirectional, boundary: None, limit: u64::MAX, reserve: 0 }
    }
}

impl DmaPoolOptions {
    /// Returns options for elements that the device reads and writes, with no boundary, no limit and no
    /// reserve.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the direction. With `ToDevice`, the elements are mapped read-only for the device.
    #[must_use]
    pub fn direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }

    /// Sets the boundary in bytes, a power of two. The IOVAs of an element do not cross a multiple of
    /// it.
    #[must_use]
    pub fn boundary(self, boundary_bytes: u64) -> Self {
        Self { boundary: Some(boundary_bytes), ..self }
    }

    /// Sets the maximum number of elements, rounded up to whole chunks. A chunk has 2 MiB, or the whole
    /// granules that this many elements need if that is less.
    #[must_use]
    pub fn limit(self, elements: u64) -> Self {
        Self { limit: elements, ..self }
    }

    /// Sets the number of elements that are allocated and mapped when the pool is made, rounded up to
    /// whole chunks. They stay mapped until the pool is dropped.
    #[must_use]
    pub fn reserve(self, elements: u64) -> Self {
        Self { reserve: elements, ..self }
    }

    /// Checks the options. Returns the layout of a chunk, and the maximum and the minimum number of
    /// chunks.
    pub(super) fn layout(
        &self,
        element_len: u64,
        align: u64,
        granule: Granule,
    ) -> Result<(Layout, u64, u64), Error> {
        let refuse = |reason| Err(Error::PoolLayout { element_len, align, reason });
        if element_len == 0 || element_len > LONGEST {
            return refuse(PoolLayoutReason::ElementLen);
        }
        let Some(align) = power_of_two(align).filter(|align| align.bytes() <= LONGEST) else {
            return refuse(PoolLayoutReason::Align);
        };
        let boundary = self.boundary.map(power_of_two);
        if boundary == Some(None) {
            return refuse(PoolLayoutReason::Boundary);
        }
        let boundary = boundary.flatten();
        if boundary.is_some_and(|boundary| boundary.bytes() < element_len) {
            return refuse(PoolLayoutReason::BoundaryTooShort);
        }
        if self.limit == 0 || self.reserve > self.limit {
            return refuse(PoolLayoutReason::Limit);
        }
        let layout = Layout::of_elements(element_len, align, boundary, self.limit, granule);
        let chunks = |elements: u64| elements.div_ceil(layout.count().into());
        Ok((layout, chunks(self.limit), chunks(self.reserve)))
    }
}

fn power_of_two(bytes: u64) -> Option<Granule> {
    Granule::new(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_layouts_are_refused() {
        let layout = |len, align, options: DmaPoolOptions| {
            options.layout(len, align, Granule::SIZE_4K).map(|(_, most, fewest)| (most, fewest))
        };
        let new = DmaPoolOptions::new;
        for (len, align, options, expected) in [
            (0, 1, new(), PoolLayoutReason::ElementLen),
            (LONGEST + 1, 1, new(), PoolLayoutReason::ElementLen),
            (u64::MAX, 1, new(), PoolLayoutReason::ElementLen),
            (64, 0, new(), PoolLayoutReason::Align),
            (64, 48, new(), PoolLayoutReason::Align),
            (64, LONGEST * 2, new(), PoolLayoutReason::Align),
            (64, 64, new().boundary(0), PoolLayoutReason::Boundary),
            (64, 64, new().boundary(96), PoolLayoutReason::Boundary),
            (64, 64, new().boundary(32), PoolLayoutReason::BoundaryTooShort),
            (64, 64, new().limit(0), PoolLayoutReason::Limit),
            (64, 64, new().limit(5).reserve(6), PoolLayoutReason::Limit),
        ] {
            let refused = layout(len, align, options).unwrap_err();
            let Error::PoolLayout { reason, .. } = refused else { panic!("{refused}") };
            assert_eq!(reason, expected, "{len} {align}");
        }
        assert_eq!(layout(64, 64, new().limit(65).reserve(64)).unwrap(), (1, 1));
        assert_eq!(layout(4096, 4096, new().limit(513).reserve(1)).unwrap(), (2, 1));
        assert_eq!(layout(LONGEST, LONGEST, new().boundary(1 << 63)).unwrap(), (u64::MAX, 0));
    }
}
