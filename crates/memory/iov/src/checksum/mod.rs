//! The internet checksum (RFC 1071), computed alone or while copying.
//!
//! The checksum is a one's complement sum of 16-bit words. The byte order does not matter to such a
//! sum (RFC 1071, section 2 B), so the words are added as they lie in memory, in the widest
//! registers available, and the sum is folded at the end. All segments form one stream of bytes, so
//! any length and offset may be odd.
#![expect(unsafe_code, reason = "hands segments to blocks of assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(miri, path = "bytewise.rs")]
mod kernels;

use longshore_mem::copy::{CopyFault, STREAM_MIN_BYTES};

use crate::copy::Engine;
use crate::kernels::{CHUNK_BYTES, Kernels, LINE_BYTES};
use crate::sink::Absorb;
use crate::through_buffer::copy_through_buffer;

/// The checksum of a stream of bytes, which can be updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// The sum of the words as this machine reads them from memory, folded to 16 bits.
    sum: u16,
    /// `true` if the stream has an odd number of bytes so far: the next byte is the second one of
    /// its word.
    is_odd: bool,
}

impl Checksum {
    /// Returns the checksum of no bytes.
    pub const fn new() -> Self {
        Self { sum: 0, is_odd: false }
    }

    /// Appends `bytes` to the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        Engine::active().update(bytes, self);
    }

    /// Appends bytes whose checksum is `other`, computed as if they began at an even offset.
    pub const fn append(&mut self, other: Self) {
        self.add(other.sum as u64, other.is_odd as usize);
    }

    /// Returns the sum of the big-endian words, without the final complement.
    pub const fn partial(self) -> u16 {
        u16::from_be(self.sum)
    }

    /// Returns the complement of the sum, which goes into a header in big-endian byte order.
    pub const fn finish(self) -> u16 {
        !self.partial()
    }

    /// Appends `len_bytes` bytes whose little-endian words add up to `sum` in one's complement, as
    /// if they began at an even offset.
    const fn add(&mut self, sum: u64, len_bytes: usize) {
        let folded = fold(sum);
        let folded = if self.is_odd { folded.swap_bytes() } else { folded };
        let (total, carry) = self.sum.overflowing_add(folded);
        self.sum = total + carry as u16;
        self.is_odd ^= !len_bytes.is_multiple_of(2);
    }
}

/// Adds the four words of `sum` in one's complement. Returns zero only if `sum` is zero.
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Returns the checksum of `bytes`, which goes into a header in big-endian byte order.
pub fn of(bytes: &[u8]) -> u16 {
    let mut checksum = Checksum::new();
    checksum.update(bytes);
    checksum.finish()
}

impl Absorb for Checksum {
    #[inline(always)]
    unsafe fn take<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        len_bytes: usize,
    ) -> Result<(), CopyFault> {
        let streams = len_bytes >= STREAM_MIN_BYTES;
        let mut done = 0;
        while done < len_bytes {
            // SAFETY: within the range.
            let from = unsafe { from.add(done) };
            // SAFETY: as above.
            let to = to.map(|to| unsafe { to.add(done) });
            let skew = to.map_or(0, |to| to.addr() % LINE_BYTES);
            let part = if streams && skew > 0 { LINE_BYTES - skew } else { CHUNK_BYTES };
            let part = part.min(len_bytes - done);
            let (sum, outcome) = match to {
                // SAFETY: the caller's promise.
                Some(to) if streams => unsafe { token.stream_sum_raw(from, to, part) },
                // SAFETY: the caller's promise.
                Some(to) => unsafe { token.copy_sum_raw(from, to, part) },
                // SAFETY: the caller's promise.
                None => unsafe { token.sum_raw(from, part) },
            };
            let summed = part - outcome.left_bytes;
            self.add(sum, summed);
            done += summed;
            if !outcome.is_complete() {
                // SAFETY: within the range.
                let from = unsafe { from.add(summed) };
                // SAFETY: as above.
                let to = to.map(|to| unsafe { to.add(summed) });
                // SAFETY: the caller's promise.
                return unsafe { self.go_on(token, from, to, (done, len_bytes)) };
            }
        }
        Ok(())
    }
}

impl Checksum {
    /// Continues after a fault, up to the exact byte that faults. `done` of `whole` bytes are done.
    ///
    /// # Safety
    /// As [`copy`](longshore_mem::copy::copy), for the rest of the range.
    #[cold]
    #[inline(never)]
    unsafe fn go_on<T: Kernels>(
        &mut self,
        token: T,
        from: *const u8,
        to: Option<*mut u8>,
        (done, whole): (usize, usize),
    ) -> Result<(), CopyFault> {
        let absorb = |bytes: &[u8]| self.add(sum_of_own(bytes), bytes.len());
        // SAFETY: the caller's promise.
        let rest = unsafe { copy_through_buffer(token, from, to, whole - done, absorb) };
        rest.map_err(|stop| CopyFault { done_bytes: done + stop.done_bytes, ..stop })
    }
}

/// Returns the sum that kernels return, of private bytes and without assembly.
fn sum_of_own(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain([&last]).fold(0, |sum: u64, word| {
        let (total, carry) = sum.overflowing_add(u64::from_le_bytes(*word));
        total + u64::from(carry)
    })
}

#[cfg(test)]
mod tests;
