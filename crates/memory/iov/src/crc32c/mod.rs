//! CRC-32C (Castagnoli), computed alone or while copying: the digest of iSCSI (RFC 3720, appendix
//! B.4), NVMe over TCP, SCTP and ext4.
//!
//! The polynomial is 0x1EDC6F41, reflected. The register starts with all ones, and its complement
//! is the CRC.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(miri, path = "bytewise.rs")]
mod kernels;
mod polynomial;
mod table;

use longshore_mem::copy::{CopyFault, STREAM_MIN_BYTES};

use crate::copy::Engine;
use crate::kernels::{Kernels, LINE_BYTES};
use crate::sink::Absorb;

/// The CRC-32C of a stream of bytes, which can be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    /// The register: the complement of the CRC.
    register: u32,
}

impl Crc32c {
    /// Returns the CRC of no bytes.
    pub const fn new() -> Self {
        Self { register: !0 }
    }

    /// Appends `bytes` to the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        Engine::active().update(bytes, self);
    }

    /// Returns the CRC. iSCSI and NVMe/TCP send it in little-endian byte order.
    pub const fn finish(self) -> u32 {
        !self.register
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CRC-32C of `bytes`.
pub fn of(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.finish()
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
        // A copy with non-temporal stores starts at a cache line.
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

#[cfg(test)]
mod tests;
