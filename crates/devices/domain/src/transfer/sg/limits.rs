//! The limits of a device for a transfer of bytes in several places.

use std::num::NonZero;

use longshore_mem::{Granule, Iova};

use crate::error::Error;

/// The limits of a device for a scattered transfer. The default has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SgLimits {
    segments: usize,
    segment_bytes: u64,
    boundary: Option<Granule>,
}

impl Default for SgLimits {
    fn default() -> Self {
        Self { segments: usize::MAX, segment_bytes: u64::MAX, boundary: None }
    }
}

impl SgLimits {
    /// Returns limits that allow everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of segments of a transfer.
    #[must_use]
    pub fn segments(self, most: usize) -> Self {
        Self { segments: most, ..self }
    }

    /// Sets the maximum length of a segment in bytes.
    #[must_use]
    pub fn segment_bytes(self, most: NonZero<u64>) -> Self {
        Self { segment_bytes: most.get(), ..self }
    }

    /// Sets a boundary: no segment crosses a multiple of it.
    #[must_use]
    pub fn boundary(self, boundary: Granule) -> Self {
        Self { boundary: Some(boundary), ..self }
    }

    /// Splits adjacent bytes into segments that the device supports.
    pub(super) fn split(
        &self,
        whole: impl Iterator<Item = (Iova, u64)>,
    ) -> Result<Vec<SgSegment>, Error> {
        let mut segments = Vec::new();
        let mut all_bytes = 0;
        for (iova, len_bytes) in whole {
            let (mut at, mut left) = (iova.raw(), len_bytes);
            while left != 0 {
                let to_boundary = self
                    .boundary
                    .map_or(u64::MAX, |every| every.bytes() - (at & (every.bytes() - 1)));
                let len_bytes = left.min(self.segment_bytes).min(to_boundary);
                segments.push(SgSegment { iova: Iova::new(at), len_bytes });
                at = at.wrapping_add(len_bytes);
                left -= len_bytes;
            }
            all_bytes += len_bytes;
        }
        let (count, most) = (segments.len(), self.segments);
        if count > most {
            return Err(Error::TooManySegments { len_bytes: all_bytes, segments: count, most });
        }
        Ok(segments)
    }
}

/// Bytes that are adjacent for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SgSegment {
    /// The IOVA.
    pub iova: Iova,
    /// The length in bytes.
    pub len_bytes: u64,
}
