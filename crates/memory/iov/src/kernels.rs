//! The blocks of assembly of each instruction set.
#![expect(unsafe_code, reason = "declares blocks of assembly")]

use longshore_mem::copy::{CopyFault, CopyKernels};
use longshore_mem::fault::RawOutcome;

use crate::through_buffer::copy_through_buffer;

/// The alignment of the target that non-temporal stores need.
pub(crate) const LINE_BYTES: usize = 64;

/// All operations of an instruction set.
pub trait Kernels: CopyKernels + SumKernels + CrcKernels {}

impl<T: CopyKernels + SumKernels + CrcKernels> Kernels for T {}

/// The most bytes that a kernel may get at once: its sums of signed words fit into 32 bits.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// The checksums of one instruction set.
///
/// Each method returns the one's complement sum of the little-endian words of the bytes that were
/// done, where an odd last byte is the low byte of a word. The sum is zero only if all words are
/// zero.
pub trait SumKernels: CopyKernels {
    /// # Safety
    /// As [`copy`](longshore_mem::copy::copy) of a source of at most `CHUNK_BYTES`.
    unsafe fn sum_raw(self, from: *const u8, len_bytes: usize) -> (u64, RawOutcome);

    /// # Safety
    /// As [`copy`](longshore_mem::copy::copy), of at most `CHUNK_BYTES`.
    unsafe fn copy_sum_raw(
        self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
    ) -> (u64, RawOutcome);

    /// Does the same with non-temporal stores, if the instruction set has them.
    ///
    /// # Safety
    /// As [`copy_sum_raw`](Self::copy_sum_raw). From 256 bytes on, the target must be aligned to a
    /// cache line.
    unsafe fn stream_sum_raw(
        self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
    ) -> (u64, RawOutcome) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_sum_raw(from, to, len_bytes) }
    }
}

/// The CRCs of one instruction set.
pub trait CrcKernels: CopyKernels {
    /// Returns the CRC register after `bytes`, which are private memory.
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32;

    /// Copies `len_bytes` bytes, or only reads them if `to` is `None`, and updates `register` with
    /// those that were done.
    ///
    /// # Errors
    /// As [`copy`](longshore_mem::copy::copy).
    ///
    /// # Safety
    /// As [`copy`](longshore_mem::copy::copy).
    unsafe fn copy_crc(
        self,
        register: &mut u32,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        let absorb = |bytes: &[u8]| *register = self.crc_own(*register, bytes);
        // SAFETY: the caller's promise.
        unsafe { copy_through_buffer(self, from, to, len_bytes, absorb) }
    }
}
