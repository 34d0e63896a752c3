//! Copies between memory and bounce buffers.
#![expect(unsafe_code, reason = "copies between memory of two owners")]

use std::ptr::NonNull;

use longshore_mem::copy::{self, CopyFault};
use longshore_mem::isa::Path;
use longshore_mem::with_path;

use crate::direction::Direction;
use crate::domain::Inner;
use crate::pool::chunk::Slot;

/// Fills a slot with `len_bytes` from `from`. What the device could read behind them is zero then.
///
/// # Errors
/// [`CopyFault`], where memory is missing.
///
/// # Safety
/// The slot must have as many bytes, and so must `from`; nobody may write to them meanwhile.
#[inline]
pub(crate) unsafe fn copy_in(
    slot: &mut Slot,
    from: NonNull<u8>,
    len_bytes: u64,
) -> Result<(), CopyFault> {
    prepare(slot, len_bytes)?;
    // SAFETY: the caller's promise.
    unsafe { copy::copy_bytes(from.as_ptr(), slot.host().as_ptr(), len_bytes as usize) }
}

/// Makes a slot ready for `len_bytes` that are copied to it next: what the device could read behind
/// them is zero.
///
/// # Errors
/// [`CopyFault`], where memory is missing.
#[inline]
pub(crate) fn prepare(slot: &mut Slot, len_bytes: u64) -> Result<(), CopyFault> {
    let stale_bytes = slot.stale_bytes();
    // A device that cannot read the slot does not see what is left in it.
    if stale_bytes > len_bytes && slot.kind().direction != Direction::FromDevice {
        // SAFETY: within the slot: no more of it was ever written.
        let behind = unsafe { slot.host().add(len_bytes as usize) };
        let count = (stale_bytes - len_bytes) as usize;
        // SAFETY: the same; the slot is ours.
        with_path!(Path::active(), token => unsafe { copy::fill(token, behind.as_ptr(), 0, count) })?;
        slot.set_stale_bytes(len_bytes);
    } else {
        slot.set_stale_bytes(stale_bytes.max(len_bytes));
    }
    Ok(())
}

/// As [`copy_in`], to `offset` of the slot; what lies before is zero, too.
///
/// # Errors
/// As [`copy_in`].
///
/// # Safety
/// As [`copy_in`].
pub(crate) unsafe fn copy_in_at(
    slot: &mut Slot,
    offset: u64,
    from: NonNull<u8>,
    len_bytes: u64,
) -> Result<(), CopyFault> {
    let count = slot.stale_bytes() as usize;
    // SAFETY: within the slot, which is ours: no more of it was ever written.
    with_path!(Path::active(), token => unsafe { copy::fill(token, slot.host().as_ptr(), 0, count) })?;
    slot.set_stale_bytes(offset + len_bytes);
    // SAFETY: within the slot.
    let to = unsafe { slot.host().add(offset as usize) };
    // SAFETY: the caller's promise.
    unsafe { copy::copy_bytes(from.as_ptr(), to.as_ptr(), len_bytes as usize) }
}

/// Copies the first `len_bytes` of a slot to `to`.
///
/// # Errors
/// [`CopyFault`], where memory is missing.
///
/// # Safety
/// As [`copy_in`], the other way.
#[inline]
pub(crate) unsafe fn copy_out(
    slot: &Slot,
    to: NonNull<u8>,
    len_bytes: u64,
) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    unsafe { copy::copy_bytes(slot.host().as_ptr(), to.as_ptr(), len_bytes as usize) }
}

/// The slot after a transfer: what the device could write is perhaps written.
#[inline]
pub(crate) fn used(mut slot: Slot, inner: &Inner) -> Slot {
    if slot.kind().direction != Direction::ToDevice {
        let bytes = slot.kind().class.granules() * inner.core.limits.granule.bytes();
        slot.set_stale_bytes(bytes);
    }
    slot
}

/// The start of the granule that `at` lies in, so many bytes behind it.
#[inline]
pub(crate) fn granule_of(at: NonNull<u8>, offset: u64) -> NonNull<u8> {
    let start = at.as_ptr().wrapping_sub(offset as usize);
    // Below it there is no granule but the first, and memory does not begin there.
    NonNull::new(start).unwrap_or(at)
}
