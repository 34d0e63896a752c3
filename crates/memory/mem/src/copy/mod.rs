//! Copies of memory that someone else may change, or that may vanish meanwhile.
//!
//! What [`VolatileSlice`](crate::VolatileSlice) says of single words holds for bulk too: no reference to
//! foreign memory, and each foreign byte is read once and written once. Here that is done by blocks
//! of inline assembly, which the compiler can neither split, repeat nor look into. Under Miri,
//! which runs no assembly, the same is done by relaxed atomic bytes.
//!
//! Every copy ends early at memory that faults while a `FaultGuard` lives ([`fault`](crate::fault)),
//! at the exact byte, and says how far it came.
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

/// A copy that met memory which is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFault {
    /// Bytes copied before it: the first byte that was not is the one that faulted, on either side.
    pub done_bytes: usize,
    /// What was met.
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

/// Copies `len_bytes` bytes, upwards, with the instructions of `token`.
///
/// # Errors
/// [`CopyFault`] at the first byte that could not be read or written, if a `FaultGuard` lives.
///
/// # Safety
/// Both ranges must be valid for access for the whole call, except that memory which does not
/// belong to Rust's own objects may fault (the process dies of it unless a `FaultGuard` lives).
/// Bytes that are Rust's own must not be changed (source) or looked at (target) by others
/// meanwhile. Ranges that overlap are no error in the language's sense, but what is written is not
/// specified.
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

/// The rest of a copy that met a fault, up to the exact byte.
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

/// Sets `len_bytes` bytes to `byte`, upwards, with the instructions of `token`.
///
/// # Errors
/// As [`copy`].
///
/// # Safety
/// As [`copy`] asks of a target.
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

/// The rest of a fill that met a fault, up to the exact byte.
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

/// [`copy`] with the best instructions of this machine.
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

/// Bytes done one by one after a fault, before large units are tried again: a pass by large units
/// stops at most a few hundred before the byte that faults.
const EXACT_BYTES: usize = 4096;

/// A pass by large units that met a fault, perhaps before the last byte it could have done.
struct Interrupted {
    done_bytes: usize,
    len_bytes: usize,
    fault: Fault,
}

impl Interrupted {
    /// Goes on to the exact byte: `exact` does bytes one by one and `fast` by large units, each
    /// told how many are done and how many to do. `starts` are the addresses at which the ranges
    /// begin.
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
            // Somebody mapped it meanwhile.
            let left_bytes = self.len_bytes - self.done_bytes;
            let outcome = fast(self.done_bytes, left_bytes);
            self.done_bytes += left_bytes - outcome.left_bytes;
            match outcome.fault() {
                None => return Ok(()),
                Some(fault) => self.fault = fault,
            }
        }
    }

    /// How many bytes lie before the fault, where that may be believed.
    ///
    /// A poisoned page's start is always right, and the page must not be touched again: that would
    /// raise another machine check. On x86-64 the address told is the first that the access
    /// has in the page at fault, and all blocks go upwards, so it is the first byte that is missing:
    /// `tests/fault.rs` holds that at every threshold. Elsewhere, and where no address was told, it is found by
    /// going there byte by byte.
    fn bytes_to_fault<const N: usize>(&self, starts: [usize; N]) -> Option<usize> {
        let is_poisoned = self.fault.cause == FaultCause::Poisoned;
        if !is_poisoned && !cfg!(target_arch = "x86_64") {
            return None;
        }
        let address = self.fault.address.raw() as usize;
        let left_bytes = self.len_bytes - self.done_bytes;
        let ahead = starts.into_iter().map(|start| address.wrapping_sub(start + self.done_bytes));
        let nearest = ahead.filter(|bytes| *bytes < left_bytes).min();
        // A range that begins inside a poisoned page is at it already.
        nearest.or(is_poisoned.then_some(0))
    }
}

#[cfg(test)]
mod tests;
