//! The place of a mapping's bytes for the device: the memory itself, a bounce buffer, or both.
#![expect(unsafe_code, reason = "hands memory to a backend that a mapping keeps")]

use std::ptr::NonNull;

use longshore_mem::{AddrRange, DmaMemory, Iova};

use super::borrowed::is_borrowed;
use super::bounce;
use super::pieces::check_unmap;
use super::unaligned::Unaligned;
use crate::backend::Piece;
use crate::counters::Event;
use crate::direction::Direction;
use crate::error::Error;
use crate::handle::sealed::Seal;
use crate::handle::{Handle, await_slot};
use crate::iova::IovaRange;
use crate::policy::Route;
use crate::pool::chunk::Slot;
use crate::pool::kind::Kind;
use crate::state::State;

/// The place where the device accesses the bytes.
///
/// All code that makes and ends a mapping is inlined, down to this module. Otherwise the parts of a
/// mapping pass from call to call in memory, stored as words and loaded as vectors, which costs more
/// than all the rest.
pub(crate) enum Place {
    /// In the memory itself, whose granules are at these addresses.
    Direct(IovaRange),
    /// In a bounce buffer.
    Slot(Slot),
    /// In the memory itself, except the ends.
    Unaligned(Box<Unaligned>),
}

/// Returns an error for a transfer of no bytes, and for one that would write to read-only memory.
/// Every mapping is made after this check, so its memory is writable if its direction is not
/// [`Direction::ToDevice`].
///
/// # Errors
/// [`Error::Empty`], [`Error::ReadOnly`].
#[inline(always)]
pub(crate) fn check<B: DmaMemory>(memory: &B, direction: Direction) -> Result<(), Box<Error>> {
    let (_, len_bytes) = extent(memory);
    if len_bytes == 0 {
        return Err(empty("mapping"));
    }
    check_writable(memory, direction)
}

/// Returns an error for a transfer that would write to read-only memory.
///
/// # Errors
/// [`Error::ReadOnly`].
#[inline(always)]
pub(crate) fn check_writable<B: DmaMemory>(
    memory: &B,
    direction: Direction,
) -> Result<(), Box<Error>> {
    if direction != Direction::ToDevice && !memory.is_writable() {
        return Err(read_only(extent(memory), "mapping for a device that writes"));
    }
    Ok(())
}

#[cold]
pub(crate) fn empty(operation: &'static str) -> Box<Error> {
    Error::Empty { operation }.into()
}

#[cold]
pub(crate) fn read_only((start, len_bytes): (u64, u64), operation: &'static str) -> Box<Error> {
    Error::ReadOnly { operation, start, len_bytes }.into()
}

/// Makes the memory reachable for the device.
#[inline(always)]
pub(crate) fn place<B: DmaMemory + 'static, D: Handle>(
    handle: &D,
    memory: &B,
    direction: Direction,
    is_reported: bool,
) -> Result<Place, Box<Error>> {
    let State { core, policy, .. } = handle.state();
    let granule = core.limits.granule;
    let (start, len_bytes) = extent(memory);
    let for_slot = core.slot_direction(direction, is_reported);
    match policy.route(granule, start, len_bytes, for_slot) {
        Route::Bounce { kind, else_direct } => {
            let slot = match handle.take_slot(kind) {
                Ok(slot) => slot,
                Err(_) if else_direct => return map_somewhere(handle, memory, direction),
                Err(error) => await_slot(handle, kind, error).map_err(Error::from)?,
            };
            fill(handle, slot, kind, memory, is_reported).map(Place::Slot)
        }
        Route::Direct => map_somewhere(handle, memory, direction),
        Route::Unaligned => {
            // SAFETY: the mapping keeps the memory, with no reference to it, until it is taken back.
            let unaligned =
                unsafe { Unaligned::map(handle, host(memory), len_bytes, direction, is_reported) };
            Ok(Place::Unaligned(Box::new(unaligned?)))
        }
    }
}

/// Copies the memory into a slot, unless the device reports how many bytes it writes.
#[inline(always)]
pub(crate) fn fill<B: DmaMemory, D: Handle>(
    handle: &D,
    mut slot: Slot,
    kind: Kind,
    memory: &B,
    is_reported: bool,
) -> Result<Slot, Box<Error>> {
    let (start, len_bytes) = extent(memory);
    let offset = handle.state().policy.slot_offset(start);
    if !is_reported {
        // SAFETY: the slot has this many bytes from `offset` on, and the caller owns the memory.
        let copied = unsafe { bounce::copy_in(&mut slot, offset, host(memory), len_bytes) };
        if let Err(source) = copied {
            let iova = Iova::new(slot.iova().raw() + offset);
            handle.give_slot(slot);
            return Err(Error::Copy { iova, source }.into());
        }
        handle.add(Event::Copied, len_bytes);
    }
    debug_assert_eq!(slot.kind(), kind);
    handle.add(Event::Bounce, 1);
    Ok(slot)
}

#[inline(always)]
pub(crate) fn map_somewhere<B: DmaMemory + 'static, D: Handle>(
    handle: &D,
    memory: &B,
    direction: Direction,
) -> Result<Place, Box<Error>> {
    let core = &handle.state().core;
    let (start, len_bytes) = extent(memory);
    let offset = start & (core.limits.granule.bytes() - 1);
    let iovas = core.take_for(start, offset + len_bytes, |bytes, placement| {
        handle.take(Seal, bytes, placement)
    });
    let iovas = iovas.map_err(|error| Error::from(*error))?;
    map(handle, memory, direction, iovas)
}

/// Maps the granules of the memory at `iovas`.
#[inline(always)]
pub(crate) fn map<B: DmaMemory + 'static, D: Handle>(
    handle: &D,
    memory: &B,
    direction: Direction,
    iovas: IovaRange,
) -> Result<Place, Box<Error>> {
    let core = &handle.state().core;
    let granule = core.limits.granule;
    let (start, len_bytes) = extent(memory);
    let offset = start & (granule.bytes() - 1);
    let len_bytes = (offset + len_bytes).next_multiple_of(granule.bytes());
    if is_borrowed::<B>() {
        let range = AddrRange::new(iovas.start(), len_bytes).expect("it was taken");
        if let Err(error) = check_unmap(handle, range) {
            handle.give(Seal, iovas);
            return Err(error.into());
        }
    }
    // SAFETY: no code here writes through the descriptor or keeps it.
    let file = unsafe { memory.file() };
    let file = file.filter(|(_, at)| at.raw() >= offset);
    let piece = Piece {
        host: bounce::granule_of(host(memory), offset),
        len_bytes,
        file: file.map(|(file, at)| (file, longshore_mem::FileOffset::new(at.raw() - offset))),
    };
    // SAFETY: the memory is kept, with no reference to it, until `unmap` has returned `Ok`.
    match unsafe { core.backend.map(iovas.start(), piece, direction.prot()) } {
        Ok(()) => Ok(Place::Direct(iovas)),
        Err(source) => {
            let iova = iovas.start();
            handle.give(Seal, iovas);
            Err(Error::Backend { operation: "mapping", iova, len_bytes, source }.into())
        }
    }
}

#[inline(always)]
pub(crate) fn host<B: DmaMemory>(memory: &B) -> NonNull<u8> {
    memory.host().cast()
}

/// Returns the address of the memory in this process, and its length.
#[inline(always)]
pub(crate) fn extent<B: DmaMemory>(memory: &B) -> (u64, u64) {
    let host = memory.host();
    (host.cast::<u8>().addr().get() as u64, host.len() as u64)
}
