//! Runs of entries: filled, cleared and searched, eight bytes at a time or several times that.
//!
//! Tables are read by walkers while they change, so each entry is stored and loaded whole: as an
//! atomic in the scalar version, as an aligned eight-byte lane of a vector register in the others.
//! The compiler gives no such promise for vectors, so those are inline assembly. Stores are not
//! ordered among each other; whoever needs an order uses a fence.
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

/// Shorter runs are not worth a choice.
#[cfg(not(any(miri, loom)))]
const RUN_MIN: usize = 8;

/// Lines of the next table that are asked for while one is searched: with 4 a search of 512 tables was
/// 6 % faster than with none, with 16 12 %, with 32 5 %, and with all 64 a fifth slower.
#[cfg(not(any(miri, loom)))]
const LINES_AHEAD: usize = 16;

/// Evaluates `$body` with `$isa` bound to the token inside of `$token`, or to none for short runs.
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

/// The first entry with `entry & mask == value`.
#[inline]
pub(crate) fn find_equal(
    token: IsaToken,
    entries: &[AtomicU64],
    mask: u64,
    value: u64,
) -> Option<usize> {
    choose!(token, entries, isa => Kernels::find::<true>(isa, entries, mask, value))
}

/// The first entry with `entry & mask != value`.
#[inline]
pub(crate) fn find_different(
    token: IsaToken,
    entries: &[AtomicU64],
    mask: u64,
    value: u64,
) -> Option<usize> {
    choose!(token, entries, isa => Kernels::find::<false>(isa, entries, mask, value))
}

/// Has the first lines of `entries` brought into the caches, as many as the hardware needs to see that
/// the others will follow.
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
