//! The consumers of bytes that are being copied.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

use longshore_mem::copy::{CopyFault, copy};

use crate::kernels::Kernels;
use crate::through_buffer::copy_through_buffer;

/// A consumer of bytes in the pass that copies them: a [`Checksum`](crate::checksum::Checksum), a
/// [`Crc32c`](crate::crc32c::Crc32c), or any `FnMut(&[u8])`, such as the `update` function of a
/// digest, which is called with consecutive slices of the bytes.
///
/// Other crates can implement it only through `FnMut(&[u8])`.
pub trait Sink: Absorb {}

impl<T: Absorb> Sink for T {}

/// The methods of a [`Sink`]. Its module is private, so only this crate can implement it.
pub trait Absorb {
    /// Copies `len_bytes` bytes, or only reads them if `to` is `None`, and processes those that
    /// were done.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// As [`copy`].
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault>;

    /// Processes bytes in private memory.
    fn take_own<T: Kernels>(&mut self, token: T, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed.
        let taken = unsafe { self.take(token, bytes.as_ptr(), None, bytes.len()) };
        debug_assert!(taken.is_ok(), "own memory does not fault");
    }
}

/// A sink that ignores the bytes, for a plain copy.
pub(crate) struct Nothing;

impl Absorb for Nothing {
    #[inline(always)]
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        match to {
            // SAFETY: the caller's promise.
            Some(to) => unsafe { copy(token, from, to, len_bytes) },
            None => Ok(()),
        }
    }
}

/// Passes the bytes through a small private buffer: foreign bytes are read once, so the digest is
/// that of the copied bytes.
impl<F: FnMut(&[u8])> Absorb for F {
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        // SAFETY: the caller's promise.
        unsafe { copy_through_buffer(token, from, to, len_bytes, self) }
    }

    fn take_own<T: Kernels>(&mut self, _: T, bytes: &[u8]) {
        self(bytes);
    }
}
