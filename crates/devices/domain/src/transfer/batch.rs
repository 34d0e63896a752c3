//! Deferred invalidation: several mappings that are unmapped with one invalidation.
#![expect(unsafe_code, reason = "unmaps what its mappings own")]

use std::{fmt, vec};

use longshore_mem::{AddrRange, DmaMemory, Iova};

use super::mapping::Mapping;
use crate::counters::Event;
use crate::domain::Domain;
use crate::error::{Error, Failed};
use crate::handle::Handle;
use crate::local::Local;
use crate::trace::span;

/// A list of mappings that the device has finished with, and that are unmapped together with one
/// invalidation. The device can reach the memory until [`flush`](Self::flush) returns.
///
/// A batch that is used again allocates nothing once it is warm. If it is dropped, it drops its
/// mappings.
#[must_use = "its mappings stay mapped until it is flushed"]
pub struct Batch<'d, B: DmaMemory + 'static, D: Handle = Domain> {
    handle: &'d D,
    mappings: Vec<Mapping<'d, B, D>>,
    ranges: Vec<AddrRange<Iova>>,
}

/// Mappings that the backend has unmapped. If a panic ends the flush, this marks the remaining ones, so
/// that they are not unmapped again.
struct Unmapped<'v, 'd, B: DmaMemory + 'static, D: Handle>(vec::Drain<'v, Mapping<'d, B, D>>);

impl<B: DmaMemory + 'static, D: Handle> Drop for Unmapped<'_, '_, B, D> {
    fn drop(&mut self) {
        for mut mapping in self.0.by_ref() {
            mapping.set_unmapped();
        }
    }
}

impl Domain {
    /// Returns an empty batch, whose mappings are unmapped together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B> {
        Batch::new(self)
    }
}

impl Local<'_> {
    /// Returns an empty batch, whose mappings are unmapped together.
    pub fn batch<B: DmaMemory + 'static>(&self) -> Batch<'_, B, Self> {
        Batch::new(self)
    }
}

impl<'d, B: DmaMemory + 'static, D: Handle> Batch<'d, B, D> {
    fn new(handle: &'d D) -> Self {
        Self { handle, mappings: Vec::new(), ranges: Vec::new() }
    }

    /// Returns the number of mappings in the batch.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Returns true if the batch has no mapping.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Unmaps all mappings, and passes the memory of each to `back`. If `back` panics, the memory
    /// of the other mappings is dropped, out of the device's reach.
    ///
    /// # Errors
    /// [`Error::Backend`]: all mappings stay in the batch, and each of them may still be mapped.
    /// [`Error::Copy`]: the mappings that could not be copied back stay.
    pub fn flush(&mut self, mut back: impl FnMut(B)) -> Result<(), Error> {
        let _span = span!("flush", mappings = self.mappings.len());
        self.ranges.clear();
        self.mappings.iter().for_each(|mapping| mapping.add_mapped(&mut self.ranges));
        if let Some(first) = self.ranges.first() {
            let len_bytes = self.ranges.iter().map(|range| range.len()).sum();
            // SAFETY: each is exactly a range that a mapping of this batch has mapped, and owns alone.
            let unmapped = unsafe { self.handle.state().core.backend.unmap(&self.ranges) };
            unmapped.map_err(|source| Error::Backend {
                operation: "unmapping a batch of",
                iova: first.start(),
                len_bytes,
                source,
            })?;
            self.handle.add(Event::Flush, 1);
        }
        let (mut failed, mut first) = (Vec::new(), None);
        let mut unmapped = Unmapped(self.mappings.drain(..));
        for mapping in unmapped.0.by_ref() {
            match mapping.unmapped() {
                Ok(memory) => back(memory),
                Err(Failed { error, value }) => {
                    first.get_or_insert(error);
                    failed.push(value);
                }
            }
        }
        drop(unmapped);
        self.mappings.append(&mut failed);
        first.map_or(Ok(()), |error| Err(*error))
    }
}

impl<'d, B: DmaMemory + 'static, D: Handle> Mapping<'d, B, D> {
    /// Puts the mapping into `batch`, which unmaps it when it is flushed.
    ///
    /// # Errors
    /// [`Error::OtherHandle`] with the mapping, if it was made by another handle than the batch.
    pub fn unmap_deferred(self, batch: &mut Batch<'d, B, D>) -> Result<(), Failed<Self>> {
        if !std::ptr::eq(self.handle(), batch.handle) {
            let error = Error::OtherHandle { iova: self.iova() };
            return Err(Failed { error: error.into(), value: self });
        }
        batch.mappings.push(self);
        Ok(())
    }
}

impl<B: DmaMemory + 'static, D: Handle> fmt::Debug for Batch<'_, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("mappings", &self.mappings).finish_non_exhaustive()
    }
}
