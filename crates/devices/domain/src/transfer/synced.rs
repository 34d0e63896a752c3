//! CPU access to memory that stays mapped: streaming mappings that are used more than once.
#![expect(unsafe_code, reason = "copies between memory, slots and the caller's bytes")]

use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;

use longshore_mem::DmaMemory;
use longshore_mem::copy::copy_bytes;

use super::mapping::Mapping;
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::handle::Handle;
use crate::trace::span;

impl<B: DmaMemory + 'static, D: Handle> Mapping<'_, B, D> {
    /// Makes the device's writes to these bytes visible in the memory. The device must have
    /// finished with them. If it reports how many bytes it has written
    /// ([`map_reported`](crate::Domain::map_reported)), `bytes` must not have more: the bytes after them
    /// may be from an earlier transfer.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    pub fn sync_for_cpu(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        let _span = span!("sync_for_cpu", iova = self.iova().raw(), bytes = bytes);
        self.check(&bytes)?;
        if let Some(watch) = &self.handle().state().watch {
            watch.synced(self.iova(), &bytes, true);
        }
        if self.direction() == Direction::ToDevice {
            return Ok(());
        }
        self.each_elsewhere(&bytes, |slot, memory| (slot, memory))
    }

    /// Makes these bytes of the memory visible to the device. This does nothing if the device reports
    /// how many bytes it has written, because it only writes then.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    pub fn sync_for_device(&mut self, bytes: Range<u64>) -> Result<(), Error> {
        let _span = span!("sync_for_device", iova = self.iova().raw(), bytes = bytes);
        self.check(&bytes)?;
        if let Some(watch) = &self.handle().state().watch {
            watch.synced(self.iova(), &bytes, false);
        }
        // The bytes would stay in the slot: it is not wiped before its next transfer, although a device
        // may be able to read it.
        if self.is_reported() {
            return Ok(());
        }
        self.each_elsewhere(&bytes, |slot, memory| (memory, slot))
    }

    /// Fills `into` with the bytes of the memory from `offset` on. Call
    /// [`sync_for_cpu`](Self::sync_for_cpu) for them first.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Copy`].
    #[track_caller]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let from = self.host_of(offset, into.len())?;
        if let Some(watch) = &self.handle().state().watch {
            let bytes = offset..offset + into.len() as u64;
            watch.touched(self.iova(), bytes, "read", Location::caller());
        }
        // SAFETY: the mapping owns the memory, and there is no reference to it.
        let copied = unsafe { copy_bytes(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        copied.map_err(|source| Error::Copy { iova: self.iova(), source })
    }

    /// Writes `from` to the memory at `offset`. The device must not use these bytes meanwhile: call
    /// [`sync_for_cpu`](Self::sync_for_cpu) for them first, or write before the device gets their
    /// address. Call [`sync_for_device`](Self::sync_for_device) afterwards.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory is [not writable](DmaMemory::is_writable);
    /// [`Error::Outside`], [`Error::Copy`].
    #[track_caller]
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check_writable("writing to a mapping")?;
        let to = self.host_of(offset, from.len())?;
        if let Some(watch) = &self.handle().state().watch {
            let bytes = offset..offset + from.len() as u64;
            watch.touched(self.iova(), bytes, "written", Location::caller());
        }
        // SAFETY: the mapping owns the memory, which is writable, and to which there is no reference.
        let copied = unsafe { copy_bytes(from.as_ptr(), to.as_ptr(), from.len()) };
        copied.map_err(|source| Error::Copy { iova: self.iova(), source })
    }

    /// Copies bytes that are in slots between slot and memory; `order` returns source and destination.
    fn each_elsewhere(
        &self,
        bytes: &Range<u64>,
        order: impl Fn(NonNull<u8>, NonNull<u8>) -> (NonNull<u8>, NonNull<u8>),
    ) -> Result<(), Error> {
        let mut all_bytes = 0;
        for part in self.elsewhere().into_iter().flatten() {
            let start = bytes.start.max(part.at);
            let end = bytes.end.min(part.at + part.len_bytes);
            let Some(len_bytes) = end.checked_sub(start).filter(|len| *len != 0) else { continue };
            // SAFETY: within the part, which lies in its slot.
            let slot = unsafe { part.host.add((start - part.at) as usize) };
            // SAFETY: within the memory, as `check` has verified.
            let memory = unsafe { self.host().add(start as usize) };
            let (from, to) = order(slot, memory);
            // SAFETY: both have this many bytes, and belong to this mapping.
            let copied = unsafe { copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) };
            copied.map_err(|source| Error::Copy { iova: self.iova(), source })?;
            all_bytes += len_bytes;
        }
        self.handle().add(Event::Copied, all_bytes);
        Ok(())
    }

    fn host_of(&self, offset: u64, len: usize) -> Result<NonNull<u8>, Error> {
        self.check(&(offset..offset.saturating_add(len as u64)))?;
        // SAFETY: within the memory.
        Ok(unsafe { self.host().add(offset as usize) })
    }

    fn check(&self, bytes: &Range<u64>) -> Result<(), Error> {
        if bytes.start <= bytes.end && bytes.end <= self.len() {
            return Ok(());
        }
        let (start, end) = (bytes.start, bytes.end);
        Err(Error::Outside { iova: self.iova(), len_bytes: self.len(), start, end })
    }
}
