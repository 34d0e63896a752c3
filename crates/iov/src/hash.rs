//! Copies that feed any digest with the bytes in the same pass.
//!
//! The bytes come by way of a small buffer of our own: foreign ones are read once, and what was
//! hashed is what was copied.
#![expect(unsafe_code, reason = "hands segments to copies through a buffer")]

use longshore_mem::copy::CopyFault;

use crate::copy::Engine;
use crate::direction::{Dest, Source};
use crate::error::Error;
use crate::fused::{self, Absorb, Kernels};
use crate::source::SegmentSource;
use crate::through_buffer::copy_through_buffer;

/// [`copy::read`](crate::copy::read), with each run of bytes handed to `update` in order: the
/// `update` of a digest.
///
/// # Errors
/// As [`copy::read`](crate::copy::read); `update` has had the bytes that were copied.
#[doc(alias = "hash_and_copy_to_iter")]
pub fn read(
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    update: impl FnMut(&[u8]),
) -> Result<usize, Error> {
    fused::read(Engine::active().path, source, into, &mut Feed(update))
}

/// [`copy::write`](crate::copy::write), with the bytes handed to `update`: also those that go to a
/// [`Discard`](crate::Discard).
///
/// # Errors
/// As [`copy::write`](crate::copy::write); `update` has had the bytes that were copied.
pub fn write(
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    update: impl FnMut(&[u8]),
) -> Result<usize, Error> {
    fused::write(Engine::active().path, dest, from, &mut Feed(update))
}

/// [`copy::transfer`](crate::copy::transfer), with the bytes handed to `update` on the way. Those
/// that go to a [`Discard`](crate::Discard) are not looked at.
///
/// # Errors
/// As [`copy::transfer`](crate::copy::transfer); `update` has had the bytes that were copied.
pub fn transfer(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
    update: impl FnMut(&[u8]),
) -> Result<usize, Error> {
    fused::transfer(Engine::active().path, source, dest, len_bytes, &mut Feed(update))
}

/// Hands the next `len_bytes` bytes of `source`, or as many as there are, to `update`. Returns how
/// many.
///
/// # Errors
/// As [`copy::read`](crate::copy::read).
pub fn walk(
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    update: impl FnMut(&[u8]),
) -> Result<usize, Error> {
    fused::walk(Engine::active().path, source, len_bytes, &mut Feed(update))
}

struct Feed<F>(F);

impl<F: FnMut(&[u8])> Absorb for Feed<F> {
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        // SAFETY: the caller's promise.
        unsafe { copy_through_buffer(token, from, to, len_bytes, &mut self.0) }
    }

    fn take_own<T: Kernels>(&mut self, _: T, bytes: &[u8]) {
        (self.0)(bytes);
    }
}
