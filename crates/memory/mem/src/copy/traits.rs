//! The copies that each instruction set implements.
#![expect(unsafe_code, reason = "declares copies in assembly")]

use crate::fault::RawOutcome;

/// From this length on, copies with vector registers use non-temporal stores: source and target do
/// not both fit into the caches, and non-temporal stores do not read a line before they overwrite
/// it. On a Zen 4 core with 32 MiB of L3 cache, they are at least as fast as ordinary stores from
/// this length on, and up to twice as fast from 32 MiB on.
#[doc(hidden)]
pub const STREAM_MIN_BYTES: usize = 12 << 20;

/// The copies of one instruction set. The tokens of [`isa`](crate::isa) implement it. It is sealed,
/// because [`copy`](super::copy) and [`fill`](super::fill) trust the outcome.
///
/// If a method returns a fault, it has copied the bytes before some place, which may be short of
/// the byte that faults; [`copy`](super::copy) and [`fill`](super::fill) continue from there to the
/// exact byte.
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
