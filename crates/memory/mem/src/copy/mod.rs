//! Copies of memory that others may change, or that may vanish during the copy.
//!
//! The rules of [`VolatileSlice`](crate::VolatileSlice) also hold for bulk copies: there is no
//! reference to foreign memory, and each foreign byte is read once and written once. The copies are
//! blocks of inline assembly, which the compiler can neither split, repeat nor analyze. Under Miri,
//! which cannot run assembly, they are relaxed atomic accesses.
//!
//! If memory faults while a `FaultGuard` lives ([`fault`](crate::fault)), the copy ends early, at
//! the exact byte, and returns the number of bytes done.
#![expect(unsafe_code, reason = "reads and writes foreign memory in assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(miri, path = "bytewise.rs")]
mod kernels;
mod traits;

use core::fmt;

use crate::dispatch_isa;
use crate::fault::{Fault, FaultCause, RawOutcome};
use crate::isa::IsaToken;

pub use traits::{CopyKernels, STREAM_MIN_BYTES};

/// A copy that stopped at a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFault {
    /// The number of bytes copied before the fault. The next byte faulted, on either side.
    pub done_bytes: usize,
    /// The fault.
    pub fault: Fault,
}

impl fmt::Display for CopyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped after {} bytes: {}", self.done_bytes, self.fault)
    }
}

impl core::error::Error for CopyFault {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// Copies `len_bytes` bytes in ascending order, with the instructions of `token`.
///
/// # Errors
/// [`CopyFault`] at the first byte that could not be read or written, if a `FaultGuard` lives.
///
/// # Safety
/// Both ranges must be valid for access during the whole call. Memory that is not part of a Rust
/// object may fault; that kills the process unless a `FaultGuard` lives. While the call runs, other
/// code must not write to the bytes of Rust objects (source) or access them (target). Overlapping
/// ranges are not undefined behavior, but the bytes written are unspecified.
#[inline(always)]
pub unsafe fn copy<T: CopyKernels>(
    token: T,
    from: *const u8,
    to: *mut u8,
    len_bytes: usize,
) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    let outcome = unsafe { token.copy_raw(from, to, len_bytes) };
    if outcome.is_complete() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { go_on_copying(token, from, to, len_bytes, outcome) }
}

/// Continues a copy after a fault, up to the exact byte.
///
/// # Safety
/// As [`copy`].
#[cold]
#[inline(never)]
unsafe fn go_on_copying<T: CopyKernels>(
    token: T,
    from: *const u8,
    to: *mut u8,
    len_bytes: usize,
    outcome: RawOutcome,
) -> Result<(), CopyFault> {
    let Some(fault) = outcome.fault() else { return Ok(()) };
    let done_bytes = len_bytes - outcome.left_bytes;
    let at = |done_bytes: usize| {
        // SAFETY: within the caller's range.
        let from = unsafe { from.add(done_bytes) };
        // SAFETY: as above.
        (from, unsafe { to.add(done_bytes) })
    };
    Interrupted { done_bytes, len_bytes, fault }.go_on(
        [from.addr(), to.addr()],
        |done_bytes, part_bytes| {
            let (from, to) = at(done_bytes);
            // SAFETY: the caller's promise.
            unsafe { kernels::bytes(from, to, part_bytes) }
        },
        |done_bytes, part_bytes| {
            let (from, to) = at(done_bytes);
            // SAFETY: the caller's promise.
            unsafe { token.copy_raw(from, to, part_bytes) }
        },
    )
}

/// Sets `len_bytes` bytes to `byte` in ascending order, with the instructions of `token`.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`], for its target.
#[inline(always)]
pub unsafe fn fill<T: CopyKernels>(
    token: T,
    to: *mut u8,
    byte: u8,
    len_bytes: usize,
) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    let outcome = unsafe { token.fill_raw(to, byte, len_bytes) };
    if outcome.is_complete() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { go_on_filling(token, to, byte, len_bytes, outcome) }
}

/// Continues a fill after a fault, up to the exact byte.
///
/// # Safety
/// As [`fill`].
#[cold]
#[inline(never)]
unsafe fn go_on_filling<T: CopyKernels>(
    token: T,
    to: *mut u8,
    byte: u8,
    len_bytes: usize,
    outcome: RawOutcome,
) -> Result<(), CopyFault> {
    let Some(fault) = outcome.fault() else { return Ok(()) };
    let done_bytes = len_bytes - outcome.left_bytes;
    // SAFETY: within the caller's range.
    let at = |done_bytes: usize| unsafe { to.add(done_bytes) };
    Interrupted { done_bytes, len_bytes, fault }.go_on(
        [to.addr()],
        // SAFETY: the caller's promise.
        |done, part_bytes| unsafe { kernels::fill_bytes(at(done), byte, part_bytes) },
        // SAFETY: the caller's promise.
        |done, part_bytes| unsafe { token.fill_raw(at(done), byte, part_bytes) },
    )
}

/// Copies as [`copy`] does, with the best instructions of this machine.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`].
#[inline]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len_bytes: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    dispatch_isa!(IsaToken::active(), isa => unsafe { copy(isa, from, to, len_bytes) })
}

/// The number of bytes that are done one by one after a fault, before large units are tried again.
/// A pass by large units stops at most a few hundred bytes before the byte that faults.
const EXACT_BYTES: usize = 4096;

/// A pass by large units that faulted, perhaps with more bytes before the fault that it could have
/// done.
struct Interrupted {
    done_bytes: usize,
    len_bytes: usize,
    fault: Fault,
}

impl Interrupted {
    /// Continues to the exact byte: `exact` does bytes one by one and `fast` by large units. Both
    /// get the number of bytes done and the number to do. `starts` are the first addresses of the
    /// ranges.
    fn go_on<const N: usize>(
        mut self,
        starts: [usize; N],
        exact: impl Fn(usize, usize) -> RawOutcome,
        fast: impl Fn(usize, usize) -> RawOutcome,
    ) -> Result<(), CopyFault> {
        loop {
            let left_bytes = self.len_bytes - self.done_bytes;
            let known_bytes = self.bytes_to_fault(starts);
            let part = left_bytes.min(known_bytes.unwrap_or(EXACT_BYTES));
            let outcome = exact(self.done_bytes, part);
            self.done_bytes += part - outcome.left_bytes;
            if let Some(fault) = outcome.fault() {
                return Err(CopyFault { done_bytes: self.done_bytes, fault });
            }
            if part == left_bytes {
                return Ok(());
            }
            if known_bytes.is_some() {
                return Err(CopyFault { done_bytes: self.done_bytes, fault: self.fault });
            }
            // The page was mapped in the meantime.
            let left_bytes = self.len_bytes - self.done_bytes;
            let outcome = fast(self.done_bytes, left_bytes);
            self.done_bytes += left_bytes - outcome.left_bytes;
            match outcome.fault() {
                None => return Ok(()),
                Some(fault) => self.fault = fault,
            }
        }
    }

    /// Returns the number of bytes before the fault, if the reported address is reliable.
    ///
    /// The start of a poisoned page is always right, and the page must not be touched again,
    /// because that would raise another machine check. On x86-64, the reported address is the first
    /// byte of the access that lies in the faulting page. All blocks go upwards, so this is the
    /// first missing byte, which `tests/fault.rs` checks at every threshold. On other machines, or
    /// without an address, the byte is found by trying one byte after another.
    fn bytes_to_fault<const N: usize>(&self, starts: [usize; N]) -> Option<usize> {
        let is_poisoned = self.fault.cause == FaultCause::Poisoned;
        if !is_poisoned && !cfg!(target_arch = "x86_64") {
            return None;
        }
        let address = self.fault.address.raw() as usize;
        let left_bytes = self.len_bytes - self.done_bytes;
        let ahead = starts.into_iter().map(|start| address.wrapping_sub(start + self.done_bytes));
        let nearest = ahead.filter(|bytes| *bytes < left_bytes).min();
        // A range that begins inside a poisoned page has no bytes before the fault.
        nearest.or(is_poisoned.then_some(0))
    }
}

#[cfg(test)]
mod tests;
