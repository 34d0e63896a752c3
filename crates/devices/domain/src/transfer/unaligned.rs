//! Long transfers that begin or end within a granule, for a device that must not reach the other
//! bytes of that granule.
//!
//! ```text
//!   memory      ░░░░▓▓▓▓│████████│████████│▓▓▓░░░░░       ▓ copied, █ mapped, ░ other objects
//!                   │       │        │      │
//!                   ▼       │        │      ▼
//!   slots       0000▓▓▓▓    │        │    ▓▓▓00000        a granule each
//!                   │       ▼        ▼      │
//!   IOVAs       │ granule │ granule│ granule│ granule │   one range
//! ```
#![expect(unsafe_code, reason = "maps parts of memory that its caller owns, and of slots")]

use std::ptr::NonNull;

use longshore_mem::copy::CopyFault;
use longshore_mem::{AddrRange, Iova};

use super::bounce::{self, Elsewhere};
use super::pieces::{Partly, map_all, unmap_all};
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::handle::sealed::Seal;
use crate::handle::{Handle, await_slot};
use crate::iova::IovaRange;
use crate::pool::chunk::Slot;
use crate::pool::classes::Class;
use crate::pool::kind::Kind;
use crate::watch::Slack;

/// A transfer whose ends are bounced.
pub(crate) struct Unaligned {
    pub(crate) iovas: IovaRange,
    /// The offset of the transfer in its granule.
    pub(crate) offset: u64,
    head: Option<End>,
    middle_bytes: u64,
    tail: Option<End>,
    /// `true` if the device can reach it. It cannot if it was unmapped and could not be copied
    /// back.
    is_mapped: bool,
}

/// An end of the transfer, in a slot.
struct End {
    slot: Slot,
    /// The offset in the slot, the offset in the transfer, and the length.
    in_slot: u64,
    in_memory: u64,
    len_bytes: u64,
}

impl End {
    fn take<D: Handle>(
        handle: &D,
        direction: Direction,
        [in_slot, in_memory, len_bytes]: [u64; 3],
    ) -> Result<Option<Self>, Error> {
        if len_bytes == 0 {
            return Ok(None);
        }
        let class = Class::of(1).expect("a slot of one granule");
        let kind = Kind { class, direction };
        let slot = handle.take_slot(kind).or_else(|error| await_slot(handle, kind, error))?;
        Ok(Some(Self { slot, in_slot, in_memory, len_bytes }))
    }

    fn give<D: Handle>(self, handle: &D) {
        handle.give_slot(bounce::used(self.slot, &handle.state().core));
    }
}

impl Unaligned {
    /// Maps `len_bytes` at `host`, which must be more than two granules.
    ///
    /// # Safety
    /// Until they are unmapped, the bytes must stay there, and no reference to them may be alive.
    pub(crate) unsafe fn map<D: Handle>(
        handle: &D,
        host: NonNull<u8>,
        len_bytes: u64,
        direction: Direction,
        is_reported: bool,
    ) -> Result<Self, Error> {
        let core = &handle.state().core;
        let granule = core.limits.granule.bytes();
        let start = host.addr().get() as u64;
        let offset = start & (granule - 1);
        let head_bytes = if offset == 0 { 0 } else { granule - offset };
        let tail_bytes = (start + len_bytes) & (granule - 1);
        let middle_bytes = len_bytes - head_bytes - tail_bytes;
        let for_slot = core.slot_direction(direction, is_reported);
        let head = End::take(handle, for_slot, [offset, 0, head_bytes])?;
        let tail = match End::take(handle, for_slot, [0, len_bytes - tail_bytes, tail_bytes]) {
            Ok(tail) => tail,
            Err(error) => {
                head.into_iter().for_each(|end| end.give(handle));
                return Err(error);
            }
        };
        let iovas =
            match handle.take(Seal, (offset + len_bytes).next_multiple_of(granule), core.placement)
            {
                Ok(iovas) => iovas,
                Err(error) => {
                    head.into_iter().chain(tail).for_each(|end| end.give(handle));
                    return Err((*error).into());
                }
            };
        let mut unaligned = Self { iovas, offset, head, middle_bytes, tail, is_mapped: true };
        if !is_reported {
            // SAFETY: the caller owns the bytes at `host`.
            if let Err(source) = unsafe { unaligned.copy_in(host) } {
                let iova = unaligned.iovas.start();
                unaligned.give(handle);
                return Err(Error::Copy { iova, source });
            }
            handle.add(Event::Copied, head_bytes + tail_bytes);
        }
        // SAFETY: the caller's promise.
        match unsafe { unaligned.map_pieces(handle, host, direction) } {
            Ok(()) => {
                handle.add(Event::Bounce, 1);
                Ok(unaligned)
            }
            Err(Partly { error, still_mapped }) => {
                if still_mapped == 0 {
                    unaligned.give(handle);
                } else {
                    // The device may reach the slots, so they are not used again.
                    handle.add(Event::Leak, 1);
                }
                Err(error)
            }
        }
    }

    /// Maps the slots and the middle.
    ///
    /// # Safety
    /// As [`map`](Self::map).
    unsafe fn map_pieces<D: Handle>(
        &self,
        handle: &D,
        host: NonNull<u8>,
        direction: Direction,
    ) -> Result<(), Partly> {
        let granule = handle.state().core.limits.granule;
        let head_bytes = self.head.as_ref().map_or(0, |end| end.len_bytes);
        let slot = |end: &Option<End>| end.as_ref().map(|end| end.slot.host());
        // SAFETY: the middle begins within the bytes.
        let middle = unsafe { host.add(head_bytes as usize) };
        // The caller's memory comes last: if it cannot be mapped, the device reaches none of it,
        // even if the slots cannot be unmapped again.
        let hosts = [slot(&self.head), slot(&self.tail), Some(middle)];
        let pieces = self.pieces(granule.bytes()).into_iter().zip(hosts);
        let pieces = pieces.filter_map(|(range, host)| Some((range?, host?)));
        // SAFETY: the caller keeps its bytes, and `self` keeps the slots and the addresses.
        unsafe { map_all(handle, &pieces, direction) }
    }

    /// Returns the mapped ranges: the granule of the head, the granule of the tail, the middle.
    fn pieces(&self, granule: u64) -> [Option<AddrRange<Iova>>; 3] {
        let start = self.iovas.start().raw();
        let head_bytes = if self.head.is_some() { granule } else { 0 };
        let range = |at: u64, len_bytes: u64| {
            let range = AddrRange::new(Iova::new(at), len_bytes).expect("it is within the range");
            (len_bytes != 0).then_some(range)
        };
        let tail = start + head_bytes + self.middle_bytes;
        [
            range(start, head_bytes),
            range(tail, if self.tail.is_some() { granule } else { 0 }),
            range(start + head_bytes, self.middle_bytes),
        ]
    }

    /// Returns the ranges that the backend must unmap.
    pub(crate) fn mapped(&self, granule: u64) -> impl Iterator<Item = AddrRange<Iova>> {
        self.pieces(granule).into_iter().flatten().filter(|_| self.is_mapped)
    }

    /// Unmaps a transfer of this many bytes, once: a second call does nothing.
    pub(crate) fn unmap<D: Handle>(
        &mut self,
        handle: &D,
        len_bytes: u64,
    ) -> Result<(), Box<Error>> {
        let granule = handle.state().core.limits.granule;
        let ranges: Vec<_> = self.mapped(granule.bytes()).collect();
        if !ranges.is_empty() {
            let iova = Iova::new(self.iovas.start().raw() + self.offset);
            // SAFETY: exactly these ranges were mapped, and this transfer alone owns them.
            unsafe { unmap_all(handle, &ranges, iova, len_bytes) }?;
        }
        self.set_unmapped();
        Ok(())
    }

    /// Notes that the backend has unmapped it.
    pub(crate) fn set_unmapped(&mut self) {
        self.is_mapped = false;
    }

    /// Copies both ends into their slots.
    ///
    /// # Safety
    /// `host` must be the memory that is mapped, and no other code may use it.
    unsafe fn copy_in(&mut self, host: NonNull<u8>) -> Result<(), CopyFault> {
        for end in self.head.iter_mut().chain(&mut self.tail) {
            // SAFETY: the end lies within the caller's bytes.
            let from = unsafe { host.add(end.in_memory as usize) };
            // SAFETY: the slot is a granule, in which the end lies.
            unsafe { bounce::copy_in(&mut end.slot, end.in_slot, from, end.len_bytes) }?;
        }
        Ok(())
    }

    /// Copies the bytes of both ends that lie within the first `written_bytes` back to the memory.
    /// Returns the number of copied bytes.
    ///
    /// # Safety
    /// `host` must be the memory that was mapped, and no other code may use it.
    pub(crate) unsafe fn copy_back(
        &self,
        host: NonNull<u8>,
        written_bytes: u64,
    ) -> Result<u64, CopyFault> {
        let mut copied = 0;
        for end in self.head.iter().chain(&self.tail) {
            let len_bytes = written_bytes.saturating_sub(end.in_memory).min(end.len_bytes);
            // SAFETY: the end lies within the caller's bytes.
            let to = unsafe { host.add(end.in_memory as usize) };
            // SAFETY: the end lies within its slot.
            let from = unsafe { end.slot.host().add(end.in_slot as usize) };
            // SAFETY: both have this many bytes.
            unsafe {
                longshore_mem::copy::copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize)
            }?;
            copied += len_bytes;
        }
        Ok(copied)
    }

    /// Returns the bytes of both ends, which are in slots.
    pub(crate) fn elsewhere(&self) -> [Option<Elsewhere>; 2] {
        [&self.head, &self.tail].map(|end| {
            let End { slot, in_slot, in_memory, len_bytes } = end.as_ref()?;
            // SAFETY: the end lies within its slot.
            let host = unsafe { slot.host().add(*in_slot as usize) };
            Some(Elsewhere { host, at: *in_memory, len_bytes: *len_bytes })
        })
    }

    /// Returns the bytes of the tail's slot after the first `written_bytes`: address, length, and
    /// offset in the transfer.
    pub(crate) fn slack(&self, granule: u64, written_bytes: u64) -> Option<Slack> {
        let End { slot, in_memory, len_bytes, .. } = self.tail.as_ref()?;
        let from = written_bytes.saturating_sub(*in_memory).min(*len_bytes);
        // SAFETY: within the slot.
        Some((unsafe { slot.host().add(from as usize) }, granule - from, in_memory + from))
    }

    /// Gives back the slots and the addresses of a transfer that is not mapped.
    pub(crate) fn give<D: Handle>(self, handle: &D) {
        let Self { iovas, head, tail, .. } = self;
        head.into_iter().chain(tail).for_each(|end| end.give(handle));
        handle.give(Seal, iovas);
    }
}
