//! What each instruction set does to bytes.
#![expect(unsafe_code, reason = "declares blocks of assembly")]

use longshore_mem::copy::{CopyFault, CopyKernels};
use longshore_mem::fault::RawOutcome;

use crate::through_buffer::copy_through_buffer;

/// The alignment of the target that non-temporal stores need.
pub(crate) const LINE_BYTES: usize = 64;

/// All that an instruction set can do.
pub trait Kernels: CopyKernels + SumKernels + CrcKernels {}

impl<T: CopyKernels + SumKernels + CrcKernels> Kernels for T {}

/// What a kernel may be given at once: its sum of signed words fits 32 bits.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// The checksums of one instruction set.
///
/// Each returns the sum, in one's complement, of the little-endian words of the bytes that were
/// done (an odd last byte is a word's low one), zero only if all of them are.
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

    /// The same with non-temporal stores, if the set has them.
    ///
    /// # Safety
    /// As [`copy_sum_raw`](Self::copy_sum_raw). From 256 bytes on the target must lie at the start
    /// of a line.
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
    /// The register after `bytes`, which are our own.
    fn crc_own(self, register: u32, bytes: &[u8]) -> u32;

    /// Copies `len_bytes` bytes, or reads them only where `to` is none, and takes those that were
    /// done into `register`.
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
