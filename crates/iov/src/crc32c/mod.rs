//! CRC-32C (Castagnoli), alone or while copying: the digest of iSCSI (RFC 3720, appendix B.4), of
//! NVMe over TCP, SCTP and ext4.
//!
//! Polynomial 0x1EDC6F41, reflected, all ones before and complemented after.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(miri, path = "bytewise.rs")]
mod kernels;
mod polynomial;
mod table;

use longshore_mem::copy::{CopyFault, CopyKernels, STREAM_MIN_BYTES};

use crate::copy::Engine;
use crate::direction::{Dest, Source};
use crate::error::Error;
use crate::fused::{self, Absorb, Kernels, LINE_BYTES};
use crate::source::SegmentSource;
use crate::through_buffer::copy_through_buffer;

/// The CRC-32C of a stream of bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    /// The register: the complement of the CRC.
    register: u32,
}

impl Crc32c {
    /// That of no bytes.
    pub const fn new() -> Self {
        Self { register: !0 }
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        Engine::active().crc32c(bytes, self);
    }

    /// The CRC, as a number. iSCSI and NVMe/TCP send its little-endian bytes.
    pub const fn finish(self) -> u32 {
        !self.register
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The CRC-32C of `bytes`.
pub fn of(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.finish()
}

/// [`copy::read`](crate::copy::read), with the bytes added to `crc` in the same pass.
///
/// # Errors
/// As [`copy::read`](crate::copy::read); `crc` has the bytes that were copied.
pub fn read(
    source: &mut impl SegmentSource<Source>,
    into: &mut [u8],
    crc: &mut Crc32c,
) -> Result<usize, Error> {
    Engine::active().read_crc32c(source, into, crc)
}

/// [`copy::write`](crate::copy::write), with the bytes added to `crc` in the same pass: also those
/// that go to a [`Discard`](crate::Discard).
///
/// # Errors
/// As [`copy::write`](crate::copy::write); `crc` has the bytes that were copied.
pub fn write(
    dest: &mut impl SegmentSource<Dest>,
    from: &[u8],
    crc: &mut Crc32c,
) -> Result<usize, Error> {
    Engine::active().write_crc32c(dest, from, crc)
}

/// [`copy::transfer`](crate::copy::transfer), with the bytes added to `crc` in the same pass. Those
/// that go to a [`Discard`](crate::Discard) are not looked at.
///
/// # Errors
/// As [`copy::transfer`](crate::copy::transfer); `crc` has the bytes that were copied.
pub fn transfer(
    source: &mut impl SegmentSource<Source>,
    dest: &mut impl SegmentSource<Dest>,
    len_bytes: usize,
    crc: &mut Crc32c,
) -> Result<usize, Error> {
    Engine::active().transfer_crc32c(source, dest, len_bytes, crc)
}

/// Adds the next `len_bytes` bytes of `source`, or as many as there are, to `crc`. Returns how many.
/// Of memory that others change it is the CRC of what was there; whoever needs the bytes too must
/// take both at once, by [`read`].
///
/// # Errors
/// As [`copy::read`](crate::copy::read).
pub fn walk(
    source: &mut impl SegmentSource<Source>,
    len_bytes: usize,
    crc: &mut Crc32c,
) -> Result<usize, Error> {
    Engine::active().walk_crc32c(source, len_bytes, crc)
}

impl Engine {
    /// See [`Crc32c::update`].
    pub fn crc32c(self, bytes: &[u8], crc: &mut Crc32c) {
        fused::own(self.path, bytes, crc);
    }

    /// See [`read`].
    ///
    /// # Errors
    /// As [`read`].
    pub fn read_crc32c(
        self,
        source: &mut impl SegmentSource<Source>,
        into: &mut [u8],
        crc: &mut Crc32c,
    ) -> Result<usize, Error> {
        fused::read(self.path, source, into, crc)
    }

    /// See [`write()`].
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write_crc32c(
        self,
        dest: &mut impl SegmentSource<Dest>,
        from: &[u8],
        crc: &mut Crc32c,
    ) -> Result<usize, Error> {
        fused::write(self.path, dest, from, crc)
    }

    /// See [`transfer`].
    ///
    /// # Errors
    /// As [`transfer`].
    pub fn transfer_crc32c(
        self,
        source: &mut impl SegmentSource<Source>,
        dest: &mut impl SegmentSource<Dest>,
        len_bytes: usize,
        crc: &mut Crc32c,
    ) -> Result<usize, Error> {
        fused::transfer(self.path, source, dest, len_bytes, crc)
    }

    /// See [`walk`].
    ///
    /// # Errors
    /// As [`walk`].
    pub fn walk_crc32c(
        self,
        source: &mut impl SegmentSource<Source>,
        len_bytes: usize,
        crc: &mut Crc32c,
    ) -> Result<usize, Error> {
        fused::walk(self.path, source, len_bytes, crc)
    }
}

impl Absorb for Crc32c {
    #[inline(always)]
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        // A copy past the caches begins where a line does.
        let head = match to {
            Some(to) if len_bytes >= STREAM_MIN_BYTES => to.addr().wrapping_neg() % LINE_BYTES,
            _ => 0,
        };
        // SAFETY: the caller's promise.
        unsafe { token.copy_crc(&mut self.register, from, to, head) }?;
        // SAFETY: within the range.
        let from = unsafe { from.add(head) };
        // SAFETY: as above.
        let to = to.map(|to| unsafe { to.add(head) });
        // SAFETY: the caller's promise.
        unsafe { token.copy_crc(&mut self.register, from, to, len_bytes - head) }
            .map_err(|stop| CopyFault { done_bytes: head + stop.done_bytes, ..stop })
    }

    fn take_own<T: Kernels>(&mut self, token: T, bytes: &[u8]) {
        self.register = token.crc_own(self.register, bytes);
    }
}

/// The CRCs of one set of instructions.
pub(crate) trait CrcKernels: CopyKernels {
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

#[cfg(test)]
mod tests;
