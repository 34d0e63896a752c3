//! What takes in bytes while they are copied.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

use longshore_mem::copy::{CopyFault, copy};

use crate::kernels::Kernels;
use crate::through_buffer::copy_through_buffer;

/// Something that takes in bytes in the pass that copies them: a [`Checksum`](crate::checksum::Checksum),
/// a [`Crc32c`](crate::crc32c::Crc32c), or any `FnMut(&[u8])`, such as the `update` of a digest, which is
/// called with each run of bytes in order.
///
/// Other crates implement it by way of `FnMut(&[u8])` only.
pub trait Sink: Absorb {}

impl<T: Absorb> Sink for T {}

/// What a [`Sink`] does. Its module is private, so that only this crate implements it.
pub trait Absorb {
    /// Copies `len_bytes` bytes, or reads them only where `to` is none, and takes in those that
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

    /// Takes in bytes that are our own.
    fn take_own<T: Kernels>(&mut self, token: T, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed.
        let taken = unsafe { self.take(token, bytes.as_ptr(), None, bytes.len()) };
        debug_assert!(taken.is_ok(), "own memory does not fault");
    }
}

/// Takes in nothing: a plain copy.
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

/// The bytes come by way of a small buffer of our own: foreign ones are read once, and what was hashed
/// is what was copied.
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
