//! Checksums without assembly, for Miri.

use longshore_mem::fault::RawOutcome;
use longshore_mem::isa::Scalar;

use super::sum_of_own;
use crate::kernels::SumKernels;
use crate::through_buffer::copy_through_buffer;

impl SumKernels for Scalar {
    unsafe fn sum_raw(self, from: *const u8, len_bytes: usize) -> (u64, RawOutcome) {
        // SAFETY: the caller's promise.
        unsafe { through_buffer(self, from, None, len_bytes) }
    }

    unsafe fn copy_sum_raw(
        self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
    ) -> (u64, RawOutcome) {
        // SAFETY: the caller's promise.
        unsafe { through_buffer(self, from, Some(to), len_bytes) }
    }
}

/// # Safety
/// As [`copy`](longshore_mem::copy::copy).
unsafe fn through_buffer(
    token: Scalar,
    from: *const u8,
    to: Option<*mut u8>,
    len_bytes: usize,
) -> (u64, RawOutcome) {
    let mut whole = 0u64;
    let absorb = |bytes: &[u8]| {
        // The size of the buffer is even, so each part starts at a word.
        let (total, carry) = whole.overflowing_add(sum_of_own(bytes));
        whole = total + u64::from(carry);
    };
    // SAFETY: the caller's promise.
    let copied = unsafe { copy_through_buffer(token, from, to, len_bytes, absorb) };
    debug_assert!(copied.is_ok(), "nothing faults under Miri");
    (whole, RawOutcome { left_bytes: 0, address: 0, cause: 0 })
}
