//! Copies between memory and bounce buffers.
#![expect(unsafe_code, reason = "copies between memory of two owners")]

use std::iter;
use std::ops::Range;
use std::ptr::NonNull;

use longshore_mem::copy::{self, CopyFault};
use longshore_mem::dispatch_isa;
use longshore_mem::isa::IsaToken;

use crate::core::Core;
use crate::direction::Direction;
use crate::pool::chunk::Slot;

/// Bytes of a transfer that the device accesses in a slot, and not in the memory.
pub(crate) struct Elsewhere {
    pub(crate) host: NonNull<u8>,
    /// The offset in the transfer, and the length.
    pub(crate) at: u64,
    pub(crate) len_bytes: u64,
}

/// Copies `len_bytes` from `from` to a slot, `offset` bytes after its start. Afterwards, the other bytes
/// that the device could read in the slot are zero.
///
/// # Errors
/// [`CopyFault`] if memory is missing.
///
/// # Safety
/// The slot must have `len_bytes` bytes from `offset` on, and so must the memory at `from`. No other
/// thread may write to them meanwhile.
#[inline]
pub(crate) unsafe fn copy_in(
    slot: &mut Slot,
    offset: u64,
    from: NonNull<u8>,
    len_bytes: u64,
) -> Result<(), CopyFault> {
    // SAFETY: the slot has these bytes, by the caller's promise.
    unsafe { prepare(slot, iter::once(offset..offset + len_bytes)) }?;
    // SAFETY: within the slot.
    let to = unsafe { slot.host().add(offset as usize) };
    // SAFETY: the caller's promise.
    unsafe { copy::copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) }
}

/// Prepares a slot for copies to these ranges of it: clears the other bytes that the device could read.
///
/// # Errors
/// [`CopyFault`] if memory is missing.
///
/// # Safety
/// The ranges must be in order, must not overlap, and must lie in the slot.
#[inline]
pub(crate) unsafe fn prepare(
    slot: &mut Slot,
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<(), CopyFault> {
    let stale_bytes = slot.stale_bytes();
    // A device that cannot read the slot does not see the bytes that are left in it.
    let is_readable = slot.kind().direction != Direction::FromDevice;
    let mut end = 0;
    for range in ranges {
        if is_readable {
            // SAFETY: the caller's promise.
            unsafe { wipe(slot, end, range.start.min(stale_bytes)) }?;
        }
        end = range.end;
    }
    if is_readable {
        // SAFETY: the stale bytes lie in the slot.
        unsafe { wipe(slot, end, stale_bytes) }?;
        slot.set_stale_bytes(end);
    } else {
        slot.set_stale_bytes(stale_bytes.max(end));
    }
    Ok(())
}

/// Sets the bytes of the slot from `start` to `end` to zero, if there are any.
///
/// # Safety
/// The slot must have `end` bytes.
#[inline(always)]
unsafe fn wipe(slot: &Slot, start: u64, end: u64) -> Result<(), CopyFault> {
    let Some(count) = end.checked_sub(start).filter(|count| *count != 0) else { return Ok(()) };
    // SAFETY: within the slot, by the caller's promise.
    let start = unsafe { slot.host().add(start as usize) };
    // SAFETY: the same, and the caller owns the slot.
    dispatch_isa!(IsaToken::active(), isa => unsafe { copy::fill(isa, start.as_ptr(), 0, count as usize) })
}

/// Copies `len_bytes` of a slot, from `offset` on, to `to`.
///
/// # Errors
/// [`CopyFault`] if memory is missing.
///
/// # Safety
/// As [`copy_in`], in the other direction.
#[inline]
pub(crate) unsafe fn copy_out(
    slot: &Slot,
    offset: u64,
    to: NonNull<u8>,
    len_bytes: u64,
) -> Result<(), CopyFault> {
    // SAFETY: within the slot, by the caller's promise.
    let from = unsafe { slot.host().add(offset as usize) };
    // SAFETY: the caller's promise.
    unsafe { copy::copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) }
}

/// Marks all bytes that the device may have written in a transfer as stale, and returns the slot.
#[inline]
pub(crate) fn used(mut slot: Slot, core: &Core) -> Slot {
    if slot.kind().direction != Direction::ToDevice {
        let bytes = slot.kind().class.granules() * core.limits.granule.bytes();
        slot.set_stale_bytes(bytes);
    }
    slot
}

/// Returns the start of the granule that contains `at`; `offset` is the offset of `at` in it.
#[inline]
pub(crate) fn granule_of(at: NonNull<u8>, offset: u64) -> NonNull<u8> {
    let start = at.as_ptr().wrapping_sub(offset as usize);
    // Only the granule at address 0 has a null start, and no memory is mapped there.
    NonNull::new(start).unwrap_or(at)
}
