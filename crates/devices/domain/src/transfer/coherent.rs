//! Memory that CPU and device share all the time: rings, queues, status words.
#![expect(unsafe_code, reason = "views memory that a device writes to")]

use std::fmt;
use std::ptr::NonNull;

use longshore_heap::{Buffer, Heap};
use longshore_mem::{DmaMemory, Iova};
use longshore_mem::{VolatileSlice, VolatileSliceMut};

use super::mapping::Mapping;
use super::place::empty;
use crate::direction::Direction;
use crate::domain::Domain;
use crate::error::Error;

/// Memory that CPU and device can read and write as long as this lives. It is zeroed first. CPU and
/// device see each other's writes; the driver orders them by memory barriers.
pub struct Coherent<'d> {
    mapping: Mapping<'d, Buffer>,
    start: NonNull<u8>,
}

// SAFETY: the memory is accessed only by volatile views, and a mapping of a domain may go to another
// thread.
unsafe impl Send for Coherent<'_> {}

impl Domain {
    /// Allocates `len_bytes`, rounded up to granules, of zeroed memory for the CPU and the device. It
    /// is never bounced.
    ///
    /// # Errors
    /// [`Error`]: [`Error::Empty`] for zero bytes, [`Error::Memory`] if there is no memory.
    #[track_caller]
    pub fn alloc_coherent(&self, len_bytes: u64) -> Result<Coherent<'_>, Error> {
        if len_bytes == 0 {
            return Err(*empty("allocating coherent memory"));
        }
        let granule = self.limits().granule;
        let len_bytes = len_bytes.checked_next_multiple_of(granule.bytes());
        let len_bytes = len_bytes.unwrap_or(u64::MAX);
        let buffer = Heap::Memfd.allocate(len_bytes).map_err(Error::Memory)?;
        let start = buffer.host().cast();
        let mapping = Mapping::direct(self, buffer, Direction::Bidirectional);
        Ok(Coherent { mapping: mapping.map_err(|failed| *failed.error)?, start })
    }
}

impl Coherent<'_> {
    /// Returns the address for the device.
    pub fn iova(&self) -> Iova {
        self.mapping.iova()
    }

    /// Returns the length in bytes, which is not zero.
    #[expect(clippy::len_without_is_empty, reason = "it has at least one byte")]
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Returns a view to read.
    pub fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the memory is mapped as long as this lives, and only views and devices write to it.
        unsafe { VolatileSlice::from_raw_parts(self.start, self.len() as usize) }
    }

    /// Returns a view to read and write.
    pub fn view_mut(&mut self) -> VolatileSliceMut<'_> {
        // SAFETY: as in `view`.
        unsafe { VolatileSliceMut::from_raw_parts(self.start, self.len() as usize) }
    }
}

impl fmt::Debug for Coherent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coherent")
            .field("iova", &self.iova())
            .field("len_bytes", &self.len())
            .finish_non_exhaustive()
    }
}
