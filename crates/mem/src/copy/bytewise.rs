//! Volatile bytes: what Miri can run.

use super::CopyKernels;
use crate::fault::RawOutcome;
use crate::isa::Scalar;

const DONE: RawOutcome = RawOutcome { left_bytes: 0, address: 0, cause: 0 };

/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
    for at in 0..len_bytes {
        // SAFETY: `at` is within both ranges.
        let from = unsafe { from.add(at) };
        // SAFETY: as above.
        let to = unsafe { to.add(at) };
        // SAFETY: valid by the caller's promise.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: valid by the caller's promise.
        unsafe { to.write_volatile(byte) };
    }
    DONE
}

/// # Safety
/// As [`super::fill`].
pub(super) unsafe fn fill_bytes(to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
    for at in 0..len_bytes {
        // SAFETY: `at` is within the range.
        let to = unsafe { to.add(at) };
        // SAFETY: valid by the caller's promise.
        unsafe { to.write_volatile(byte) };
    }
    DONE
}

impl CopyKernels for Scalar {
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { bytes(from, to, len_bytes) }
    }

    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome {
        // SAFETY: the caller's promise.
        unsafe { fill_bytes(to, byte, len_bytes) }
    }
}
