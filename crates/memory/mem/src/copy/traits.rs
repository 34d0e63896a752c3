//! What each instruction set does.
#![expect(unsafe_code, reason = "declares copies in assembly")]

use crate::fault::RawOutcome;

/// From this length on, copies with vector registers use non-temporal stores: their target does not
/// fit there beside the source, and a line that is written whole need not be read first. On a Zen 4
/// core with 32 MiB of third-level cache, from here on as fast as stores through the caches or
/// faster, and from 32 MiB on at up to twice their speed.
#[doc(hidden)]
pub const STREAM_MIN_BYTES: usize = 12 << 20;

/// The copies of one instruction set. Implemented by the tokens of [`isa`](crate::isa), and
/// sealed, because [`copy`](super::copy) and [`fill`](super::fill) believe the outcome.
///
/// Where one of them returns an outcome with a fault, a prefix of the bytes was copied that may be
/// shorter than what could have been; [`copy`](super::copy) and [`fill`](super::fill) go on from there to the exact byte.
///
/// ```compile_fail,E0277
/// use longshore_mem::copy::CopyKernels;
/// use longshore_mem::fault::RawOutcome;
///
/// #[derive(Clone, Copy)]
/// struct Mine;
///
/// impl CopyKernels for Mine {
///     unsafe fn copy_raw(self, _: *const u8, _: *mut u8, _: usize) -> RawOutcome {
///         RawOutcome { left_bytes: usize::MAX, address: 0, cause: 1 }
///     }
///
///     unsafe fn fill_raw(self, _: *mut u8, _: u8, _: usize) -> RawOutcome {
///         RawOutcome { left_bytes: usize::MAX, address: 0, cause: 1 }
///     }
/// }
/// ```
#[doc(hidden)]
pub trait CopyKernels: sealed::Sealed + Copy {
    /// # Safety
    /// As [`copy`](super::copy).
    unsafe fn copy_raw(self, from: *const u8, to: *mut u8, len_bytes: usize) -> RawOutcome;

    /// # Safety
    /// As [`fill`](super::fill).
    unsafe fn fill_raw(self, to: *mut u8, byte: u8, len_bytes: usize) -> RawOutcome;
}

mod sealed {
    use crate::isa;

    pub trait Sealed {}

    impl Sealed for isa::Scalar {}
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    impl Sealed for isa::Avx2 {}
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    impl Sealed for isa::Avx512 {}
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    impl Sealed for isa::Neon {}
}
