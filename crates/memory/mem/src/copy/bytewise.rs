//! Copies by relaxed atomic bytes, for Miri.
//!
//! To Miri a volatile access is an ordinary one: it is a data race if another thread writes the
//! byte at the same time. An atomic access is not. The accesses are bytes, because Miri refuses
//! racing atomic accesses of different sizes, and they are atomic on both sides, because the copy
//! cannot tell which side is foreign.
//!
//! The source may be read-only memory, for which Stacked Borrows does not allow an atomic. Tree
//! Borrows does, so run Miri with `-Zmiri-tree-borrows`.

use core::sync::atomic::{AtomicU8, Ordering};

use super::traits::CopyKernels;
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
        // SAFETY: valid by the caller's promise, and only read.
        let from = unsafe { AtomicU8::from_ptr(from.cast_mut()) };
        // SAFETY: valid by the caller's promise.
        let to = unsafe { AtomicU8::from_ptr(to) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
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
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
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
