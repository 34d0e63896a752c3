//! Filling, clearing and searching runs of entries, one or several entries at a time.
//!
//! Walkers read tables while they change, so each entry is stored and loaded as a whole: as an
//! atomic in the scalar version, as an aligned eight-byte lane of a vector register in the others.
//! The compiler does not guarantee this for vectors, so those versions are inline assembly. Stores
//! are not ordered among each other; callers that need an order use a fence.
#![cfg_attr(
    not(any(miri, loom)),
    expect(unsafe_code, reason = "vector loads and stores of live entries in assembly")
)]

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
mod aarch64;
mod kernels;
mod scalar;
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod x86_64;

#[cfg(all(test, not(loom)))]
mod tests;

use longshore_mem::isa::IsaToken;

use crate::sync::AtomicU64;
use kernels::Kernels;
#[cfg(not(any(miri, loom)))]
use kernels::LINE_ENTRIES;

/// The number of entries from which on choosing an instruction set pays.
#[cfg(not(any(miri, loom)))]
const RUN_MIN: usize = 8;

/// The number of lines of the next table to prefetch while one table is searched. Measured on
/// searches of 512 tables: 4 lines are 6 % faster than none, 16 lines 12 % and 32 lines 5 %; all 64
/// lines are a fifth slower.
#[cfg(not(any(miri, loom)))]
const LINES_AHEAD: usize = 16;

/// Evaluates `$body` with `$isa` bound to the instruction set in `$token`, or to the scalar version
/// for short runs.
macro_rules! choose {
    ($token:expr, $entries:expr, $isa:ident => $body:expr) => {{
        #[cfg(not(any(miri, loom)))]
        if $entries.len() >= RUN_MIN {
            return longshore_mem::dispatch_isa!($token, $isa => $body);
        }
        #[cfg(any(miri, loom))]
        let _ = $token;
        let $isa = scalar::Plain;
        $body
    }};
}

/// Stores `first`, `first + step`, `first + 2 * step`, … (wrapping).
#[inline]
pub(crate) fn fill(token: IsaToken, entries: &[AtomicU64], first: u64, step: u64) {
    choose!(token, entries, isa => Kernels::fill(isa, entries, first, step));
}

/// Stores zeros.
#[inline]
pub(crate) fn clear(token: IsaToken, entries: &[AtomicU64]) {
    fill(token, entries, 0, 0);
}

/// Returns the index of the first entry with `entry & mask == value`.
#[inline]
pub(crate) fn find_equal(
    token: IsaToken,
    entries: &[AtomicU64],
    mask: u64,
    value: u64,
) -> Option<usize> {
    choose!(token, entries, isa => Kernels::find::<true>(isa, entries, mask, value))
}

/// Returns the index of the first entry with `entry & mask != value`.
#[inline]
pub(crate) fn find_different(
    token: IsaToken,
    entries: &[AtomicU64],
    mask: u64,
    value: u64,
) -> Option<usize> {
    choose!(token, entries, isa => Kernels::find::<false>(isa, entries, mask, value))
}

/// Prefetches the first lines of `entries`, enough for the hardware prefetcher to continue.
#[inline]
pub(crate) fn prefetch(entries: &[AtomicU64]) {
    #[cfg(not(any(miri, loom)))]
    for line in entries.chunks(LINE_ENTRIES).take(LINES_AHEAD) {
        #[cfg(target_arch = "x86_64")]
        x86_64::prefetch(line);
        #[cfg(target_arch = "aarch64")]
        aarch64::prefetch(line);
    }
    #[cfg(any(miri, loom))]
    let _ = entries;
}
